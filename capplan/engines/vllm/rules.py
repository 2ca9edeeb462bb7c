"""What vLLM will not start with: rules as data, each with its sentence."""

from __future__ import annotations

from functools import lru_cache

from capplan.engines.base import Finding, Rule
from capplan.engines.declared import faults
from capplan.engines.release import Engine, capability_matches
from capplan.engines.vllm.case import (
    CUDAGRAPH_MODES,
    KV_BITS,
    PERFORMANCE_MODES,
    Case,
    attention_backend,
    attention_type,
    discrete,
    padded_vocab,
    sequence_parallel,
)
from capplan.engines.vllm.formats import form_of, layout_of, place_of
from capplan.engines.vllm.hold import matrix_sizes
from capplan.model import DTYPE_BITS, ONLINE, Extent, Model, load_family
from capplan.registry import Chip, file_of
from capplan.settings.deployment import Deployment
from capplan.units import both, round_up

NO_DRAFTER = ("ngram", "ngram_gpu")
"""Ways of drafting that load no weights."""

STATE_MODES = ("none", "align", "all")
"""How recurrent states are kept."""


def _interleaves(c: Case) -> bool:
    size, block = c.d.dcp_kv_cache_interleave_size, c.d.block_size or c.engine.defaults["block_size"].value
    return size is None or (size >= 1 and block % size == 0)


def _unshared(c: Case) -> int:
    """Experts left over where ranks do not share them and their replicas equally."""
    n = c.model.experts.n_experts if c.model.experts is not None else 0
    return (n + (c.d.num_redundant_experts or 0)) % c.ep_size


def _divisors(number: int, *, most: int = 64) -> str:
    found = [n for n in range(1, most + 1) if number % n == 0]
    return ", ".join(map(str, found))


def _even_ranks(c: Case) -> str:
    """Ranks that share the query heads, and share the key-value heads or hold equal copies of them."""
    heads, kv = c.model.n_heads, c.n_kv_heads
    return ", ".join(str(t) for t in range(1, heads + 1) if heads % t == 0 and (kv % t == 0 or t % kv == 0))


def _copies(c: Case) -> int:
    """Ranks that hold a copy of the same key-value head."""
    return max(1, c.tp // c.n_kv_heads)


def _queries(c: Case) -> int:
    """Query heads that one key-value head serves."""
    return c.model.n_heads // c.n_kv_heads


def _latent_dims(c: Case) -> tuple[int, ...]:
    return c.model.latent_nope_dim, c.model.head_dim - c.model.latent_nope_dim, c.model.latent_value_dim


def _kernels(c: Case) -> str:
    """What was asked of the attention kernels, and what the chip's kernels take."""
    d = c.d
    kind = "latent attention" if c.model.latent else "attention"
    asked = f"{kind} in {c.dtype} with kv_cache_dtype {d.kv_cache_dtype or 'auto'}"
    asked += f" and block_size {d.block_size}" if d.block_size is not None else ""
    there = [
        f"{b.name} takes {' or '.join(b.dtypes)}, caches in {', '.join(b.kv_cache_dtypes)}, "
        f"blocks that are multiples of {b.block_multiple}"
        for b in c.engine.backends
        if b.latent == c.model.latent
        and attention_type(c) in b.attention
        and capability_matches(b.capabilities, c.chip.capability)
    ]
    return (
        f"no kernel of {c.engine.title} serves {asked} on {c.chip.title}; "
        + ("; ".join(there) if there else "it has none for this chip")
    )  # fmt: skip


def _block_faults(c: Case) -> list[str]:
    """Matrices that block scales cannot follow into this many shards."""
    t, faults = c.tp, []
    for tensor in c.model.tensors:
        form = tensor.form
        if form is None or form.name != "fp8-block" or tensor.n_experts or t == 1:
            continue
        # Matrices packed into one may end within a block; one alone may not.
        extent = tensor.rows[0]
        if len(tensor.rows) == 1 and extent.split in ("ranks", "shared_expert"):
            share = _ranks_share(extent, c)
            if share % form.rows:
                faults.append(f"{tensor.name} has {share} rows on a rank")
        if tensor.columns is not None and tensor.columns.split in ("ranks", "shared_expert"):
            share = _ranks_share(tensor.columns, c)
            if share % form.columns:
                faults.append(f"{tensor.name} has {share} columns on a rank")
    return faults


def _block(c: Case) -> str:
    """The block that one scale serves, in words."""
    form = next(t.form for t in c.model.tensors if t.form is not None and t.form.name == "fp8-block")
    return f"{form.rows} x {form.columns}"


def _formless(c: Case) -> list[str]:
    """Quantized matrices whose layout on the chip nobody wrote down, each as the start of a sentence."""
    found = []
    for tensor in c.model.tensors:
        form = form_of(tensor, c.model, c.d.quantization)
        if form is None:
            continue
        sizes = matrix_sizes(tensor, c, 1)
        if layout_of(form.name, place_of(tensor), sizes, c.engine, c.chip) is None:
            found.append(f"{tensor.name} is stored as {form.name}")
    return found


def _quantizations(c: Case) -> tuple[str, ...]:
    """What may be said of a checkpoint's quantization."""
    return c.model.quantization.serves if c.model.quantization is not None else tuple(ONLINE)


def _ranks_share(extent: Extent, c: Case) -> int:
    if extent.split == "shared_expert" and sequence_parallel(c.d):
        return extent.size
    share = extent.size // c.tp
    if extent.split == "kv_heads":
        return max(share, extent.unit)
    return int(round_up(share, extent.unit)) if extent.split == "shared_expert" else share


def _uneven(c: Case) -> list[str]:
    """Extents that ranks cannot share equally, each as the start of a sentence."""
    found = []
    for tensor in c.model.tensors:
        for extent in (*tensor.rows, *((tensor.columns,) if tensor.columns else ())):
            ranks = {"ranks": c.tp, "expert_columns": c.expert_shards}.get(extent.split, 1)
            if extent.split == "shared_expert" and not sequence_parallel(c.d):
                ranks = c.tp
            if extent.size % ranks:
                found.append(f"{extent.size:,} elements to share in {tensor.name}, which {ranks}")
    return found


DISCRETE_RULES: tuple[Rule[Case], ...] = (
    Rule(
        name="ranks-at-least-one",
        field="tensor_parallel_size",
        holds=lambda c: min(c.tp, c.d.pipeline_parallel_size, c.d.data_parallel_size, c.dcp) >= 1,
        says=lambda c: (
            f"tensor, pipeline, data and decode context parallel sizes are {c.tp}, {c.d.pipeline_parallel_size}, "
            f"{c.d.data_parallel_size} and {c.dcp}; each must be 1 or more"
        ),
        source="vllm, config/parallel.py, ParallelConfig",
    ),
    Rule(
        name="heads-divide",
        field="tensor_parallel_size",
        holds=lambda c: c.model.n_heads % c.tp == 0,
        says=lambda c: (
            f"{c.name} has {c.model.n_heads} heads, which {c.tp} ranks cannot share equally; "
            f"choose tensor_parallel_size among {_divisors(c.model.n_heads)}"
        ),
        source="vllm, config/model.py, ModelConfig.verify_with_parallel_config",
    ),
    Rule(
        name="key-value-heads-divide",
        field="tensor_parallel_size",
        holds=lambda c: c.model.latent or c.n_kv_heads % c.tp == 0 or c.tp % c.n_kv_heads == 0,
        says=lambda c: (
            f"{c.name} has {c.n_kv_heads} key-value heads, which {c.tp} ranks can neither share equally nor hold "
            f"in equal copies; choose tensor_parallel_size among {_even_ranks(c)}"
        ),
        source="vllm, model_executor/models/llama.py, LlamaAttention",
    ),
    Rule(
        name="vocabulary-divides",
        field="tensor_parallel_size",
        holds=lambda c: padded_vocab(c) % c.tp == 0,
        says=lambda c: (
            f"the vocabulary of {c.name}, padded to {padded_vocab(c):,} words, is not divisible by {c.tp} ranks; "
            "choose a power of two"
        ),
        source="vllm, model_executor/layers/vocab_parallel_embedding.py, VocabParallelEmbedding",
    ),
    Rule(
        name="matrices-divide",
        field="tensor_parallel_size",
        holds=lambda c: not _uneven(c),
        says=lambda c: f"{c.name} has {_uneven(c)[0]} ranks cannot share equally; choose fewer ranks or a divisor",
        source="vllm, distributed/utils.py, divide",
    ),
    Rule(
        name="block-scales-divide",
        field="tensor_parallel_size",
        holds=lambda c: not _block_faults(c),
        says=lambda c: (
            f"{c.name} is quantized in blocks of {_block(c)}, and {_block_faults(c)[0]}, which is no multiple of them; "
            "choose fewer ranks"
        ),
        source="vllm, model_executor/layers/quantization/utils/fp8_utils.py, validate_fp8_block_shape",
    ),
    Rule(
        name="layers-for-every-stage",
        field="pipeline_parallel_size",
        holds=lambda c: c.d.pipeline_parallel_size <= c.model.n_layers,
        says=lambda c: (
            f"{c.name} has {c.model.n_layers} layers, too few for {c.d.pipeline_parallel_size} stages; "
            f"choose pipeline_parallel_size up to {c.model.n_layers}"
        ),
        source="vllm, distributed/utils.py, get_pp_indices",
    ),
    Rule(
        name="experts-for-expert-parallel",
        field="enable_expert_parallel",
        holds=lambda c: not c.d.enable_expert_parallel or c.model.experts is not None,
        says=lambda c: f"{c.name} has no experts, which enable_expert_parallel needs; leave it out",
        source="vllm, config/model.py, ModelConfig._verify_with_expert_parallelism",
    ),
    Rule(
        name="contexts-divide-ranks",
        field="decode_context_parallel_size",
        holds=lambda c: c.tp % c.dcp == 0,
        says=lambda c: (
            f"tensor_parallel_size {c.tp} is not divisible by decode_context_parallel_size {c.dcp}; "
            f"choose among {_divisors(c.tp)}"
        ),
        source="vllm, config/parallel.py, ParallelConfig",
    ),
    Rule(
        name="contexts-need-copies-of-heads",
        field="decode_context_parallel_size",
        holds=lambda c: c.model.latent or c.dcp == 1 or (c.dcp <= _copies(c) and _queries(c) % c.dcp == 0),
        says=lambda c: (
            f"decode_context_parallel_size {c.dcp} needs as many ranks to hold copies of each key-value head; "
            f"{c.name} has {c.n_kv_heads} of them, {c.tp} ranks hold {_copies(c)} of each, with {_queries(c)} "
            "query heads to one; raise tensor_parallel_size or choose 1"
        ),
        source="vllm, config/model.py, ModelConfig.verify_with_parallel_config",
    ),
    Rule(
        name="contexts-without-windows",
        field="decode_context_parallel_size",
        holds=lambda c: c.dcp == 1 or all(a.kind != "sliding" for a in c.model.attention),
        says=lambda c: f"{c.name} has sliding windows, which decode_context_parallel_size cannot divide; choose 1",
        source="vllm, v1/kv_cache_interface.py, SlidingWindowSpec.max_memory_usage_bytes",
    ),
    Rule(
        name="one-rank-for-a-prefill",
        field="prefill_context_parallel_size",
        holds=lambda c: c.d.prefill_context_parallel_size == 1,
        says=lambda c: (
            f"prefill_context_parallel_size is {c.d.prefill_context_parallel_size}, for which capplan has no law of "
            f"{c.engine.title}'s weights and steps yet; choose 1, or plan with blis-kernel"
        ),
        source="capplan, laws of vLLM",
    ),
    Rule(
        name="exchange-planned",
        field="dcp_comm_backend",
        holds=lambda c: c.d.dcp_comm_backend in (None, "ag_rs") and not c.d.dcp_replicate_queries,
        says=lambda c: (
            f"dcp_comm_backend {c.d.dcp_comm_backend} or dcp_replicate_queries may move memory, and capplan has no law "
            "of it yet; choose ag_rs and leave the other out"
        ),
        source="capplan, laws of vLLM",
    ),
    Rule(
        name="interleaving-divides-block",
        field="dcp_kv_cache_interleave_size",
        holds=lambda c: _interleaves(c),
        says=lambda c: (
            f"dcp_kv_cache_interleave_size is {c.d.dcp_kv_cache_interleave_size}, which does not divide the block of "
            f"{c.d.block_size or c.engine.defaults['block_size'].value} tokens; choose a divisor"
        ),
        source="vllm, config/vllm.py, VllmConfig.__post_init__",
    ),
    Rule(
        name="replicas-need-expert-parallel",
        field="enable_eplb",
        holds=lambda c: not c.d.enable_eplb or (c.d.enable_expert_parallel and c.model.experts is not None),
        says=lambda c: "enable_eplb needs enable_expert_parallel and a model with experts; turn it on, or leave it out",
        source="vllm, config/parallel.py, ParallelConfig",
    ),
    Rule(
        name="replicas-not-negative",
        field="num_redundant_experts",
        holds=lambda c: (c.d.num_redundant_experts or 0) >= 0 and (c.d.enable_eplb or not c.d.num_redundant_experts),
        says=lambda c: (
            f"num_redundant_experts is {c.d.num_redundant_experts}; it must be 0 or more, and 0 without enable_eplb"
        ),
        source="vllm, config/parallel.py, EPLBConfig",
    ),
    Rule(
        name="replicas-shared-equally",
        field="num_redundant_experts",
        holds=lambda c: not c.d.enable_eplb or c.model.experts is None or not _unshared(c),
        says=lambda c: (
            f"{c.n_experts} experts and {c.d.num_redundant_experts or 0} replicas are not shared equally "
            f"by {c.ep_size} ranks; choose num_redundant_experts "
            f"{(c.d.num_redundant_experts or 0) + c.ep_size - _unshared(c)}"
        ),
        source="vllm, model_executor/layers/fused_moe/layer.py",
    ),
    Rule(
        name="drafted-not-negative",
        field="num_speculative_tokens",
        holds=lambda c: (c.d.num_speculative_tokens or 0) >= 0,
        says=lambda c: f"num_speculative_tokens is {c.d.num_speculative_tokens}; it must be 0 or more",
        source="vllm, config/speculative.py, SpeculativeConfig",
    ),
    Rule(
        name="drafter-has-no-weights",
        field="speculative_method",
        holds=lambda c: not c.d.num_speculative_tokens or not c.model.tensors or c.d.speculative_method in NO_DRAFTER,
        says=lambda c: (
            f"speculative_method {c.d.speculative_method} drafts with weights that capplan has no law for yet; "
            f"choose {' or '.join(NO_DRAFTER)}, or leave num_speculative_tokens out"
        ),
        source="capplan, laws of vLLM",
    ),
    Rule(
        name="state-mode-known",
        field="mamba_cache_mode",
        holds=lambda c: not c.d.mamba_cache_mode or c.d.mamba_cache_mode in STATE_MODES,
        says=lambda c: f"mamba_cache_mode is {c.d.mamba_cache_mode!r}; there are {', '.join(STATE_MODES)}",
        source="vllm, config/cache.py, MambaCacheMode",
    ),
    Rule(
        name="dtype-known",
        field="dtype",
        holds=lambda c: c.dtype in DTYPE_BITS,
        says=lambda c: f"dtype is {c.dtype!r}; there are auto, {', '.join(DTYPE_BITS)}",
        source="vllm, config/model.py, _get_and_verify_dtype",
    ),
    Rule(
        name="float16-stable",
        field="dtype",
        holds=lambda c: c.dtype != "float16" or load_family(c.model.family).vllm.float16,
        says=lambda c: f"{c.name} is unstable in float16, which the engine refuses; choose bfloat16 or float32",
        source="vllm, config/model.py, _FLOAT16_NOT_SUPPORTED_MODELS",
    ),
    Rule(
        name="bfloat16-on-chip",
        field="dtype",
        holds=lambda c: c.dtype != "bfloat16" or c.chip.capability is None or c.chip.capability >= (8, 0),
        says=lambda c: f"{c.chip.title} has no bfloat16, which needs compute capability 8.0; choose float16",
        source="vllm, platforms/cuda.py, CudaPlatform.check_if_supports_dtype",
    ),
    Rule(
        name="quantization-of-checkpoint",
        field="quantization",
        holds=lambda c: c.d.quantization is None or c.d.quantization in _quantizations(c),
        says=lambda c: (
            f"quantization {c.d.quantization} was asked, and the checkpoint is "
            f"{'stored as ' + c.model.quantization.method if c.model.quantization else 'not quantized'}; "
            f"{' or '.join(_quantizations(c))} would do, or leave it out"
        ),
        source="vllm, config/model.py, ModelConfig._verify_quantization",
    ),
    Rule(
        name="quantized-in-16-bit",
        field="dtype",
        holds=lambda c: c.model.quantization is None or c.dtype in ("bfloat16", "float16"),
        says=lambda c: f"dtype {c.dtype} does not go with a checkpoint in {c.method}; choose bfloat16 or float16",
        source="vllm, config/vllm.py, VllmConfig._get_quantization_config",
    ),
    Rule(
        name="layout-known",
        field="chip",
        holds=lambda c: not _formless(c),
        says=lambda c: (
            f"{_formless(c)[0]} in {c.name}, which no kernel that capplan knows of {c.engine.title} serves on "
            f"{c.chip.title} in this many shards; registry/{file_of('engines', c.engine.name)} would say it in layouts"
        ),
        source="registry, engines, layouts",
    ),
    Rule(
        name="cache-format-known",
        field="kv_cache_dtype",
        holds=lambda c: c.d.kv_cache_dtype in (None, "auto") or c.d.kv_cache_dtype in KV_BITS,
        says=lambda c: f"kv_cache_dtype is {c.d.kv_cache_dtype!r}; capplan has laws for auto, {', '.join(KV_BITS)}",
        source="vllm, config/cache.py, CacheDType",
    ),
    Rule(
        name="cache-format-of-model",
        field="kv_cache_dtype",
        holds=lambda c: c.d.kv_cache_dtype not in ("float16", "bfloat16") or c.d.kv_cache_dtype == c.dtype,
        says=lambda c: (
            f"kv_cache_dtype {c.d.kv_cache_dtype} does not go with dtype {c.dtype}; choose auto, {c.dtype} or fp8"
        ),
        source="vllm, config/vllm.py, VllmConfig.__post_init__",
    ),
    Rule(
        name="block-size-positive",
        field="block_size",
        holds=lambda c: c.d.block_size is None or c.d.block_size >= 1,
        says=lambda c: f"block_size is {c.d.block_size}; it must be 1 or more, and a multiple of what the kernels take",
        source="vllm, config/cache.py, CacheConfig.block_size",
    ),
    Rule(
        name="latent-sizes-served",
        field="chip",
        holds=lambda c: not c.model.latent or not c.engine.latent_dims or _latent_dims(c) in c.engine.latent_dims,
        says=lambda c: (
            f"{c.name} has latent heads of {_latent_dims(c)} (without position, with position, value), for which "
            f"{c.engine.title} has no prefill kernel; it has them for {', '.join(map(str, c.engine.latent_dims))}"
        ),
        source="vllm, v1/attention/backends/mla/prefill/selector.py",
    ),
    Rule(
        name="kernel-exists",
        field="kv_cache_dtype",
        holds=lambda c: attention_backend(c) is not None,
        says=lambda c: _kernels(c),
        source="vllm, platforms/cuda.py, CudaPlatform.get_attn_backend_cls",
    ),
    Rule(
        name="graph-mode-known",
        field="cudagraph_mode",
        holds=lambda c: c.d.cudagraph_mode is None or c.d.cudagraph_mode in CUDAGRAPH_MODES,
        says=lambda c: f"cudagraph_mode is {c.d.cudagraph_mode!r}; there are {', '.join(CUDAGRAPH_MODES)}",
        source="vllm, config/compilation.py, CUDAGraphMode",
    ),
    Rule(
        name="capture-size-positive",
        field="max_cudagraph_capture_size",
        holds=lambda c: c.d.max_cudagraph_capture_size is None or c.d.max_cudagraph_capture_size >= 0,
        says=lambda c: f"max_cudagraph_capture_size is {c.d.max_cudagraph_capture_size}; it must be 0 or more",
        source="vllm, config/compilation.py, CompilationConfig.max_cudagraph_capture_size",
    ),
    Rule(
        name="performance-mode-known",
        field="performance_mode",
        holds=lambda c: c.d.performance_mode in (None, *PERFORMANCE_MODES),
        says=lambda c: f"performance_mode is {c.d.performance_mode!r}; there are {', '.join(PERFORMANCE_MODES)}",
        source="vllm, config/vllm.py, PerformanceMode",
    ),
)
"""What depends on kinds and ranks, in the order in which the engine would stop."""

NUMERIC_RULES: tuple[Rule[Case], ...] = (
    Rule(
        name="utilization-is-a-share",
        field="gpu_memory_utilization",
        holds=lambda c: both(c.gpu_memory_utilization > 0, c.gpu_memory_utilization <= 1),
        says=lambda c: (
            f"gpu_memory_utilization is {c.gpu_memory_utilization:g}; it must be above 0 and at most 1, such as 0.92"
        ),
        source="vllm, config/cache.py, CacheConfig.gpu_memory_utilization",
    ),
    Rule(
        name="length-positive",
        field="max_model_len",
        holds=lambda c: c.max_model_len >= 1,
        says=lambda c: f"max_model_len is {c.max_model_len}; it must be 1 or more, or -1 for the longest that fits",
        source="vllm, config/model.py, ModelConfig",
    ),
    Rule(
        name="length-of-model",
        field="max_model_len",
        holds=lambda c: c.max_model_len <= c.model.max_positions,
        says=lambda c: (
            f"max_model_len {c.max_model_len:,} is longer than the {c.model.max_positions:,} tokens that {c.name} "
            f"is made for; choose up to {c.model.max_positions}"
        ),
        source="vllm, config/model.py, _get_and_verify_max_len",
    ),
    Rule(
        name="batched-tokens-positive",
        field="max_num_batched_tokens",
        holds=lambda c: True if c.asked.max_num_batched_tokens is None else c.max_num_batched_tokens >= 1,
        says=lambda c: f"max_num_batched_tokens is {c.max_num_batched_tokens}; it must be 1 or more",
        source="vllm, config/scheduler.py, SchedulerConfig.max_num_batched_tokens",
    ),
    Rule(
        name="sequences-positive",
        field="max_num_seqs",
        holds=lambda c: True if c.asked.max_num_seqs is None else c.max_num_seqs >= 1,
        says=lambda c: f"max_num_seqs is {c.max_num_seqs}; it must be 1 or more",
        source="vllm, config/scheduler.py, SchedulerConfig",
    ),
    Rule(
        name="tokens-for-every-sequence",
        field="max_num_batched_tokens",
        holds=lambda c: c.max_num_batched_tokens >= c.max_num_seqs,
        says=lambda c: (
            f"max_num_batched_tokens {c.max_num_batched_tokens:,} must be at least max_num_seqs "
            f"{c.max_num_seqs:,}, a token for each; raise the first or lower the second"
        ),
        source="vllm, config/scheduler.py, SchedulerConfig.__post_init__",
    ),
    Rule(
        name="steps-within-31-bits",
        field="max_num_batched_tokens",
        holds=lambda c: both(c.max_num_batched_tokens < 1 << 31, c.max_num_seqs < 1 << 31),
        says=lambda c: (
            f"max_num_batched_tokens {c.max_num_batched_tokens:,} and max_num_seqs {c.max_num_seqs:,} must be "
            "below 2,147,483,648, which the engine's indices can count"
        ),
        source="vllm, v1/worker/gpu/block_table.py: indices of 32 bits",
    ),
    Rule(
        name="cache-bytes-positive",
        field="kv_cache_memory_bytes",
        holds=lambda c: c.d.kv_cache_memory_bytes is None or c.d.kv_cache_memory_bytes >= 1,
        says=lambda c: f"kv_cache_memory_bytes is {c.d.kv_cache_memory_bytes}; it must be 1 or more",
        source="vllm, config/cache.py, CacheConfig.kv_cache_memory_bytes",
    ),
    Rule(
        name="blocks-positive",
        field="num_gpu_blocks_override",
        holds=lambda c: c.d.num_gpu_blocks_override is None or c.d.num_gpu_blocks_override >= 1,
        says=lambda c: f"num_gpu_blocks_override is {c.d.num_gpu_blocks_override}; it must be 1 or more",
        source="vllm, config/cache.py, CacheConfig.num_gpu_blocks_override",
    ),
    Rule(
        name="load-positive",
        field="requests",
        holds=lambda c: both(c.tokens >= 1, True if c.d.requests is None else c.d.requests >= 1),
        says=lambda c: (
            f"the load is {1 if c.d.requests is None else c.d.requests} requests of {c.tokens} tokens; "
            "both must be 1 or more"
        ),
        source="capplan, the load that a plan answers for",
    ),
    Rule(
        name="load-within-length",
        field="tokens",
        holds=lambda c: c.tokens <= c.max_model_len,
        says=lambda c: (
            f"a request of {c.tokens:,} tokens is longer than max_model_len {c.max_model_len:,}; "
            "lower tokens or raise max_model_len"
        ),
        source="vllm, entrypoints, the length check of each request",
    ),
)
"""What depends on numbers, each a mask where they are many."""


OF_KERNELS = ("cache-format-known", "cache-format-of-model", "latent-sizes-served", "kernel-exists", "float16-stable")
"""Rules that a model's stated caches answer for themselves."""


def broken(c: Case) -> tuple[Finding, ...]:
    """The rules that the deployment breaks: the first of kinds and ranks, and each of the numbers'."""
    found = []
    first = discrete_finding(c.model, discrete(c.d), c.chip, c.engine)
    if first is not None:
        found.append(first)
    found += [f for rule in NUMERIC_RULES if (f := rule.finding(c, c.d)) is not None]
    return tuple(found)


@lru_cache(maxsize=4096)
def discrete_finding(model: Model, d: Deployment, chip: Chip, engine: Engine) -> Finding | None:
    case = Case(model=model, asked=d, d=d, chip=chip, engine=engine)
    stated = model.caches is not None and bool(model.caches.owned)
    for rule in DISCRETE_RULES:
        if stated and rule.name in OF_KERNELS:
            continue
        finding = rule.finding(case, d)
        if finding is not None:
            return finding
    return next(faults(model, d, chip), None)
