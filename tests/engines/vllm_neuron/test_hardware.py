"""Chips, instances and degrees of vLLM on Neuron."""

import pytest

from capplan.engines import vllm_neuron as neuron
from capplan.engines.release import load_engine
from capplan.registry import Refused, names
from capplan.settings import environment
from capplan.settings.deployment import Deployment
from capplan.units import GIB

ENGINE = load_engine("vllm-neuron")


def budget(weights=8 * GIB, env=None, **said):
    d = Deployment(engine="vllm-neuron", **{"chip": "trn2", **said, **environment.settings(env or {})})
    return neuron.worker_budget(d, ENGINE, weights_bytes=weights)


@pytest.mark.parametrize(
    ("target", "stack"),
    [
        ("trn1", 16), ("gen2", 16), ("inf2", 16), ("trn2", 24), ("gen3", 24), ("trn3", 36), ("gen4", 36),
        (" trn2 ", 24),
    ],
)  # fmt: skip
def test_a_target_and_its_alias_have_one_static_size(target, stack):
    b = budget(env={"VLLM_NEURON_CPU_COMPILE": "1", "NEURON_PLATFORM_TARGET_OVERRIDE": target}, weights=0)
    assert (b.route, b.hbm_stack_bytes) == ("cpu_compile", stack * GIB)


@pytest.mark.parametrize("target", ["trn9", "trn3pre", "trn3pds98", "", "TRN2", "gen1"])
def test_another_target_is_refused_with_those_that_are_known(target):
    with pytest.raises(Refused, match="NEURON_PLATFORM_TARGET_OVERRIDE") as error:
        budget(env={"VLLM_NEURON_CPU_COMPILE": "1", "NEURON_PLATFORM_TARGET_OVERRIDE": target})
    assert error.value.code == "UNKNOWN_PLATFORM"
    assert all(name in str(error.value) for name in names("neuron"))


@pytest.mark.parametrize(("chip", "text"), [("inf2", "2"), ("trn1", "2"), ("trn2", "4"), ("trn2", "0"), ("trn3", "-1")])
def test_a_degree_that_the_chip_has_not_is_refused(chip, text):
    with pytest.raises(Refused, match="NEURON_LOGICAL_NC_CONFIG") as error:
        budget(env={"NEURON_LOGICAL_NC_CONFIG": text}, chip=chip)
    assert error.value.code == "INVALID_LNC"


@pytest.mark.parametrize("text", ["two", "", "1.0", "2 cores"])
def test_a_degree_in_words_is_refused(text):
    with pytest.raises(Refused, match="NEURON_LOGICAL_NC_CONFIG") as error:
        budget(env={"NEURON_LOGICAL_NC_CONFIG": text})
    assert error.value.code == "INVALID_LNC"


@pytest.mark.parametrize(
    ("chip", "degree", "share"),
    [("trn1", None, 16), ("inf2", 1, 16), ("trn2", None, 24), ("trn2", 1, 12), ("trn3", 2, 36), ("trn3", 1, 18)],
)
def test_the_share_of_every_platform_at_every_degree(chip, degree, share):
    assert budget(chip=chip, logical_nc_config=degree, weights=0).share_bytes == share * GIB


def test_a_chip_is_named_as_the_registry_names_it():
    with pytest.raises(Refused, match="the compiler's word for trn2"):
        budget(chip="gen3")
    with pytest.raises(Refused, match="there are inf2, trn1, trn2, trn3"):
        budget(chip="trn9")
    with pytest.raises(Refused, match="weights are -1 bytes"):
        budget(weights=-1)


# Hardware


@pytest.mark.parametrize(
    ("name", "stacks", "cores"),
    [
        # AWS Neuron SDK documentation, instance architecture
        ("inf2.48xlarge", 24, {1: 24}),
        ("trn1.32xlarge", 32, {1: 32}),
        ("trn2.48xlarge", 64, {1: 128, 2: 64}),
        ("Trn3 Gen2 UltraServer", 576, {1: 1152, 2: 576}),
        ("trn2.3xlarge", 4, {1: 8, 2: 4}),
    ],
)
def test_an_instance_has_its_stacks_and_logical_cores(name, stacks, cores):
    instance = neuron.load_instance(name)
    chip = neuron.load_neuron_chip(instance.platform)
    chips = instance.chips.value
    assert chip.hbm_stacks_per_chip.value * chips == stacks
    assert {n: chip.logical_cores(n, chips=chips) for n in chip.degrees} == cores


def test_every_instance_says_how_sure_it_is():
    found = {name: neuron.load_instance(name).certainty for name in names("instances")}
    assert len(found) == 15
    assert found["trn2.12xlarge"] == "inferred"
    assert found["trn3pd98.3xlarge"] == "user-reported"
    with pytest.raises(Refused, match="the closest"):
        neuron.load_instance("trn2.48xlrge")


def test_rank_sizes_are_those_that_are_supported_up_to_the_logical_cores():
    trn2, inf2 = neuron.load_neuron_chip("trn2"), neuron.load_neuron_chip("inf2")
    assert trn2.rank_sizes(2) == (1, 2, 4, 8, 16, 32, 64)
    assert trn2.rank_sizes(1, most=8) == (1, 2, 4, 8)
    assert trn2.rank_sizes(1, most=128)[-1] == 128
    assert inf2.rank_sizes(1, most=12) == (1, 2, 4, 8)
    assert neuron.load_neuron_chip("trn1").rank_sizes(1) == (1, 2, 8, 16, 32)
