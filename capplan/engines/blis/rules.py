"""What the kernel has no law for, or its engine would not start: rules as data, each with its sentence."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from capplan.engines.base import Finding, Rule
from capplan.engines.blis.case import Case
from capplan.engines.declared import faults
from capplan.engines.release import Engine, capability_matches
from capplan.engines.vllm import rules
from capplan.engines.vllm.case import CUDAGRAPH_MODES, discrete
from capplan.model import DTYPE_BITS, Model
from capplan.registry import Chip
from capplan.settings.deployment import Deployment
from capplan.units import both

STATE_MODES = ("none", "align", "all")

METHODS = (
    "ngram",
    "ngram_gpu",
    "eagle",
    "eagle3",
    "medusa",
    "mlp_speculator",
    "draft_model",
    "deepseek_mtp",
    "glm4_moe_mtp",
    "kimi_k3_mtp",
    "inkling_mtp",
    "qwen3_next_mtp",
    "nemotron_h_mtp",
    "mtp",
    "dflash",
    "dspark",
)
"""Ways of drafting that the release knows."""

EXCHANGES = ("ag_rs", "a2a")
"""How ranks that share a context exchange their parts."""

MOST_TOKENS = 1 << 36
"""Lengths from here on would overflow int64 in a product with a model's bytes a token."""


def _positive(c: Case) -> bool:
    d = c.d
    return min(d.tensor_parallel_size, d.pipeline_parallel_size, d.data_parallel_size) >= 1


def _contexts(c: Case) -> bool:
    if c.pcp == 1:
        return c.tp % c.dcp == 0
    return c.dcp in (1, c.pcp, c.tp * c.pcp)


def _formats(c: Case) -> str:
    return ", ".join(name for name, f in c.own.cache_formats.items() if not f.not_sized)


def _all_latent(c: Case) -> bool:
    states = c.model.caches.states if c.model.caches is not None else ()
    return c.model.latent and not states and not c.model.recurrent


def _sparse(c: Case) -> str:
    there = [
        f"{b.name} takes {', '.join(b.takes)}"
        for b in c.own.sparse_backends
        if capability_matches(b.capabilities, c.chip.capability)
    ]
    return (
        f"no kernel serves sparse latent attention of {c.name} with kv_cache_dtype {c.asked_format}, "
        f"{c.heads_per_rank} heads a rank and decode_context_parallel_size {c.dcp} on {c.chip.title}; "
        + ("; ".join(there) if there else "it needs compute capability 9.0 or 10.x")
    )


OF_VLLM: dict[str, Rule[Any]] = {rule.name: rule for rule in (*rules.DISCRETE_RULES, *rules.NUMERIC_RULES)}
"""Rules that the release itself has, some of which the kernel keeps as they are."""

LATENT_ONLY = "prefill_context_parallel_size needs latent attention in every layer and no recurrent state"

DISCRETE_RULES: tuple[Rule[Case], ...] = (
    Rule(
        name="sizes-positive",
        field="tensor_parallel_size",
        holds=_positive,
        says=lambda c: (
            f"tensor, pipeline and data parallel sizes are {c.d.tensor_parallel_size}, {c.d.pipeline_parallel_size} "
            f"and {c.d.data_parallel_size}; each must be 1 or more"
        ),
        source="BLIS latency kernel, field validation",
    ),
    Rule(
        name="prefill-ranks-positive",
        field="prefill_context_parallel_size",
        holds=lambda c: c.d.prefill_context_parallel_size >= 0,
        says=lambda c: (
            f"prefill_context_parallel_size is {c.d.prefill_context_parallel_size}; it must be 1 or more (0 is 1)"
        ),
        source="BLIS latency kernel, field validation",
    ),
    Rule(
        name="context-ranks-positive",
        field="decode_context_parallel_size",
        holds=lambda c: c.d.decode_context_parallel_size >= 0,
        says=lambda c: (
            f"decode_context_parallel_size is {c.d.decode_context_parallel_size}; it must be 1 or more (0 is 1)"
        ),
        source="BLIS latency kernel, field validation",
    ),
    Rule(
        name="one-stage",
        field="pipeline_parallel_size",
        holds=lambda c: c.d.pipeline_parallel_size == 1,
        says=lambda c: (
            f"pipeline_parallel_size is {c.d.pipeline_parallel_size}, and {c.engine.title} has no law for stages; "
            "choose 1, or plan with vllm-0.33.0"
        ),
        source="BLIS latency kernel, internal/price",
    ),
    Rule(
        name="quantization-known",
        field="quantization",
        holds=lambda c: not c.d.quantization or c.d.quantization in c.own.quantizations,
        says=lambda c: (
            f"quantization is {c.d.quantization!r}, which the release does not know; "
            f"there are {', '.join(c.own.quantizations)}"
        ),
        source="BLIS registry, rules pack 0.29.0",
    ),
    Rule(
        name="dtype-known",
        field="dtype",
        holds=lambda c: c.d.dtype in (None, "auto", *DTYPE_BITS),
        says=lambda c: f"dtype is {c.d.dtype!r}; there are auto, {', '.join(DTYPE_BITS)}",
        source="vllm, config/model.py, _get_and_verify_dtype",
    ),
    Rule(
        name="graph-mode-known",
        field="cudagraph_mode",
        holds=lambda c: not c.d.cudagraph_mode or c.d.cudagraph_mode in CUDAGRAPH_MODES,
        says=lambda c: f"cudagraph_mode is {c.d.cudagraph_mode!r}; there are {', '.join(CUDAGRAPH_MODES)}",
        source="BLIS registry, rules pack 0.29.0",
    ),
    Rule(
        name="state-mode-known",
        field="mamba_cache_mode",
        holds=lambda c: not c.d.mamba_cache_mode or c.d.mamba_cache_mode in STATE_MODES,
        says=lambda c: f"mamba_cache_mode is {c.d.mamba_cache_mode!r}; there are {', '.join(STATE_MODES)}",
        source="BLIS registry, rules pack 0.29.0",
    ),
    Rule(
        name="method-known",
        field="speculative_method",
        holds=lambda c: not c.d.speculative_method or c.d.speculative_method in METHODS,
        says=lambda c: f"speculative_method is {c.d.speculative_method!r}; there are {', '.join(METHODS)}",
        source="BLIS registry, rules pack 0.29.0",
    ),
    Rule(
        name="exchange-known",
        field="dcp_comm_backend",
        holds=lambda c: not c.d.dcp_comm_backend or c.d.dcp_comm_backend in EXCHANGES,
        says=lambda c: f"dcp_comm_backend is {c.d.dcp_comm_backend!r}; there are {', '.join(EXCHANGES)}",
        source="BLIS registry, rules pack 0.29.0",
    ),
    Rule(
        name="counts-not-negative",
        field="num_redundant_experts",
        holds=lambda c: (c.d.num_redundant_experts or 0) >= 0,
        says=lambda c: f"num_redundant_experts is {c.d.num_redundant_experts}; it must be 0 or more",
        source="BLIS latency kernel, field validation",
    ),
    Rule(
        name="drafted-not-negative",
        field="num_speculative_tokens",
        holds=lambda c: (c.d.num_speculative_tokens or 0) >= 0,
        says=lambda c: f"num_speculative_tokens is {c.d.num_speculative_tokens}; it must be 0 or more",
        source="BLIS latency kernel, field validation",
    ),
    Rule(
        name="capture-size-positive",
        field="max_cudagraph_capture_size",
        holds=lambda c: c.d.max_cudagraph_capture_size is None or c.d.max_cudagraph_capture_size >= 1,
        says=lambda c: f"max_cudagraph_capture_size is {c.d.max_cudagraph_capture_size}; it must be 1 or more",
        source="BLIS latency kernel, field validation",
    ),
    Rule(
        name="replicas-or-shared-prefill",
        field="prefill_context_parallel_size",
        holds=lambda c: c.pcp == 1 or c.dp == 1,
        says=lambda c: (
            f"prefill_context_parallel_size is {c.pcp} and data_parallel_size {c.dp}; the engine does not combine "
            "them, so set one of the two to 1"
        ),
        source="BLIS latency kernel, new.go",
    ),
    Rule(
        name="contexts-divide-ranks",
        field="decode_context_parallel_size",
        holds=_contexts,
        says=lambda c: (
            f"tensor_parallel_size {c.tp} is not divisible by decode_context_parallel_size {c.dcp}; choose a divisor"
            if c.pcp == 1
            else f"decode_context_parallel_size {c.dcp} does not go with prefill_context_parallel_size {c.pcp} and "
            f"tensor_parallel_size {c.tp}; choose 1, {c.pcp} or {c.tp * c.pcp}"
        ),
        source="BLIS latency kernel, new.go",
    ),
    Rule(
        name="shared-prefill-of-latent",
        field="prefill_context_parallel_size",
        holds=lambda c: c.pcp == 1 or _all_latent(c),
        says=lambda c: f"prefill_context_parallel_size is {c.pcp}; {LATENT_ONLY}, so choose 1 for {c.name}",
        source="BLIS latency kernel, new.go",
    ),
    Rule(
        name="shared-prefill-with-contexts",
        field="decode_context_parallel_size",
        holds=lambda c: c.pcp == 1 or c.dcp == 1 or c.sparse,
        says=lambda c: (
            f"decode_context_parallel_size {c.dcp} beside prefill_context_parallel_size {c.pcp} needs sparse latent "
            f"attention, which {c.name} has not; set one of the two to 1"
        ),
        source="BLIS latency kernel, new.go",
    ),
    Rule(
        name="shared-prefill-exchange",
        field="dcp_comm_backend",
        holds=lambda c: c.pcp == 1 or c.d.dcp_comm_backend != "a2a",
        says=lambda c: (
            f"dcp_comm_backend is a2a, which does not go with prefill_context_parallel_size {c.pcp}; choose ag_rs"
        ),
        source="BLIS latency kernel, new.go",
    ),
    Rule(
        name="queries-not-replicated",
        field="dcp_replicate_queries",
        holds=lambda c: not (c.d.dcp_replicate_queries and c.dcp > 1 and c.pcp == 1 and c.model.latent),
        says=lambda c: (
            f"dcp_replicate_queries does not go with decode_context_parallel_size {c.dcp} on the latent attention of "
            f"{c.name}; leave it out"
        ),
        source="BLIS latency kernel, new.go",
    ),
    Rule(
        name="cache-format-known",
        field="kv_cache_dtype",
        holds=lambda c: c.model.caches is not None or c.asked_format == "auto" or c.format is not None,
        says=lambda c: f"kv_cache_dtype is {c.asked_format!r}; there are auto, {_formats(c)}",
        source="BLIS registry, rules pack 0.29.0",
    ),
    Rule(
        name="cache-format-sized",
        field="kv_cache_dtype",
        holds=lambda c: c.format is None or not c.format.not_sized,
        says=lambda c: (
            f"kv_cache_dtype {c.asked_format} has a layout that {c.engine.title} does not size; "
            f"choose auto, {_formats(c)}"
        ),
        source="BLIS latency kernel, internal/price",
    ),
    Rule(
        name="cache-format-of-latent",
        field="kv_cache_dtype",
        holds=lambda c: c.model.caches is not None or c.format is None or not c.format.not_latent or not c.model.latent,
        says=lambda c: (
            f"kv_cache_dtype {c.asked_format} does not go with the latent attention of {c.name}; choose auto, fp8"
        ),
        source="BLIS latency kernel, internal/price",
    ),
    Rule(
        name="compressed-caches-stated",
        field="model",
        holds=lambda c: c.model.attention_type != "compressed-latent" or bool(c.stated_layers),
        says=lambda c: (
            f"{c.name} keeps compressed caches, which {c.engine.title} sizes only where a model file states them; "
            "write one with [caches], or plan with vllm-0.33.0"
        ),
        source="BLIS registry, the catalog's known faults",
    ),
    Rule(
        name="packed-format-of-sparse",
        field="kv_cache_dtype",
        holds=lambda c: c.model.caches is not None or c.format is None or not c.format.record_bytes or c.sparse,
        says=lambda c: (
            f"kv_cache_dtype {c.asked_format} is a packed record of sparse latent attention, which {c.name} has not; "
            "choose auto, bfloat16 or fp8"
        ),
        source="BLIS latency kernel, internal/price/sparse_mla.go",
    ),
    Rule(
        name="sparse-kernel-exists",
        field="kv_cache_dtype",
        holds=lambda c: not c.sparse or c.backend is not None,
        says=_sparse,
        source="BLIS latency kernel, internal/price/sparse_mla.go",
    ),
    Rule(
        name="block-size-positive",
        field="block_size",
        holds=lambda c: c.d.block_size is None or c.d.block_size >= 1,
        says=lambda c: f"block_size is {c.d.block_size}; it must be 1 or more",
        source="BLIS latency kernel, field validation",
    ),
    Rule(
        name="block-size-of-sparse",
        field="block_size",
        holds=lambda c: (
            not c.sparse or c.d.block_size is None or c.d.block_size % c.engine.defaults["block_size_sparse"].value == 0
        ),
        says=lambda c: (
            f"block_size is {c.d.block_size}, and sparse latent attention of {c.name} keeps blocks that are multiples "
            f"of {c.engine.defaults['block_size_sparse'].value}; choose one of those"
        ),
        source="BLIS latency kernel, internal/price/sparse_mla.go",
    ),
    Rule(
        name="interleaving-divides-block",
        field="dcp_kv_cache_interleave_size",
        holds=lambda c: (
            c.d.dcp_kv_cache_interleave_size is None
            or (
                c.d.dcp_kv_cache_interleave_size >= 1 and (c.d.block_size or 16) % c.d.dcp_kv_cache_interleave_size == 0
            )
        ),
        says=lambda c: (
            f"dcp_kv_cache_interleave_size is {c.d.dcp_kv_cache_interleave_size}, which does not divide the block of "
            f"{c.d.block_size or 16} tokens; choose a divisor"
        ),
        source="BLIS latency kernel, new.go",
    ),
    Rule(
        name="an-expert-for-every-rank",
        field="enable_expert_parallel",
        holds=lambda c: (
            not c.d.enable_expert_parallel or c.model.experts is None or c.ep <= c.model.experts.n_experts + c.redundant
        ),
        says=lambda c: (
            f"{c.ep} ranks would share {c.n_experts + c.redundant} experts of {c.name}, fewer than one "
            "each; choose fewer ranks, or more num_redundant_experts"
        ),
        source="BLIS latency kernel, new.go",
    ),
    OF_VLLM["experts-for-expert-parallel"],
    Rule(
        name="ranks-fit-the-pool",
        field="nnodes",
        holds=lambda c: c.d.gpus_per_node is None or c.d.n_chips <= (c.d.nnodes or 1) * c.d.gpus_per_node,
        says=lambda c: (
            f"{c.d.n_chips} ranks are asked and {c.d.nnodes or 1} nodes of {c.d.gpus_per_node} GPUs have "
            f"{(c.d.nnodes or 1) * (c.d.gpus_per_node or 0)}; choose fewer ranks, or nnodes "
            f"{-(-c.d.n_chips // max(1, c.d.gpus_per_node or 1))}"
        ),
        source="BLIS latency kernel, new.go",
    ),
    Rule(
        name="local-replicas",
        field="data_parallel_size_local",
        holds=lambda c: (
            c.d.data_parallel_size_local is None
            or (
                1 <= c.d.data_parallel_size_local <= c.dp
                and (c.d.gpus_per_node is None or c.d.gpus_per_node % c.d.data_parallel_size_local == 0)
            )
        ),
        says=lambda c: (
            f"data_parallel_size_local is {c.d.data_parallel_size_local}; it must be at most data_parallel_size {c.dp}"
            + (f" and divide the {c.d.gpus_per_node} GPUs of a node" if c.d.gpus_per_node else "")
        ),
        source="BLIS latency kernel, new.go",
    ),
    Rule(
        name="one-pool",
        field="pool_role",
        holds=lambda c: c.d.pool_role in (None, "", "colocated"),
        says=lambda c: (
            f"pool_role is {c.d.pool_role!r}; a prefill and a decode pool need each other and a description of the "
            "transfer between them, and a plan is of one pool; choose colocated, and plan each pool by itself"
        ),
        source="BLIS latency kernel, new.go",
    ),
)
"""What depends on kinds and ranks, in the order of the kernel's checks."""

NUMERIC_RULES: tuple[Rule[Case], ...] = (
    Rule(
        name="utilization-is-a-share",
        field="gpu_memory_utilization",
        holds=lambda c: both(c.gpu_memory_utilization > 0, c.gpu_memory_utilization <= 1),
        says=lambda c: (
            f"gpu_memory_utilization is {c.gpu_memory_utilization:g}; it must be above 0 and at most 1 (0 is unset)"
        ),
        source="BLIS latency kernel, field validation",
    ),
    Rule(
        name="length-positive",
        field="max_model_len",
        holds=lambda c: both(c.max_model_len >= 1, c.max_model_len < MOST_TOKENS),
        says=lambda c: f"max_model_len is {c.max_model_len}; it must be from 1 to {MOST_TOKENS - 1:,}",
        source="BLIS latency kernel, field validation",
    ),
    Rule(
        name="sequences-positive",
        field="max_num_seqs",
        holds=lambda c: both(c.max_num_seqs >= 1, c.max_num_seqs < 1 << 31),
        says=lambda c: f"max_num_seqs is {c.max_num_seqs}; it must be from 1 to 2,147,483,647",
        source="BLIS latency kernel, field validation",
    ),
    Rule(
        name="step-positive",
        field="max_num_batched_tokens",
        holds=lambda c: both(c.max_num_batched_tokens >= 1, c.max_num_batched_tokens < 1 << 31),
        says=lambda c: f"max_num_batched_tokens is {c.max_num_batched_tokens}; it must be from 1 to 2,147,483,647",
        source="BLIS latency kernel, field validation",
    ),
    OF_VLLM["cache-bytes-positive"],
    OF_VLLM["blocks-positive"],
    Rule(
        name="load-positive",
        field="tokens",
        holds=lambda c: both(c.tokens >= 1, True if c.d.requests is None else c.d.requests >= 1),
        says=lambda c: f"the load is {c.d.requests or 1} requests of {c.tokens} tokens; both must be 1 or more",
        source="capplan, the load that a plan answers for",
    ),
    OF_VLLM["load-within-length"],
)
"""What depends on numbers, each a mask where they are many."""


def broken(c: Case) -> tuple[Finding, ...]:
    """The rules that the deployment breaks: the first of kinds and ranks, each of the numbers', and what only the
    engine would stop at, which leaves the figures."""
    found = []
    first = _discrete(c.model, discrete(c.d), c.chip, c.engine)
    if first is not None:
        found.append(first)
    found += [f for rule in NUMERIC_RULES if (f := rule.finding(c, c.d)) is not None]
    return (*found, *_pack_errors(c))


def _pack_errors(c: Case) -> tuple[Finding, ...]:
    """What the rules pack reports as an error: the engine would not start, and every law still answers."""
    d, experts = c.d, c.model.experts
    if not d.enable_eplb:
        return ()
    if not d.enable_expert_parallel:
        field, why = (
            "enable_eplb",
            "enable_eplb needs enable_expert_parallel, which is off; turn it on, or leave it out",
        )
    elif experts is not None and (experts.n_experts + c.redundant) % c.ep:
        over = (experts.n_experts + c.redundant) % c.ep
        field = "num_redundant_experts"
        why = (
            f"{experts.n_experts} experts and {c.redundant} replicas are not shared equally by {c.ep} ranks, which "
            f"enable_eplb needs; choose num_redundant_experts {c.redundant + c.ep - over}"
        )
    else:
        return ()
    asked = getattr(d, field)
    source = "BLIS registry, rules pack 0.29.0"
    return (Finding(field=field, asked=asked, happens="refused", why=why, source=source, stops=False),)


@lru_cache(maxsize=4096)
def _discrete(model: Model, d: Deployment, chip: Chip, engine: Engine) -> Finding | None:
    case = Case(model=model, d=d, chip=chip, engine=engine)
    for rule in DISCRETE_RULES:
        finding = rule.finding(case, d)
        if finding is not None:
            return finding
    return next(faults(model, d, chip), None)
