"""What would change an answer: every change is asked again, on GPUs and on Neuron alike, and gives what it says."""

import numpy as np
import pytest

from capplan import Deployment, load_model, plan
from capplan.solve import STARTS, WORTH, against, changes, curve, fewest_ranks, legal_sizes, remedies, settle, supplied

QWEN = load_model("Qwen/Qwen3-32B")
LLAMA = load_model("meta-llama/Meta-Llama-3.1-70B")
PHI = load_model("microsoft/phi-4")
NEURON = Deployment(engine="vllm-neuron", chip="trn2", tensor_parallel_size=8)

SHORT = {
    "weights": plan(LLAMA, Deployment(chip="h100-sxm")),
    "cache": plan(LLAMA, Deployment(chip="h100-sxm", tensor_parallel_size=2)),
    "device": plan(QWEN, Deployment(chip="h100-sxm", tensor_parallel_size=2, gpu_memory_utilization=0.999)),
    "stated cache": plan(
        QWEN, Deployment(chip="h100-sxm", tensor_parallel_size=2, kv_cache_memory_bytes=60_000_000_000)
    ),
    "close": plan(QWEN, Deployment(chip="h100-sxm", max_model_len=32_768)),
    "core": plan(LLAMA, Deployment(engine="vllm-neuron", chip="trn2", tensor_parallel_size=4)),
    "reserve": plan(
        QWEN, Deployment(engine="vllm-neuron", chip="trn2", tensor_parallel_size=4, reserved_headroom_gib=7.0)
    ),
}
"""Plans that do not start, or only at the centre, each for another reason."""


@pytest.mark.parametrize("name", SHORT)
def test_every_remedy_is_a_plan_that_is_nearer_to_a_start(name):
    p = SHORT[name]
    assert p.verdict in ("does-not-fit", "close", "refused")
    for change in remedies(p):
        assert change.cost
        if "max_model_len" in change.settings or "tensor_parallel_size" in change.settings:
            assert change.plan.verdict in STARTS, change.settings


@pytest.mark.parametrize("name", ["weights", "cache", "core"])
def test_the_fewest_ranks_are_the_first_that_start(name):
    p = SHORT[name]
    found = fewest_ranks(p)
    assert found.plan.verdict in STARTS
    size = found.settings["tensor_parallel_size"]
    assert all(p.at(**p.at_ranks(less)).verdict not in STARTS for less in p.rank_sizes if less < size)


def test_no_remedy_for_what_starts_nor_for_many():
    fits = plan(QWEN, Deployment(tensor_parallel_size=4))
    assert (fits.verdict, list(remedies(fits))) == ("fits", [])
    assert list(remedies(plan(QWEN, Deployment(max_model_len=np.array([1000, 2000]))))) == []


@pytest.mark.parametrize("name", ["weights", "cache", "device", "close"])
def test_a_change_says_what_its_plan_says(name):
    p = SHORT[name]
    found = changes(p)
    assert found
    for change in found:
        again = plan(p.model, change.plan.asked)
        assert (again.verdict, again.kv_blocks) == (change.plan.verdict, change.plan.kv_blocks)
        assert change.plan.verdict in STARTS
        assert change.better or change.plan.asked.n_chips < p.asked.n_chips


def test_a_gain_of_a_tenth_is_worth_a_line_and_one_of_a_hundredth_is_not():
    p = plan(QWEN, Deployment(tensor_parallel_size=4, max_num_seqs=256))
    eager = p.at(enforce_eager=True)
    times = eager.max_concurrency / p.max_concurrency
    assert 1.005 < times < WORTH
    assert {"enforce_eager": True} not in [change.settings for change in changes(p)]
    tight = plan(QWEN, Deployment(tensor_parallel_size=1, max_model_len=24_576))
    times = tight.at(enforce_eager=True).max_concurrency / tight.max_concurrency
    assert WORTH < times < 1.25
    assert {"enforce_eager": True} in [change.settings for change in changes(tight)]


def test_the_gain_is_counted_in_requests():
    change = changes(SHORT["cache"])[0]
    assert change.gain == pytest.approx(change.plan.max_concurrency - SHORT["cache"].max_concurrency)


# Legal values


def test_a_default_is_what_the_engine_supplies_whether_or_not_something_is_said():
    p = plan(QWEN, Deployment(tensor_parallel_size=4))
    said = plan(QWEN, Deployment(tensor_parallel_size=4, max_num_seqs=7))
    assert supplied(p, "max_num_seqs") == supplied(said, "max_num_seqs")
    assert supplied(p, "max_num_seqs").happens == "1,024"
    assert supplied(p, "tensor_parallel_size") is None
    core = plan(QWEN, NEURON)
    assert supplied(core, "min_kv_budget_gib").happens == "1"


@pytest.mark.parametrize("p", [plan(PHI, Deployment()), plan(QWEN, NEURON)], ids=["gpu", "core"])
def test_a_size_is_offered_with_the_reason_against_it(p):
    offered = dict(legal_sizes(p, "tensor_parallel_size"))
    assert p.asked.tensor_parallel_size in offered
    for size, why in offered.items():
        assert why == against(p, "tensor_parallel_size", size)
        assert (why is None) == (
            not any(f.field == "tensor_parallel_size" for f in p.at(tensor_parallel_size=size).refused)
        )


def test_what_a_change_makes_illegal_moves_to_the_nearest_legal_value():
    p, moves = settle(plan(PHI, Deployment(tensor_parallel_size=8)), kept=frozenset({"model"}))
    assert p.asked.tensor_parallel_size == 2
    assert [move.field for move in moves] == ["tensor_parallel_size"]
    assert moves[0].says.startswith("tensor_parallel_size moved from 8 to 2: ")
    kept, none = settle(plan(PHI, Deployment(tensor_parallel_size=8)), kept=frozenset({"tensor_parallel_size"}))
    assert (kept.verdict, none) == ("refused", [])


# Curves


def test_a_curve_is_the_plan_at_each_of_its_values():
    p = plan(QWEN, NEURON)
    found = curve(p, "kv_gmu_budget_cap_fraction", longest=1.0, now=0.3, default=0.3, turn=0.77, above_zero=True)
    assert {0.3, 0.77} <= set(found.values) and found.values[0] > 0
    for at in (0, 60, len(found.values) - 1):
        one = p.at(kv_gmu_budget_cap_fraction=float(found.values[at]))
        assert one.kv_budget_bytes == found.kv_budget_bytes[at]
        assert one.binding == found.binding[at]


def test_nothing_is_asked_twice():
    p = plan(QWEN, Deployment(tensor_parallel_size=4))
    assert p.at(max_num_seqs=32) is p.at(max_num_seqs=32)
    assert p.at(max_num_seqs=32) is p.at(max_num_seqs=64).at(max_num_seqs=32)
    assert p.resolve_at(max_num_seqs=32) is p.resolve_at(max_num_seqs=32)
