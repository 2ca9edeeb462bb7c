"""Blocks of the pool as the page draws them, and what is known where a plan is refused for its weights."""

import re

import pytest

from capplan.hub import load_model
from capplan.plan import plan
from capplan.settings.deployment import Deployment
from capplan.views import html
from capplan.views.controls import controls
from capplan.views.elements import sized
from capplan.views.explain import weights_text
from capplan.views.state import PlannerState
from capplan.views.widgets import groups, ledger, memory_bar
from tests.views.test_html import Read

CASES = {
    "one group": ("Qwen/Qwen3-32B", {"tensor_parallel_size": 4}),
    "windows": ("google/gemma-3-4b-it", {}),
    "states": ("Qwen/Qwen3-Next-80B-A3B-Instruct", {"tensor_parallel_size": 4}),
    "packed": ("deepseek-ai/DeepSeek-V4-Flash", {"tensor_parallel_size": 4, "chip": "h200"}),
    "chunks": ("meta-llama/Llama-4-Scout-17B-16E-Instruct", {"tensor_parallel_size": 8}),
    "no weights": ("deepseek-v4.1-flash", {"tensor_parallel_size": 4, "chip": "h200"}),
    "kernel": ("Qwen/Qwen3-32B", {"tensor_parallel_size": 4, "engine": "blis-kernel", "chip": "h200"}),
    "stages": ("google/gemma-3-4b-it", {"pipeline_parallel_size": 2}),
}


def answer(name):
    model, settings = CASES[name]
    return plan(load_model(model), Deployment(**settings))


def shares(shown):
    """The bars of a page: each part's class and share of a block."""
    bars = re.findall(r'<div class="cp-block"[^>]*>(.*?)</div>', html.groups_html(shown))
    return [
        [(css, float(share)) for css, share in re.findall(r'class="([^"]*)" style="flex:([\d.]+)', b)] for b in bars
    ]


@pytest.mark.parametrize("name", CASES)
def test_every_page_closes_its_tags_and_every_bar_is_full(name):
    shown = answer(name)
    page = Read(html.page_html(shown, title=name))
    assert (page.open, page.faults) == ([], [])
    bars = shares(shown)
    assert bool(bars) == (len(shown.pool_blocks()) > 1)
    assert all(sum(share for _, share in bar) == pytest.approx(100, abs=0.1) for bar in bars)


@pytest.mark.parametrize("name", CASES)
def test_parts_of_a_block_and_what_is_lost_sum_to_it(name):
    for b in answer(name).pool_blocks():
        assert sum(part.bytes for part in b.parts()) + b.wasted_bytes == b.block_bytes
        assert sum(part.padding_bytes for part in b.parts()) == b.padding_bytes
        assert b.wasted_bytes >= 0


def test_a_single_group_needs_no_picture():
    text = Read(html.groups_html(answer("one group"))).text
    assert "One group: each of its 64 layers has a page of 16 KiB in every block." in text


def test_groups_alike_share_a_bar_and_what_is_unused_is_hatched_and_said():
    shown = answer("windows")
    text = Read(html.groups_html(shown)).text
    bars = shares(shown)
    assert len(bars) == 3 and [bar[-1][0] for bar in bars] == ["cp-page0", "cp-lost", "cp-page0"]
    assert "5 groups alike, 0–4 · 65 blocks of each a request in steady decode, 1,089 at admission" in text
    assert "64 KiB unused" in text and "layers 0, 7, …, 28; 1, 8, 15, 22, 30" in text


def test_a_padded_state_says_how_much_of_its_pages_is_padding():
    shown = answer("states")
    block = shown.pool_blocks()[0]
    (bar, _) = shares(shown)
    assert [css for css, _ in bar] == ["cp-page0", "cp-lost"]
    assert bar[1][1] == pytest.approx(100 * block.padding_bytes / block.block_bytes, abs=0.001)
    text = Read(html.groups_html(shown)).text
    assert f"{sized(block.padding_bytes)} padding inside the pages" in text
    assert "3 pages of each layer’s state at any length" in text


def test_packed_pages_have_their_names_and_can_be_heard():
    page = Read(html.groups_html(answer("packed")))
    heard = [attrs["aria-label"] for attrs in page.having("cp-block")]
    assert all(label.startswith("One block of group") for label in heard)
    assert any("compressed 128 20 pages of 1.69 KiB" in label for label in heard)


def test_chunks_have_a_reason_of_their_own():
    text = Read(html.groups_html(answer("chunks"))).text
    assert "a chunk holds at most 8,192 tokens" in text and "window" not in text


def test_what_is_known_of_a_model_without_weights_is_shown():
    shown = answer("no weights")
    assert shown.verdict == "refused"
    assert f"blocks of {sized(shown.kv_block_bytes)}" in Read(html.groups_html(shown)).text
    rows = Read(html.ledger_html(shown)).text
    assert all(f"{line.bytes:,}" in rows for line in shown.lines if line.bytes)
    assert "The weights are unknown" in Read(html.bar_html(shown)).text


def test_the_page_shows_it_too_and_the_sentence():
    state = PlannerState("model=deepseek-v4.1-flash&chip=h200&tensor_parallel_size=4")
    assert state.plan.verdict == "refused" and not state.note and "weights" in state.plan.sentence
    assert "ring" in groups(state).value
    assert "what is known" in ledger(state).value and "unknown" in memory_bar(state).value


def test_the_kernels_fixed_lines_are_on_the_page():
    state = PlannerState("model=Qwen/Qwen3-32B&chip=h200&tensor_parallel_size=4&engine=blis-kernel")
    assert state.plan.engine.name == "blis-kernel" and state.plan.tightest is not None
    assert all(f"{line.bytes:,}" in ledger(state).value for line in state.plan.lines if line.bytes)


def test_the_engine_is_chosen_on_the_page():
    state = PlannerState("model=Qwen/Qwen3-32B&chip=h200&tensor_parallel_size=4")
    form = controls(state, "engine")
    offered = [name for name, _ in form.lists["engine"]]
    assert "blis-kernel" in offered and "vllm-neuron" not in offered
    assert form.fields["engine"]["now"] == "vllm-0.33.0"
    state.say(engine="blis-kernel")
    assert form.fields["engine"]["now"] == state.plan.engine.name == "blis-kernel"


def test_what_is_held_before_the_budget_is_drawn_beyond_it():
    shown = answer("one group")
    held = Read(html.bar_html(shown)).having("cp-held")
    assert any(f"{shown.pre_snapshot_bytes:,} bytes" in attrs.get("title", "") for attrs in held)


@pytest.mark.parametrize("name", ["one group", "packed", "stages"])
def test_the_ledger_unfolds_to_the_tensors_that_explain_prints(name):
    shown = answer(name)
    text, page = weights_text(shown), Read(html.ledger_html(shown)).text
    for rank in shown.ranks:
        for line, size, held in rank.by_line():
            assert f"{line} {size:,}" in page and f"{size:,}" in text
            assert all(f"{h.name} {h.count:,} " in page and h.split in page for h in held)


def test_registry_numbers_are_listed_by_how_they_were_obtained():
    shown = answer("one group")
    text = Read(html.findings_html(shown)).text
    assert f"{shown.evidence['numbers']} numbers from the registry" in text
    assert all(datum.key in text for datum in shown.sources)
