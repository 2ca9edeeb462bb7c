"""What an error text of a Neuron run means: which kind of failure, which setting, which way."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from math import ceil

from capplan.engines.vllm_neuron import inverse
from capplan.engines.vllm_neuron.budget import Budget
from capplan.engines.vllm_neuron.inverse import exact_gib, floor_gib, plain, show
from capplan.settings.environment import CAP, HEADROOM, MINIMUM
from capplan.units import GIB, ratio, show_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnosis:
    """What failed and what to change.

    message        the text as it was, unchanged
    failure_class  compile_hbm, load_hbm, below_minimum, no_fit, host_memory, not_memory or unknown
    policy         the policy under which it failed
    primary_knob   the setting to change first, None where no setting of memory helps
    direction      increase or decrease
    step_gib       whole GiB of one step, for a reserve that grows
    notes          what to know about it
    procedure      what to do, in order
    """

    message: str
    failure_class: str
    policy: str
    primary_knob: str | None
    direction: str | None
    step_gib: float | None
    notes: tuple[str, ...]
    procedure: tuple[str, ...]


PATTERNS = (
    ("compile_hbm", r"NCC_EOOM00[12]|NCC_EVRF009|(?:maximum|estimated) peak HBM usage"),
    ("load_hbm", r"NRT_RESOURCE|(?:nrt_tensor_allocate|nrt_load\w*)\b.*?status\s*[=:]\s*4\b"),
    ("load_hbm", r"Allocation Failure|TDRV.*?Failed to allocate|Failed to allocate.*?TDRV"),
    ("below_minimum", r"below (?:the )?minimum"),
    (
        "below_minimum",
        r"(?:headroom|reserve)\b.*?(?:exceeds|>=|at least|takes|leaves|whole|larger than).*?(?:share|HBM|memory|\b0\b)",
    ),
    ("no_fit", r"To serve at least one request|max seq len.*?larger than|No available memory for the cache blocks"),
    ("no_fit", r"max_model_len.*?(?:KV cache|available)"),
    ("host_memory", r"\bKilled\b|forcibly killed|exit(?:ed with)? (?:code|status) (?:-9|137)|\bSIGKILL\b|oom-kill"),
    ("host_memory", r"Out of memory: Kill|cannot allocate memory|\bMemoryError\b"),
    ("not_memory", r"status\s*[=:]\s*2\b"),
)
"""Which words tell which failure, the first that is found deciding; compile and load come before the rest."""

PRE_CHECK = (
    "before the reserve grows, run once with a smaller cache or by the default policy and all else equal: "
    "if that fails too, the size of the cache is not the cause"
)


def failure_class(message: str) -> str:
    """The kind of failure that a text tells of; unknown where it tells of none."""
    for name, pattern in PATTERNS:
        if re.search(pattern, message, re.IGNORECASE | re.DOTALL):
            return name
    return "unknown"


def overshoot(message: str) -> Decimal | None:
    """GiB by which a program exceeds the memory, as the compiler prints them; it writes GB and means GiB.

    >>> overshoot("Maximum peak HBM usage of 28.44GB exceeds HBM limit of 24.00GB")
    Decimal('4.44')
    """
    found = re.search(r"peak HBM usage\D*?(\d+(?:\.\d+)?)\D*?exceeds\D*?(\d+(?:\.\d+)?)\s*GB", message, re.I | re.S)
    return Decimal(found.group(1)) - Decimal(found.group(2)) if found else None


def explain(message: str, policy: str, budget: Budget | None = None) -> Diagnosis:
    """What an error text means under a policy; with the budget at hand, in its numbers.

    message  the text, or a log that holds it
    policy   default or headroom
    budget   of the deployment that failed, where it is known
    """
    kind = failure_class(message)
    reserve = policy == "headroom"
    knob: str | None = None
    direction: str | None = None
    if kind in ("compile_hbm", "load_hbm"):
        knob, direction = (HEADROOM.name, "increase") if reserve else (CAP.name, "decrease")
    elif kind in ("below_minimum", "no_fit"):
        knob, direction = (HEADROOM.name, "decrease") if reserve else ("gpu_memory_utilization", "increase")
        if not reserve and budget is not None and budget.binding == "cap":
            knob = CAP.name
    grows = kind in ("compile_hbm", "load_hbm") and reserve
    return Diagnosis(
        message=message,
        failure_class=kind,
        policy=policy,
        primary_knob=knob,
        direction=direction,
        step_gib=1.0 if grows else None,
        notes=tuple(_notes(message, kind, reserve)),
        procedure=tuple(_reserve_steps(message, budget) if grows else _steps(kind, reserve, budget)),
    )


def _notes(message: str, kind: str, reserve: bool) -> list[str]:
    found = []
    over = overshoot(message)
    if kind == "compile_hbm" and reserve:
        found.append(PRE_CHECK)
    if kind == "compile_hbm" and not reserve:
        found.append("a lower cap makes the cache smaller only once it is below what the weights leave")
    if over is not None and over > 0:
        steps = f", so expect about {ceil(over)} steps of 1 GiB" if reserve else ""
        found.append(
            f"the program exceeds the memory by {over} GiB (the compiler's GB are binary){steps}; "
            "a smaller cache changes the program too, so run again after each change"
        )
    if kind == "load_hbm":
        found.append("at LNC 1 on trn2 and trn3, check that the stack was divided by its two logical cores")
    if kind == "below_minimum" and reserve:
        found.append("a larger reserve makes this worse: the only way is down")
    if kind == "below_minimum" and not reserve:
        found.append(f"where the cap binds, {CAP.name} is the one to raise; where both do, both")
    if kind == "not_memory":
        found.append("status 2 says that an argument was wrong, not that memory ran out")
    if kind == "host_memory":
        found.append("the host ran out, not a NeuronCore: the settings of the cache do not matter here")
    if kind == "unknown":
        found.append("this text names no failure that capplan knows")
    return found


def _reserve_steps(message: str, budget: Budget | None) -> list[str]:
    """The procedure of whole GiB, in the numbers of the deployment where they are known."""
    limit = None if budget is None else int(budget.maximum_headroom_bytes or 0)
    now = None if budget is None or budget.headroom_bytes is None else int(budget.headroom_bytes)
    steps = [PRE_CHECK]
    if now is None or limit is None:
        steps.append(f"where it passes, raise {HEADROOM.name} by 1 and run load, compilation and warm-up again")
    elif now + GIB <= limit:
        steps.append(
            f"where it passes, raise {HEADROOM.name} from {exact_gib(now)} to {exact_gib(now + GIB)} and run "
            "load, compilation and warm-up again"
        )
    else:
        steps.append(
            f"{HEADROOM.name} is {exact_gib(now)} and may be at most {floor_gib(limit)} ({limit:,} bytes), "
            "so another GiB would be refused: choose more ranks, smaller weights, fewer and smaller buckets, "
            "or a shorter context"
        )
    over = overshoot(message)
    if over is not None and now is not None and limit is not None:
        likely = now + ceil(over) * GIB
        fits = "within" if likely <= limit else "beyond"
        steps.append(f"the compiler's figures point to about {show_bytes(likely)}, {fits} the largest reserve")
    steps.append(
        "repeat until it passes"
        + ("" if limit is None else f", and stop where the next value would exceed {floor_gib(limit)} GiB")
        + "; everything else stays as it is: model, split, backend, LNC degree, instance"
    )
    steps.append("once it passes, try 1 GiB less, and keep the smallest reserve that passes")
    steps.append("a refusal below the minimum on the way means down, never up")
    steps.append("another backend, LNC degree, tensor parallel size, model, precision or instance needs its own value")
    return steps


def _steps(kind: str, reserve: bool, budget: Budget | None) -> list[str]:
    """What to do about every other failure."""
    if kind in ("compile_hbm", "load_hbm"):
        cap = f"lower {CAP.name}"
        if budget is not None and budget.user_budget_bytes is not None and budget.total_budget_bytes:
            digits = int(budget.user_budget_bytes) * 10_000 // int(budget.total_budget_bytes)
            cap += f" below {plain(ratio(digits, 10_000))}"
            cap += f", where it begins to bind under the {show(int(budget.user_budget_bytes))} that the weights leave"
        return [
            f"{cap}; where that does not help, lower gpu_memory_utilization",
            "fewer or smaller buckets, fewer sequences, a shorter context",
            "more ranks, each with less of the weights",
        ]
    if kind == "below_minimum":
        return _minimum_steps(reserve, budget)
    if kind == "no_fit":
        first = f"lower {HEADROOM.name}" if reserve else "raise the setting that binds, utilization or cap"
        return [first, "or lower max_model_len"]
    if kind == "host_memory":
        return ["compile with fewer workers at a time", "or on a host with more memory"]
    if kind == "not_memory":
        return ["look for the wrong argument; no setting of memory changes this"]
    return ["look for NCC_, NRT_ or a sentence about the KV cache further up in the log, and ask again with it"]


def _minimum_steps(reserve: bool, budget: Budget | None) -> list[str]:
    if budget is None:
        first = (
            f"lower {HEADROOM.name}"
            if reserve
            else f"raise gpu_memory_utilization or {CAP.name}, whichever binds, or both"
        )
    elif reserve:
        first = inverse.largest_headroom(budget).says
    else:
        first = "; ".join((inverse.smallest_utilization(budget).says, inverse.smallest_cap(budget).says))
    return [first, f"or lower {MINIMUM.name}", "or use more ranks, each with less of the weights"]


def annotate(error: BaseException, policy: str, budget: Budget | None = None) -> BaseException:
    """The same error; where memory ran out beside a reserve, with the procedure as a note. Nothing else is changed."""
    found = explain(str(error), policy, budget)
    if found.step_gib is not None:
        now = "" if budget is None else f" is {plain(budget.reserved_headroom_gib)}"
        error.add_note("\n".join((f"{HEADROOM.name}{now}; with a reserve:", *found.procedure)))
    return error
