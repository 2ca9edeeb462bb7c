"""The BLIS latency kernel: the memory laws by themselves, at ideal shares."""

from capplan.engines.base import Rules
from capplan.engines.blis.case import as_the_catalog_has_it
from capplan.engines.blis.hold import frame
from capplan.engines.blis.lines import lines
from capplan.engines.blis.resolve import resolve
from capplan.engines.frame import ROWS, budget
from capplan.registry import load_chip

RULES = Rules(
    plans="gpu",
    needs_model=True,
    ignores_unread=False,
    sizes_device="the catalog states",
    rows=ROWS,
    place=lambda d: as_the_catalog_has_it(load_chip(d.chip)),
    resolve=resolve,
    frame=frame,
    lines=lines,
    budget=budget,
    held=lambda s, rank: rank.held,
    prints=("weights", "activations", "cuda_graphs", "communication", "eplb"),
)
"""What a plan asks of it."""
