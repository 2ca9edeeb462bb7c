"""Links from one page to the other."""

import json

from capplan.views.pages import VARIABLE, pages_html


def test_a_page_that_is_served_alone_links_nowhere(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    assert pages_html("planner") == ""
    monkeypatch.setenv(VARIABLE, json.dumps({"planner": "http://127.0.0.1:1/"}))
    assert pages_html("planner") == ""


def test_pages_that_are_served_together_link_to_each_other(monkeypatch):
    monkeypatch.setenv(VARIABLE, json.dumps({"planner": "http://127.0.0.1:1/", "neuron": "http://127.0.0.1:2/"}))
    assert '<a href="http://127.0.0.1:2/">vLLM on AWS Neuron</a>' in pages_html("planner")
    assert '<a href="http://127.0.0.1:1/">vLLM on GPUs</a>' in pages_html("neuron")
