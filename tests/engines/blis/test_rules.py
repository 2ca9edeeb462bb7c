"""What the kernel refuses, and what only the engine would stop at."""

from dataclasses import replace

import pytest

from capplan.hub import load_model
from capplan.plan import plan
from capplan.settings.deployment import from_mapping

V3 = load_model("deepseek-ai/DeepSeek-V3")


QWEN = load_model("Qwen/Qwen3-32B")


MOE = load_model("Qwen/Qwen3-30B-A3B")


V41 = load_model("deepseek-v4.1-flash")


SPARSE = replace(V3, attention_type="sparse-latent")


def kernel(model, **said):
    return plan(model, from_mapping({"engine": "blis-kernel", "chip": "h200", "gpu_memory_utilization": 0.9, **said}))


def refusal(model, **said):
    p = kernel(model, **said)
    assert p.verdict == "refused"
    return p.refused[0]


REFUSED = [
    (QWEN, {"pipeline_parallel_size": 2}, "pipeline_parallel_size", "2", "choose 1"),
    (QWEN, {"quantization": "int3"}, "quantization", "int3", "fbgemm_fp8"),
    (QWEN, {"cudagraph_mode": "SOME"}, "cudagraph_mode", "SOME", "PIECEWISE"),
    (QWEN, {"kv_cache_dtype": "int7"}, "kv_cache_dtype", "int7", "nvfp4"),
    (QWEN, {"mamba_cache_mode": "some"}, "mamba_cache_mode", "some", "align"),
    (QWEN, {"kv_cache_dtype": "fp8_inc"}, "kv_cache_dtype", "fp8_inc", "choose auto"),
    (QWEN, {"kv_cache_dtype": "turboquant_3bit_nc"}, "kv_cache_dtype", "turboquant_3bit_nc", "choose auto"),
    (QWEN, {"kv_cache_dtype": "fp8_per_token_head"}, "kv_cache_dtype", "fp8_per_token_head", "choose auto"),
    (V3, {"kv_cache_dtype": "nvfp4"}, "kv_cache_dtype", "nvfp4", "fp8"),
    (V3, {"kv_cache_dtype": "fp8_ds_mla"}, "kv_cache_dtype", "fp8_ds_mla", "bfloat16"),
    (SPARSE, {"chip": "a100-80gb"}, "kv_cache_dtype", "auto", "9.0 or 10.x"),
    (SPARSE, {"kv_cache_dtype": "nvfp4_ds_mla"}, "kv_cache_dtype", "nvfp4_ds_mla", "FLASHMLA_SPARSE"),
    (SPARSE, {"block_size": 32}, "block_size", "32", "multiples of 64"),
    (MOE, {"enable_expert_parallel": True, "tensor_parallel_size": 129}, "enable_expert_parallel", "129", "fewer"),
    (QWEN, {"tensor_parallel_size": 0}, "tensor_parallel_size", "0", "1 or more"),
    (QWEN, {"data_parallel_size": -1}, "tensor_parallel_size", "-1", "1 or more"),
    (QWEN, {"prefill_context_parallel_size": -1}, "prefill_context_parallel_size", "-1", "1 or more"),
    (QWEN, {"decode_context_parallel_size": -2}, "decode_context_parallel_size", "-2", "1 or more"),
    (QWEN, {"num_redundant_experts": -1}, "num_redundant_experts", "-1", "0 or more"),
    (QWEN, {"num_speculative_tokens": -1}, "num_speculative_tokens", "-1", "0 or more"),
    (QWEN, {"max_num_seqs": -1}, "max_num_seqs", "-1", "from 1"),
    (QWEN, {"max_num_batched_tokens": 0}, "max_num_batched_tokens", "0", "from 1"),
    (QWEN, {"max_model_len": -3}, "max_model_len", "-3", "from 1"),
    (QWEN, {"max_model_len": 1 << 40}, "max_model_len", str(1 << 40), "68,719,476,735"),
    (QWEN, {"max_cudagraph_capture_size": 0}, "max_cudagraph_capture_size", "0", "1 or more"),
    (QWEN, {"block_size": 0}, "block_size", "0", "1 or more"),
    (QWEN, {"num_gpu_blocks_override": 0}, "num_gpu_blocks_override", "0", "1 or more"),
    (QWEN, {"gpu_memory_utilization": 1.5}, "gpu_memory_utilization", "1.5", "at most 1"),
    (QWEN, {"gpu_memory_utilization": -0.5}, "gpu_memory_utilization", "-0.5", "above 0"),
    (QWEN, {"tokens": 0}, "tokens", "0", "1 or more"),
    (QWEN, {"tokens": -5}, "tokens", "-5", "1 or more"),
    (
        V3,
        {"prefill_context_parallel_size": 2, "data_parallel_size": 2},
        "prefill_context_parallel_size",
        "2",
        "one of the two",
    ),
    (
        V3,
        {"tensor_parallel_size": 8, "decode_context_parallel_size": 3},
        "decode_context_parallel_size",
        "3",
        "a divisor",
    ),
    (
        SPARSE,
        {"tensor_parallel_size": 2, "prefill_context_parallel_size": 4, "decode_context_parallel_size": 3},
        "decode_context_parallel_size",
        "3",
        "choose 1, 4 or 8",
    ),
    (QWEN, {"prefill_context_parallel_size": 2}, "prefill_context_parallel_size", "2", "choose 1"),
    (
        V3,
        {"prefill_context_parallel_size": 2, "decode_context_parallel_size": 2},
        "decode_context_parallel_size",
        "2",
        "sparse latent",
    ),
    (
        SPARSE,
        {"prefill_context_parallel_size": 2, "dcp_comm_backend": "a2a"},
        "dcp_comm_backend",
        "a2a",
        "choose ag_rs",
    ),
    (QWEN, {"dcp_comm_backend": "b2b"}, "dcp_comm_backend", "b2b", "ag_rs"),
    (
        V3,
        {"tensor_parallel_size": 8, "decode_context_parallel_size": 8, "dcp_replicate_queries": True},
        "dcp_replicate_queries",
        "8",
        "leave it out",
    ),
    (QWEN, {"dcp_kv_cache_interleave_size": 3}, "dcp_kv_cache_interleave_size", "3", "a divisor"),
    (QWEN, {"tensor_parallel_size": 16, "nnodes": 1, "gpus_per_node": 8}, "nnodes", "16", "nnodes 2"),
    (QWEN, {"data_parallel_size": 2, "data_parallel_size_local": 4}, "data_parallel_size_local", "4", "at most"),
    (
        QWEN,
        {"data_parallel_size": 4, "data_parallel_size_local": 3, "gpus_per_node": 8, "nnodes": 1},
        "data_parallel_size_local",
        "3",
        "divide the 8",
    ),
    (QWEN, {"pool_role": "prefill"}, "pool_role", "prefill", "colocated"),
    (QWEN, {"speculative_method": "guess"}, "speculative_method", "guess", "ngram"),
    (V41, {"chip": "a100-80gb"}, "chip", "auto", "sm90 takes"),
    (V41, {"kv_cache_dtype": "nvfp4_ds_mla"}, "kv_cache_dtype", "nvfp4_ds_mla", "fp8_ds_mla"),
    (V41, {"block_size": 17}, "block_size", "17", "multiple of 2"),
]


@pytest.mark.parametrize(("model", "said", "field", "value", "works"), REFUSED)
def test_a_refusal_names_the_field_the_value_and_what_would_work(model, said, field, value, works):
    finding = refusal(model, **said)
    assert finding.field == field
    assert value in finding.why
    assert works in finding.why


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (SPARSE, {"kv_cache_dtype": "bfloat16", "tensor_parallel_size": 8, "decode_context_parallel_size": 2}),
        (SPARSE, {"kv_cache_dtype": "fp8", "tensor_parallel_size": 2, "decode_context_parallel_size": 2}),
        (
            SPARSE,
            {
                "kv_cache_dtype": "fp8",
                "tensor_parallel_size": 8,
                "decode_context_parallel_size": 2,
                "dcp_comm_backend": "a2a",
            },
        ),
    ],
    ids=["a-16-bit-cache", "32-heads-a-rank", "another-exchange"],
)
def test_packed_sparse_kernels_share_a_context_only_in_their_own_way(model, said):
    assert refusal(model, **said).field == "kv_cache_dtype"
    fine = {"kv_cache_dtype": "fp8", "tensor_parallel_size": 8, "decode_context_parallel_size": 2}
    assert kernel(model, **fine).verdict != "refused"


@pytest.mark.parametrize(
    ("said", "field", "works"),
    [
        ({"enable_eplb": True, "num_redundant_experts": 8}, "enable_eplb", "turn it on"),
        (
            {
                "enable_eplb": True,
                "enable_expert_parallel": True,
                "tensor_parallel_size": 8,
                "num_redundant_experts": 3,
            },
            "num_redundant_experts",
            "choose num_redundant_experts 8",
        ),
    ],
)
def test_what_only_the_engine_would_stop_at_leaves_the_figures(said, field, works):
    p = kernel(MOE, **said)
    assert p.verdict == "refused"
    assert p.refused[0].field == field
    assert works in p.sentence
    assert p.fixed_bytes == sum(line.bytes for line in p.lines)
    assert p.to_dict()["weights_bytes"] == p.weights_bytes
