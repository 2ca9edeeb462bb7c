"""Links between the pages of one workbook."""

from __future__ import annotations

import json
import os
from html import escape

PAGES = {"planner": "vLLM on GPUs", "neuron": "vLLM on AWS Neuron"}
"""The pages by their notebooks, as links name them."""

VARIABLE = "CAPPLAN_PAGES"
"""The environment variable in which whoever serves several pages says where each is, as JSON."""


def pages_html(current: str) -> str:
    """A line of links to the pages that are served beside this one; empty where it is served alone."""
    found = json.loads(os.environ.get(VARIABLE) or "{}")
    links = "".join(
        f'<a href="{escape(address)}">{PAGES[name]}</a>'
        for name, address in found.items()
        if name in PAGES and name != current
    )
    return f'<nav class="cp cpp-links" aria-label="Other pages">Other page: {links}</nav>' if links else ""
