"""Budgets of vLLM on Neuron: the worked vectors, bad input, invariants."""

import json
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from capplan.engines import vllm_neuron as neuron
from capplan.engines.release import load_engine
from capplan.registry import Refused
from capplan.settings import environment
from capplan.settings.deployment import Deployment
from capplan.units import GIB

VECTORS = json.loads((Path(__file__).parents[2] / "data" / "neuron-vectors.json").read_text())


ENGINE = load_engine("vllm-neuron")


def name_of(row):
    return row["id"]


def budget(weights=8 * GIB, env=None, **said):
    d = Deployment(engine="vllm-neuron", **{"chip": "trn2", **said, **environment.settings(env or {})})
    return neuron.worker_budget(d, ENGINE, weights_bytes=weights)


def asked_of(row):
    """A vector's inputs as a deployment says them."""
    renamed = {"platform": "chip", "model_weight_bytes": "weights"}
    return {renamed.get(key, key): value for key, value in row["asked"].items()}


def figures(b):
    return {
        **{name: getattr(b, name) for name in neuron.Budget.__dataclass_fields__},
        "computed_available_bytes": b.kv_budget_bytes,
    }


# The vectors


@pytest.mark.parametrize("row", [row for row in VECTORS["budget"] if "gives" in row], ids=name_of)
def test_a_budget_is_the_vector_s(row):
    b = budget(**asked_of(row))
    assert b.starts
    assert (b.route, b.policy, b.kv_budget_bytes) == tuple(
        row["gives"][key] for key in ("route", "policy", "available_bytes")
    )
    assert {key: figures(b)[key] for key in row["steps"]} == row["steps"]
    assert type(b.kv_budget_bytes) is int


@pytest.mark.parametrize(
    "row", [row for row in VECTORS["budget"] if row.get("steps") and "refused" in row], ids=name_of
)
def test_a_budget_below_the_minimum_has_the_vector_s_steps_and_a_sentence(row):
    b = budget(**asked_of(row))
    assert not b.starts
    assert {key: figures(b)[key] for key in row["steps"]} == row["steps"]
    says = neuron.refusal(b)
    for word in row["refused"]["names"]:
        assert word in says
    for word in row["refused"]["never"]:
        assert word not in says


@pytest.mark.parametrize("row", [r for r in VECTORS["budget"] if not r.get("steps") and "refused" in r], ids=name_of)
def test_what_cannot_be_computed_is_refused_with_its_word_and_names(row):
    with pytest.raises(Refused) as error:
        budget(**asked_of(row))
    assert error.value.code == row["refused"]["code"]
    for word in row["refused"]["names"]:
        assert word in str(error.value)


@pytest.mark.parametrize("row", [row for row in VECTORS["budget"] if "otherwise" in row], ids=name_of)
def test_another_reading_is_told_from_the_engine_s(row):
    asked = asked_of(row)
    weights = asked.pop("weights", 0)
    env = asked.pop("env")
    d = Deployment(engine="vllm-neuron", **{"chip": "trn2", **asked, **environment.settings(env)})
    c = neuron.case(d, ENGINE, weights_bytes=weights)
    found = neuron.other_reading(c, neuron.budget_of(c))
    assert found.available_bytes == row["otherwise"] != row["gives"]["available_bytes"]


@pytest.mark.parametrize("row", VECTORS["blocks"], ids=name_of)
def test_blocks_are_the_vector_s(row):
    asked, gives = row["asked"], row["gives"]
    g = neuron.Geometry(
        n_layers=asked["num_layers"],
        n_kv_heads=asked["total_num_kv_heads"],
        head_dim=asked["head_dim"],
        kv_bits=8 * asked["kv_element_bytes"],
    )
    page = neuron.page(g, block_size=asked["block_size"], tensor_parallel_size=asked["tensor_parallel_size"])
    need = neuron.request_blocks(max_model_len=asked["max_model_len"], block_size=asked["block_size"])
    pool = neuron.pool(budget_bytes=asked["available_bytes"], block_bytes=page.block_bytes, request_blocks=need)
    assert gives == {
        "kv_heads_per_rank": page.kv_heads_per_rank,
        "kv_replication_factor": page.kv_head_copies,
        "page_bytes_per_layer": page.page_bytes,
        "bytes_per_block_all_layers": page.block_bytes,
        "num_blocks": pool.kv_blocks,
        "allocatable_blocks": pool.allocatable_blocks,
        "blocks_per_max_len_request": pool.request_blocks,
        "scheduler_max_concurrency": pool.requests_admitted,
        "max_len_requests_guaranteed": pool.requests_held,
    }


# Bad input that is no variable


@pytest.mark.parametrize(("used", "free"), [(-1, -1), (-1, 5), (5, 0), (5, -1), (None, 5), (5, None)])
def test_unusable_statistics_are_refused(used, free):
    with pytest.raises(Refused, match="runtime reports") as error:
        budget(runtime_bytes_used=used, runtime_bytes_free=free)
    assert error.value.code == "INVALID_RUNTIME_STATS"


@pytest.mark.parametrize(("host", "workers"), [(0, 1), (-5, 1), (3, 4), (None, 1)])
def test_a_host_without_memory_for_each_worker_is_refused(host, workers):
    with pytest.raises(Refused, match="host") as error:
        budget(cpu_mode=True, host_available_bytes=host, local_workers=workers)
    assert error.value.code == "INVALID_HOST_MEMORY"


def test_both_switches_name_both_variables():
    with pytest.raises(Refused) as error:
        budget(cpu_mode=True, cpu_compile=True)
    assert "VLLM_NEURON_CPU_MODE" in str(error.value)
    assert "VLLM_NEURON_CPU_COMPILE" in str(error.value)


@pytest.mark.parametrize("share", [0.0, -0.1, 1.2, float("nan"), float("inf")])
def test_utilization_is_checked_only_by_the_default_policy(share):
    with pytest.raises(Refused, match="gpu_memory_utilization"):
        budget(gpu_memory_utilization=share)
    assert budget(gpu_memory_utilization=share, reserved_headroom_gib=1.0).gpu_memory_utilization == 1.0


def test_a_utilization_of_one_is_a_double_too():
    assert budget(gpu_memory_utilization=1, weights=0, kv_gmu_budget_cap_fraction=1).kv_budget_bytes == 24 * GIB


WEIGHTS = st.integers(0, 26 * GIB)


FRACTIONS = st.floats(0.001, 1.0)


CHIPS = st.sampled_from([("trn2", 1), ("trn2", 2), ("trn3", 1), ("trn3", 2), ("trn1", 1), ("inf2", 1)])


@settings(max_examples=100, deadline=None)
@given(weights=WEIGHTS, share=FRACTIONS, place=CHIPS, reserve=st.none() | st.floats(0, 30))
def test_a_device_with_the_table_s_total_and_a_compilation_agree(weights, share, place, reserve):
    chip, degree = place
    said = {"gpu_memory_utilization": share, "logical_nc_config": degree, "reserved_headroom_gib": reserve}
    on = budget(weights, chip=chip, runtime_bytes_used=3 << 20, runtime_bytes_free=_stack(chip) - (3 << 20), **said)
    off = budget(weights, cpu_compile=True, platform_target_override=chip, **said)
    assert (on.route, off.route) == ("device", "cpu_compile")
    assert on.kv_budget_bytes == off.kv_budget_bytes


def _stack(chip):
    return neuron.load_neuron_chip(chip).hbm_stack_bytes.value


@settings(max_examples=100, deadline=None)
@given(weights=WEIGHTS, reserve=st.integers(0, 30 * GIB), more=st.integers(0, 4 * GIB))
def test_each_byte_of_reserve_takes_one_byte_of_cache_until_nothing_is_left(weights, reserve, more):
    assume(reserve + more <= 24 * GIB)
    one = budget(weights, reserved_headroom_gib=reserve / GIB, min_kv_budget_gib=0.0).kv_budget_bytes
    other = budget(weights, reserved_headroom_gib=(reserve + more) / GIB, min_kv_budget_gib=0.0).kv_budget_bytes
    assert other == max(one - more, 0)
