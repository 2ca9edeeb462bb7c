"""What the kernel makes of a deployment: its defaults, what the engine would change, its refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from capplan.engines.base import Finding, Resolved
from capplan.engines.blis.case import Case
from capplan.engines.blis.lines import capture_ceiling
from capplan.engines.blis.rules import broken
from capplan.engines.declared import block_size, stored_format, why_format
from capplan.engines.release import Engine
from capplan.engines.vllm.case import batch_row
from capplan.engines.vllm.resolve import shown
from capplan.model import Model
from capplan.registry import Chip
from capplan.settings.deployment import Deployment
from capplan.units import Count, is_array

SHORT = {"half": "float16", "float": "float32"}
"""Other words for the same formats."""


def resolve(model: Model, asked: Deployment, chip: Chip, engine: Engine) -> Resolved:
    """What the kernel makes of a deployment: its defaults, what the engine would change, its refusals.

    Source: BLIS latency kernel, new.go.
    """
    assumed: list[Finding] = []
    overridden: list[Finding] = []
    more: dict[str, Any] = {}

    def supply(field: str, value: Any, why: str, source: str, *, keep: bool = True) -> None:
        if keep:
            more[field] = value
        assumed.append(Finding(field=field, asked=None, happens=shown(value), why=why, source=source))

    def default(field: str, why: str = "the engine's default", *, keep: bool = True) -> None:
        datum = engine.defaults[field]
        supply(field, datum.value, why, datum.origin(), keep=keep)

    def override(field: str, was: Any, value: Any, why: str, source: str) -> None:
        more[field] = value
        overridden.append(Finding(field=field, asked=was, happens=shown(value), why=why, source=source))

    default("engine_version", "no release is named, and its rules are these", keep=False)
    more["dtype"] = model.dtype if asked.dtype in (None, "auto") else SHORT.get(asked.dtype, asked.dtype)
    # 0 ranks stand for one in the kernel's fields; fewer are refused below.
    more["prefill_context_parallel_size"] = asked.prefill_context_parallel_size or 1
    more["decode_context_parallel_size"] = asked.decode_context_parallel_size or 1
    length = asked.max_model_len
    if length is None or (not is_array(length) and length == -1):
        length = more["max_model_len"] = model.default_positions
        if asked.max_model_len is None:
            assumed.append(
                Finding(
                    field="max_model_len",
                    asked=None,
                    happens=shown(length),
                    why=f"the length that {model.short_name} is made for",
                    source="vllm, config/model.py, _get_and_verify_max_len",
                )
            )
    row = batch_row(engine, chip)
    if asked.max_num_batched_tokens is None:
        tokens = row.max_num_batched_tokens[asked.usage_context]
        supply("max_num_batched_tokens", tokens, f"the default on {chip.title}", row.datum.origin())
    if asked.max_num_seqs is None:
        supply("max_num_seqs", row.max_num_seqs, f"the default on {chip.title}", row.datum.origin())
    for field in ("enable_prefix_caching", "async_scheduling"):
        if getattr(asked, field) is None:
            more[field] = engine.defaults[field].value
    _speculation(model, asked, supply)
    if asked.enforce_eager:
        if asked.cudagraph_mode not in (None, "", "NONE"):
            override(
                "cudagraph_mode",
                asked.cudagraph_mode,
                "NONE",
                "enforce_eager captures no graphs",
                "vllm, config/vllm.py, VllmConfig.__post_init__",
            )
        more["cudagraph_mode"] = "NONE"
    elif not asked.cudagraph_mode:
        default("cudagraph_mode")
    share = asked.gpu_memory_utilization
    if share is None or (not is_array(share) and share == 0):
        datum = engine.defaults["gpu_memory_utilization"]
        more["gpu_memory_utilization"] = datum.value
        if asked.kv_cache_memory_bytes is None:
            default("gpu_memory_utilization", "the kernel leaves it unset, and a budget needs one")
    if asked.tokens is None:
        more["tokens"] = length
    if more["decode_context_parallel_size"] > 1 and asked.dcp_comm_backend is None:
        default("dcp_comm_backend")
    if (asked.num_redundant_experts or 0) > 0 and not asked.enable_eplb:
        override(
            "num_redundant_experts",
            asked.num_redundant_experts,
            0,
            "experts are replicated only where enable_eplb is on",
            "vllm, config/parallel.py, EPLBConfig",
        )
    _states(model, asked, more, default, override, engine)
    case = Case(model=model, d=replace(asked, **more), chip=chip, engine=engine)
    if asked.block_size is None:
        _block(case, supply)
        case = replace(case, d=replace(case.d, block_size=more["block_size"]))
    refused = broken(case)
    d = case.d
    if not any(f.mask is None and f.stops for f in refused):
        _layouts(case, supply, override, assumed)
        if d.max_cudagraph_capture_size is None and d.cudagraph_mode != "NONE":
            ceiling = capture_ceiling(case, *_step(d))
            why = "twice the requests of a step with their drafted tokens, within the release's limit and the step"
            source = engine.constants["capture_limit"].origin()
            supply("max_cudagraph_capture_size", ceiling, why, source)
            if isinstance(ceiling, int):
                d = replace(d, max_cudagraph_capture_size=ceiling)
    data = (row.datum, *(engine.defaults[key] for key in engine.defaults))
    return Resolved(d=d, refused=refused, assumed=tuple(assumed), overridden=tuple(overridden), data=data)


def _speculation(model: Model, asked: Deployment, supply: Any) -> None:
    """How many tokens are drafted where only a method is named."""
    caches = model.caches
    if asked.speculative_method and asked.num_speculative_tokens is None and caches is not None and caches.draft_tokens:
        supply(
            "num_speculative_tokens",
            caches.draft_tokens,
            f"as many as the drafter of {model.short_name} drafts",
            caches.data[0].origin(),
        )


def _states(model: Model, asked: Deployment, more: dict[str, Any], default: Any, override: Any, engine: Engine) -> None:
    """The mode of recurrent states: prefix caching needs them aligned, whatever was said."""
    states = (*(model.caches.states if model.caches is not None else ()), *model.recurrent)
    if not states:
        return
    mode = asked.mamba_cache_mode or None
    prefixes = more.get("enable_prefix_caching", asked.enable_prefix_caching)
    if mode is None:
        default("mamba_cache_mode")
    if prefixes and mode in (None, "none"):
        override(
            "mamba_cache_mode",
            mode or engine.defaults["mamba_cache_mode"].value,
            "align",
            "prefix caching is on, and the engine then aligns recurrent states with its blocks",
            "BLIS latency kernel, the Memory page, recurrent state",
        )


def _step(d: Deployment) -> tuple[Count, Count]:
    """Requests and tokens of one step, once they are supplied."""
    if d.max_num_seqs is None or d.max_num_batched_tokens is None:
        raise ValueError("a resolved deployment has its steps")
    return d.max_num_seqs, d.max_num_batched_tokens


def _block(c: Case, supply: Any) -> None:
    """The block where nobody asks for one: what the model states, or what its kernels need."""
    caches = c.model.caches
    stated = block_size(caches, c.d, c.chip) if caches is not None else None
    if stated is not None and caches is not None:
        supply("block_size", stated, f"what the kernels of {c.model.short_name} take here", caches.data[0].origin())
        return
    datum = c.engine.defaults["block_size_sparse" if c.sparse else "block_size"]
    supply("block_size", datum.value, "the engine's default", datum.origin())


def _layouts(c: Case, supply: Any, override: Any, assumed: list[Finding]) -> None:
    """The format in which caches lie, which kernels decide, and the pool where caches share none."""
    asked, caches = c.asked_format, c.model.caches
    if caches is not None and caches.owned:
        form = stored_format(caches, c.d, c.chip) or asked
        _form(c, form, why_format(caches, c.d, c.chip), caches.data[0].origin(), supply, override)
        return
    if c.d.kv_cache_dtype is None:
        kept = c.model.dtype if c.d.dtype in (None, "auto") else c.d.dtype
        assumed.append(
            Finding(
                field="kv_cache_dtype",
                asked=None,
                happens=f"auto ({kept})",
                why="the compute format, of 2 bytes or more",
                source="BLIS latency kernel, the Memory page",
            )
        )
    if c.sparse and c.backend is not None:
        why = "the first kernels that admit the chip, the format and the ranks"
        supply("sparse_mla_backend", c.backend.name, why, "BLIS latency kernel, sparse_mla.go", keep=False)
        _form(c, c.stored_format, f"{c.backend.name} packs it", "BLIS latency kernel, sparse_mla.go", None, override)
    if c.model.latent:
        why = (
            "the engine chooses how much context a prefill of latent attention expands at once; no law here charges it"
        )
        assumed.append(
            Finding(
                field="mla_context_chunk", asked=None, happens="the engine's own", why=why, source="vllm, v1/attention"
            )
        )


def _form(c: Case, form: str, why: str, source: str, supply: Any, override: Any) -> None:
    """Says where the caches lie in another format than was asked for."""
    asked = c.d.kv_cache_dtype
    if asked in (None, "auto"):
        if supply is not None:
            supply("kv_cache_dtype", form, why, source, keep=False)
    elif asked != form:
        override("kv_cache_dtype", asked, asked, f"the caches lie in {form}: {why}", source)
