"""A deployment in question, and the rows of the engine's file that it meets."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from capplan.deployment import Deployment
from capplan.engines import Backend, Engine, ExpertsKernel, capability_matches
from capplan.model import Model
from capplan.registry import Chip
from capplan.units import round_up

KV_BITS = {"float16": 16, "bfloat16": 16, "fp8": 8, "fp8_e4m3": 8, "fp8_e5m2": 8}
"""Widths of the cache formats that have a law here."""

PERFORMANCE_MODES = ("balanced", "interactivity", "throughput")

CUDAGRAPH_MODES = ("NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE")


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """What a rule looks at: the model, the deployment with its defaults filled in, the chip and the engine."""

    model: Model
    asked: Deployment
    d: Deployment
    chip: Chip
    engine: Engine

    @property
    def name(self) -> str:
        """The model's name as sentences use it."""
        return self.model.short_name

    @property
    def tp(self) -> int:
        """Ranks that share one layer."""
        return self.d.tensor_parallel_size

    @property
    def dcp(self) -> int:
        """Ranks that share one context."""
        return self.d.decode_context_parallel_size

    @property
    def dtype(self) -> str:
        return self.d.dtype or self.model.dtype

    @property
    def n_kv_heads(self) -> int:
        return self.model.n_kv_heads

    @property
    def expert_shards(self) -> int:
        return 1 if self.d.enable_expert_parallel else self.d.tensor_parallel_size * self.d.data_parallel_size

    @property
    def ep_size(self) -> int:
        return self.d.tensor_parallel_size * self.d.data_parallel_size if self.d.enable_expert_parallel else 1


def padded_vocab(c: Case) -> int:
    return round_up(c.model.vocab, c.engine.constants["vocab_padding"].value)  # type: ignore[return-value]


def sequence_parallel(d: Deployment) -> bool:
    """Whether experts see each rank's own tokens, so that the dense experts beside them are not split."""
    return d.enable_expert_parallel and d.tensor_parallel_size > 1 and d.data_parallel_size > 1


def scale_layout(engine: Engine, chip: Chip) -> Any:
    return next((row for row in engine.scale_layouts if capability_matches(row.capabilities, chip.capability)), None)


def attention_backend(c: Case) -> Backend | None:
    """The first kernels that admit the deployment."""
    for row in c.engine.backends:
        admits = (
            row.latent == c.model.latent
            and capability_matches(row.capabilities, c.chip.capability)
            and c.dtype in row.dtypes
            and (c.d.kv_cache_dtype or "auto") in row.kv_cache_dtypes
            and (c.d.block_size is None or c.d.block_size % row.block_multiple == 0)
            and (not row.nope_dims or c.model.latent_nope_dim in row.nope_dims)
            and all(_head_fits(row, a.head_dim) for a in c.model.attention)
        )
        if admits:
            return row
    return None


def _head_fits(row: Backend, head_dim: int) -> bool:
    return (
        (not row.head_dims or head_dim in row.head_dims)
        and head_dim % row.head_dim_multiple == 0
        and head_dim <= row.head_dim_most
    )


def experts_kernel(c: Case) -> ExpertsKernel | None:
    """The first kernel that computes the experts of a deployment."""
    experts = c.model.experts
    if experts is None:
        return None
    wanted = "fp8" if c.model.quantization is not None else "16-bit"
    for row in c.engine.experts_kernels:
        admits = (
            wanted in row.formats
            and capability_matches(row.capabilities, c.chip.capability)
            and (not row.routings or experts.routing in row.routings)
            and not (row.one_replica and c.d.data_parallel_size > 1)
        )
        if admits:
            return row
    return None


def batch_row(engine: Engine, chip: Chip) -> Any:
    name = chip.device_name.lower()
    for row in engine.batch_defaults:
        if chip.device_bytes.value >= row.least_device_bytes and not any(part in name for part in row.skips):
            return row
    return None


def discrete(d: Deployment) -> Deployment:
    """A deployment without what may be an array, so that it can be a key."""
    return replace(
        d,
        max_model_len=None,
        max_num_seqs=None,
        max_num_batched_tokens=None,
        gpu_memory_utilization=None,
        kv_cache_memory_bytes=None,
        tokens=None,
        requests=None,
    )
