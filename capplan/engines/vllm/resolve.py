"""What vLLM makes of a deployment: its defaults, its changes, its refusals."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

from capplan.engines.base import Finding, Resolved
from capplan.engines.declared import block_size, stored_format, why_format
from capplan.engines.release import Backend, Engine, capability_matches
from capplan.engines.vllm.caches import hybrid_block_size
from capplan.engines.vllm.case import KV_BITS, Case, attention_backend, batch_row, family_of
from capplan.engines.vllm.rules import broken
from capplan.model import DTYPE_BITS, Model, load_family
from capplan.registry import Chip
from capplan.settings.deployment import Deployment
from capplan.units import at_most, is_array


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
        family = family_of(model)
        least = 0 if asked.language_model_only or family is None else family.vllm.item_tokens
        tokens = max(row.max_num_batched_tokens[asked.usage_context] * doubled, least)
        tokens = at_most(tokens, default_seqs * length)
        supply(
            "max_num_batched_tokens",
            tokens,
            f"the default on {chip.title} for {asked.usage_context}",
            row.datum.origin(),
        )
    if seqs is None:
        seqs = at_most(default_seqs, tokens)
        supply("max_num_seqs", seqs, f"the default on {chip.title}", row.datum.origin())
    for field in ("enable_prefix_caching", "async_scheduling"):
        if getattr(asked, field) is None:
            supply(field, engine.defaults[field].value, "the engine's default", engine.defaults[field].origin())
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
        supply("cudagraph_mode", datum.value, "the engine's default", datum.origin())
    share = asked.gpu_memory_utilization
    if share is None:
        datum = engine.defaults["gpu_memory_utilization"]
        if asked.kv_cache_memory_bytes is None:
            supply("gpu_memory_utilization", datum.value, "the engine's default", datum.origin())
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
    caches = model.caches if model.caches is not None and model.caches.owned else None
    if caches is not None:
        _stated(model, replace(asked, **more), chip, supply, overridden)
    else:
        more["kv_cache_dtype"] = cache_format(model, asked, chip)
    d = replace(asked, **more)
    case = Case(model=model, asked=asked, d=d, chip=chip, engine=engine)
    refused = broken(case)
    data = [row.datum, *(engine.defaults[key] for key in engine.defaults)]
    if caches is None and (not refused or all(f.mask is not None for f in refused)):
        backend = attention_backend(case)
        assert_backend = backend or engine.backends[0]
        block = _block_size(case, assert_backend, assumed, overridden)
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
        kv_format = d.kv_cache_dtype or "auto"
        if asked.kv_cache_dtype is None:
            shown_format, why = f"auto ({dtype})", "the model's own format"
            if kv_format != "auto":
                shown_format, why = kv_format, "the checkpoint says so"
            assumed.append(
                Finding(
                    field="kv_cache_dtype",
                    asked=None,
                    happens=shown_format,
                    why=why,
                    source="vllm, utils/torch_utils.py, resolve_kv_cache_dtype_string",
                )
            )
        elif asked.kv_cache_dtype != kv_format:
            overridden.append(
                Finding(
                    field="kv_cache_dtype",
                    asked=asked.kv_cache_dtype,
                    happens=kv_format,
                    why="the checkpoint or its kernels have a format of their own",
                    source="vllm, config/vllm.py, VllmConfig.__post_init__",
                )
            )
        d = replace(d, block_size=block, kv_cache_dtype=kv_format)
    return Resolved(d=d, refused=refused, assumed=tuple(assumed), overridden=tuple(overridden), data=tuple(data))


def _stated(model: Model, d: Deployment, chip: Chip, supply: Any, overridden: list[Finding]) -> None:
    """What the kernels take of caches that a model file states: the block, the drafted tokens, the format."""
    caches = model.caches
    if caches is None:
        return
    said = caches.data[0].origin()
    if d.speculative_method and d.num_speculative_tokens is None and caches.draft_tokens:
        supply(
            "num_speculative_tokens", caches.draft_tokens, f"as many as the drafter of {model.short_name} drafts", said
        )
    stated = block_size(caches, d, chip)
    if d.block_size is None:
        supply("block_size", stated or 16, f"what the kernels of {model.short_name} take here", said)
    form, why = stored_format(caches, d, chip), why_format(caches, d, chip)
    if form is None or form == d.kv_cache_dtype:
        return
    if d.kv_cache_dtype in (None, "auto"):
        supply("kv_cache_dtype", "auto", f"the caches lie in {form}: {why}", said)
        return
    asked = d.kv_cache_dtype
    overridden.append(
        Finding(field="kv_cache_dtype", asked=asked, happens=asked, why=f"the caches lie in {form}: {why}", source=said)
    )


def cache_format(model: Model, asked: Deployment, chip: Chip) -> str | None:
    """The format of the cache: what was asked, else the checkpoint's, in the layout that sparse latent kernels read.

    Source: vllm, utils/torch_utils.py, resolve_kv_cache_dtype_string; model_executor/models/config.py.
    """
    stated = asked.kv_cache_dtype
    if stated in (None, "auto") and model.quantization is not None and model.quantization.kv_cache_dtype is not None:
        stated = model.quantization.kv_cache_dtype
    if stated in (None, "auto"):
        family = family_of(model)
        own = family.vllm.cache_formats if family is not None else {}
        stated = next((form for on, form in own.items() if capability_matches((on,), chip.capability)), stated)
    if model.attention_type == "compressed-latent":
        return "fp8_ds_mla"
    hopper = chip.capability is not None and chip.capability[0] == 9
    if model.attention_type == "sparse-latent" and hopper and stated == "fp8":
        return "fp8_ds_mla"
    return stated


def _block_size(case: Case, backend: Backend, assumed: list[Finding], overridden: list[Finding]) -> int:
    """Tokens of a block: what was asked, else what the kernels take, made larger where a page must hold a state."""
    asked, engine = case.asked.block_size, case.engine
    datum = engine.defaults["block_size"]
    own = datum.value if datum.value % backend.block_multiple == 0 else backend.block_multiple
    block: int = own if asked is None else asked
    source, why = f"vllm, {backend.where}", "the engine's default"
    if asked is None and own != datum.value:
        why = f"the smallest block that {backend.name} takes"
    if case.model.recurrent:
        kv_format = case.d.kv_cache_dtype or "auto"
        kv_bits = DTYPE_BITS[case.dtype] if kv_format == "auto" else KV_BITS[kv_format]
        needed = hybrid_block_size(case, block, backend, kv_bits)
        if needed != block:
            block, why = needed, "a page of attention must hold a recurrent state"
            source = "vllm, platforms/interface.py, _align_hybrid_block_size"
    if asked is None:
        assumed.append(Finding(field="block_size", asked=None, happens=shown(block), why=why, source=source))
    elif asked != block:
        overridden.append(Finding(field="block_size", asked=asked, happens=shown(block), why=why, source=source))
    return block


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
    if not model.family:
        return model.dtype
    stable = load_family(model.family).vllm.float16
    supported = (
        ["float16", "float32"]
        if chip.capability is not None and chip.capability < (8, 0)
        else ["bfloat16", "float16", "float32"]
    )
    if not stable:
        supported.remove("float16")
    wanted = supported[0] if model.dtype == "float32" else model.dtype
    return wanted if wanted in supported else supported[0]
