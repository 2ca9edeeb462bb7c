"""A deployment in question, and the rows of the engine's file that it meets."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from capplan.engines import base
from capplan.engines.release import Backend, Engine, ExpertsKernel, capability_matches
from capplan.engines.vllm.formats import form_of
from capplan.model import Family, Model, load_family
from capplan.registry import Chip
from capplan.settings.deployment import Deployment
from capplan.units import round_up

KV_BITS = {"float16": 16, "bfloat16": 16, "fp8": 8, "fp8_e4m3": 8, "fp8_e5m2": 8, "fp8_ds_mla": 8}
"""Widths of the cache formats that have a law here."""

PERFORMANCE_MODES = ("balanced", "interactivity", "throughput")

CUDAGRAPH_MODES = ("NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE")


@dataclass(frozen=True, kw_only=True, slots=True)
class Case(base.Case):
    """What a rule looks at: the model, the deployment with its defaults filled in, the chip and the engine."""

    model: Model
    asked: Deployment
    d: Deployment
    chip: Chip
    engine: Engine

    @property
    def ep_size(self) -> int:
        return self.d.tensor_parallel_size * self.d.data_parallel_size if self.d.enable_expert_parallel else 1


def family_of(model: Model) -> Family | None:
    """The family that builds a model; None of one that is described by facts alone."""
    return load_family(model.family) if model.family else None


def own_capture_limit(model: Model) -> int | None:
    """The largest captured step that a model's class states itself."""
    family = family_of(model)
    return family.vllm.capture_limit if family is not None else None


def padded_vocab(c: Case) -> int:
    return round_up(c.model.vocab, c.engine.constants["vocab_padding"].value)  # type: ignore[return-value]


def sequence_parallel(d: Deployment) -> bool:
    """Whether experts see each rank's own tokens, so that the dense experts beside them are not split."""
    return d.enable_expert_parallel and d.tensor_parallel_size > 1 and d.data_parallel_size > 1


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
            and attention_type(c) in row.attention
            and c.model.n_heads <= row.heads_most * c.tp
            and all(_head_fits(row, a.head_dim) for a in c.model.attention)
            and (row.sinks != "none" or not any(a.sinks for a in c.model.attention))
            and (row.values == "other") == any(a.head_dim_v not in (0, a.head_dim) for a in c.model.attention)
        )
        if admits:
            return row
    return None


def attention_type(c: Case) -> str:
    """What is special about the model's attention, by the word that kernels are chosen by."""
    kind = c.model.attention_type
    if kind and not (kind == "prefix" and c.d.language_model_only):
        return kind
    return "mixed-heads" if len({a.head_dim for a in c.model.attention}) > 1 else ""


def _head_fits(row: Backend, head_dim: int) -> bool:
    return (
        (not row.head_dims or head_dim in row.head_dims)
        and head_dim % row.head_dim_multiple == 0
        and head_dim <= row.head_dim_most
    )


def experts_format(c: Case) -> str:
    """The format of routed experts by the word that kernels are chosen by."""
    tensor = next((t for t in c.model.tensors if t.n_experts), None)
    form = form_of(tensor, c.model, c.d.quantization) if tensor is not None else None
    return "16-bit" if form is None else form.name


def experts_kernel(c: Case) -> ExpertsKernel | None:
    """The first kernel that computes the experts of a deployment."""
    experts = c.model.experts
    if experts is None:
        return None
    wanted = experts_format(c)
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
    try:
        return _kept(d)
    except TypeError:  # an array has no hash, so a deployment with one is stripped anew
        return _stripped(d)


@lru_cache(maxsize=4096)
def _kept(d: Deployment) -> Deployment:
    return _stripped(d)


def _stripped(d: Deployment) -> Deployment:
    return replace(
        d,
        max_model_len=None,
        max_num_seqs=None,
        max_num_batched_tokens=None,
        gpu_memory_utilization=None,
        kv_cache_memory_bytes=None,
        num_gpu_blocks_override=None,
        tokens=None,
        requests=None,
    )
