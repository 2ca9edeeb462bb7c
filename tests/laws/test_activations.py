"""The laws of the profiling pass against peaks that others published."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capplan.laws.activations import forward_peak_bytes, gated_width, peak_bytes, sampler_peak_bytes, sampler_rows
from capplan.units import GIB

TOKENS = st.integers(1, 2**17)
SEQS = st.integers(1, 4096)


def test_the_sampler_has_a_row_for_each_request_and_at_most_for_each_token():
    # vllm 0.33.0 makes one row a request; a request has one token or more in the step
    rows = [sampler_rows(max_num_seqs=256, max_num_batched_tokens=tokens) for tokens in (255, 256, 257, 8192)]
    assert rows == [255, 256, 256, 256]


def test_the_sampler_pass_of_deepseek_v3_as_the_blis_memory_page_has_it():
    # golden vector of the BLIS kernel: 256 rows of 129,280 logits at 2 + 4 bytes; it counts no hidden states
    step = {"max_num_seqs": 256, "max_num_batched_tokens": 8192, "vocab": 129_280, "act_bits": 16}
    assert sampler_peak_bytes(**step, bytes_per_logit=6, hidden=0) == 198_574_080


@pytest.mark.parametrize(
    ("seqs", "tokens", "vocab", "hidden", "printed"),
    [
        # start-up records of vllm 0.10.2 to 0.11, whose sampler sorts: about 38.3 bytes a logit, so between 38 and 39.
        # Ranks do not share the logits: vl-059 has two, vl-068 four.
        (1024, 8192, 201_088, 2880, 7.38),  # vl-058, gpt-oss-120b on H100
        (1024, 8192, 128_256, 8192, 4.84),  # vl-059, Llama-3.3-70B on H100
        (1024, 8192, 151_936, 1024, 5.56),  # vl-061, Qwen3-0.6B on H100
        (1024, 8192, 151_936, 5120, 5.64),  # vl-062, Qwen3-32B on H100
        (256, 2048, 151_936, 4096, 1.40),  # vl-068, Qwen3-235B-A22B on L40S
        (256, 2048, 151_936, 4096, 1.40),  # vl-089, Qwen3-8B-FP8 on a 24 GB card
    ],
)
def test_the_sampler_pass_is_the_peak_that_engines_printed(seqs, tokens, vocab, hidden, printed):
    step = {"max_num_seqs": seqs, "max_num_batched_tokens": tokens, "vocab": vocab, "hidden": hidden, "act_bits": 16}
    low, high = (sampler_peak_bytes(**step, bytes_per_logit=q) / GIB for q in (38, 39))
    # printed to 0.01 GiB
    assert low - 0.005 <= printed <= high + 0.005


@pytest.mark.parametrize(
    ("tokens", "width", "total"),
    [
        # golden vectors of the BLIS kernel: deepseek-v3 at tp 8 keeps 10 buffers as wide as its hidden state of 7,168
        (8192, 10 * 7168, 1_174_405_120),
        (4096, 10 * 7168, 587_202_560),
    ],
)
def test_the_forward_pass_keeps_so_many_elements_of_each_token(tokens, width, total):
    assert forward_peak_bytes(max_num_batched_tokens=tokens, widest=width, act_bits=16) == total


@pytest.mark.parametrize(("tokens", "printed"), [(20_000, 2.07), (29_000, 2.99)])
def test_an_uncompiled_pass_of_llama_8b_as_it_was_printed(tokens, printed):
    # start-up records vl-004 and vl-005, vllm-project/vllm issue 10517: the printed peak minus the printed weights,
    # so the law printed as they are may be one hundredth away
    width = gated_width(hidden=4096, intermediate=14_336, n_residual=3)
    peak = forward_peak_bytes(max_num_batched_tokens=tokens, widest=width, act_bits=16)
    assert round(peak / GIB, 2) in (printed, round(printed - 0.01, 2), round(printed + 0.01, 2))


def test_gate_up_and_product_are_alive_beside_the_kept_hidden_states():
    compiled, uncompiled = (gated_width(hidden=4096, intermediate=14_336, n_residual=n) for n in (1, 3))
    assert (compiled, uncompiled - compiled) == (4096 + 3 * 14_336, 2 * 4096)


def test_the_larger_pass_is_the_peak():
    # the BLIS Memory page: the forward pass of deepseek-v3 wins over its sampler's 198,574,080 bytes
    assert peak_bytes(sampler_bytes=198_574_080, forward_bytes=1_174_405_120) == 1_174_405_120
    assert [peak_bytes(sampler_bytes=5, forward_bytes=n) for n in (4, 5, 6)] == [5, 5, 6]


@given(tokens=TOKENS, width=st.integers(1, 2**18), factor=st.integers(1, 16))
def test_the_forward_pass_is_linear_in_tokens(tokens, width, factor):
    once, often = (
        forward_peak_bytes(max_num_batched_tokens=n, widest=width, act_bits=16) for n in (tokens, tokens * factor)
    )
    assert often == factor * once


@given(seqs=SEQS, tokens=TOKENS, vocab=st.integers(1, 2**18), hidden=st.integers(1, 2**14))
def test_the_sampler_grows_by_a_row_of_logits_until_there_is_one_for_each_token(seqs, tokens, vocab, hidden):
    step = {"max_num_batched_tokens": tokens, "vocab": vocab, "bytes_per_logit": 14, "hidden": hidden, "act_bits": 16}
    less, more = (sampler_peak_bytes(max_num_seqs=n, **step) for n in (seqs, seqs + 1))
    assert more - less == (14 * vocab if seqs < tokens else 0)


@given(seqs=SEQS, tokens=TOKENS, vocab=st.integers(1, 2**18), hidden=st.integers(1, 2**14))
def test_the_sampler_is_linear_in_tokens_once_every_request_has_one(seqs, tokens, vocab, hidden):
    more = {"max_num_seqs": seqs, "vocab": vocab, "bytes_per_logit": 14, "hidden": hidden, "act_bits": 16}
    steps = [sampler_peak_bytes(max_num_batched_tokens=seqs + n, **more) for n in (0, tokens)]
    assert steps[1] - steps[0] == 2 * tokens * hidden
