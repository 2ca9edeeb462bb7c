"""Engines: a data file each, and the package of rules that it names."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from capplan.engines.base import Rules

ENGINES = {
    "vllm": "capplan.engines.vllm",
    "vllm_neuron": "capplan.engines.vllm_neuron",
    "blis": "capplan.engines.blis",
}
"""The packages that an engine's file may name for its rules; each has one record of them, `RULES`."""


@cache
def rules_of(name: str) -> Rules:
    """The rules of a package, which is imported when a plan first needs it.

    >>> rules_of("vllm").plans, rules_of("vllm").sizes_device
    ('gpu', 'the driver reports')
    """
    found: Rules = import_module(ENGINES[name]).RULES
    return found
