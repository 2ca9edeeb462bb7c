"""Activations: what the profiling pass of one step holds at its peak."""

from __future__ import annotations

from capplan.units import Count, at_least, at_most


def sampler_rows(*, max_num_seqs: Count, max_num_batched_tokens: Count) -> Count:
    """Rows of logits that the sampler's profiling pass makes.

        r = min(S, T)

    max_num_seqs            S  requests of one step
    max_num_batched_tokens  T  tokens of one step
    returns                 r  rows

    Source: vllm, v1/worker/gpu/model_runner.py, GPUModelRunner._dummy_sampler_run.

    >>> sampler_rows(max_num_seqs=1024, max_num_batched_tokens=8192)
    1024
    """
    return at_most(max_num_seqs, max_num_batched_tokens)


def sampler_peak_bytes(
    *,
    max_num_seqs: Count,
    max_num_batched_tokens: Count,
    vocab: Count,
    bytes_per_logit: Count,
    hidden: Count,
    act_bits: Count,
) -> Count:
    """Bytes alive at the peak of the sampler's pass.

        B = min(S, T) * V * q + T * e * b / 8

    The vocabulary is whole on every rank, so ranks do not shrink the first part; the second is the
    step's hidden states, still alive.

    max_num_seqs            S  requests of one step
    max_num_batched_tokens  T  tokens of one step
    vocab                   V  words of the model
    bytes_per_logit         q  of the release and its sampling path
    hidden                  e  elements of one hidden state
    act_bits                b  bits per element of it
    returns                 B  bytes, per rank

    Source: vllm, v1/worker/gpu/sample/sampler.py; start-up records quoted in docs/decisions/0003-estimates.md.

    >>> sampler_peak_bytes(
    ...     max_num_seqs=1024, max_num_batched_tokens=8192, vocab=151_936, bytes_per_logit=14, hidden=5120, act_bits=16
    ... )
    2262040576
    """
    return sampler_rows(
        max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens
    ) * vocab * bytes_per_logit - (max_num_batched_tokens * hidden * act_bits // -8)


def forward_peak_bytes(*, max_num_batched_tokens: Count, widest: Count, act_bits: Count) -> Count:
    """Bytes alive at the peak of the forward pass.

        B = T * x * b / 8

    max_num_batched_tokens  T  tokens of one step
    widest                  x  elements alive at once for one token
    act_bits                b  bits per element
    returns                 B  bytes, per rank

    Source: vllm, v1/worker/gpu/model_runner.py, GPUModelRunner.profile_run.

    >>> forward_peak_bytes(max_num_batched_tokens=20_000, widest=3 * 4096 + 3 * 14_336, act_bits=16)
    2211840000
    """
    return -(max_num_batched_tokens * widest * act_bits // -8)


def gated_width(*, hidden: Count, intermediate: Count, n_residual: Count) -> Count:
    """Elements alive at once for one token in a gated feed-forward block.

        x = n * e + 3 * i

    Gate, up and their product are alive together, beside the hidden states that the pass keeps:
    one where it is compiled, three where it is not.

    hidden        e  elements of one hidden state
    intermediate  i  inner elements on this rank
    n_residual    n  hidden states kept
    returns       x  elements of one token, per rank

    Source: start-up records 004 and 005, quoted in docs/decisions/0003-estimates.md.

    >>> gated_width(hidden=4096, intermediate=14_336, n_residual=3)
    55296
    """
    return n_residual * hidden + 3 * intermediate


def peak_bytes(*, sampler_bytes: Count, forward_bytes: Count) -> Count:
    """Bytes of the larger pass.

        B = max(s, f)

    sampler_bytes  s  peak of the sampler's pass
    forward_bytes  f  peak of the forward pass
    returns        B  bytes, per rank

    Source: vllm, utils/mem_utils.py, memory_profiling.

    >>> peak_bytes(sampler_bytes=3, forward_bytes=2)
    3
    """
    return at_least(sampler_bytes, forward_bytes)


def buffers_peak_bytes(
    *, half_buffers: Count, max_num_batched_tokens: Count, width: Count, act_bits: Count, least_bytes: Count
) -> Count:
    """Bytes alive at the peak of the forward pass, as a number of buffers of one width.

        B = max(n / 2 * T * w * b / 8, f)

    Ranks change the number of buffers and not their width; half a buffer is counted, so n counts halves.

    half_buffers            n  halves of buffers alive at once
    max_num_batched_tokens  T  tokens of one step
    width                   w  elements of one token in a buffer
    act_bits                b  bits per element
    least_bytes             f  never less than this
    returns                 B  bytes, per rank

    Source: aiconfigurator-core 0.12.0, its vLLM backend's memory model; BLIS latency kernel, internal/price/memory.go.

    >>> [
    ...     buffers_peak_bytes(
    ...         half_buffers=20, max_num_batched_tokens=t, width=7168, act_bits=16, least_bytes=73_400_320
    ...     )
    ...     for t in (1, 8192)
    ... ]
    [73400320, 1174405120]
    """
    return at_least(half_buffers * max_num_batched_tokens * width * act_bits // 16, least_bytes)


def with_own_buffers_bytes(*, pass_bytes: Count, own_bytes: Count) -> Count:
    """Bytes at the peak with the buffers that a model allocates for itself.

        B = p + o

    They are made before the passes and stay, so they lie beside whichever pass is the larger.

    pass_bytes  p  the larger pass
    own_bytes   o  the model's own buffers
    returns     B  bytes, per rank

    Source: BLIS latency kernel, the Memory page.

    >>> with_own_buffers_bytes(pass_bytes=1_174_405_120, own_bytes=2_240_315_392)
    3414720512
    """
    return pass_bytes + own_bytes
