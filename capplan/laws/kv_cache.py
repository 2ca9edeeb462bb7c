"""Key-value cache: what one token, one page, one block and one request occupy."""

from __future__ import annotations

from capplan.units import Count, at_least, at_most, ceil_div, round_up


def kv_heads_per_rank(*, n_kv_heads: Count, tensor_parallel_size: Count) -> Count:
    """Key-value heads that each rank stores.

        h = max(1, H // t)

    A head is never split.  Once there are more ranks than heads, every rank
    keeps a whole copy of one head and the cache stops shrinking.

    n_kv_heads            H  heads in the model
    tensor_parallel_size  t  ranks that share one layer
    returns               h  heads, per rank

    Source: vllm, config/model.py, ModelConfig.get_num_kv_heads.

    >>> [kv_heads_per_rank(n_kv_heads=8, tensor_parallel_size=t) for t in (1, 4, 8, 16)]
    [8, 2, 1, 1]
    """
    return at_least(n_kv_heads // tensor_parallel_size, 1)


def page_bytes(*, block_size: Count, n_kv_heads: Count, head_dim: Count, head_dim_v: Count, kv_bits: Count) -> Count:
    """Bytes that one layer occupies for one block.

        P = ceil(k * h * (d + v) * b / 8)

    A latent cache has one head and no value of its own: h = 1, v = 0.

    block_size  k  tokens of one block
    n_kv_heads  h  heads on this rank
    head_dim    d  elements of a key
    head_dim_v  v  elements of a value
    kv_bits     b  bits per element
    returns     P  bytes, per rank and layer

    Source: vllm, v1/kv_cache_interface.py, AttentionSpec.real_page_size_bytes.

    >>> page_bytes(block_size=16, n_kv_heads=8, head_dim=128, head_dim_v=128, kv_bits=16)
    65536
    """
    return -(block_size * n_kv_heads * (head_dim + head_dim_v) * kv_bits // -8)


def full_request_blocks(*, context_tokens: Count, block_size: Count, decode_context_parallel_size: Count) -> Count:
    """Blocks of one group that a request of context_tokens fills when every token is kept.

        n = ceil(ceil(T / c) / k)

    Ranks that share a context divide its tokens before they are paged.

    context_tokens                T  tokens of the request
    block_size                    k  tokens of one block
    decode_context_parallel_size  c  ranks that share one context
    returns                       n  blocks, per rank

    Source: vllm, v1/kv_cache_interface.py, FullAttentionSpec.max_memory_usage_bytes.

    >>> [full_request_blocks(context_tokens=17, block_size=16, decode_context_parallel_size=c) for c in (1, 8)]
    [2, 1]
    """
    return -(-(context_tokens // -decode_context_parallel_size) // -block_size)


def window_admission_blocks(
    *, context_tokens: Count, window: Count, max_in_flight_tokens: Count, block_size: Count
) -> Count:
    """Blocks of one group that a request may hold at admission when a window slides over it.

        n = ceil(min(w - 1 + f, T) / k) + 1

    A window need not begin where a block does, hence one block more.

    context_tokens        T  tokens of the request
    window                w  tokens that a layer looks back
    max_in_flight_tokens  f  tokens scheduled and not yet settled
    block_size            k  tokens of one block
    returns               n  blocks, per rank

    Source: vllm, v1/kv_cache_interface.py, SlidingWindowSpec.max_admission_blocks_per_request.

    >>> window_admission_blocks(context_tokens=8192, window=4096, max_in_flight_tokens=16_384, block_size=16)
    513
    """
    return -(at_most(window - 1 + max_in_flight_tokens, context_tokens) // -block_size) + 1


def window_decode_blocks(*, window: Count, num_speculative_tokens: Count, block_size: Count) -> Count:
    """Blocks of one group that a request holds in steady decode, however long, when a window slides over it.

        n = ceil((w - 1 + 1 + q) / k) + 1

    One token a step is in flight, and those that are drafted beside it.

    window                  w  tokens that a layer looks back
    num_speculative_tokens  q  tokens drafted for each request in a step
    block_size              k  tokens of one block
    returns                 n  blocks, per rank

    Source: vllm, v1/core/single_type_kv_cache_manager.py, SlidingWindowManager.remove_skipped_blocks.

    >>> [window_decode_blocks(window=128, num_speculative_tokens=q, block_size=32) for q in (0, 5)]
    [5, 6]
    """
    return -((window + num_speculative_tokens) // -block_size) + 1


def chunk_admission_blocks(
    *, context_tokens: Count, chunk: Count, max_in_flight_tokens: Count, block_size: Count
) -> Count:
    """Blocks of one group that a request may hold at admission when its tokens look back to where their chunk begins.

        n = ceil(min(c + f, T) / k)

    context_tokens        T  tokens of the request
    chunk                 c  tokens of one chunk
    max_in_flight_tokens  f  tokens scheduled and not yet settled
    block_size            k  tokens of one block
    returns               n  blocks, per rank

    Source: vllm, v1/kv_cache_interface.py, ChunkedLocalAttentionSpec.max_admission_blocks_per_request.

    >>> chunk_admission_blocks(context_tokens=131_072, chunk=8192, max_in_flight_tokens=16_384, block_size=16)
    1536
    """
    return -(at_most(chunk + max_in_flight_tokens, context_tokens) // -block_size)


def whole_blocks(*, budget_bytes: Count, block_bytes: Count) -> Count:
    """Blocks of a pool that a budget holds.

        n = K // B

    budget_bytes  K  bytes for the cache
    block_bytes   B  bytes of one block
    returns       n  blocks, per rank

    Source: vllm, v1/core/kv_cache_planning.py, get_kv_cache_config_from_groups.

    >>> whole_blocks(budget_bytes=40_000_000_000, block_bytes=2_097_152)
    19073
    """
    return budget_bytes // block_bytes


def requests_beside_null_block(*, kv_blocks: Count, request_blocks: Count) -> Count:
    """Requests whose blocks a pool holds beside its null block.

        n = max(0, N - 1) // q

    kv_blocks       N  blocks of the pool
    request_blocks  q  blocks of one request
    returns         n  requests

    Source: vllm, v1/core/block_pool.py, BlockPool.null_block.

    >>> requests_beside_null_block(kv_blocks=19_073, request_blocks=8192)
    2
    """
    return at_least(kv_blocks - 1, 0) // request_blocks


def tokens_of_blocks(*, kv_blocks: Count, block_size: Count, decode_context_parallel_size: Count) -> Count:
    """Tokens of the longest request that whole blocks hold beside the null block, when every token is kept.

        T = max(0, N - 1) * k * c

    kv_blocks                     N  blocks of the pool
    block_size                    k  tokens of one block
    decode_context_parallel_size  c  ranks that share one context
    returns                       T  tokens

    Source: vllm, v1/core/kv_cache_planning.py, _estimate_max_model_len_from_groups.

    >>> tokens_of_blocks(kv_blocks=4096, block_size=16, decode_context_parallel_size=1)
    65520
    """
    return at_least(kv_blocks - 1, 0) * block_size * decode_context_parallel_size


def token_half_bits(
    *, n_layers: Count, n_kv_heads: Count, head_dim: Count, head_dim_v: Count, kv_half_bits: Count
) -> Count:
    """Half bits that one token occupies in the layers of one kind: formats of 4.5 bits stay whole.

        x = L * h * (d + v) * b

    A latent cache has one head and no value of its own: h = 1, v = 0.

    n_layers      L  layers that keep the cache
    n_kv_heads    h  heads on this rank
    head_dim      d  elements of a key
    head_dim_v    v  elements of a value
    kv_half_bits  b  half bits per element
    returns       x  half bits of a token, per rank

    Source: BLIS latency kernel, internal/price/memory.go.

    >>> token_half_bits(n_layers=36, n_kv_heads=1, head_dim=64, head_dim_v=64, kv_half_bits=9) // 16
    2592
    """
    return n_layers * n_kv_heads * (head_dim + head_dim_v) * kv_half_bits


def charged_tokens(*, context_tokens: Count, decode_context_parallel_size: Count, block_size: Count) -> Count:
    """Tokens that a rank is charged for a request: its share of them, in whole pages.

        t = ceil(ceil(T / c) / k) * k

    Ranks that share a context divide its tokens before they are paged.

    context_tokens                T  tokens of the request
    decode_context_parallel_size  c  ranks that share one context
    block_size                    k  tokens of one page
    returns                       t  tokens, per rank

    Source: BLIS latency kernel, kernel.go.

    >>> [charged_tokens(context_tokens=17, decode_context_parallel_size=c, block_size=16) for c in (1, 8)]
    [32, 16]
    """
    return -(-(context_tokens // -decode_context_parallel_size) // -block_size) * block_size


def sequence_bytes(*, charged: Count, half_bits: Count) -> Count:
    """Bytes of the tokens that a rank is charged for, cut once.

        B = t * x // 16

    charged    t  tokens, per rank
    half_bits  x  half bits that one of them occupies in all layers
    returns    B  bytes, per rank

    Source: BLIS latency kernel, kernel.go.

    >>> sequence_bytes(charged=4096, half_bits=35_136 * 16)
    143917056
    """
    return charged * half_bits // 16


def record_page_bytes(*, page_tokens: Count, tokens_per_record: Count, record_bytes: Count, alignment: Count) -> Count:
    """Bytes of one page of a cache that keeps whole records.

        P = ceil(k / r * x / a) * a

    page_tokens        k  context tokens of one page
    tokens_per_record  r  context tokens of one record
    record_bytes       x  bytes of one record
    alignment          a  a page is a multiple of this
    returns            P  bytes, per rank and layer

    Source: vllm, v1/kv_cache_interface.py, MLAAttentionSpec.page_size_bytes.

    >>> record_page_bytes(page_tokens=64, tokens_per_record=2, record_bytes=584, alignment=576)
    19008
    """
    return round_up(ceil_div(page_tokens, tokens_per_record) * record_bytes, alignment)
