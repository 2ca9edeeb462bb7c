"""vLLM on Neuron: what a worker may give its cache, what a logical core holds, and what a failure means."""

from capplan.engines.base import Rules
from capplan.engines.vllm_neuron.budget import (
    POLICIES,
    ROUTES,
    Budget,
    Reading,
    budget_of,
    case,
    other_reading,
    worker_budget,
)
from capplan.engines.vllm_neuron.diagnosis import Diagnosis, annotate, explain
from capplan.engines.vllm_neuron.hardware import Instance, NeuronChip, load_instance, load_neuron_chip, target_aliases
from capplan.engines.vllm_neuron.inverse import (
    Answer,
    cap_for_bytes,
    cap_for_tokens,
    exact_gib,
    floor_gib,
    headroom_of_default,
    largest_headroom,
    plain,
    refusal,
    smallest_cap,
    smallest_utilization,
)
from capplan.engines.vllm_neuron.layout import (
    ELEMENT_BITS,
    Block,
    Geometry,
    Page,
    Pool,
    block,
    page,
    pool,
    request_blocks,
)
from capplan.engines.vllm_neuron.lines import ROWS, lines
from capplan.engines.vllm_neuron.resolve import NeuronResolved, Place, ignored, place, resolve, side_effects
from capplan.engines.vllm_neuron.weights import held, loaded

RULES = Rules(
    plans="neuron",
    needs_model=False,
    ignores_unread=True,
    sizes_device="the runtime reports",
    rows=ROWS,
    place=place,
    resolve=resolve,
    frame=block,
    lines=lines,
    budget=budget_of,
    held=held,
)
"""What a plan asks of it."""

__all__ = [
    "ELEMENT_BITS",
    "POLICIES",
    "ROUTES",
    "ROWS",
    "RULES",
    "Answer",
    "Block",
    "Budget",
    "Diagnosis",
    "Geometry",
    "Instance",
    "NeuronChip",
    "NeuronResolved",
    "Page",
    "Place",
    "Pool",
    "Reading",
    "annotate",
    "block",
    "budget_of",
    "cap_for_bytes",
    "cap_for_tokens",
    "case",
    "exact_gib",
    "explain",
    "floor_gib",
    "headroom_of_default",
    "held",
    "ignored",
    "largest_headroom",
    "lines",
    "load_instance",
    "load_neuron_chip",
    "loaded",
    "other_reading",
    "page",
    "place",
    "plain",
    "pool",
    "refusal",
    "request_blocks",
    "resolve",
    "side_effects",
    "smallest_cap",
    "smallest_utilization",
    "target_aliases",
    "worker_budget",
]
