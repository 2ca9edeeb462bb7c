"""What the operator chooses, under the engine's own flag names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

from capplan.registry import Refused, closest
from capplan.settings import environment
from capplan.settings.table import (
    MOST_BYTES,
    MOST_COUNTED,
    MOST_GIB,
    MOST_SHARE,
    ON_GPUS,
    ON_NEURON,
    row,
    table,
)
from capplan.units import Count, Share

DEFAULT_ENGINE = "vllm-0.33.0"


@dataclass(frozen=True, kw_only=True, slots=True)
class Deployment:
    """A model on chips, as the operator states it; None means that nothing was said.

    A setting is one row here, and has the engine's own flag name unless it is capplan's own (`flag=False`) or a
    variable of vLLM on Neuron. Those with a `most` may be arrays of one length: a plan then answers for all.
    """

    # What runs, and on what.
    engine: str = row(DEFAULT_ENGINE, "text", "the release whose rules the plan follows", flag=False, page="Place")
    chip: str = row("h100-sxm", "text", "the device, one of capplan chips", flag=False, page="Place")
    usage_context: str = row(
        "openai-api-server",
        "text",
        "who starts it",
        words=("openai-api-server", "llm-class"),
        read_by=ON_GPUS,
        flag=False,
    )

    # Ranks, and what each of them holds.
    tensor_parallel_size: int = row(1, "count", "ranks that share every layer", short="-tp", page="Parallelism")
    pipeline_parallel_size: int = row(
        1, "count", "stages, each with some of the layers", short="-pp", page="Parallelism"
    )
    data_parallel_size: int = row(1, "count", "copies that serve different requests", short="-dp", page="Parallelism")
    prefill_context_parallel_size: int = row(
        1, "count", "ranks that share the tokens of one prompt", short="-pcp", read_by=ON_GPUS
    )
    decode_context_parallel_size: int = row(
        1, "count", "ranks that share the tokens of one request's cache", short="-dcp", page="Parallelism"
    )
    dcp_kv_cache_interleave_size: int | None = row(
        None, "count", "decode context: tokens in a row on one rank", read_by=ON_GPUS
    )
    dcp_comm_backend: str | None = row(None, "text", "decode context: how ranks exchange results", read_by=ON_GPUS)
    dcp_replicate_queries: bool = row(False, "flag", "decode context: each rank has every query", read_by=ON_GPUS)
    data_parallel_size_local: int | None = row(None, "count", "copies on one node", read_by=ON_GPUS)
    nnodes: int | None = row(None, "count", "nodes that the deployment takes", read_by=ON_GPUS)
    gpus_per_node: int | None = row(None, "count", "devices of one node", read_by=ON_GPUS, flag=False)
    pool_role: str | None = row(
        None, "text", "prefill, decode, or colocated: what the pool serves", read_by=ON_GPUS, flag=False
    )
    enable_expert_parallel: bool = row(
        False, "flag", "ranks hold whole experts, not a slice of each", short="-ep", page="Parallelism"
    )
    enable_eplb: bool = row(False, "flag", "busy experts get copies on other ranks", read_by=ON_GPUS)
    num_redundant_experts: int | None = row(
        None, "count", "copies of experts in each layer, with --enable-eplb", read_by=ON_GPUS
    )

    # Drafted tokens.
    speculative_method: str | None = row(
        None, "text", "who drafts tokens ahead", synonyms=("spec_method",), read_by=ON_GPUS
    )
    num_speculative_tokens: int | None = row(
        None, "count", "tokens drafted ahead in a step", synonyms=("spec_tokens",), read_by=ON_GPUS
    )

    # Formats.
    dtype: str | None = row(None, "text", "format of a step, and of weights not quantized", page="Cache")
    quantization: str | None = row(None, "text", "format of the weights, where the model names none", short="-q")
    kv_cache_dtype: str | None = row(None, "text", "format of keys and values", page="Cache")
    block_size: int | None = row(None, "count", "tokens of one block of the cache", unit="tokens", page="Cache")

    # Requests, and the memory that they may have.
    max_model_len: Count | None = row(
        None,
        "count",
        "the longest request, prompt and answer; auto: what fits",
        unit="tokens",
        auto=-1,
        most=MOST_COUNTED,
        page="Requests",
    )
    max_num_seqs: Count | None = row(None, "count", "requests in one step at most", most=MOST_COUNTED, page="Requests")
    max_num_batched_tokens: Count | None = row(
        None, "count", "tokens that one step computes at most", unit="tokens", most=MOST_COUNTED, page="Requests"
    )
    gpu_memory_utilization: Share | None = row(
        None,
        "share",
        "part of the device that the engine claims",
        synonyms=("device_memory_utilization",),
        most=MOST_SHARE,
        page="Budget",
    )
    kv_cache_memory_bytes: Count | None = row(
        None,
        "count",
        "the cache of each rank, in place of a share",
        unit="bytes",
        synonyms=("kv_cache_memory",),
        most=MOST_BYTES,
        read_by=ON_GPUS,
        page="Budget",
    )
    num_gpu_blocks_override: Count | None = row(
        None, "count", "blocks in place of those that the memory gives", most=MOST_COUNTED, page="Cache"
    )

    # How steps are run.
    enforce_eager: bool = row(False, "flag", "no CUDA graphs are held", read_by=ON_GPUS, page="Budget")
    cudagraph_mode: str | None = row(None, "text", "which steps are captured as graphs", read_by=ON_GPUS)
    max_cudagraph_capture_size: int | None = row(
        None, "count", "the largest step that is captured", unit="tokens", read_by=ON_GPUS
    )
    enable_prefix_caching: bool | None = row(None, "flag", "requests that begin alike share blocks", page="Cache")
    mamba_cache_mode: str | None = row(None, "text", "how recurrent states are kept", read_by=ON_GPUS)
    disable_hybrid_kv_cache_manager: bool = row(
        False, "flag", "sliding windows keep as much as full attention", read_by=ON_GPUS, page="Cache"
    )
    language_model_only: bool = row(False, "flag", "leave out what sees and hears", read_by=ON_GPUS)
    async_scheduling: bool | None = row(None, "flag", "the next step is made while one runs", read_by=ON_GPUS)
    performance_mode: str | None = row(None, "text", "throughput doubles the defaults of a step", read_by=ON_GPUS)

    # The model, and the load to answer for.
    hf_overrides: str | None = row(None, "json", "keys of config.json that are read otherwise")
    assume_generic: bool = row(False, "flag", "plan an unknown architecture as a plain decoder", flag=False)
    tokens: Count | None = row(
        None,
        "count",
        "length of a request of the load to answer for",
        unit="tokens",
        most=MOST_COUNTED,
        flag=False,
        page="Requests",
    )
    requests: Count | None = row(
        None, "count", "requests of that length to hold at once", most=MOST_COUNTED, flag=False, page="Requests"
    )

    # vLLM on Neuron: its variables in lower case, what its runtime and its host report, and what people measured.
    reserved_headroom_gib: Share | None = row(
        None,
        "number",
        "kept free on each logical core, in place of a share",
        unit="GiB",
        most=MOST_GIB,
        read_by=ON_NEURON,
        page="Policy",
    )
    kv_gmu_budget_cap_fraction: Share | None = row(
        None,
        "share",
        "part of the budget that the cache may have at most",
        most=MOST_SHARE,
        read_by=ON_NEURON,
        page="Policy",
    )
    min_kv_budget_gib: Share | None = row(
        None,
        "number",
        "the cache without which it does not start",
        unit="GiB",
        most=MOST_GIB,
        read_by=ON_NEURON,
        page="Policy",
    )
    cpu_compile: bool = row(False, "flag", "compile on a host without a device", read_by=ON_NEURON, page="Route")
    cpu_mode: bool = row(False, "flag", "the host computes", read_by=ON_NEURON, page="Route")
    platform_target_override: str | None = row(None, "text", "the chip to compile for", read_by=ON_NEURON, page="Route")
    logical_nc_config: int | None = row(
        None, "count", "physical cores of one logical core", read_by=ON_NEURON, page="Place"
    )
    instance: str | None = row(
        None, "text", "the instance, which names chip and chips", read_by=ON_NEURON, page="Place"
    )
    instance_chips: int | None = row(
        None, "count", "chips of an instance that is not listed", read_by=ON_NEURON, page="Place"
    )
    runtime_bytes_used: int | None = row(
        None, "count", "what the runtime reports as used", unit="bytes", read_by=ON_NEURON, page="Place"
    )
    runtime_bytes_free: int | None = row(
        None, "count", "what the runtime reports as free", unit="bytes", read_by=ON_NEURON, page="Place"
    )
    host_available_bytes: int | None = row(
        None, "count", "what the host has left after loading", unit="bytes", read_by=ON_NEURON, page="Route"
    )
    local_workers: int | None = row(None, "count", "workers that share the host", read_by=ON_NEURON, page="Route")
    weights_bytes: Count | None = row(
        None,
        "count",
        "weights on one rank, measured",
        unit="bytes",
        most=MOST_BYTES,
        read_by=ON_NEURON,
        page="Weights",
    )
    bytes_per_block: int | None = row(
        None, "count", "one block of all layers on one rank, measured", unit="bytes", read_by=ON_NEURON, page="Cache"
    )
    draft_model: str | None = row(None, "text", "the model that drafts tokens", read_by=ON_NEURON, page="Weights")

    @property
    def n_chips(self) -> int:
        """Chips that the deployment takes in all; ranks that share a context for decoding are among them."""
        ranks = self.tensor_parallel_size * self.pipeline_parallel_size * self.data_parallel_size
        return ranks * max(1, self.prefill_context_parallel_size)

    @property
    def overrides(self) -> dict[str, Any]:
        """hf_overrides as a table."""
        return json.loads(self.hf_overrides) if self.hf_overrides else {}


SETTINGS = table(Deployment)
"""The rows by name."""

FIELDS = {field.name: field for field in fields(Deployment)}
"""The dataclass's own fields by name."""

SYNONYMS = {word: setting.name for setting in SETTINGS.values() for word in setting.synonyms}


def spelled(raw: str) -> str:
    """A setting's name, however its flag is written: with dashes, or in another word of the engine's.

    >>> spelled("max-model-len"), spelled("kv-cache-memory"), spelled("speed")
    ('max_model_len', 'kv_cache_memory_bytes', 'speed')
    """
    name = raw.replace("-", "_")
    return SYNONYMS.get(name, name)


@lru_cache(maxsize=16)
def read_by(rules: str) -> tuple[str, ...]:
    """The settings that an engine's rules read, in order."""
    return tuple(name for name, setting in SETTINGS.items() if rules in setting.read_by)


@lru_cache(maxsize=16)
def _not_read(rules: str) -> tuple[str, ...]:
    return tuple(name for name, setting in SETTINGS.items() if rules not in setting.read_by)


def unread(d: Deployment, rules: str) -> tuple[str, ...]:
    """What a deployment says and an engine's rules do not read."""
    return tuple(name for name in _not_read(rules) if _differs(getattr(d, name), SETTINGS[name].default))


def stated(d: Deployment) -> dict[str, Any]:
    """What a deployment says beyond the defaults of `Deployment`, in the fields' order."""
    found = {}
    for name, known in SETTINGS.items():
        value, default = getattr(d, name), known.default
        if value is not default and _differs(value, default):
            found[name] = value
    return found


def _differs(value: Any, default: Any) -> bool:
    return hasattr(value, "dtype") or bool(value != default)


def setting(key: str, raw: Any) -> Any:
    """One setting's value out of text or JSON; arrays pass as they are.

    Raises Refused for a value of the wrong kind, with what would do.
    """
    return SETTINGS[key].read(raw)


def checked(d: Deployment) -> Deployment:
    """The deployment itself, once every setting is of its kind.

    Raises Refused for the first one that is not, with what would do.
    """
    sizes: dict[str, int] = {}
    for name, known in SETTINGS.items():
        value = getattr(d, name)
        if value is known.default:
            continue
        size = known.check(value)
        if size is not None:
            sizes[name] = size
    if len(set(sizes.values())) > 1:
        raise Refused(f"arrays of one length are needed, and these have {sizes}")
    if sizes:
        # One number beside many is counted with as they are.
        for name, known in SETTINGS.items():
            value = getattr(d, name)
            if known.most is not None and name not in sizes and value is not None:
                known.check_beside(value, known.most)
    return d


def from_mapping(values: Mapping[str, Any]) -> Deployment:
    """A deployment out of names and values, as a JSON line or a widget states them.

    Raises Refused for a name that is no setting, with the closest ones, or a value of the wrong kind.
    """
    found = {}
    for raw_key, raw in values.items():
        if raw_key in environment.BY_NAME:
            found[environment.BY_NAME[raw_key].field] = environment.read(raw_key, raw)
            continue
        key = spelled(raw_key)
        if key not in SETTINGS:
            raise Refused(f"there is no setting {raw_key!r}; {closest(key, list(SETTINGS))}")
        value = setting(key, raw)
        if value is not None or SETTINGS[key].default is None:
            found[key] = value
    return Deployment(**found)
