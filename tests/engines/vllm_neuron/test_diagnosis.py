"""What a failure means, by its words."""

import json
from pathlib import Path

import pytest

from capplan.engines import vllm_neuron as neuron
from capplan.engines.release import load_engine
from capplan.engines.vllm_neuron.diagnosis import failure_class, overshoot
from capplan.settings import environment
from capplan.settings.deployment import Deployment
from capplan.units import GIB

VECTORS = json.loads((Path(__file__).parents[2] / "data" / "neuron-vectors.json").read_text())


ENGINE = load_engine("vllm-neuron")


CAP = "VLLM_NEURON_KV_GMU_BUDGET_CAP_FRACTION"


def name_of(row):
    return row["id"]


def budget(weights=8 * GIB, env=None, **said):
    d = Deployment(engine="vllm-neuron", **{"chip": "trn2", **said, **environment.settings(env or {})})
    return neuron.worker_budget(d, ENGINE, weights_bytes=weights)


@pytest.mark.parametrize("row", VECTORS["explain"], ids=name_of)
def test_a_diagnosis_is_the_vector_s(row):
    found = neuron.explain(row["asked"]["message"], row["asked"]["policy"])
    assert {key: getattr(found, key) for key in row["gives"]} == row["gives"]
    assert found.message == row["asked"]["message"]


# Diagnosis


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("[NCC_EOOM001] out of memory", "compile_hbm"),
        ("Estimated peak HBM usage (18.25) exceeds 16GB", "compile_hbm"),
        ("nrt_load_collectives failed with NRT_RESOURCE", "load_hbm"),
        ("nrt_load: status=4", "load_hbm"),
        ("TDRV:dmem_alloc_internal Failed to allocate 1073741824 bytes", "load_hbm"),
        ("ValueError: To serve at least one request with the model's max seq len (8192)", "no_fit"),
        ("No available memory for the cache blocks.", "no_fit"),
        ("[F137] neuronx-cc was forcibly killed", "host_memory"),
        ("Killed", "host_memory"),
        ("nrt_execute status=2", "not_memory"),
        ("Connection refused", "unknown"),
    ],
)
def test_a_text_is_told_by_its_words(message, kind):
    assert failure_class(message) == kind


def test_every_refusal_of_ours_is_recognised():
    for b in (budget(22 * GIB), budget(0, reserved_headroom_gib=24.0), budget(13 * GIB, reserved_headroom_gib=20.0)):
        assert failure_class(neuron.refusal(b)) == "below_minimum"


def test_the_overshoot_is_rounded_up_to_steps():
    message = "[NCC_EOOM002] Maximum peak HBM usage of 28.44GB exceeds HBM limit of 24.00GB for Trn2."
    assert str(overshoot(message)) == "4.44"
    b = budget(9 * GIB, reserved_headroom_gib=4.0)
    found = neuron.explain(message, "headroom", b)
    said = " ".join((*found.notes, *found.procedure))
    assert "about 5 steps of 1 GiB" in said
    assert "from 4 to 5" in said
    assert "would exceed 14.00 GiB" in said
    assert "once with a smaller cache or by the default policy" in found.procedure[0]


def test_a_reserve_at_its_end_is_not_raised_any_further():
    found = neuron.explain("NRT_RESOURCE in nrt_load_util", "headroom", budget(9 * GIB, reserved_headroom_gib=13.5))
    assert not any(step.startswith("where it passes, raise") for step in found.procedure)
    assert any("another GiB would be refused" in step for step in found.procedure)


@pytest.mark.parametrize("policy", ["default", "headroom"])
def test_only_a_reserve_gets_the_procedure_as_a_note_and_the_error_stays_the_same(policy):
    error = RuntimeError('nrt_tensor_allocate status=4 message="Allocation Failure"')
    found = neuron.annotate(error, policy)
    assert found is error
    assert str(found) == 'nrt_tensor_allocate status=4 message="Allocation Failure"'
    assert len(getattr(found, "__notes__", ())) == (policy == "headroom")
    other = ValueError("something else")
    assert not hasattr(neuron.annotate(other, policy), "__notes__")


def test_below_the_minimum_the_way_is_down_or_to_the_term_that_binds():
    says = "Computed KV cache budget is below minimum threshold."
    down = neuron.explain(says, "headroom", budget(9 * GIB, reserved_headroom_gib=15.0))
    assert down.direction == "decrease"
    assert "14.00 GiB" in down.procedure[0]
    capped = neuron.explain(says, "default", budget(2 * GIB, kv_gmu_budget_cap_fraction=0.03))
    assert (capped.primary_knob, capped.direction) == (CAP, "increase")
