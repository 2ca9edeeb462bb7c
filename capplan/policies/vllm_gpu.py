"""How vLLM divides the memory of one GPU."""

from __future__ import annotations

from capplan.units import Count, Share, at_least, ceil_share


def requested_bytes(*, device_bytes: Count, gpu_memory_utilization: Share) -> Count:
    """Bytes of the device that vLLM claims for itself.

        R = ceil(M * u)

    The share is of all the memory the driver reports, not of what is free.

    device_bytes            M  memory the driver reports
    gpu_memory_utilization  u  0 < u <= 1
    returns                 R  bytes, per rank

    Source: vllm, v1/worker/utils.py, request_memory.

    >>> requested_bytes(device_bytes=85_000_000_000, gpu_memory_utilization=0.92)
    78200000000
    """
    return ceil_share(device_bytes, gpu_memory_utilization)


def kv_budget_bytes(*, requested: Count, fixed: Count) -> Count:
    """Bytes that vLLM gives the key-value cache on one rank.

        K = max(0, R - F)

    requested  R  bytes that vLLM claims
    fixed      F  held before any request: weights, engine state, activations, graphs, non-torch
    returns    K  bytes, per rank, 0 where nothing is left

    Source: vllm, v1/worker/gpu_worker.py, GPUWorker.determine_available_memory.

    >>> kv_budget_bytes(requested=78_200_000_000, fixed=18_200_000_000)
    60000000000
    """
    return at_least(requested - fixed, 0)


def outside_bytes(*, device_bytes: Count, claimed: Count) -> Count:
    """Bytes of the device beside what vLLM claims: the context, communicators and neighbours live there.

        O = M - R

    Negative where more is claimed than there is.

    device_bytes  M  memory the driver reports
    claimed       R  requested bytes, or fixed and cache together where the cache is stated
    returns       O  bytes, per rank

    Source: vllm, v1/worker/utils.py, request_memory.

    >>> outside_bytes(device_bytes=85_000_000_000, claimed=78_200_000_000)
    6800000000
    """
    return device_bytes - claimed
