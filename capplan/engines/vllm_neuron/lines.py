"""The ledger of one logical core: what a policy divides, what is charged, what is left, what people report."""

from __future__ import annotations

from capplan.engines.base import Line, Row, exact
from capplan.engines.release import Engine
from capplan.engines.vllm_neuron.budget import Budget

ROWS = {
    "hbm_stack": Row(words="stack of memory", term="remainder"),
    "share": Row(words="share of one rank", term="outside_utilization"),
    "total_budget": Row(words="total budget", term="left_by_cap"),
    "weights": Row(words="weights", term="weights"),
    "user_budget": Row(words="left by the weights", term="cache"),
    "heuristic_cap": Row(words="allowed by the cap", term="cache"),
    "headroom": Row(words="reserve", term="headroom"),
    "kv_budget": Row(words="cache", term="cache"),
    "minimum": Row(words="minimum", term="cache"),
    "maximum_headroom": Row(words="largest reserve", term="headroom"),
}
"""Ledger lines of a logical core in the order in which they follow from each other."""

NOTES = {
    "hbm_stack": ("the memory of one physical stack", "as the runtime or the static table has it"),
    "share": ("the stack by its logical cores", "what one rank may plan with"),
    "total_budget": ("the share times gpu_memory_utilization", "what the default policy divides"),
    "user_budget": ("the total budget less the weights", "what the weights leave"),
    "heuristic_cap": ("the total budget times the cap", "the most that the cache may have"),
    "headroom": ("as stated", "kept back on every logical core"),
    "minimum": ("as stated", "below this a budget is refused"),
    "maximum_headroom": ("the share less weights and minimum", "the largest reserve that starts"),
}
"""Law and note of each line of role limit."""


def lines(weights: Line | None, b: Budget | None, engine: Engine, degree: int) -> tuple[Line, ...]:
    """The lines that are known: the weights, a budget's, and what people reported beside it.

    Source: vllm_neuron, vllm/worker/neuron_worker.py, determine_available_memory.
    """
    held = () if weights is None else (weights,)
    if b is None:
        return (*held, *_reported(engine, degree))
    sizes = {
        "hbm_stack": b.hbm_stack_bytes,
        "share": b.share_bytes,
        "total_budget": b.total_budget_bytes,
        "user_budget": b.user_budget_bytes,
        "heuristic_cap": b.heuristic_cap_bytes,
        "headroom": b.headroom_bytes,
        "minimum": b.minimum_bytes,
        "maximum_headroom": b.maximum_headroom_bytes,
    }
    found = {name: exact(name, n, *NOTES[name], role="limit") for name, n in sizes.items() if n is not None}
    if weights is not None:
        found["weights"] = weights
    found["kv_budget"] = exact(
        "kv_budget", b.kv_budget_bytes, f"policy {b.policy}", "what the cache gets", role="result"
    )
    return (*(found[name] for name in ROWS if name in found), *_reported(engine, degree))


def _reported(engine: Engine, degree: int) -> tuple[Line, ...]:
    """What neither policy sees and a reserve has to hold, as people reported it; nothing of it is counted."""
    found = []
    for key, datum in engine.estimates.items():
        times = degree if key.endswith("_per_physical_core") else 1
        found.append(
            Line(
                name=key.removesuffix("_per_physical_core").removesuffix("_bytes"),
                bytes=datum.value * times,
                low=datum.low * times,
                high=datum.high * times,
                kind=datum.kind,
                law="a figure that people reported",
                note=datum.where or "",
                data=(datum,),
                role="beside",
            )
        )
    return tuple(found)
