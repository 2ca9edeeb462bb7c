"""What the operator chooses, under the engine's own flag names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from capplan.registry import Refused, closest
from capplan.settings import environment
from capplan.units import Count, Share

DEFAULT_ENGINE = "vllm-0.33.0"

SHORT_FLAGS = {
    "-tp": "tensor_parallel_size",
    "-pp": "pipeline_parallel_size",
    "-dp": "data_parallel_size",
    "-pcp": "prefill_context_parallel_size",
    "-dcp": "decode_context_parallel_size",
    "-ep": "enable_expert_parallel",
    "-q": "quantization",
}
"""vLLM's own short forms."""

SYNONYMS = {
    "kv_cache_memory": "kv_cache_memory_bytes",
    "device_memory_utilization": "gpu_memory_utilization",
    "spec_method": "speculative_method",
    "spec_tokens": "num_speculative_tokens",
}
"""Other words that the engine takes for the same setting."""

USAGE_CONTEXTS = ("openai-api-server", "llm-class")
"""Who starts the engine: the server, or a program that makes an LLM object."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Deployment:
    """A model on chips, as the operator states it; None means that nothing was said.

    Every field has the engine's own flag name but these of capplan: `engine`, `chip`, `usage_context`,
    `gpus_per_node`, `pool_role`, `assume_generic`, and the load to answer for, `tokens` of `requests` at once.
    Lengths, sequences, batched tokens, utilization, blocks and cache bytes may be arrays of one length: a plan then
    answers for all.
    """

    engine: str = DEFAULT_ENGINE
    chip: str = "h100-sxm"
    usage_context: str = "openai-api-server"
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    prefill_context_parallel_size: int = 1
    decode_context_parallel_size: int = 1
    dcp_kv_cache_interleave_size: int | None = None
    dcp_comm_backend: str | None = None
    dcp_replicate_queries: bool = False
    data_parallel_size_local: int | None = None
    nnodes: int | None = None
    gpus_per_node: int | None = None
    pool_role: str | None = None
    enable_expert_parallel: bool = False
    enable_eplb: bool = False
    num_redundant_experts: int | None = None
    speculative_method: str | None = None
    num_speculative_tokens: int | None = None
    dtype: str | None = None
    quantization: str | None = None
    kv_cache_dtype: str | None = None
    block_size: int | None = None
    max_model_len: Count | None = None
    max_num_seqs: Count | None = None
    max_num_batched_tokens: Count | None = None
    gpu_memory_utilization: Share | None = None
    kv_cache_memory_bytes: Count | None = None
    num_gpu_blocks_override: Count | None = None
    enforce_eager: bool = False
    cudagraph_mode: str | None = None
    max_cudagraph_capture_size: int | None = None
    enable_prefix_caching: bool | None = None
    mamba_cache_mode: str | None = None
    disable_hybrid_kv_cache_manager: bool = False
    language_model_only: bool = False
    async_scheduling: bool | None = None
    performance_mode: str | None = None
    hf_overrides: str | None = None
    assume_generic: bool = False
    tokens: Count | None = None
    requests: Count | None = None
    # vLLM on Neuron: its variables in lower case, what its runtime and its host report, and what people measured.
    reserved_headroom_gib: Share | None = None
    kv_gmu_budget_cap_fraction: Share | None = None
    min_kv_budget_gib: Share | None = None
    cpu_compile: bool = False
    cpu_mode: bool = False
    platform_target_override: str | None = None
    logical_nc_config: int | None = None
    instance: str | None = None
    instance_chips: int | None = None
    runtime_bytes_used: int | None = None
    runtime_bytes_free: int | None = None
    host_available_bytes: int | None = None
    local_workers: int | None = None
    weights_bytes: Count | None = None
    bytes_per_block: int | None = None
    draft_model: str | None = None

    @property
    def n_chips(self) -> int:
        """Chips that the deployment takes in all; ranks that share a context for decoding are among them."""
        ranks = self.tensor_parallel_size * self.pipeline_parallel_size * self.data_parallel_size
        return ranks * max(1, self.prefill_context_parallel_size)

    @property
    def overrides(self) -> dict[str, Any]:
        """hf_overrides as a table."""
        return json.loads(self.hf_overrides) if self.hf_overrides else {}


FIELDS = {field.name: field for field in fields(Deployment)}
"""The settings by name."""

NEURON = (
    "reserved_headroom_gib",
    "kv_gmu_budget_cap_fraction",
    "min_kv_budget_gib",
    "cpu_compile",
    "cpu_mode",
    "platform_target_override",
    "logical_nc_config",
    "instance",
    "instance_chips",
    "runtime_bytes_used",
    "runtime_bytes_free",
    "host_available_bytes",
    "local_workers",
    "weights_bytes",
    "bytes_per_block",
    "draft_model",
)
"""Settings that only vLLM on Neuron has."""

NO_FLAG = (
    "engine",
    "chip",
    "usage_context",
    "gpus_per_node",
    "pool_role",
    "assume_generic",
    "tokens",
    "requests",
    *NEURON,
)
"""Settings that the engine has no flag for: capplan's own, and Neuron's variables."""

COUNTS = (
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "prefill_context_parallel_size",
    "decode_context_parallel_size",
    "dcp_kv_cache_interleave_size",
    "data_parallel_size_local",
    "nnodes",
    "gpus_per_node",
    "num_redundant_experts",
    "num_speculative_tokens",
    "block_size",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "kv_cache_memory_bytes",
    "num_gpu_blocks_override",
    "max_cudagraph_capture_size",
    "tokens",
    "requests",
    "logical_nc_config",
    "instance_chips",
    "runtime_bytes_used",
    "runtime_bytes_free",
    "host_available_bytes",
    "local_workers",
    "weights_bytes",
    "bytes_per_block",
)
FLAGS = (
    "enable_expert_parallel",
    "enable_eplb",
    "dcp_replicate_queries",
    "enforce_eager",
    "enable_prefix_caching",
    "disable_hybrid_kv_cache_manager",
    "language_model_only",
    "async_scheduling",
    "assume_generic",
    "cpu_compile",
    "cpu_mode",
)
NUMERIC = (
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "gpu_memory_utilization",
    "kv_cache_memory_bytes",
    "num_gpu_blocks_override",
    "tokens",
    "requests",
    "reserved_headroom_gib",
    "kv_gmu_budget_cap_fraction",
    "min_kv_budget_gib",
    "weights_bytes",
)
"""Settings that may be arrays."""

GIB_OR_SHARE = ("reserved_headroom_gib", "kv_gmu_budget_cap_fraction", "min_kv_budget_gib")
"""Variables of vLLM on Neuron that hold a number, whole or not."""

KIND_WORDS = {
    name: "a whole number such as 4"
    if name in COUNTS
    else "true or false"
    if name in FLAGS
    else environment.BY_FIELD[name].accepts
    if name in GIB_OR_SHARE
    else "a share in (0, 1] such as 0.9"
    if name in NUMERIC
    else "a text"
    for name in FIELDS
}
"""What each setting takes, in words."""

SUFFIXES = {
    "k": 1_000,
    "m": 1_000_000,
    "g": 1_000_000_000,
    "t": 1_000_000_000_000,
    "K": 1 << 10,
    "M": 1 << 20,
    "G": 1 << 30,
    "T": 1 << 40,
}
"""What the engine makes of 1k and 1K in a number that a person writes: decimal in lower case, binary in upper case."""


MOST = (1 << 63) - 1
"""The largest number that an array of counts holds."""


def whole(key: str, raw: Any) -> int:
    """A whole number out of what a person or a JSON line says.

    >>> whole("max_model_len", "32K"), whole("max_model_len", "32_768"), whole("max_model_len", "1.5k")
    (32768, 32768, 1500)
    """
    found = raw if isinstance(raw, int) and not isinstance(raw, bool) else _whole(key, raw)
    if found is None:
        raise Refused(f"{key} is {raw!r}; it must be a whole number such as 4, 32768 or 32K")
    if not -MOST <= found <= MOST:
        raise Refused(f"{key} is beyond {MOST:,}, more than any engine counts; give a smaller number")
    return found


def _whole(key: str, raw: Any) -> int | None:
    """A number that is written as text; None where it is none."""
    text = "" if isinstance(raw, bool) else str(raw).strip().replace("_", "").replace(",", "")
    if key == "max_model_len" and text.lower() == "auto":
        return -1
    scale = SUFFIXES.get(text[-1:], 1)
    text = text[:-1] if text[-1:] in SUFFIXES else text
    try:
        return int(text) * scale
    except ValueError:
        pass
    try:
        exact = float(text) * scale
        # The engine cuts a decimal with a suffix down to a whole number; without one it takes none.
        return int(exact) if scale > 1 or exact == int(exact) else None
    except (ValueError, OverflowError):
        return None


def truth(key: str, raw: Any) -> bool:
    """true or false out of what a person or a JSON line says."""
    words = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
    if isinstance(raw, bool):
        return raw
    if str(raw).strip().lower() in words:
        return words[str(raw).strip().lower()]
    raise Refused(f"{key} is {raw!r}; it must be true or false")


def setting(key: str, raw: Any) -> Any:
    """One setting's value out of text or JSON; arrays pass as they are.

    Raises Refused for a value of the wrong kind, with what would do.
    """
    if raw is None:
        return None
    if key in NUMERIC and hasattr(raw, "dtype"):
        return raw
    if key in COUNTS:
        return whole(key, raw)
    if key in FLAGS:
        return truth(key, raw)
    if key == "gpu_memory_utilization":
        if isinstance(raw, bool):
            raise Refused(f"{key} is {raw!r}; it must be a share in (0, 1] such as 0.9")
        try:
            return float(str(raw).strip())
        except ValueError:
            raise Refused(f"{key} is {raw!r}; it must be a share in (0, 1] such as 0.9") from None
    if key in GIB_OR_SHARE:
        return environment.number(key, raw)
    if key == "hf_overrides":
        return _overrides(raw)
    if not isinstance(raw, str):
        raise Refused(f"{key} is {raw!r}; it must be a text")
    if key == "usage_context" and raw not in USAGE_CONTEXTS:
        raise Refused(f"usage_context is {raw!r}; there are {' and '.join(USAGE_CONTEXTS)}")
    return raw.strip()


def checked(d: Deployment) -> Deployment:
    """The deployment itself, once every setting is of its kind.

    Raises Refused for the first one that is not, with what would do.
    """
    sizes: dict[str, int] = {}
    for name in FIELDS:
        value = getattr(d, name)
        if value is None and FIELDS[name].default is None:
            continue
        if name in NUMERIC and hasattr(value, "dtype") and getattr(value, "ndim", False):
            wanted = "int64" if name in COUNTS else "float64"
            if str(value.dtype) != wanted or value.ndim != 1:
                raise Refused(
                    f"{name} is an array of {value.dtype} in {value.ndim} dimensions; it must be {wanted} in one"
                )
            sizes[name] = len(value)
            continue
        kind = int if name in COUNTS else bool if name in FLAGS else (int, float) if name in NUMERIC else str
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            label = environment.BY_FIELD[name].label if name in environment.BY_FIELD else name
            raise Refused(f"{label} is {value!r}; it must be {KIND_WORDS[name]}")
        if kind is int:
            whole(name, value)
    if len(set(sizes.values())) > 1:
        raise Refused(f"arrays of one length are needed, and these have {sizes}")
    setting("usage_context", d.usage_context)
    if d.hf_overrides is not None:
        _overrides(d.hf_overrides)
    return d


def _overrides(raw: Any) -> str | None:
    """hf_overrides as canonical JSON, so that a deployment can be compared and kept."""
    if isinstance(raw, str):
        try:
            raw = json.loads(raw)
        except json.JSONDecodeError as error:
            raise Refused(f"hf_overrides is not JSON ({error.msg} at character {error.pos + 1}): {raw!r}") from None
        except (ValueError, RecursionError):
            raise Refused("hf_overrides is JSON that is nested too deep or holds a number too long to read") from None
    if not isinstance(raw, dict):
        raise Refused(f"hf_overrides is {raw!r}; it must be a JSON object")
    return json.dumps(raw, sort_keys=True) if raw else None


def from_mapping(values: Mapping[str, Any]) -> Deployment:
    """A deployment out of names and values, as a JSON line or a widget states them.

    Raises Refused for a name that is no setting, with the closest ones, or a value of the wrong kind.
    """
    found = {}
    for raw_key, raw in values.items():
        if raw_key in environment.BY_NAME:
            found[environment.BY_NAME[raw_key].field] = environment.read(raw_key, raw)
            continue
        key = SYNONYMS.get(raw_key.replace("-", "_"), raw_key.replace("-", "_"))
        if key not in FIELDS:
            raise Refused(f"there is no setting {raw_key!r}; {closest(key, list(FIELDS))}")
        value = setting(key, raw)
        if value is not None or FIELDS[key].default is None:
            found[key] = value
    return Deployment(**found)


def stated(deployment: Deployment) -> dict[str, Any]:
    """What a deployment says beyond the defaults of `Deployment`, in the fields' order."""
    found = {}
    for name, field in FIELDS.items():
        value = getattr(deployment, name)
        if hasattr(value, "dtype") or value != field.default:
            found[name] = value
    return found
