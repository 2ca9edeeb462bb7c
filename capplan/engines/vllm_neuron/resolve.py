"""What vLLM on Neuron makes of a deployment: its defaults, its changes, its refusals."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from capplan.engines.base import Finding, Line, Resolved, Rule
from capplan.engines.release import Engine
from capplan.engines.vllm_neuron.budget import BUDGET_RULES, DESIGN, WORKER, Case, case
from capplan.engines.vllm_neuron.hardware import Instance, load_instance, load_neuron_chip, target_aliases
from capplan.engines.vllm_neuron.layout import Block, block
from capplan.engines.vllm_neuron.rules import MODEL_RULES, PLACE_RULES, SHARED, Asked, applies
from capplan.engines.vllm_neuron.weights import weights_line
from capplan.hub import load_model
from capplan.model import Model
from capplan.registry import names
from capplan.settings.deployment import SETTINGS, Deployment, unread
from capplan.settings.environment import CAP, COMPILE, DEGREE, HEADROOM
from capplan.units import choose, is_array, show_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class NeuronResolved(Resolved):
    """The deployment as the engine runs it, with the case that its budget is computed from, its weights and a block."""

    case: Case
    weights: Line | None
    block: Block | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """What a deployment names beside its model: its instance, and a model that drafts; `d` has the chip of both."""

    d: Deployment
    instance: Instance | None
    draft: Model | None


def place(d: Deployment) -> Place:
    """What a deployment names beside its model; an instance or the compiler's target gives the chip if nobody else.

    Raises Refused for a chip, an instance or a draft model that is not known.
    """
    instance = load_instance(d.instance) if d.instance is not None else None
    target = target_aliases().get(d.platform_target_override or "")
    if d.chip == SETTINGS["chip"].default and (instance is not None or target is not None):
        d = replace(d, chip=instance.platform if instance is not None else str(target))
    if not (d.cpu_mode or d.cpu_compile):
        load_neuron_chip(d.chip)
    return Place(d=d, instance=instance, draft=load_model(d.draft_model) if d.draft_model is not None else None)


def resolve(model: Model | None, asked: Deployment, there: Place, engine: Engine) -> NeuronResolved:
    """What the engine makes of a deployment."""
    d, instance, draft = there.d, there.instance, there.draft
    supplied: list[Finding] = []
    line = weights_line(model, draft, asked)
    c = case(d, engine, weights_bytes=0 if line is None else line.bytes)
    d = _filled(model, d, c, engine, supplied)
    supplied += side_effects(d, c, engine)
    question = Asked(graph=model, draft=draft, d=d, chip=c.chip, instance=instance, degree=c.degree, engine=engine)
    refused = []
    for rule, looked_at in _rules(question, c):
        finding = rule.finding(looked_at, asked)
        if finding is None:
            continue
        refused.append(finding)
        if finding.mask is not None and hasattr(c, rule.field):
            # What is refused is computed with the default, so that the rest can be computed at all.
            stand_in = engine.defaults[rule.field].value if rule.field in engine.defaults else 0.0
            c = replace(c, **{rule.field: choose(finding.mask, stand_in, getattr(c, rule.field))})
    if c.headroom:
        d = replace(d, gpu_memory_utilization=1.0, kv_gmu_budget_cap_fraction=None)
    found = block(model, draft, d)
    refused += _unstated(line, found, {f.field for f in refused})
    data = (*engine.defaults.values(), *((c.chip.hbm_stack_bytes, c.chip.logical_nc_config) if c.chip else ()))
    return NeuronResolved(
        d=d,
        case=c,
        weights=line,
        block=found,
        refused=tuple(refused),
        assumed=(*supplied, *_said_of_weights(model, line)),
        overridden=ignored(asked, c, engine),
        data=(*data, *((instance.chips,) if instance is not None else ())),
    )


def _unstated(line: Line | None, found: Block | None, fields: set[str]) -> list[Finding]:
    """What nobody stated and no model gives, where no rule has said so already."""
    source = "capplan, figures that a plan needs"
    missing = []
    if line is None and "weights_bytes" not in fields:
        missing.append(("weights_bytes", "no model is named; state the bytes of parameters and buffers"))
    if found is None and "bytes_per_block" not in fields:
        missing.append(("bytes_per_block", "no model is named; state the bytes of one block of all layers"))
    return [Finding(field=field, asked=None, happens="refused", why=why, source=source) for field, why in missing]


def _said_of_weights(model: Model | None, line: Line | None) -> tuple[Finding, ...]:
    if line is None or line.kind == "exact" or model is None:
        return ()
    return (
        Finding(
            field="weights_bytes",
            asked=None,
            happens=show_bytes(line.bytes),
            why=f"the stored tensors of {model.short_name}; rotary tables, {show_bytes(line.high - line.low)} where a "
            "class keeps them, are at the far end of the band; weights_bytes states the sum that a worker prints",
            source="vllm_neuron, vllm/worker/neuron_worker.py, _get_byte_used_from_model",
        ),
    )


def _rules(question: Asked, c: Case) -> Iterator[tuple[Rule[Any], Any]]:
    """Every rule that is asked, with what it looks at; one that others rest on stops those."""
    for of_budget in BUDGET_RULES:
        yield of_budget, c
        if c.chip is None and of_budget.name == "UNKNOWN_PLATFORM" and c.route != "cpu":
            return
    for rule in SHARED:
        if not applies(rule, question):
            continue
        yield rule, question
        if rule.name == "ranks-at-least-one" and not rule.holds(question):
            return
        if question.draft is not None and rule.name.endswith("-divide") and question.graph is not None:
            yield rule, replace(question, graph=question.draft)
    for of_place in (*PLACE_RULES, *MODEL_RULES):
        yield of_place, question


def _filled(model: Model | None, d: Deployment, c: Case, engine: Engine, supplied: list[Finding]) -> Deployment:
    """The deployment with the engine's defaults, each of them said."""
    more: dict[str, Any] = {"logical_nc_config": c.degree if c.chip is not None else d.logical_nc_config}

    def supply(field: str, value: Any, happens: str, why: str, source: str) -> None:
        more[field] = value
        supplied.append(Finding(field=field, asked=None, happens=happens, why=why, source=source))

    read = () if c.headroom else ("gpu_memory_utilization", "kv_gmu_budget_cap_fraction")
    for key in (*read, "min_kv_budget_gib", "block_size"):
        if getattr(d, key) is None:
            datum = engine.defaults[key]
            supply(key, datum.value, f"{datum.value:g}", "the engine's default", datum.origin())
    if d.logical_nc_config is None and c.chip is not None:
        datum = c.chip.logical_nc_config
        supply("logical_nc_config", c.degree, str(c.degree), f"the default on {c.chip.title}", datum.origin())
    if c.route == "device" and d.runtime_bytes_used is None and c.chip is not None:
        datum = c.chip.hbm_stack_bytes
        supplied.append(
            Finding(
                field="runtime_bytes_free",
                asked=None,
                happens=f"{datum.value:,} bytes used and free together",
                why="the runtime's own figure was not stated; the static table stands in, and may differ by a few MiB",
                source=datum.origin(),
            )
        )
    if c.route == "cpu" and d.local_workers is None:
        workers = d.tensor_parallel_size * d.pipeline_parallel_size
        supply(
            "local_workers",
            workers,
            str(workers),
            "tensor parallel times pipeline parallel ranks of one replica",
            f"{WORKER}, _get_local_worker_count",
        )
    if model is not None:
        if d.dtype in (None, "auto"):
            more["dtype"] = model.dtype
        if d.max_model_len is None:
            supply(
                "max_model_len",
                model.default_positions,
                f"{model.default_positions:,}",
                f"the length that {model.short_name} is made for",
                "vllm, config/model.py, _get_and_verify_max_len",
            )
        elif not is_array(d.max_model_len) and d.max_model_len == -1:
            more["max_model_len"] = model.default_positions
        if any(a.kind == "sliding" for a in model.attention):
            supplied.append(
                Finding(
                    field="sliding_window",
                    asked=None,
                    happens="every token kept",
                    why="layers with a window have a cache of their own here, and capplan counts it as that of the "
                    "others; bytes_per_block states another",
                    source="vllm_neuron, vllm/attention/attn.py",
                )
            )
    if d.tokens is None:
        more["tokens"] = more.get("max_model_len", d.max_model_len)
    return replace(d, **more)


def side_effects(d: Deployment, c: Case, engine: Engine) -> tuple[Finding, ...]:
    """What follows from the route and the degree, and should be known before the start."""
    found: list[Finding] = []

    def note(field: str, happens: str, why: str, source: str) -> None:
        found.append(Finding(field=field, asked=getattr(d, field, None), happens=happens, why=why, source=source))

    if c.route == "cpu_compile":
        note(
            "logical_nc_config",
            f"compiled for LNC {c.degree}",
            f"there is no device to ask: {DEGREE.name} must be the same when it runs, or no compiled program is found",
            f"{DESIGN}, compilation without a device",
        )
    if c.chip is not None and c.degree in c.chip.degrees and c.chip.logical_cores_per_hbm_stack(c.degree) > 1:
        note(
            "logical_nc_config",
            "two logical cores share each stack",
            "each plans with half of it, a reserve is kept back twice, scratchpad comes in pages of 512 MiB, and what "
            "the neighbour allocates can still exhaust the stack",
            "AWS Neuron documentation, Logical NeuronCore configuration",
        )
    if c.route == "cpu" and d.data_parallel_size > 1:
        note(
            "data_parallel_size",
            "replicas are not counted",
            "workers of one replica share the host's memory in this sum; where several replicas run on it, "
            "each gets less than is said here",
            f"{WORKER}, _get_local_worker_count",
        )
    largest = int(engine.constants["largest_segment"].value)
    if d.block_size is not None and d.block_size >= 1 and largest % d.block_size:
        note(
            "block_size",
            "no prefill segment",
            f"segments of 512 to {largest:,} tokens must be whole blocks, and none is of {d.block_size}",
            engine.constants["largest_segment"].origin(),
        )
    return tuple(found)


def ignored(asked: Deployment, c: Case, engine: Engine) -> tuple[Finding, ...]:
    """What was said and does not count."""
    found: list[Finding] = []

    def ignore(field: str, happens: str, why: str, source: str) -> None:
        found.append(Finding(field=field, asked=getattr(asked, field), happens=happens, why=why, source=source))

    if c.headroom:
        reason = f"{HEADROOM.name} is set, and with a reserve the worker plans with all of its share"
        if asked.gpu_memory_utilization is not None:
            ignore("gpu_memory_utilization", "1.0", reason, f"{DESIGN}, the reserve")
        if asked.kv_gmu_budget_cap_fraction is not None:
            ignore(CAP.field, "ignored", f"{reason}, without a cap and without looking at it", f"{DESIGN}, the reserve")
    for field in unread(asked, engine.rules):
        ignore(field, "ignored", "a Neuron worker's budget does not read it", f"{WORKER}, determine_available_memory")
    if c.route != "device" and asked.runtime_bytes_free is not None:
        ignore("runtime_bytes_free", "ignored", "there is no device on this route", f"{WORKER}, the routes")
    if c.route == "cpu" and asked.logical_nc_config is not None:
        ignore("logical_nc_config", "ignored", "the host computes", f"{WORKER}, the routes")
    if c.route == "device" and asked.platform_target_override is not None:
        ignore(
            "platform_target_override",
            "ignored",
            f"only {COMPILE.name} reads it; the chip is {asked.chip if asked.chip in names('neuron') else 'what runs'}",
            f"{DESIGN}, selection of the route",
        )
    return tuple(found)
