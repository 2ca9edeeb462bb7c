"""How vLLM divides what one logical NeuronCore may plan with."""

from __future__ import annotations

from capplan.units import GIB, Count, Share, at_least, at_most, whole_product


def setting_bytes(*, gib: Share) -> Count:
    """Bytes of a setting that is stated in GiB.

        B = int(g * 2^30)

    gib      g  GiB, whole or not
    returns  B  bytes

    Source: vllm_neuron, determine_available_memory design, 2026-10-07.

    >>> setting_bytes(gib=1.7)
    1825361100
    """
    return whole_product(gib, GIB)


def minimum_bytes(*, min_kv_budget_gib: Share) -> Count:
    """Bytes below which a budget is refused, 0 where the check is off.

        M = max(int(g * 2^30), 0)

    min_kv_budget_gib  g  GiB; zero and less switch the check off
    returns            M  bytes, per rank

    Source: vllm_neuron, vllm/worker/neuron_worker.py, _compute_kv_budget.

    >>> [minimum_bytes(min_kv_budget_gib=g) for g in (1.0, 0.1, -1.0)]
    [1073741824, 107374182, 0]
    """
    return at_least(setting_bytes(gib=min_kv_budget_gib), 0)


def share_bytes(*, hbm_stack_bytes: Count, logical_cores_per_hbm_stack: Count) -> Count:
    """Bytes of one stack that a logical core may plan with.

        s = S // d

    Each of two cores at one stack is shown all of it, so it is divided before anything else.

    hbm_stack_bytes              S  memory of one physical stack
    logical_cores_per_hbm_stack  d  logical cores that share it
    returns                      s  bytes, per rank

    Source: vllm_neuron, determine_available_memory design, 2026-10-07.

    >>> share_bytes(hbm_stack_bytes=25_769_803_775, logical_cores_per_hbm_stack=2)
    12884901887
    """
    return hbm_stack_bytes // logical_cores_per_hbm_stack


def worker_share_bytes(*, host_available_bytes: Count, local_workers: Count) -> Count:
    """Bytes of the host's memory that one worker may plan with, where the host computes.

        s = A // max(w, 1)

    The host is asked after loading: weights are gone from it already.

    host_available_bytes  A  what the host has left
    local_workers         w  workers of one replica on this host
    returns               s  bytes, per rank

    Source: vllm_neuron, vllm/worker/neuron_worker.py, _query_host_runtime_memory.

    >>> worker_share_bytes(host_available_bytes=68_719_476_739, local_workers=4)
    17179869184
    """
    return host_available_bytes // at_least(local_workers, 1)


def total_budget_bytes(*, share: Count, gpu_memory_utilization: Share) -> Count:
    """Bytes of a share that weights and cache may take together.

        T = int(s * u)

    share                   s  bytes that a rank may plan with
    gpu_memory_utilization  u  0 < u <= 1
    returns                 T  bytes, per rank

    Source: vllm_neuron, vllm/worker/neuron_worker.py, _compute_kv_budget.

    >>> total_budget_bytes(share=25_769_803_776, gpu_memory_utilization=0.9)
    23192823398
    """
    return whole_product(gpu_memory_utilization, share)


def user_budget_bytes(*, total_budget: Count, weights_bytes: Count) -> Count:
    """Bytes that the weights leave of the total budget.

        U = max(T - W, 0)

    total_budget   T  bytes of weights and cache together
    weights_bytes  W  parameters and buffers, of a draft model too
    returns        U  bytes, per rank

    Source: vllm_neuron, vllm/worker/neuron_worker.py, _compute_kv_budget.

    >>> user_budget_bytes(total_budget=23_192_823_398, weights_bytes=8_589_934_592)
    14602888806
    """
    return at_least(total_budget - weights_bytes, 0)


def heuristic_cap_bytes(*, total_budget: Count, kv_gmu_budget_cap_fraction: Share) -> Count:
    """The most that the cache may have, whatever the weights leave.

        C = int(T * c)

    A fraction of the total budget, not of what the weights leave of it, and a second truncation.

    total_budget                T  bytes of weights and cache together
    kv_gmu_budget_cap_fraction  c  0 < c <= 1
    returns                     C  bytes, per rank

    Source: vllm_neuron, vllm/worker/neuron_worker.py, _compute_kv_budget.

    >>> heuristic_cap_bytes(total_budget=23_192_823_398, kv_gmu_budget_cap_fraction=0.3)
    6957847019
    """
    return whole_product(kv_gmu_budget_cap_fraction, total_budget)


def capped_budget_bytes(*, user_budget: Count, heuristic_cap: Count) -> Count:
    """Bytes of the cache by default: what the weights leave, up to the cap.

        K = min(U, C)

    Neither is ever below 0.

    user_budget    U  what the weights leave
    heuristic_cap  C  the most that the cache may have
    returns        K  bytes, per rank

    Source: vllm_neuron, vllm/worker/neuron_worker.py, _compute_kv_budget.

    >>> capped_budget_bytes(user_budget=14_602_888_806, heuristic_cap=6_957_847_019)
    6957847019
    """
    return at_most(user_budget, heuristic_cap)


def reserved_budget_bytes(*, share: Count, weights_bytes: Count, headroom_bytes: Count) -> Count:
    """Bytes of the cache where a reserve is stated: all that weights and reserve leave.

        K = max(s - W - H, 0) = max(H, s - W) - H

    The second form takes one array less, where there are many.

    share           s  bytes that a rank may plan with
    weights_bytes   W  parameters and buffers, of a draft model too
    headroom_bytes  H  kept back for programs, scratchpad, rings and runtime
    returns         K  bytes, per rank

    Source: vllm_neuron, determine_available_memory design, 2026-10-07.

    >>> reserved_budget_bytes(share=38_654_705_664, weights_bytes=16_106_127_360, headroom_bytes=4_294_967_296)
    18253611008
    """
    return at_least(headroom_bytes, share - weights_bytes) - headroom_bytes


def maximum_headroom_bytes(*, share: Count, weights_bytes: Count, minimum: Count) -> Count:
    """The largest reserve that still leaves the minimum; below 0 where none does, not even an explicit 0.

        H = s - W - M

    share          s  bytes that a rank may plan with
    weights_bytes  W  parameters and buffers, 0 where the host computes
    minimum        M  bytes below which a budget is refused
    returns        H  bytes, per rank

    Source: vllm_neuron, determine_available_memory design, 2026-10-07.

    >>> maximum_headroom_bytes(share=12_884_901_888, weights_bytes=5_368_709_120, minimum=1_073_741_824)
    6442450944
    """
    return share - weights_bytes - minimum
