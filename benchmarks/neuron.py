"""Budgets of vLLM on Neuron: one, and a million reserves or caps beside bare numpy."""

from collections.abc import Iterator

import numpy as np

from benchmarks.measure import Row, best, interleaved
from capplan import Deployment
from capplan.engines.release import load_engine
from capplan.engines.vllm_neuron import worker_budget
from capplan.policies import vllm_neuron as policy
from capplan.units import GIB

MILLION = 1_000_000
STACK, WEIGHTS, SHARE = 24 * GIB, 8 * GIB, 0.9


def budgets() -> Iterator[Row]:
    engine = load_engine("vllm-neuron")
    for what, reserve in (("default policy", None), ("reserve", 4.0)):
        d = Deployment(engine="vllm-neuron", chip="trn2", reserved_headroom_gib=reserve)
        took = best(lambda asked=d: worker_budget(asked, engine, weights_bytes=WEIGHTS), number=5000)
        yield Row(f"a budget of vLLM on Neuron, {what}", took, 0, "under 20 us")
    random = np.random.default_rng(0)
    gib, cap = random.random(MILLION) * 20, random.random(MILLION)

    def reserves() -> object:
        headroom = policy.setting_bytes(gib=gib)
        return policy.reserved_budget_bytes(share=STACK, weights_bytes=WEIGHTS, headroom_bytes=headroom)

    def bare_reserves() -> object:
        return np.maximum(STACK - WEIGHTS - (gib * GIB).astype(np.int64), 0)

    def caps() -> object:
        total = policy.total_budget_bytes(share=STACK, gpu_memory_utilization=SHARE)
        user = policy.user_budget_bytes(total_budget=total, weights_bytes=WEIGHTS)
        most = policy.heuristic_cap_bytes(total_budget=total, kv_gmu_budget_cap_fraction=cap)
        return policy.capped_budget_bytes(user_budget=user, heuristic_cap=most)

    def bare_caps() -> object:
        total = int(STACK * SHARE)
        return np.maximum(np.minimum(max(total - WEIGHTS, 0), (total * cap).astype(np.int64)), 0)

    for what, ours, bare in (("reserves", reserves, bare_reserves), ("caps", caps, bare_caps)):
        yield Row(f"a million {what}, beside bare numpy", *interleaved(ours, bare), "under 1.2 x numpy")
