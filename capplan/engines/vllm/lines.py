"""vLLM's ledger of one rank, line by line in the order in which the bytes are spent."""

from __future__ import annotations

from capplan.engines.base import Line, exact, figure
from capplan.engines.declared import own_buffers
from capplan.engines.frame import Held, Rank, Setting
from capplan.engines.vllm.case import own_capture_limit
from capplan.engines.vllm.estimates import Estimates, captured_tokens, estimates, workspace
from capplan.engines.vllm.hold import allocated
from capplan.laws import activations, runtime, weights
from capplan.registry import Datum
from capplan.units import Count, at_most, choose, is_array


def lines(s: Setting, rank: Rank | None) -> tuple[Line, ...]:
    """vLLM's ledger of one rank, and what is held before its budget; without a rank, of unknown weights."""
    e = estimates(s.model, s.d, s.chip, s.engine)
    of_weights = () if rank is None else (_weights(s, rank), _rounding(s, rank), _replicas(s, rank))
    return (
        *of_weights,
        *(() if rank is None else (_engine_state(s, rank),)),
        _activations(s, rank, e),
        figure("non_torch", e.non_torch, "grows outside the tensor allocator while loading and profiling"),
        _graphs(s, e),
        exact("communication", 0, "always 0", "communicators exist before the budget is taken"),
        figure(
            "pre_snapshot",
            e.pre_snapshot,
            "context, communicators and the first matrix product, before the budget is taken",
            role="beside",
        ),
    )


def _weights(s: Setting, rank: Rank) -> Line:
    """What the frame knows, and one buffer whose size follows the step."""
    size: Count = rank.weights_bytes
    parts: tuple[tuple[str, Count], ...] = rank.weight_lines
    data: tuple[Datum, ...] = (s.engine.constants["vocab_padding"],)
    for buffer in rank.step_buffers:
        own = buffer.count * buffer.bytes_each(tokens=s.tokens, seqs=s.seqs)
        size, parts = size + own, (*parts, (buffer.name, own))
    kept = counters(s, rank)
    if kept is not None and s.chip.multiprocessors is not None:
        size, parts = size + kept, (*parts, ("attention counters", kept))
        data = (*data, s.chip.multiprocessors)
    law = "every tensor on the rank, as it lies after loading"
    return exact("weights", size, law, _weights_note(s, rank), data, parts=parts)


def counters(s: Setting, rank: Rank) -> Count | None:
    """The counters that some attention kernels keep, None where there are none."""
    if not rank.counter_heads or s.chip.multiprocessors is None:
        return None
    return weights.counter_buffer_bytes(
        max_num_batched_tokens=s.tokens,
        n_heads=rank.counter_heads,
        decode_context_parallel_size=s.d.decode_context_parallel_size,
        multiprocessors=s.chip.multiprocessors.value,
    )


def _weights_note(s: Setting, rank: Rank) -> str:
    text = f"{rank.n_layers} layers"
    if s.model.experts is not None:
        sliced = s.d.tensor_parallel_size * s.d.data_parallel_size > 1
        how = " whole" if s.d.enable_expert_parallel else " sliced" if sliced else ""
        text += f", {rank.experts} of {s.model.experts.n_experts} experts{how}"
    return text + (", one table for words in and out" if s.model.tied else "")


def _replicas(s: Setting, rank: Rank) -> Line:
    """What replicas of experts add to the rank: each as large as its own experts are."""
    size = rank.replica_bytes
    if not size:
        return exact("eplb", 0, "none asked", "no replicas of experts are asked for")
    note = f"{s.d.num_redundant_experts} replicas in each layer, shared equally"
    return exact("eplb", size, "replicas of experts", note)


def _rounding(s: Setting, rank: Rank) -> Line:
    size: Count = rank.rounding_bytes
    kept = counters(s, rank)
    if kept is not None:
        size = size + allocated(s.engine, kept) - kept
    for buffer in rank.step_buffers:
        one = buffer.bytes_each(tokens=s.tokens, seqs=s.seqs)
        size = size + buffer.count * (allocated(s.engine, one) - one)
    steps = (s.engine.constants["allocator_small_step_bytes"], s.engine.constants["allocator_large_step_bytes"])
    law, note = "whole steps of the tensor allocator", "what the tensor allocator adds while the weights load"
    return exact("allocator_rounding", size, law, note, steps, kind="derived")


def _engine_state(s: Setting, rank: Rank) -> Line:
    """Sampling state on the last stage; what the experts' kernel keeps on every one."""
    size, low, high = (0 * s.seqs,) * 3
    parts: tuple[tuple[str, Count], ...] = ()
    kind, note = "derived", "kept by the runner before it profiles"
    if rank.last:
        counts = runtime.sampling_counts_bytes(max_num_seqs=s.seqs, vocab=s.model.vocab)
        mask = runtime.prompt_mask_bytes(max_num_seqs=s.seqs, vocab=s.model.vocab)
        size = low = high = counts + mask
        parts = (("output counts", counts), ("prompt mask", mask))
    kept = workspace(s.model, s.d, s.frame, rank, s.engine)
    if kept is not None:
        size, low, high = size + kept.bytes, low + kept.low, high + kept.high
        parts = (*parts, ("experts' workspaces", kept.bytes))
        kind, note = kept.kind, f"{note}; {kept.note}"
    law = "sampling counts, prompt mask" + (", experts' workspaces" if kept is not None else "")
    return Line(name="engine_state", bytes=size, low=low, high=high, kind=kind, law=law, note=note, parts=parts)


def _activations(s: Setting, rank: Rank | None, e: Estimates) -> Line:
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


def _graphs(s: Setting, e: Estimates) -> Line:
    """The release's flat figure; its low end falls where few tokens are captured."""
    if s.d.cudagraph_mode == "NONE":
        return exact("cuda_graphs", 0, "none captured", "no graphs")
    datum, few = e.graphs, e.graphs_few_low
    captured = captured_tokens(s.d, s.chip, s.engine, own=own_capture_limit(s.model))
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


def held(s: Setting, rank: Rank) -> tuple[Held, ...]:
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
