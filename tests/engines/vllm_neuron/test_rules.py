"""The rules that vLLM on Neuron has of its own and those it shares with GPUs."""

from capplan.engines.vllm_neuron.rules import ALWAYS, NEEDS_GRAPH, NEEDS_LENGTH, NEEDS_MODEL, SHARED


def test_rules_that_are_shared_with_gpus_are_still_there():
    assert {rule.name for rule in SHARED} == {*ALWAYS, *NEEDS_GRAPH, *NEEDS_LENGTH, *NEEDS_MODEL}
    assert SHARED[0].name == "ranks-at-least-one"
