"""The budget of one worker: its route, its policy, the check against the minimum, and what a refusal says."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from math import inf
from typing import Any

from capplan.engines.base import Rule
from capplan.engines.release import Engine
from capplan.engines.vllm_neuron.hardware import NeuronChip, load_neuron_chip, target_aliases
from capplan.policies import vllm_neuron as policy
from capplan.registry import Datum, Refused, names
from capplan.settings.deployment import Deployment
from capplan.settings.environment import CAP, COMPILE, DEGREE, HEADROOM, HOST, MINIMUM, TARGET
from capplan.units import GIB, Count, Flag, Share, both, choose, every, is_array, ratio

DESIGN = "vllm_neuron, determine_available_memory design, 2026-10-07"
WORKER = "vllm_neuron, vllm/worker/neuron_worker.py"

ROUTES = ("device", "cpu_compile", "cpu")
"""Where the memory is read: at a device, in the static table, at the host."""

POLICIES = ("default", "headroom")
"""Utilization and a fractional cap, or a reserve."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """What one worker is asked: its deployment, the numbers that it computes from, the chip where that is known."""

    d: Deployment
    route: str
    chip: NeuronChip | None
    degree: int
    weights_bytes: Count
    gpu_memory_utilization: Share
    kv_gmu_budget_cap_fraction: Share
    reserved_headroom_gib: Share | None
    min_kv_budget_gib: Share

    @property
    def headroom(self) -> bool:
        """Whether a reserve is stated; an explicit 0 is one."""
        return self.reserved_headroom_gib is not None


def case(d: Deployment, engine: Engine, *, weights_bytes: Count) -> Case:
    """A deployment as the rules look at it: the engine's defaults filled in; the route chosen."""
    route = "cpu_compile" if d.cpu_compile else "cpu" if d.cpu_mode else "device"
    wanted = target_aliases().get(d.platform_target_override or "") if route == "cpu_compile" else d.chip
    chip = load_neuron_chip(wanted) if route != "cpu" and wanted in names("neuron") else None
    degree = d.logical_nc_config
    if degree is None:
        degree = chip.logical_nc_config.value if chip is not None else 1
    share, fraction, lowest = d.gpu_memory_utilization, d.kv_gmu_budget_cap_fraction, d.min_kv_budget_gib
    data = engine.defaults
    return Case(
        d=d,
        route=route,
        chip=chip,
        degree=degree,
        weights_bytes=weights_bytes,
        gpu_memory_utilization=_double(data["gpu_memory_utilization"].value if share is None else share),
        kv_gmu_budget_cap_fraction=_double(data["kv_gmu_budget_cap_fraction"].value if fraction is None else fraction),
        reserved_headroom_gib=None if d.reserved_headroom_gib is None else _double(d.reserved_headroom_gib),
        min_kv_budget_gib=_double(data["min_kv_budget_gib"].value if lowest is None else lowest),
    )


def _double(value: Any) -> Share:
    """A setting as the engine holds it: a product with it is one of doubles, also where somebody wrote 1."""
    return value * 1.0 if is_array(value) else float(value)


def _share(value: Any) -> Flag:
    """Whether a number lies above 0 and at most at 1; no number does not."""
    return both(value > 0, value <= 1)


def _finite(gib: Any) -> Flag:
    """Whether GiB are bytes that can be counted: any finite number, and in an array what 64 bits hold."""
    limit = 2.0**63 if is_array(gib) else inf
    return both(gib * GIB < limit, gib * GIB > -limit)


def _plain(value: Any) -> str:
    return repr(value).removesuffix(".0")


def _targets() -> str:
    return ", ".join(sorted(target_aliases()))


BUDGET_RULES: tuple[Rule[Case], ...] = (
    Rule(
        name="CONFLICTING_MODES",
        field="cpu_mode",
        holds=lambda c: not (c.d.cpu_compile and c.d.cpu_mode),
        says=lambda c: (
            f"{COMPILE.label} and {HOST.label} are both on, and they exclude each other; "
            "leave the first on to compile without a device, or the second to compute on the host"
        ),
        source=f"{DESIGN}, selection of the route",
    ),
    Rule(
        name="MISSING_PLATFORM",
        field="platform_target_override",
        holds=lambda c: c.route != "cpu_compile" or c.d.platform_target_override is not None,
        says=lambda c: (
            f"{COMPILE.label} is on and {TARGET.label} is not set, so no memory is known to compile for; "
            f"set it to one of {_targets()}"
        ),
        source=f"{DESIGN}, selection of the route",
    ),
    Rule(
        name="UNKNOWN_PLATFORM",
        field="platform_target_override",
        holds=lambda c: c.route != "cpu_compile" or c.chip is not None,
        says=lambda c: (
            f"{TARGET.label} is {c.d.platform_target_override!r}, a target that is not known; there are {_targets()}"
        ),
        source="vllm_neuron, compile/platform.py: the table of memory by target",
    ),
    Rule(
        name="UNKNOWN_PLATFORM",
        field="chip",
        holds=lambda c: c.route != "device" or c.chip is not None,
        says=lambda c: _no_chip(c.d.chip),
        source="registry, neuron",
    ),
    Rule(
        name="INVALID_LNC",
        field="logical_nc_config",
        holds=lambda c: c.chip is None or c.degree in c.chip.degrees,
        says=lambda c: _no_degree(c.degree, c.chip),
        source="AWS Neuron documentation, Logical NeuronCore configuration",
    ),
    Rule(
        name="INVALID_RUNTIME_STATS",
        field="runtime_bytes_free",
        holds=lambda c: (
            c.route != "device"
            or (c.d.runtime_bytes_used is None and c.d.runtime_bytes_free is None)
            or (
                c.d.runtime_bytes_used is not None
                and c.d.runtime_bytes_free is not None
                and c.d.runtime_bytes_used >= 0
                and c.d.runtime_bytes_free > 0
            )
        ),
        says=lambda c: (
            f"the runtime reports {_said(c.d.runtime_bytes_used)} bytes used and {_said(c.d.runtime_bytes_free)} free, "
            "which cannot be used: used must be 0 or more and free above 0; -1 is its way of saying that it failed"
        ),
        source=f"{WORKER}, _query_runtime_memory_stats",
    ),
    Rule(
        name="INVALID_HOST_MEMORY",
        field="host_available_bytes",
        holds=lambda c: c.route != "cpu" or (c.d.host_available_bytes is not None and _host_share(c.d) > 0),
        says=lambda c: _no_host_memory(c.d),
        source=f"{WORKER}, _query_host_runtime_memory",
    ),
    Rule(
        name="INVALID_WEIGHTS",
        field="weights_bytes",
        holds=lambda c: c.weights_bytes >= 0,
        says=lambda c: f"the weights are {c.weights_bytes} bytes; they must be 0 or more",
        source=f"{WORKER}, _get_byte_used_from_model",
    ),
    Rule(
        name="INVALID_ENV",
        field="reserved_headroom_gib",
        holds=lambda c: (
            c.reserved_headroom_gib is None or both(c.reserved_headroom_gib >= 0, _finite(c.reserved_headroom_gib))
        ),
        says=lambda c: f"{HEADROOM.label} is {_plain(c.reserved_headroom_gib)}; it must be {HEADROOM.accepts}",
        source=f"{DESIGN}, the reserve",
    ),
    Rule(
        name="INVALID_ENV",
        field="min_kv_budget_gib",
        holds=lambda c: _finite(c.min_kv_budget_gib),
        says=lambda c: f"{MINIMUM.label} is {_plain(c.min_kv_budget_gib)}; it must be {MINIMUM.accepts}",
        source=f"{WORKER}, _compute_kv_budget",
    ),
    Rule(
        name="INVALID_GMU",
        field="gpu_memory_utilization",
        holds=lambda c: c.headroom or _share(c.gpu_memory_utilization),
        says=lambda c: (
            f"gpu_memory_utilization is {_plain(c.gpu_memory_utilization)}; "
            "it must be above 0 and at most 1, such as 0.9"
        ),
        source="vllm, config/cache.py, CacheConfig.gpu_memory_utilization",
    ),
    Rule(
        name="INVALID_ENV",
        field="kv_gmu_budget_cap_fraction",
        holds=lambda c: c.headroom or _share(c.kv_gmu_budget_cap_fraction),
        says=lambda c: f"{CAP.label} is {_plain(c.kv_gmu_budget_cap_fraction)}; it must be {CAP.accepts}",
        source=f"{WORKER}, _get_kv_cap_fraction",
    ),
)
"""What a worker will not compute a budget from; a rule's name is the word for programs."""


def _said(value: Any) -> str:
    return "no" if value is None else str(value)


def _no_degree(degree: int, chip: NeuronChip | None) -> str:
    if chip is None:
        return f"{DEGREE.label} is {degree}, and no chip is known that takes it"
    return (
        f"{DEGREE.label} is {degree}, and {chip.name} takes {' or '.join(map(str, chip.degrees))}"
        f"; left unset, it is {chip.logical_nc_config.value}"
    )


def _no_chip(name: str) -> str:
    try:
        return load_neuron_chip(name).name
    except Refused as error:
        return str(error)


def _host_share(d: Deployment) -> int:
    return int(policy.worker_share_bytes(host_available_bytes=d.host_available_bytes or 0, local_workers=_workers(d)))


def _workers(d: Deployment) -> int:
    stated = d.local_workers
    return d.tensor_parallel_size * d.pipeline_parallel_size if stated is None else stated


def _no_host_memory(d: Deployment) -> str:
    if d.host_available_bytes is None:
        return (
            f"{HOST.label} is on and host_available_bytes is not stated; "
            "it must be what the host has left after the model is loaded"
        )
    return (
        f"the host has {d.host_available_bytes} bytes available for {_workers(d)} workers, "
        "which leaves none of them a share; it must be a byte or more for each"
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """What one worker may give its cache, step by step; what a route or a policy does not have is None.

    `weights_bytes` are the weights as the route counts them: 0 where the host computes, since its memory was
    measured after loading.  `starts` tells whether the minimum is kept.
    """

    route: str
    policy: str
    hbm_stack_bytes: Count | None
    logical_cores_per_hbm_stack: int | None
    share_bytes: Count
    weights_bytes: Count
    gpu_memory_utilization: Share
    kv_gmu_budget_cap_fraction: Share | None
    reserved_headroom_gib: Share | None
    min_kv_budget_gib: Share
    minimum_bytes: Count
    total_budget_bytes: Count | None
    user_budget_bytes: Count | None
    heuristic_cap_bytes: Count | None
    headroom_bytes: Count | None
    maximum_headroom_bytes: Count | None
    kv_budget_bytes: Count
    binding: Any
    starts: Flag
    data: tuple[Datum, ...] = ()


def worker_budget(d: Deployment, engine: Engine, *, weights_bytes: Count) -> Budget:
    """The budget of one worker, from its settings and its weights.

    d              what was set; None is unset; of arrays, the budget's fields are arrays
    weights_bytes  parameters and buffers on this rank, those of a draft model too

    Raises Refused, with a word in `code`, for a setting that the engine would not compute from.  A budget
    below the minimum is no such error: `starts` is false then, and `refusal` has the sentence.
    """
    c = case(d, engine, weights_bytes=weights_bytes)
    for rule in BUDGET_RULES:
        if not every(rule.holds(c)):
            raise Refused(rule.says(c), rule.name)
    return budget_of(c)


def budget_of(c: Case) -> Budget:
    """The budget of a case that keeps the rules.

    Source: vllm_neuron, vllm/worker/neuron_worker.py, determine_available_memory.
    """
    d = c.d
    stack: Count | None = None
    cores: int | None = None
    data: tuple[Datum, ...] = ()
    weights = c.weights_bytes
    if c.chip is None:
        share: Count = _host_share(d)
        weights = 0 * weights
    else:
        stack, cores = c.chip.hbm_stack_bytes.value, c.chip.logical_cores_per_hbm_stack(c.degree)
        if c.route == "device" and d.runtime_bytes_used is not None and d.runtime_bytes_free is not None:
            stack = d.runtime_bytes_used + d.runtime_bytes_free
        else:
            data = (c.chip.hbm_stack_bytes,)
        share = policy.share_bytes(hbm_stack_bytes=stack, logical_cores_per_hbm_stack=cores)
    minimum = policy.minimum_bytes(min_kv_budget_gib=c.min_kv_budget_gib)
    headroom: Count | None = None
    total: Count | None = None
    user: Count | None = None
    cap: Count | None = None
    binding: Any = "headroom"
    if c.reserved_headroom_gib is not None:
        headroom = policy.setting_bytes(gib=c.reserved_headroom_gib)
        cache = policy.reserved_budget_bytes(share=share, weights_bytes=weights, headroom_bytes=headroom)
    else:
        total = policy.total_budget_bytes(share=share, gpu_memory_utilization=c.gpu_memory_utilization)
        cap = policy.heuristic_cap_bytes(total_budget=total, kv_gmu_budget_cap_fraction=c.kv_gmu_budget_cap_fraction)
        cache, binding = cap, "cap"
        if c.chip is not None:
            user = policy.user_budget_bytes(total_budget=total, weights_bytes=weights)
            cache = policy.capped_budget_bytes(user_budget=user, heuristic_cap=cap)
            binding = choose(user < cap, "user_budget", choose(cap < user, "cap", "both"))
    return Budget(
        route=c.route,
        policy="default" if headroom is None else "headroom",
        hbm_stack_bytes=stack,
        logical_cores_per_hbm_stack=cores,
        share_bytes=share,
        weights_bytes=weights,
        gpu_memory_utilization=c.gpu_memory_utilization if headroom is None else 1.0,
        kv_gmu_budget_cap_fraction=c.kv_gmu_budget_cap_fraction if headroom is None else None,
        reserved_headroom_gib=c.reserved_headroom_gib,
        min_kv_budget_gib=c.min_kv_budget_gib,
        minimum_bytes=minimum,
        total_budget_bytes=total,
        user_budget_bytes=user,
        heuristic_cap_bytes=cap,
        headroom_bytes=headroom,
        maximum_headroom_bytes=policy.maximum_headroom_bytes(share=share, weights_bytes=weights, minimum=minimum),
        kv_budget_bytes=cache,
        binding=binding,
        starts=cache >= minimum,
        data=data,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """What another way of computing the same would give, where it gives something else."""

    note: str
    available_bytes: int


def other_reading(c: Case, b: Budget) -> Reading | None:
    """What decimals, one product in place of two, or a plain division give, where that differs from the engine.

    A calculator that is a byte off names another number of blocks, and a compiled program that is not found.
    """
    if b.total_budget_bytes is None:
        return None
    u, f, share = float(c.gpu_memory_utilization), float(c.kv_gmu_budget_cap_fraction), int(b.share_bytes)
    total = int(share * Decimal(repr(u)))
    readings = [
        ("decimal arithmetic", total, int(total * Decimal(repr(f)))),
        ("int(share*gmu*cap) in one step", int(b.total_budget_bytes), int(share * u * f)),
    ]
    if c.route == "cpu":
        exact = ratio(c.d.host_available_bytes or 0, max(_workers(c.d), 1))
        readings.append(("true division, then one product", int(exact * u), int(exact * u * f)))
    for note, all_of_it, cap in readings:
        left = cap if b.user_budget_bytes is None else all_of_it - int(b.weights_bytes)
        found = max(min(left, cap), 0)
        if found != b.kv_budget_bytes:
            return Reading(note=note, available_bytes=found)
    return None
