"""Everything about a deployment that no array can change: formats, kernels, what each distinct rank holds, groups."""

from __future__ import annotations

from dataclasses import dataclass

from capplan.engines.base import Row
from capplan.engines.pool import Group
from capplan.engines.release import Backend, Engine, ExpertsKernel
from capplan.laws import weights
from capplan.model import Model
from capplan.policies import vllm_gpu
from capplan.registry import Chip
from capplan.settings.deployment import Deployment
from capplan.units import Count, Flag, both

WEIGHT_LINES = (
    "embedding",
    "head",
    "matrices",
    "experts",
    "norms",
    "scales",
    "rotary caches",
    "absorbed copies",
    "buffers",
    "vision",
)
"""Sub-lines of the weights, in the order in which they are shown."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """One class of tensors on one rank after loading."""

    name: str
    line: str
    shape: tuple[int, ...]
    bits: int
    count: int
    bytes_each: int
    split: str

    @property
    def bytes(self) -> int:
        """All tensors of the class together."""
        return self.count * self.bytes_each


@dataclass(frozen=True, kw_only=True, slots=True)
class StepBuffer:
    """Buffers on a rank whose size follows the engine's step: elements for a token and a sequence, and some beside."""

    name: str
    count: int
    bits: int
    per_token: int
    per_sequence: int
    beside: int

    def bytes_each(self, *, tokens: Count, seqs: Count) -> Count:
        """Bytes of one of them."""
        return weights.step_buffer_bytes(
            max_num_batched_tokens=tokens,
            max_num_seqs=seqs,
            token_elements=self.per_token,
            sequence_elements=self.per_sequence,
            other_elements=self.beside,
            element_bits=self.bits,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Rank:
    """A rank that is like `count` others: its stage, what it holds, and its share of each group."""

    stage: int
    count: int
    first: bool
    last: bool
    layers: range
    n_layers: int
    held: tuple[Held, ...]
    weights_bytes: int
    weight_lines: tuple[tuple[str, int], ...]
    rounding_bytes: int
    counter_heads: int
    groups: tuple[Group, ...]
    block_bytes: int
    experts: int
    replica_bytes: int = 0
    step_buffers: tuple[StepBuffer, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Frame:
    """Everything about a deployment that no array can change: formats, kernels, ranks, groups.

    shared           whether all groups draw blocks from one pool; else every cache is charged at its own pages
    token_half_bits  half bits of one token in all caches that keep every token, where they are charged as one
    """

    dtype: str
    act_bits: int
    kv_cache_dtype: str
    kv_bits: int
    backend: Backend | None
    block_size: int
    kernel: ExpertsKernel | None
    ranks: tuple[Rank, ...]
    groups: tuple[Group, ...]
    shared: bool = True
    token_half_bits: int | None = None
    block_bytes: int = 0
    why_not_shared: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """Everything that a ledger is made from: what was asked, and what the engine's rules make of it."""

    model: Model
    d: Deployment
    chip: Chip
    engine: Engine
    frame: Frame
    request_blocks: Count
    seqs: Count
    tokens: Count


ROWS = {
    "weights": Row(words="weights", term="weights"),
    "allocator_rounding": Row(words="allocator rounding", term="weights"),
    "eplb": Row(words="expert replicas", term="weights", hides=True),
    "engine_state": Row(words="engine state", term="engine_state"),
    "activations": Row(words="activations", term="activations"),
    "non_torch": Row(words="outside the allocator", term="non_torch"),
    "cuda_graphs": Row(words="CUDA graphs", term="cuda_graphs"),
    "communication": Row(words="communication buffers", term="non_torch", hides=True),
    "pre_snapshot": Row(words="held before the budget", term="outside"),
}
"""Ledger lines of a GPU's rank in the order in which the bytes are spent."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """What the policy gives: what the engine claims, what the cache gets, whether it fits beside what came before.

    pool  bytes that the start check plans against: the cache's, or those of the blocks that were stated
    """

    requested: Count | None
    cache: Count
    pool: Count
    fits: Flag


def budget(d: Deployment, *, device_bytes: int, fixed: Count, before: Count, pool: Count | None = None) -> Budget:
    """The policy at one point of the bands: by utilization, or by a cache or a pool of blocks that was stated.

    Source: vllm, v1/core/kv_cache_planning.py, get_kv_cache_configs: the engine plans against stated blocks, and takes
    them whatever the budget gives.
    """
    stated, share = d.kv_cache_memory_bytes, d.gpu_memory_utilization
    requested: Count | None = None
    if stated is not None or share is None:
        cache: Count = 0 if stated is None else stated
        fits = fixed + cache + before <= device_bytes
    else:
        requested = vllm_gpu.requested_bytes(device_bytes=device_bytes, gpu_memory_utilization=share)
        cache = vllm_gpu.kv_budget_bytes(requested=requested, fixed=fixed)
        fits = requested + before <= device_bytes
    if pool is not None:
        fits = both(fits, fixed + pool + before <= device_bytes)
    return Budget(requested=requested, cache=cache, pool=cache if pool is None else pool, fits=fits)
