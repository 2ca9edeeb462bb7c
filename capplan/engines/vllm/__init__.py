"""vLLM on GPUs: what it refuses, supplies and changes, what a rank holds, and how caches share a pool."""

from capplan.engines.base import Rules
from capplan.engines.frame import ROWS, budget
from capplan.engines.vllm.hold import frame
from capplan.engines.vllm.lines import held, lines
from capplan.engines.vllm.resolve import resolve
from capplan.registry import load_chip

RULES = Rules(
    plans="gpu",
    needs_model=True,
    ignores_unread=False,
    sizes_device="the driver reports",
    rows=ROWS,
    place=lambda d: load_chip(d.chip),
    resolve=resolve,
    frame=frame,
    lines=lines,
    budget=budget,
    held=held,
)
"""What a plan asks of it."""
