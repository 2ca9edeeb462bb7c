"""The controls of a deployment: one native input for each setting, named as the setting, with the engine's default."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

import anywidget
from ipywidgets import Widget
from traitlets import Dict, Int, List

from capplan.engines import rules_of
from capplan.engines.base import Finding
from capplan.engines.release import load_engine
from capplan.model import DTYPE_BITS, Model
from capplan.model.facts import known_models
from capplan.registry import Chip, load_chip, names
from capplan.solve import SIZES
from capplan.units import GIB
from capplan.views.state import PlannerState


@lru_cache(maxsize=16)
def part(name: str) -> str:
    """A script or sheet of the page."""
    return files("capplan.views").joinpath("parts", name).read_text(encoding="utf-8")


def follow(state: PlannerState, traits: Iterable[str], widget: Widget, **draw: Callable[[], Any]) -> None:
    """Keep traits of a widget to what their functions say, whenever one of the state's traits changes."""

    def update(change: object = None) -> None:
        for name, make in draw.items():
            setattr(widget, name, make())

    state.observe(update, list(traits))
    update()


def flag(name: str) -> str:
    """The flag of a setting."""
    return f"--{name.replace('_', '-')}"


class Form(anywidget.AnyWidget):
    """Native inputs in groups; what the reader enters is said to the state."""

    _esm = part("form.js")
    groups: List = List().tag(sync=True)
    lists = Dict().tag(sync=True)
    fields = Dict().tag(sync=True)
    answered = Int().tag(sync=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class Control:
    """How one input is shown: its label, the kind of native input, and what its flag means."""

    label: str
    kind: str
    means: str = ""
    empty: str = ""


CONTROLS = {
    "model": Control(label="Model", kind="search"),
    "chip": Control(label="Chip", kind="select"),
    "engine": Control(label="Engine", kind="select", means="whose rules the plan follows"),
    "tensor_parallel_size": Control(label="Tensor", kind="choice", means="ranks that share every layer"),
    "pipeline_parallel_size": Control(label="Pipeline", kind="choice", means="stages, each with some of the layers"),
    "enable_expert_parallel": Control(
        label="Expert parallel", kind="check", means="each rank holds whole experts, not a slice of every one"
    ),
    "data_parallel_size": Control(label="Data", kind="choice", means="copies that serve different requests"),
    "decode_context_parallel_size": Control(
        label="Decode context", kind="choice", means="ranks that share the tokens of one request's cache"
    ),
    "gpu_memory_utilization": Control(
        label="Utilization",
        kind="range",
        means="the share of the device that the engine claims; the rest stays outside the budget",
    ),
    "kv_cache_memory_bytes": Control(
        label="Cache bytes",
        kind="text",
        means="the cache of each rank as given; utilization is then ignored",
        empty="what is left",
    ),
    "max_model_len": Control(
        label="Longest", kind="range", means="tokens of the longest request, prompt and answer together"
    ),
    "max_num_seqs": Control(label="At once", kind="text", means="requests that run in one step at most"),
    "max_num_batched_tokens": Control(label="In one step", kind="text", means="tokens that one step computes at most"),
    "tokens": Control(
        label="Typical length", kind="text", means="tokens of a request of the load to answer for", empty="the longest"
    ),
    "requests": Control(
        label="Load to hold",
        kind="text",
        means="requests of that length that shall be held at once",
        empty="none stated",
    ),
    "kv_cache_dtype": Control(
        label="Cache format", kind="choice", means="the number format in which keys and values are kept"
    ),
    "block_size": Control(
        label="Block, tokens", kind="text", means="tokens in one block, the unit in which the cache is handed out"
    ),
    "enable_prefix_caching": Control(
        label="Prefix caching", kind="check", means="requests that begin alike share blocks"
    ),
    "disable_hybrid_kv_cache_manager": Control(
        label="One kind of block", kind="check", means="sliding windows keep as much as full attention does"
    ),
    "enforce_eager": Control(
        label="No CUDA graphs", kind="check", means="steps are launched kernel by kernel; no graphs are held"
    ),
    "dtype": Control(
        label="Number format", kind="select", means="the format of the weights that are not quantized, and of a step"
    ),
}
"""The inputs that have a control, as they are shown."""

GROUPS: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("", ("model", "chip"), ("engine",)),
    (
        "Parallelism",
        ("tensor_parallel_size", "pipeline_parallel_size", "enable_expert_parallel"),
        ("data_parallel_size", "decode_context_parallel_size"),
    ),
    ("Budget", ("gpu_memory_utilization",), ("kv_cache_memory_bytes", "enforce_eager")),
    ("Requests", ("max_model_len", "max_num_seqs", "max_num_batched_tokens"), ("tokens", "requests")),
    ("Cache", ("kv_cache_dtype",), ("block_size", "enable_prefix_caching", "disable_hybrid_kv_cache_manager", "dtype")),
)
"""Cards of controls: title, controls, and those in its fold."""


def controls(state: PlannerState, *only: str) -> Form:
    """The controls of a deployment, or only those of some inputs, by name."""
    shown = [("", only, ())] if only else GROUPS
    inputs = [name for _, first, more in shown for name in (*first, *more)]
    form = Form(
        groups=[[title, list(first), list(more)] for title, first, more in shown],
        lists={name: make() for name, make in LISTS.items() if name in inputs},
    )

    def said(_: Widget, message: dict[str, Any], __: list[bytes]) -> None:
        values = message.get("say")
        if isinstance(values, dict):
            state.say(**{name: value for name, value in values.items() if name in inputs})
            form.answered += 1

    form.on_msg(said)
    follow(state, ("plan", "problems"), form, fields=lambda: {name: describe(state, name) for name in inputs})
    return form


def describe(state: PlannerState, name: str) -> dict[str, Any]:
    """One control as the browser shows it: its value and text, what it may be, the default and the way back to it."""
    control, now = CONTROLS[name], getattr(state, name)
    said, default = now is not None, state.supplied(name)
    effective = getattr(state.plan.resolved, name, None)
    found: dict[str, Any] = {
        "kind": control.kind,
        "label": control.label,
        "flag": flag(name) if name != "model" else "",
        "means": control.means,
        "text": _figure(now) if said else "",
        "placeholder": control.empty,
        "problem": state.problems.get(name, ""),
        "help": "",
        "back": "",
    }
    if said and name not in ("model", "chip") and control.kind != "choice":
        found["back"] = f"default {default.happens}" if default else "default"
    return found | DESCRIBE.get(name, _describe_plain)(state, name, effective, default)


def _figure(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _why(finding: Finding, chip: Chip) -> str:
    """Why a default is what it is, short enough for a control."""
    return finding.why.replace(chip.title, "this chip").partition(" for ")[0]


def _describe_plain(state: PlannerState, name: str, effective: Any, default: Finding | None) -> dict[str, Any]:
    if CONTROLS[name].kind == "check":
        return {"now": bool(effective)}
    if default is not None:
        return {"placeholder": f"{default.happens}, {_why(default, state.plan.chip)}"}
    return {}


def _describe_model(state: PlannerState, name: str, effective: Any, default: Finding | None) -> dict[str, Any]:
    return {"text": state.model, "help": model_facts(state.plan.model)}


def _describe_chip(state: PlannerState, name: str, effective: Any, default: Finding | None) -> dict[str, Any]:
    chip = state.plan.chip
    size = f"{chip.device_bytes.value / GIB:.2f} GiB"
    return {
        "now": chip.name,
        "help": f"{size}, nominal; the driver reports less" if chip.nominal else f"{size} as the driver reports",
    }


def _describe_engine(state: PlannerState, name: str, effective: Any, default: Finding | None) -> dict[str, Any]:
    return {"now": state.plan.engine.name, "back": ""}


def _describe_sizes(state: PlannerState, name: str, effective: Any, default: Finding | None) -> dict[str, Any]:
    sizes = state.legal_sizes(name)
    why = next((why for _, why in sizes if why), "")
    return {
        "now": str(getattr(state.plan.asked, name)),
        "options": [[str(size), str(size), why] for size, why in sizes],
        "help": _clause(why),
    }


def _clause(why: str) -> str:
    """What a refusal says first, without what would work."""
    return why.partition(";")[0]


def _describe_experts(state: PlannerState, name: str, effective: Any, default: Finding | None) -> dict[str, Any]:
    return {"now": state.plan.asked.enable_expert_parallel, "hidden": state.plan.model.experts is None, "back": ""}


def _describe_share(state: PlannerState, name: str, effective: Any, default: Finding | None) -> dict[str, Any]:
    return {
        "now": effective,
        "shown": f"{effective:g}",
        "options": [hundredth / 100 for hundredth in range(50, 100)],
        "placeholder": f"{effective:g}",
        "help": _default_words(state, name, default),
    }


def _describe_length(state: PlannerState, name: str, effective: Any, default: Finding | None) -> dict[str, Any]:
    return {
        "now": effective,
        "shown": f"{effective:,} tokens",
        "options": list(length_steps(state.plan.model.max_positions)),
        "placeholder": f"{effective:,}",
        "help": _default_words(state, name, default),
    }


def _default_words(state: PlannerState, name: str, default: Finding | None) -> str:
    return _why(default, state.plan.chip) if default is not None and getattr(state, name) is None else ""


def length_steps(longest: int) -> tuple[int, ...]:
    """Lengths to offer: powers of two and what lies half-way, up to the longest.

    >>> length_steps(5000)
    (1024, 1536, 2048, 3072, 4096, 5000)
    """
    steps, step = [], 1 << 10
    while step < longest:
        steps += [one for one in (step, step + step // 2) if one < longest]
        step *= 2
    return (*steps, longest)


SHORT = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


def _describe_format(state: PlannerState, name: str, effective: Any, default: Finding | None) -> dict[str, Any]:
    said = "" if state.kv_cache_dtype in (None, "auto") else state.kv_cache_dtype
    own = str(state.plan.resolved.dtype)
    options = [["", f"auto ({SHORT.get(own, own)})", None]]
    options += [[word, word, state.against(name, word)] for word in dict.fromkeys(("fp8", said)) if word]
    return {"now": said, "options": options, "help": next((_clause(why) for *_, why in options if why), "")}


def _describe_dtype(state: PlannerState, name: str, effective: Any, default: Finding | None) -> dict[str, Any]:
    return {"now": state.dtype or "", "back": ""}


DESCRIBE = {
    "model": _describe_model,
    "chip": _describe_chip,
    "engine": _describe_engine,
    "enable_expert_parallel": _describe_experts,
    "dtype": _describe_dtype,
    "gpu_memory_utilization": _describe_share,
    "max_model_len": _describe_length,
    "kv_cache_dtype": _describe_format,
    **dict.fromkeys(SIZES, _describe_sizes),
}


def model_facts(model: Model) -> str:
    """What a model is, in a line."""
    heads = f"{model.n_heads} heads" + ("" if model.latent else f", {model.n_kv_heads} KV")
    words = [f"{model.n_layers} layers", heads, f"{model.max_positions:,} tokens"]
    if model.experts is not None:
        words.insert(2, f"{model.experts.n_experts} experts")
    return " · ".join([*words, model.quantization.method if model.quantization else model.dtype])


LISTS: dict[str, Callable[[], list[list[str]]]] = {
    "model": lambda: [[model.name, model_facts(model)] for model in known_models()],
    "chip": lambda: [[chip.name, chip.title] for chip in map(load_chip, names("chips")) if chip.vendor != "aws"],
    "engine": lambda: [
        [e.name, e.title] for e in map(load_engine, names("engines")) if rules_of(e.rules).plans == "gpu"
    ],
    "dtype": lambda: [["", "auto, the checkpoint's"], *([word, word] for word in DTYPE_BITS)],
}
"""What may be chosen, where that never changes."""
