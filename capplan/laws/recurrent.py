"""Recurrent layers: what one layer's state occupies, and how many states a request holds."""

from __future__ import annotations

from capplan.units import Count, at_least, ceil_div


def mamba2_conv_elements(
    *,
    inner: Count,
    n_groups: Count,
    state_size: Count,
    conv_kernel: Count,
    num_speculative_tokens: Count,
    tensor_parallel_size: Count,
) -> Count:
    """Elements of the convolution's state of one Mamba-2 layer.

        n = (i + 2 * g * s) / t * (k - 1 + q)

    Drafted tokens make it longer.  Groups that ranks do not divide are repeated until each rank has one: g = t then.

    inner                   i  inner elements of the layer
    n_groups                g  groups, repeated ones counted
    state_size              s  elements of one channel's state
    conv_kernel             k  tokens under the convolution
    num_speculative_tokens  q  tokens drafted for each request in a step
    tensor_parallel_size    t  ranks that share one layer
    returns                 n  elements, per rank

    Source: vllm, model_executor/layers/mamba/mamba_utils.py, MambaStateShapeCalculator.mamba2_state_shape.

    >>> mamba2_conv_elements(
    ...     inner=16_384, n_groups=8, state_size=128, conv_kernel=4, num_speculative_tokens=1, tensor_parallel_size=8
    ... )
    9216
    """
    channels = (inner + 2 * n_groups * state_size) // tensor_parallel_size
    return channels * (at_least(conv_kernel - 1, 1) + num_speculative_tokens)


def mamba2_temporal_elements(
    *, n_heads: Count, head_dim: Count, state_size: Count, tensor_parallel_size: Count
) -> Count:
    """Elements of the temporal state of one Mamba-2 layer.

        n = h / t * d * s

    n_heads               h  heads of the layer
    head_dim              d  elements of one head
    state_size            s  elements of one channel's state
    tensor_parallel_size  t  ranks that share one layer
    returns               n  elements, per rank

    Source: vllm, model_executor/layers/mamba/mamba_utils.py, MambaStateShapeCalculator.mamba2_state_shape.

    >>> mamba2_temporal_elements(n_heads=256, head_dim=64, state_size=128, tensor_parallel_size=8)
    262144
    """
    return n_heads // tensor_parallel_size * head_dim * state_size


def delta_net_conv_elements(
    *,
    n_k_heads: Count,
    k_head_dim: Count,
    n_v_heads: Count,
    v_head_dim: Count,
    conv_kernel: Count,
    num_speculative_tokens: Count,
    tensor_parallel_size: Count,
) -> Count:
    """Elements of the convolution's state of one gated delta net.

        n = (2 * h * d + g * e) / t * (k - 1 + q)

    n_k_heads               h  heads of keys
    k_head_dim              d  elements of a key
    n_v_heads               g  heads of values
    v_head_dim              e  elements of a value
    conv_kernel             k  tokens under the convolution
    num_speculative_tokens  q  tokens drafted for each request in a step
    tensor_parallel_size    t  ranks that share one layer
    returns                 n  elements, per rank

    Source: vllm, model_executor/layers/mamba/mamba_utils.py, MambaStateShapeCalculator.gated_delta_net_state_shape.

    >>> delta_net_conv_elements(
    ...     n_k_heads=16, k_head_dim=128, n_v_heads=32, v_head_dim=128, conv_kernel=4, num_speculative_tokens=0,
    ...     tensor_parallel_size=2,
    ... )
    12288
    """
    channels = (2 * n_k_heads * k_head_dim + n_v_heads * v_head_dim) // tensor_parallel_size
    return channels * (conv_kernel - 1 + num_speculative_tokens)


def delta_net_temporal_elements(
    *, n_v_heads: Count, v_head_dim: Count, k_head_dim: Count, tensor_parallel_size: Count
) -> Count:
    """Elements of the temporal state of one gated delta net.

        n = g / t * e * d

    n_v_heads             g  heads of values
    v_head_dim            e  elements of a value
    k_head_dim            d  elements of a key
    tensor_parallel_size  t  ranks that share one layer
    returns               n  elements, per rank

    Source: vllm, model_executor/layers/mamba/mamba_utils.py, MambaStateShapeCalculator.gated_delta_net_state_shape.

    >>> delta_net_temporal_elements(n_v_heads=32, v_head_dim=128, k_head_dim=128, tensor_parallel_size=2)
    262144
    """
    return n_v_heads // tensor_parallel_size * v_head_dim * k_head_dim


def kda_conv_elements(
    *,
    value_width: Count,
    key_width: Count,
    conv_kernel: Count,
    num_speculative_tokens: Count,
    tensor_parallel_size: Count,
) -> Count:
    """Elements of the three convolutions' states of one layer of Kimi's delta attention.

        n = (v + 2 * w) / t * (k - 1 + q)

    value_width             v  elements of all values
    key_width               w  elements of all keys, of which queries have as many
    conv_kernel             k  tokens under the convolution
    num_speculative_tokens  q  tokens drafted for each request in a step
    tensor_parallel_size    t  ranks that share one layer
    returns                 n  elements, per rank

    Source: vllm, model_executor/layers/mamba/mamba_utils.py, MambaStateShapeCalculator.kda_state_shape.

    >>> kda_conv_elements(
    ...     value_width=4096, key_width=4096, conv_kernel=4, num_speculative_tokens=0, tensor_parallel_size=4
    ... )
    9216
    """
    return (value_width + 2 * key_width) // tensor_parallel_size * (conv_kernel - 1 + num_speculative_tokens)


def kda_temporal_elements(*, n_heads: Count, head_dim: Count, tensor_parallel_size: Count) -> Count:
    """Elements of the temporal state of one layer of Kimi's delta attention.

        n = h / t * d * d

    n_heads               h  heads of the layer
    head_dim              d  elements of one head
    tensor_parallel_size  t  ranks that share one layer
    returns               n  elements, per rank

    Source: vllm, model_executor/layers/mamba/mamba_utils.py, MambaStateShapeCalculator.kda_state_shape.

    >>> kda_temporal_elements(n_heads=32, head_dim=128, tensor_parallel_size=4)
    131072
    """
    return n_heads // tensor_parallel_size * head_dim * head_dim


def state_page_bytes(
    *, conv_elements: Count, conv_bits: Count, temporal_elements: Count, temporal_bits: Count
) -> Count:
    """Bytes of one state of one layer: its convolution's part and its temporal part, each in its own width.

        P = (c * b + s * w) / 8

    conv_elements      c  of the convolution's state on this rank
    conv_bits          b  bits per element of it
    temporal_elements  s  of the temporal state on this rank
    temporal_bits      w  bits per element of it
    returns            P  bytes, per rank and layer

    Source: vllm, v1/kv_cache_interface.py, MambaSpec.page_size_bytes.

    >>> state_page_bytes(conv_elements=9216, conv_bits=16, temporal_elements=262_144, temporal_bits=32)
    1067008
    """
    return ceil_div(conv_elements * conv_bits + temporal_elements * temporal_bits, 8)


def fixed_state_pages(*, kept: Count, num_speculative_tokens: Count) -> Count:
    """States that a request holds of one layer, however long it is.

        n = a + q

    kept                    a  states beside the drafted tokens': the running one, and one more where prefixes align
    num_speculative_tokens  q  tokens drafted for each request in a step
    returns                 n  states, per rank and layer

    Source: BLIS latency kernel, the Memory page; internal/price/memory.go.

    >>> [fixed_state_pages(kept=a, num_speculative_tokens=3) for a in (1, 2)]
    [4, 5]
    """
    return kept + num_speculative_tokens
