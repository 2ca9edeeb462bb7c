"""Settings of vLLM on GPUs that change what is held or refused: replicas, drafts, a stated pool, shared contexts."""

import pytest

from capplan.hub import load_model
from capplan.plan import plan
from capplan.settings.command_line import parse_flags
from capplan.settings.deployment import from_mapping

V3 = load_model("deepseek-ai/DeepSeek-V3")
QWEN = load_model("Qwen/Qwen3-32B")
GEMMA = load_model("google/gemma-2-9b-it")


def asked(model, **said):
    return plan(model, from_mapping({"chip": "h200", "tensor_parallel_size": 8, **said}))


def test_replicas_of_experts_are_a_line_of_their_own():
    off = asked(V3, enable_expert_parallel=True)
    on = asked(V3, enable_expert_parallel=True, enable_eplb=True, num_redundant_experts=8)
    # one expert more a layer: three matrices of 2,048 x 7,168 in fp8, and a scale of 4 bytes for 128 x 128 of each
    assert on.eplb_bytes == 58 * 3 * (2048 * 7168 + 16 * 56 * 4)
    assert on.weights_bytes == off.weights_bytes
    assert on.fixed_bytes - off.fixed_bytes == on.eplb_bytes


@pytest.mark.parametrize(
    ("said", "field", "works"),
    [
        ({"enable_eplb": True}, "enable_eplb", "turn it on"),
        ({"num_redundant_experts": 8}, "num_redundant_experts", "0 without enable_eplb"),
        (
            {"enable_expert_parallel": True, "enable_eplb": True, "num_redundant_experts": 3},
            "num_redundant_experts",
            "choose num_redundant_experts 8",
        ),
        ({"prefill_context_parallel_size": 2}, "prefill_context_parallel_size", "choose 1"),
        ({"dcp_kv_cache_interleave_size": 3}, "dcp_kv_cache_interleave_size", "a divisor"),
        ({"dcp_comm_backend": "a2a"}, "dcp_comm_backend", "choose ag_rs"),
        ({"speculative_method": "mtp", "num_speculative_tokens": 1}, "speculative_method", "choose ngram"),
        ({"num_speculative_tokens": -1}, "num_speculative_tokens", "0 or more"),
        ({"mamba_cache_mode": "some"}, "mamba_cache_mode", "none, align, all"),
        ({"num_gpu_blocks_override": 0}, "num_gpu_blocks_override", "1 or more"),
    ],
)
def test_a_refusal_names_the_field_and_what_would_work(said, field, works):
    p = asked(V3, **said)
    assert p.verdict == "refused"
    assert p.refused[0].field == field
    assert works in p.sentence


def test_a_stated_number_of_blocks_replaces_what_the_budget_gives():
    p = asked(QWEN, num_gpu_blocks_override=1000, max_model_len=8192)
    assert p.kv_blocks == 1000
    assert p.kv_cache_tokens == 16_000
    assert p.kv_budget_bytes == asked(QWEN, max_model_len=8192).kv_budget_bytes


def test_the_start_check_plans_against_stated_blocks():
    # vllm 0.33.0, kv_cache_planning.py, get_kv_cache_configs: the available memory becomes the stated blocks'
    need = asked(QWEN, max_model_len=8192).kv_request_blocks
    enough, one_less = (asked(QWEN, max_model_len=8192, num_gpu_blocks_override=need + n) for n in (1, 0))
    assert (enough.verdict, one_less.verdict) == ("fits", "does-not-fit")
    assert one_less.tightest.lacking_bytes == one_less.kv_block_bytes
    assert one_less.estimated_max_model_len == 8192 - 16
    beyond = asked(QWEN, max_model_len=8192, num_gpu_blocks_override=10_000_000)
    assert beyond.verdict == "does-not-fit" and "the device has" in beyond.sentence
    assert "blocks" in one_less.sentence and "bytes were stated" in one_less.sentence


def test_every_page_of_a_group_has_the_group_s_size():
    # vllm 0.33.0, Qwen3-Next on H100 tp 2: states and attention alike in pages of 589,824 bytes, 12 a block
    p = asked(load_model("Qwen/Qwen3-Next-80B-A3B-Instruct"), tensor_parallel_size=2)
    assert [(g.spec, g.page_bytes, g.block_bytes) for g in p.kv_groups] == [
        *[("MambaSpec", 589_824, 7_077_888)] * 3,
        ("FullAttentionSpec", 589_824, 7_077_888),
    ]


def test_drafted_tokens_widen_a_window_and_the_captured_step():
    plain = asked(GEMMA, max_num_seqs=16)
    drafting = asked(GEMMA, max_num_seqs=16, speculative_method="ngram", num_speculative_tokens=3)
    # a window of 4,096 in pages of 16: 257 pages, and one more for the three drafted tokens
    blocks = [next(b.steady for b in p.pool_blocks() if b.group.bounded) for p in (plain, drafting)]
    assert blocks == [257, 258]


def test_the_new_settings_are_flags():
    words = (
        "m -pcp 2 --enable-eplb --num-redundant-experts 8 --spec-method dspark --spec-tokens 5 --mamba-cache-mode all"
    )
    assert parse_flags(words.split()).settings == {
        "prefill_context_parallel_size": 2,
        "enable_eplb": True,
        "num_redundant_experts": 8,
        "speculative_method": "dspark",
        "num_speculative_tokens": 5,
        "mamba_cache_mode": "all",
    }
