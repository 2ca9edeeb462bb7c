"""What the kernel supplies and what the engine would change, each under its name."""

from dataclasses import replace

from capplan.hub import load_model
from capplan.plan import plan
from capplan.settings.deployment import from_mapping

V3 = load_model("deepseek-ai/DeepSeek-V3")


QWEN = load_model("Qwen/Qwen3-32B")


SPARSE = replace(V3, attention_type="sparse-latent")


def kernel(model, **said):
    return plan(model, from_mapping({"engine": "blis-kernel", "chip": "h200", "gpu_memory_utilization": 0.9, **said}))


NAMES = {
    "block_size",
    "cudagraph_mode",
    "dcp_comm_backend",
    "engine_version",
    "mamba_cache_mode",
    "max_cudagraph_capture_size",
    "max_num_batched_tokens",
    "max_num_seqs",
    "mla_context_chunk",
    "sparse_mla_backend",
}


BESIDE = {"max_model_len", "kv_cache_dtype", "gpu_memory_utilization"}


def test_every_default_that_was_needed_is_an_assumption_under_its_name():
    p = kernel(SPARSE, tensor_parallel_size=8, decode_context_parallel_size=2, kv_cache_dtype="fp8")
    assumed = {f.field for f in p.assumed}
    assert assumed <= NAMES | BESIDE
    assert assumed >= NAMES - {"mamba_cache_mode"}
    assert {f.field: f.happens for f in p.assumed}["sparse_mla_backend"] == "FLASHMLA_SPARSE"
    stated = kernel(QWEN, block_size=16, cudagraph_mode="NONE", max_num_batched_tokens=8192, max_num_seqs=256)
    assert {f.field for f in stated.assumed} & NAMES == {"engine_version"}


def test_a_utilization_of_zero_is_unset():
    p = kernel(QWEN, gpu_memory_utilization=0)
    assert p.resolved.gpu_memory_utilization == 0.92
    assert "gpu_memory_utilization" in {f.field for f in p.assumed}


def test_every_number_in_scope_says_how_it_was_obtained():
    p = kernel(V3, tensor_parallel_size=8)
    known = {d.key for d in p.sources}
    wanted = ("half_buffers_moe_tp8", "activations_least_bytes", "communicator_tp8_bytes", "workspace_bytes")
    assert known >= {f"estimates.{name}" for name in wanted}
    assert all(d.method and d.origin() for d in p.sources)
    assert p.evidence["numbers"] == len(p.sources) == sum(n for key, n in p.evidence.items() if key != "numbers")
    found = p.to_dict()
    assert {d["key"] for d in found["sources"]} == known
    assert found["evidence"] == p.evidence
