"""The ledger of one rank: graph, laws and policy meet here, line by line in the order in which bytes are spent."""

from __future__ import annotations

from dataclasses import dataclass, replace

from capplan.deployment import Deployment
from capplan.engines import Engine, blis, vllm
from capplan.engines.line import Line
from capplan.engines.vllm.stated import own_buffers
from capplan.laws import activations, kv_cache, runtime, weights
from capplan.model import Guess, Model
from capplan.policies import vllm_gpu
from capplan.registry import Chip, Datum
from capplan.units import Count, Flag, at_least, at_most, both, ceil_div, choose, is_array

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
    groups: tuple[vllm.Group, ...]
    held: tuple[vllm.Held, ...]
    starts: Flag
    starts_at_worst: Flag
    starts_at_best: Flag
    context_fits: Flag

    def by_line(self) -> tuple[tuple[str, int, tuple[vllm.Held, ...]], ...]:
        """The weights' sub-lines in order: name, bytes, and the classes of tensors in it."""
        found = []
        for line in dict.fromkeys((*vllm.WEIGHT_LINES, *(h.line for h in self.held))):
            held = tuple(h for h in self.held if h.line == line)
            if held:
                found.append((line, sum(h.bytes for h in held), held))
        return tuple(found)

    def bytes_of(self, name: str) -> Count:
        """Bytes of one line by its name."""
        return self.lines[LINE_NAMES.index(name)].bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """Everything that a ledger is made from: what was asked, and what the engine's rules make of it."""

    model: Model
    d: Deployment
    chip: Chip
    engine: Engine
    frame: vllm.Frame
    request_blocks: Count
    seqs: Count
    tokens: Count


def vllm_lines(s: Setting, rank: vllm.Rank | None) -> tuple[tuple[Line, ...], Line]:
    """vLLM's ledger of one rank, and what is held before its budget; without a rank, of unknown weights."""
    e = vllm.estimates(s.model, s.d, s.chip, s.engine)
    note = "context, communicators and the first matrix product, before the budget is taken"
    pre = _figure("pre_snapshot", e.pre_snapshot, note)
    known = (
        _figure("non_torch", e.non_torch, "grows outside the tensor allocator while loading and profiling"),
        _graphs(s, e),
        _nothing("communication", "always 0", "communicators exist before the budget is taken"),
    )
    if rank is None:
        return (_activations(s, None, e), *known), pre
    lines = (
        _weights(s, rank),
        _rounding(s, rank),
        _replicas(s, rank),
        _engine_state(s, rank),
        _activations(s, rank, e),
        *known,
    )
    return lines, pre


def blis_lines(s: Setting, rank: vllm.Rank | None) -> tuple[tuple[Line, ...], Line]:
    """The kernel's ledger of one rank, and what is held before its budget; without a rank, of unknown weights."""
    return blis.ledger(s.model, s.d, s.chip, s.engine, rank, s.seqs, s.tokens)


LINES = {"vllm": vllm_lines, "blis": blis_lines}
"""Who writes the lines of a rank, by the rules that an engine's file names."""


def rank_plan(s: Setting, rank: vllm.Rank) -> RankPlan:
    """The ledger of one distinct rank and the cache that its budget gives."""
    lines, pre = LINES[s.engine.rules](s, rank)
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


# The lines


def _nothing(name: str, law: str, note: str) -> Line:
    return Line(name=name, bytes=0, low=0, high=0, kind="exact", law=law, note=note)


def _figure(name: str, datum: Datum, note: str) -> Line:
    return Line(
        name=name,
        bytes=datum.value,
        low=datum.low,
        high=datum.high,
        kind=datum.kind,
        law="a figure of the release",
        note=note,
        data=(datum,),
    )


def _weights(s: Setting, rank: vllm.Rank) -> Line:
    """What the frame knows, and one buffer whose size follows the step."""
    size: Count = rank.weights_bytes
    parts: tuple[tuple[str, Count], ...] = rank.weight_lines
    data: tuple[Datum, ...] = (s.engine.constants["vocab_padding"],)
    for buffer in rank.step_buffers:
        own = buffer.count * buffer.bytes_each(tokens=s.tokens, seqs=s.seqs)
        size, parts = size + own, (*parts, (buffer.name, own))
    counters = _counters(s, rank)
    if counters is not None and s.chip.multiprocessors is not None:
        size, parts = size + counters, (*parts, ("attention counters", counters))
        data = (*data, s.chip.multiprocessors)
    return Line(
        name="weights",
        bytes=size,
        low=size,
        high=size,
        kind="exact",
        law="every tensor on the rank, as it lies after loading",
        note=_weights_note(s, rank),
        data=data,
        parts=parts,
    )


def _held(s: Setting, rank: vllm.Rank) -> tuple[vllm.Held, ...]:
    """Every class of tensors on the rank, of one configuration with those whose size follows the step."""
    if is_array(s.tokens) or is_array(s.seqs):
        return rank.held
    counters = _counters(s, rank)
    sizes = [(b.name, b.bits, b.count, b.bytes_each(tokens=s.tokens, seqs=s.seqs)) for b in rank.step_buffers]
    sizes += [] if counters is None else [("attention counters", 8, 1, counters)]
    own = tuple(
        vllm.Held(
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


def _counters(s: Setting, rank: vllm.Rank) -> Count | None:
    """The counters that some attention kernels keep, None where there are none."""
    if not rank.counter_heads or s.chip.multiprocessors is None:
        return None
    return weights.counter_buffer_bytes(
        max_num_batched_tokens=s.tokens,
        n_heads=rank.counter_heads,
        decode_context_parallel_size=s.d.decode_context_parallel_size,
        multiprocessors=s.chip.multiprocessors.value,
    )


def _weights_note(s: Setting, rank: vllm.Rank) -> str:
    text = f"{rank.n_layers} layers"
    if s.model.experts is not None:
        sliced = s.d.tensor_parallel_size * s.d.data_parallel_size > 1
        how = " whole" if s.d.enable_expert_parallel else " sliced" if sliced else ""
        text += f", {rank.experts} of {s.model.experts.n_experts} experts{how}"
    return text + (", one table for words in and out" if s.model.tied else "")


def _replicas(s: Setting, rank: vllm.Rank) -> Line:
    """What replicas of experts add to the rank: each as large as its own experts are."""
    size = rank.replica_bytes
    if not size:
        return _nothing("eplb", "none asked", "no replicas of experts are asked for")
    note = f"{s.d.num_redundant_experts} replicas in each layer, shared equally"
    return Line(name="eplb", bytes=size, low=size, high=size, kind="exact", law="replicas of experts", note=note)


def _rounding(s: Setting, rank: vllm.Rank) -> Line:
    size: Count = rank.rounding_bytes
    counters = _counters(s, rank)
    if counters is not None:
        size = size + vllm.allocated(s.engine, counters) - counters
    for buffer in rank.step_buffers:
        one = buffer.bytes_each(tokens=s.tokens, seqs=s.seqs)
        size = size + buffer.count * (vllm.allocated(s.engine, one) - one)
    return Line(
        name="allocator_rounding",
        bytes=size,
        low=size,
        high=size,
        kind="derived",
        law="whole steps of the tensor allocator",
        note="what the tensor allocator adds while the weights load",
        data=(s.engine.constants["allocator_small_step_bytes"], s.engine.constants["allocator_large_step_bytes"]),
    )


def _engine_state(s: Setting, rank: vllm.Rank) -> Line:
    """Sampling state on the last stage; what the experts' kernel keeps on every one."""
    size, low, high = (0 * s.seqs,) * 3
    parts: tuple[tuple[str, Count], ...] = ()
    kind, note = "derived", "kept by the runner before it profiles"
    if rank.last:
        counts = runtime.sampling_counts_bytes(max_num_seqs=s.seqs, vocab=s.model.vocab)
        mask = runtime.prompt_mask_bytes(max_num_seqs=s.seqs, vocab=s.model.vocab)
        size = low = high = counts + mask
        parts = (("output counts", counts), ("prompt mask", mask))
    kept = vllm.workspace(s.model, s.d, s.frame, rank, s.engine)
    if kept is not None:
        size, low, high = size + kept.bytes, low + kept.low, high + kept.high
        parts = (*parts, ("experts' workspaces", kept.bytes))
        kind, note = kept.kind, f"{note}; {kept.note}"
    law = "sampling counts, prompt mask" + (", experts' workspaces" if kept is not None else "")
    return Line(name="engine_state", bytes=size, low=low, high=high, kind=kind, law=law, note=note, parts=parts)


def _activations(s: Setting, rank: vllm.Rank | None, e: vllm.Estimates) -> Line:
    """The larger of the forward pass and, on the last stage, the sampler's, at three points of their bands.

    A model's own buffers are made before the passes and lie beside the larger.
    """
    last = rank is None or rank.last
    forward = activations.forward_peak_bytes(
        max_num_batched_tokens=s.tokens, widest=e.widest, act_bits=s.frame.act_bits
    )
    peaks: list[Count] = []
    parts: tuple[tuple[str, Count], ...] = (("forward pass", forward),)
    for point in ("value", "low", "high"):
        peak = forward * getattr(e.forward_percent, point) // 100
        if last:
            sampler = 4 * e.sampler_buffer_words + activations.sampler_peak_bytes(
                max_num_seqs=s.seqs,
                max_num_batched_tokens=s.tokens,
                vocab=s.model.vocab,
                bytes_per_logit=getattr(e.bytes_per_logit, point),
                hidden=s.model.hidden,
                act_bits=s.frame.act_bits,
            )
            peak = activations.peak_bytes(sampler_bytes=sampler, forward_bytes=peak)
            if point == "value":
                parts = (("sampler pass", sampler), *parts)
        peaks.append(peak)
    for name, size in own_buffers(s.model, s.d, s.chip, s.engine, s.tokens):
        peaks = [activations.with_own_buffers_bytes(pass_bytes=peak, own_bytes=size) for peak in peaks]
        parts = (*parts, (name, size))
    return Line(
        name="activations",
        bytes=peaks[0],
        low=peaks[1],
        high=peaks[2],
        kind="estimated",
        law="the larger of the two passes",
        note="peak of the profiling pass",
        data=(e.bytes_per_logit, *e.forward_data) if last else e.forward_data,
        parts=parts,
    )


def _graphs(s: Setting, e: vllm.Estimates) -> Line:
    """The release's flat figure; its low end falls where few tokens are captured."""
    if s.d.cudagraph_mode == "NONE":
        return _nothing("cuda_graphs", "none captured", "no graphs")
    datum, few = e.graphs, e.graphs_few_low
    captured = vllm.captured_tokens(s.d, s.chip, s.engine, own=vllm.own_capture_limit(s.model))
    low = choose(captured < e.few_tokens.value, at_most(few.value, datum.low), datum.low)
    return Line(
        name="cuda_graphs",
        bytes=datum.value,
        low=low,
        high=datum.high,
        kind=datum.kind,
        law="a figure of the release",
        note="the engine's own estimate, charged to the budget",
        data=(datum, few),
    )
