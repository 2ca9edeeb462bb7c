"""NeuronCores: how many share one memory, and what a pool of blocks admits."""

from __future__ import annotations

from capplan.units import Count, at_least


def logical_cores_per_hbm_stack(*, physical_cores_per_hbm_stack: Count, logical_nc_config: Count) -> Count:
    """Logical cores that share one stack of memory.

        d = p // n

    Grouping all cores of a stack into one leaves the stack to it; a core that has a stack to itself shares
    with nobody at any degree.

    physical_cores_per_hbm_stack  p  physical cores beside one stack
    logical_nc_config             n  physical cores that make one logical core
    returns                       d  logical cores

    Source: AWS Neuron documentation, Logical NeuronCore configuration.

    >>> [logical_cores_per_hbm_stack(physical_cores_per_hbm_stack=2, logical_nc_config=n) for n in (1, 2)]
    [2, 1]
    """
    return physical_cores_per_hbm_stack // logical_nc_config


def kv_head_copies(*, n_kv_heads: Count, tensor_parallel_size: Count) -> Count:
    """Ranks that hold a copy of the same key-value head.

        r = max(1, t // H)

    n_kv_heads            H  heads in the model
    tensor_parallel_size  t  ranks that share one layer
    returns               r  copies

    Source: vllm, model_executor/models/llama.py, LlamaAttention.

    >>> [kv_head_copies(n_kv_heads=8, tensor_parallel_size=t) for t in (2, 8, 32)]
    [1, 1, 4]
    """
    return at_least(tensor_parallel_size // n_kv_heads, 1)


def requests_admitted(*, kv_blocks: Count, request_blocks: Count) -> Count:
    """Requests of one length that the scheduler admits together, the null block counted as if it held tokens.

        n = N // q

    Nothing is preempted on Neuron, so every running request is taken at its full length.

    kv_blocks       N  blocks of the pool
    request_blocks  q  blocks of one request
    returns         n  requests

    Source: vllm_neuron, vllm/core/neuron_scheduler.py: the ceiling on running requests.

    >>> requests_admitted(kv_blocks=16_384, request_blocks=256)
    64
    """
    return kv_blocks // request_blocks
