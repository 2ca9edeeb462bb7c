"""The ledger of one rank: graph, laws and policy meet here, line by line in the order in which bytes are spent."""

from __future__ import annotations

from dataclasses import dataclass, replace

from capplan.engines import blis
from capplan.engines.base import Line
from capplan.engines.frame import WEIGHT_LINES, Held, Rank, Setting
from capplan.engines.pool import Group
from capplan.engines.vllm.lines import counters
from capplan.engines.vllm.lines import ledger as vllm_ledger
from capplan.laws import kv_cache
from capplan.model import Guess
from capplan.policies import vllm_gpu
from capplan.units import Count, Flag, at_least, both, ceil_div, is_array

__all__ = ["LINES", "LINE_NAMES", "Line", "RankPlan", "Setting", "rank_plan"]

LINE_NAMES = (
    "weights",
    "allocator_rounding",
    "eplb",
    "engine_state",
    "activations",
    "non_torch",
    "cuda_graphs",
    "communication",
)
"""Ledger lines in the order in which the bytes are spent."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankPlan:
    """What one distinct rank holds, and the cache that its budget gives.

    `claimed_bytes` is where the engine's claim on the device ends.  By how much it falls short: `short_bytes` of
    the lines before the cache, `lacking_bytes` of the cache for one request and the null block,
    `over_device_bytes` of the device for the claim and what is held before it; each 0 where it does not.
    `starts` tells whether the engine would start it at the centre of every band, `starts_at_worst` at the far
    end, `starts_at_best` at the near end; `context_fits` whether budget and what is held before it fit the device.
    """

    stage: int
    count: int
    n_layers: int
    lines: tuple[Line, ...]
    fixed_bytes: Count
    fixed_low_bytes: Count
    fixed_high_bytes: Count
    requested_bytes: Count | None
    kv_budget_bytes: Count
    kv_budget_low_bytes: Count
    kv_budget_high_bytes: Count
    claimed_bytes: Count
    short_bytes: Count
    lacking_bytes: Count
    over_device_bytes: Count
    pre_snapshot: Line
    kv_block_bytes: Count
    kv_blocks: Count
    groups: tuple[Group, ...]
    held: tuple[Held, ...]
    starts: Flag
    starts_at_worst: Flag
    starts_at_best: Flag
    context_fits: Flag

    def by_line(self) -> tuple[tuple[str, int, tuple[Held, ...]], ...]:
        """The weights' sub-lines in order: name, bytes, and the classes of tensors in it."""
        found = []
        for line in dict.fromkeys((*WEIGHT_LINES, *(h.line for h in self.held))):
            held = tuple(h for h in self.held if h.line == line)
            if held:
                found.append((line, sum(h.bytes for h in held), held))
        return tuple(found)

    def bytes_of(self, name: str) -> Count:
        """Bytes of one line by its name."""
        return self.lines[LINE_NAMES.index(name)].bytes


def rank_plan(s: Setting, rank: Rank) -> RankPlan:
    """The ledger of one distinct rank and the cache that its budget gives."""
    lines, pre = (
        blis.ledger(s.model, s.d, s.chip, s.engine, rank, s.seqs, s.tokens)
        if s.engine.rules == "blis"
        else vllm_ledger(s, rank)
    )
    guess = s.model.guess
    if guess is not None:
        guessed = ("weights", "eplb") if rank.replica_bytes else ("weights",)
        lines = tuple(_guessed(line, guess) if line.name in guessed else line for line in lines)
    fixed: Count = 0
    low: Count = 0
    high: Count = 0
    for line in lines:
        fixed, low, high = fixed + line.bytes, low + line.low, high + line.high
    # The policy at the centre of every band, at its far end and at its near end.
    device = s.chip.device_bytes
    centre = _budget(s, device.value, fixed, pre.bytes)
    worst = _budget(s, device.low, high, pre.high)
    best = _budget(s, device.high, low, pre.low)
    needed = rank.block_bytes * (s.request_blocks + 1)
    claimed = fixed + centre.cache if centre.requested is None else centre.requested
    blocks = kv_cache.whole_blocks(budget_bytes=centre.cache, block_bytes=rank.block_bytes)
    override = s.d.num_gpu_blocks_override
    if override is not None:
        # The engine plans against the stated blocks, and takes them whatever the budget gives.
        blocks = override + 0 * blocks
        pool = blocks * rank.block_bytes
        claimed = at_least(claimed, fixed + pool)
        centre = _overridden(centre, pool, fixed + pool + pre.bytes <= device.value)
        worst = _overridden(worst, pool, high + pool + pre.high <= device.low)
        best = _overridden(best, pool, low + pool + pre.low <= device.high)
    return RankPlan(
        stage=rank.stage,
        count=rank.count,
        n_layers=rank.n_layers,
        lines=lines,
        fixed_bytes=fixed,
        fixed_low_bytes=low,
        fixed_high_bytes=high,
        requested_bytes=centre.requested,
        kv_budget_bytes=centre.cache,
        kv_budget_low_bytes=worst.cache,
        kv_budget_high_bytes=best.cache,
        claimed_bytes=claimed,
        short_bytes=0 if centre.requested is None else at_least(fixed - centre.requested, 0),
        lacking_bytes=at_least(needed - centre.pool, 0),
        over_device_bytes=at_least(claimed + pre.bytes - device.value, 0),
        pre_snapshot=pre,
        kv_block_bytes=rank.block_bytes,
        kv_blocks=blocks,
        groups=rank.groups,
        held=_held(s, rank),
        starts=both(centre.pool >= needed, centre.fits),
        starts_at_worst=both(worst.pool >= needed, worst.fits),
        starts_at_best=both(best.pool >= needed, best.fits),
        context_fits=centre.fits,
    )


def _guessed(line: Line, guess: Guess) -> Line:
    """A line with the band of a model that is not known whole."""
    percent = guess.weights_percent
    return replace(
        line,
        low=line.low * percent.low // 100,
        high=ceil_div(line.high * percent.high, 100),
        kind="estimated",
        note=f"{line.note}; a guess: its class is not known whole",
        data=(*line.data, percent),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """What the policy gives: what the engine claims, what the cache gets, whether it fits beside what came before.

    pool  bytes that the start check plans against: the cache's, or those of the blocks that were stated
    """

    requested: Count | None
    cache: Count
    pool: Count
    fits: Flag


def _overridden(b: Budget, pool: Count, fits: Flag) -> Budget:
    """The budget with a stated number of blocks.

    Source: vllm, v1/core/kv_cache_planning.py, get_kv_cache_configs, num_gpu_blocks_override.
    """
    return replace(b, pool=pool, fits=both(b.fits, fits))


def _budget(s: Setting, device_bytes: int, fixed: Count, before: Count) -> Budget:
    """The policy at one point of the bands: by utilization, or by a cache that was stated."""
    stated, share = s.d.kv_cache_memory_bytes, s.d.gpu_memory_utilization
    if stated is not None or share is None:
        cache = 0 if stated is None else stated
        return Budget(requested=None, cache=cache, pool=cache, fits=fixed + cache + before <= device_bytes)
    requested = vllm_gpu.requested_bytes(device_bytes=device_bytes, gpu_memory_utilization=share)
    cache = vllm_gpu.kv_budget_bytes(requested=requested, fixed=fixed)
    return Budget(requested=requested, cache=cache, pool=cache, fits=requested + before <= device_bytes)


def _held(s: Setting, rank: Rank) -> tuple[Held, ...]:
    """Every class of tensors on the rank, of one configuration with those whose size follows the step."""
    if is_array(s.tokens) or is_array(s.seqs):
        return rank.held
    kept = counters(s, rank)
    sizes = [(b.name, b.bits, b.count, b.bytes_each(tokens=s.tokens, seqs=s.seqs)) for b in rank.step_buffers]
    sizes += [] if kept is None else [("attention counters", 8, 1, kept)]
    own = tuple(
        Held(
            name=name,
            line="step buffers",
            shape=(int(size) * 8 // bits,),
            bits=bits,
            count=count,
            bytes_each=int(size),
            split="whole",
        )
        for name, bits, count, size in sizes
    )
    return (*rank.held, *own)


def LINES(s: Setting, rank: Rank | None) -> tuple[tuple[Line, ...], Line]:
    return (
        blis.ledger(s.model, s.d, s.chip, s.engine, rank, s.seqs, s.tokens)
        if s.engine.rules == "blis"
        else vllm_ledger(s, rank)
    )
