"""A question as an address: what is said comes back, what is bad is named."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capplan.settings.address import read_query, write_query
from capplan.settings.deployment import SETTINGS

TEXT = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=30).map(str.strip).filter(bool)
SAID = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(
            ("tensor_parallel_size", "max_model_len", "kv_cache_memory_bytes", "requests"), st.integers(1, 1 << 60)
        ),
        **dict.fromkeys(("enforce_eager", "enable_prefix_caching"), st.booleans()),
        **dict.fromkeys(("engine", "chip", "dtype", "kv_cache_dtype"), TEXT),
        "gpu_memory_utilization": st.floats(0.01, 1.0),
        "hf_overrides": st.just('{"max_position_embeddings": 8192}'),
        "usage_context": st.just("llm-class"),
    },
)


@given(TEXT, SAID)
def test_what_is_said_comes_back(model, said):
    assert read_query(write_query(model, said)) == (model, said, [])


@given(st.text(max_size=300))
def test_any_text_is_read_without_an_error(text):
    model, said, faults = read_query(text)
    assert set(said) <= set(SETTINGS)
    assert model is None or model
    assert all(isinstance(fault, str) for fault in faults)


def test_only_what_was_said_is_written():
    assert write_query("Qwen/Qwen3-8B", {"chip": "l4", "max_model_len": None}) == "model=Qwen/Qwen3-8B&chip=l4"


@pytest.mark.parametrize(
    "text", ["model=a/b&chip=l4", "?model=a/b&chip=l4", "http://127.0.0.1:8866/x?model=a/b&chip=l4"]
)
def test_a_whole_address_reads_as_its_query(text):
    assert read_query(text) == ("a/b", {"chip": "l4"}, [])


def test_dashes_and_the_engines_other_words_are_read():
    assert read_query("kv-cache-memory=4G&max-model-len=32K")[1] == {
        "kv_cache_memory_bytes": 4 << 30,
        "max_model_len": 32_768,
    }


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("model=a&speed=9", "'speed'"),
        ("model=a&max_model_len=abc", "max_model_len is 'abc'"),
        ("model=a&enforce_eager=maybe", "enforce_eager is 'maybe'"),
        ("model=a&max_model_len=", "max_model_len is named without a value"),
        ("model=a&chip=l4&chip=h200", "chip is said more than once"),
        ("model=a&dtype=" + "x" * 5_000, "5,000 characters"),
    ],
)
def test_a_bad_part_is_named_and_left_out(text, named):
    model, said, faults = read_query(text)
    assert model == "a"
    assert len(faults) == 1
    assert named in faults[0]
    assert said == ({"chip": "l4"} if "chip" in text else {})


def test_an_unknown_name_is_named_without_its_value():
    _, _, (fault,) = read_query("token=secret")
    assert "secret" not in fault
