"""What vLLM makes of a deployment: its defaults, its changes, its refusals."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from capplan.deployment import Deployment
from capplan.engines import Engine, Finding
from capplan.engines.vllm.case import Case, attention_backend, batch_row
from capplan.engines.vllm.rules import broken
from capplan.model import Model, load_family
from capplan.registry import Chip, Datum
from capplan.units import at_most, is_array


def _said(datum: Datum) -> str:
    return datum.origin()


@dataclass(frozen=True, kw_only=True, slots=True)
class Resolved:
    """The deployment as the engine runs it, and what it refused, supplied and changed on the way."""

    d: Deployment
    refused: tuple[Finding, ...]
    assumed: tuple[Finding, ...]
    overridden: tuple[Finding, ...]
    data: tuple[Datum, ...]


def resolve(model: Model, asked: Deployment, chip: Chip, engine: Engine) -> Resolved:
    """What the engine makes of a deployment: its defaults, its changes, its refusals.

    Source: vllm, engine/arg_utils.py, EngineArgs.create_engine_config.
    """
    assumed: list[Finding] = list(_model_findings(model))
    overridden: list[Finding] = []
    more: dict[str, Any] = {}

    def supply(field: str, value: Any, why: str, source: str) -> None:
        more[field] = value
        assumed.append(Finding(field=field, asked=None, happens=shown(value), why=why, source=source))

    dtype = asked.dtype if asked.dtype not in (None, "auto") else model.dtype
    if asked.dtype in (None, "auto"):
        dtype = _auto_dtype(model, chip)
        if dtype != model.dtype:
            overridden.append(
                Finding(
                    field="dtype",
                    asked=model.dtype,
                    happens=dtype,
                    why=f"the checkpoint says {model.dtype}, which the engine does not run here by itself",
                    source="vllm, config/model.py, _resolve_auto_dtype",
                )
            )
    elif dtype == "half":
        dtype = "float16"
    elif dtype == "float":
        dtype = "float32"
    more["dtype"] = dtype
    length = asked.max_model_len
    if length is None:
        length = model.default_positions
        why = f"the length that {model.short_name} is made for"
        if model.default_positions != model.max_positions:
            why = f"the length before its long rope takes over; up to {model.max_positions:,} may be asked"
        supply("max_model_len", length, why, "vllm, config/model.py, _get_and_verify_max_len")
    elif not is_array(length) and length == -1:
        length = model.default_positions
        more["max_model_len"] = length
    row = batch_row(engine, chip)
    seqs, tokens = asked.max_num_seqs, asked.max_num_batched_tokens
    doubled = 2 if asked.performance_mode == "throughput" else 1
    default_seqs = row.max_num_seqs * doubled if seqs is None else seqs
    if tokens is None:
        tokens = at_most(row.max_num_batched_tokens[asked.usage_context] * doubled, default_seqs * length)
        supply(
            "max_num_batched_tokens", tokens, f"the default on {chip.title} for {asked.usage_context}", _said(row.datum)
        )
    if seqs is None:
        seqs = at_most(default_seqs, tokens)
        supply("max_num_seqs", seqs, f"the default on {chip.title}", _said(row.datum))
    for field in ("enable_prefix_caching", "async_scheduling"):
        if getattr(asked, field) is None:
            supply(field, engine.defaults[field].value, "the engine's default", _said(engine.defaults[field]))
    if asked.enforce_eager:
        if asked.cudagraph_mode not in (None, "NONE"):
            overridden.append(
                Finding(
                    field="cudagraph_mode",
                    asked=asked.cudagraph_mode,
                    happens="NONE",
                    why="enforce_eager captures no graphs",
                    source="vllm, config/vllm.py, VllmConfig.__post_init__",
                )
            )
        more["cudagraph_mode"] = "NONE"
    elif asked.cudagraph_mode is None:
        datum = engine.defaults["cudagraph_mode"]
        supply("cudagraph_mode", datum.value, "the engine's default", _said(datum))
    share = asked.gpu_memory_utilization
    if share is None:
        datum = engine.defaults["gpu_memory_utilization"]
        if asked.kv_cache_memory_bytes is None:
            supply("gpu_memory_utilization", datum.value, "the engine's default", _said(datum))
        else:
            more["gpu_memory_utilization"] = datum.value
    elif asked.kv_cache_memory_bytes is not None:
        overridden.append(
            Finding(
                field="gpu_memory_utilization",
                asked=share,
                happens="ignored",
                why="kv_cache_memory_bytes states the cache, and the engine then measures nothing",
                source="vllm, v1/worker/gpu_worker.py, determine_available_memory",
            )
        )
    if asked.tokens is None:
        more["tokens"] = length
    d = replace(asked, **more)
    case = Case(model=model, asked=asked, d=d, chip=chip, engine=engine)
    refused = broken(case)
    data = [row.datum, *(engine.defaults[key] for key in engine.defaults)]
    if not refused or all(f.mask is not None for f in refused):
        backend = attention_backend(case)
        assert_backend = backend or engine.backends[0]
        block = asked.block_size
        if block is None:
            datum = engine.defaults["block_size"]
            block = datum.value if datum.value % assert_backend.block_multiple == 0 else assert_backend.block_multiple
            why = (
                "the engine's default"
                if block == datum.value
                else f"the smallest block that {assert_backend.name} takes"
            )
            assumed.append(
                Finding(
                    field="block_size",
                    asked=None,
                    happens=shown(block),
                    why=why,
                    source=f"vllm, {assert_backend.where}",
                )
            )
        if assert_backend.assumed:
            assumed.append(
                Finding(
                    field="attention_backend",
                    asked=None,
                    happens=assert_backend.name,
                    why=assert_backend.assumed,
                    source=assert_backend.where,
                )
            )
        kv_format = d.kv_cache_dtype
        if kv_format in (None, "auto"):
            if kv_format is None:
                assumed.append(
                    Finding(
                        field="kv_cache_dtype",
                        asked=None,
                        happens=f"auto ({dtype})",
                        why="the model's own format",
                        source="vllm, utils/torch_utils.py, resolve_kv_cache_dtype_string",
                    )
                )
            kv_format = "auto"
        d = replace(d, block_size=block, kv_cache_dtype=kv_format)
    return Resolved(d=d, refused=refused, assumed=tuple(assumed), overridden=tuple(overridden), data=tuple(data))


def shown(value: Any) -> str:
    if is_array(value):
        return "its default for each"
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:,}" if isinstance(value, int) else str(value)


@lru_cache(maxsize=256)
def _model_findings(model: Model) -> tuple[Finding, ...]:
    return tuple(
        Finding(
            field=a.key,
            asked=None,
            happens=shown(a.value),
            why=a.why,
            source=a.datum.origin() if a.datum else "vllm, the model's class",
        )
        for a in model.assumed
    )


def _auto_dtype(model: Model, chip: Chip) -> str:
    """The format that the engine takes for a checkpoint on a chip when nobody says one."""
    stable = load_family(model.family).float16
    supported = (
        ["float16", "float32"]
        if chip.capability is not None and chip.capability < (8, 0)
        else ["bfloat16", "float16", "float32"]
    )
    if not stable:
        supported.remove("float16")
    wanted = supported[0] if model.dtype == "float32" else model.dtype
    return wanted if wanted in supported else supported[0]
