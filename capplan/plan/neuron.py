"""A plan of vLLM on Neuron: the share of one logical core, what fills it, its pool, and what would work."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from capplan.engines import vllm_neuron
from capplan.engines.base import Finding, Line, Resolved
from capplan.engines.frame import Held
from capplan.engines.vllm_neuron import Answer, Budget, Instance, NeuronChip, NeuronResolved, Page, Pool
from capplan.laws import kv_cache
from capplan.ledger import Ledger, at_points, verdict
from capplan.model import Model
from capplan.plan import public, words
from capplan.plan.base import Plan, Question, RankWeights
from capplan.plan.rank import by_line
from capplan.policies import vllm_neuron as policy
from capplan.settings import environment
from capplan.settings.command_line import command
from capplan.settings.deployment import Deployment, stated
from capplan.solve import Curve, curve, fewest_ranks
from capplan.units import GIB, Count, Flag, at_least, at_most, both, is_array, ratio, show_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """One stretch of a stack: which logical core's, what it is, its bytes."""

    core: int
    name: str
    bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Parity:
    """The same deployment compiled without a device and run on one: both budgets, both pools, what sets them apart."""

    device: Budget
    compiled: Budget
    device_blocks: int | None
    compiled_blocks: int | None
    causes: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Whether compiled programs are found again: as many blocks, or as many bytes where none are known."""
        if self.device_blocks is None or self.compiled_blocks is None:
            return bool(self.device.kv_budget_bytes == self.compiled.kv_budget_bytes)
        return self.device_blocks == self.compiled_blocks

    @property
    def sentence(self) -> str:
        """Both counts, and why they differ where they do."""
        if not self.device.starts and not self.compiled.starts:
            return "neither starts: both budgets are below the minimum"
        if self.device_blocks is None or self.compiled_blocks is None:
            there = (
                f"the device gives {self.device.kv_budget_bytes:,} bytes and compiling without one "
                f"{self.compiled.kv_budget_bytes:,}"
            )
        else:
            there = f"the device gives {self.device_blocks:,} blocks and compiling without one {self.compiled_blocks:,}"
        if not self.holds:
            return f"{there}: the compile cache will miss; {'; '.join(self.causes)}"
        return f"{there}: compiled programs are found again" + (
            f", although {'; '.join(self.causes)}" if self.causes else ""
        )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False, repr=False)
class NeuronPlan(Plan):
    """What one logical core may give its cache, and whether vLLM starts.

    `model` is None where weights and blocks were stated.
    """

    chip: NeuronChip | None
    instance: Instance | None
    draft: Model | None = None
    weights: Line | None = None
    held: tuple[Held, ...] = ()
    budget: Budget | None = None
    page: Page | None = None
    pool: Pool | None = None
    computed_blocks: Count | None = None

    # The budget, in the order in which it is taken

    @property
    def route(self) -> str:
        """Where the memory is read: device, cpu_compile or cpu."""
        return "cpu_compile" if self.resolved.cpu_compile else "cpu" if self.resolved.cpu_mode else "device"

    @property
    def policy(self) -> str:
        """default or headroom."""
        return "default" if self.asked.reserved_headroom_gib is None else "headroom"

    @property
    def hbm_stack_bytes(self) -> Count | None:
        """Memory of one physical stack; None where the host computes."""
        return self.ledger.bytes_of("hbm_stack")

    @property
    def logical_cores_per_hbm_stack(self) -> int | None:
        """Logical cores that share it."""
        return self.budget.logical_cores_per_hbm_stack if self.budget else None

    @property
    def share_bytes(self) -> Count | None:
        """What one logical core, or one worker of the host, may plan with."""
        return self.ledger.bytes_of("share")

    @property
    def total_budget_bytes(self) -> Count | None:
        """Of that, by utilization; None with a reserve."""
        return self.ledger.bytes_of("total_budget")

    @property
    def user_budget_bytes(self) -> Count | None:
        """What the weights leave of the total budget; None with a reserve."""
        return self.ledger.bytes_of("user_budget")

    @property
    def heuristic_cap_bytes(self) -> Count | None:
        """The most that the cap allows; None with a reserve."""
        return self.ledger.bytes_of("heuristic_cap")

    @property
    def headroom_bytes(self) -> Count | None:
        """What is kept back; None by the default policy."""
        return self.ledger.bytes_of("headroom")

    @property
    def minimum_bytes(self) -> Count | None:
        """Below this a budget is refused; 0 where the check is off."""
        return self.ledger.bytes_of("minimum")

    @property
    def maximum_headroom_bytes(self) -> Count | None:
        """The largest reserve that leaves the minimum; below 0 where none does."""
        return self.ledger.bytes_of("maximum_headroom")

    @property
    def binding(self) -> Any:
        """Which term decides: user_budget, cap or both; headroom with a reserve."""
        return self.budget.binding if self.budget else None

    @property
    def weights_by_rank(self) -> tuple[RankWeights, ...]:
        """The weights of a rank, down to classes of tensors; empty where they were stated."""
        if not self.held or self.weights is None or self.model is None:
            return ()
        size = int(self.weights.bytes)
        layers = self.model.n_layers + (self.draft.n_layers if self.draft is not None else 0)
        return (
            RankWeights(
                stage=0, count=self.n_ranks, n_layers=layers, bytes=size, loaded_bytes=None, lines=by_line(self.held)
            ),
        )

    @property
    def n_ranks(self) -> int:
        """Logical cores that the deployment takes."""
        d = self.resolved
        return d.tensor_parallel_size * d.pipeline_parallel_size * d.data_parallel_size

    # The pool

    @property
    def requests_admitted(self) -> Count | None:
        """Requests of full length that the scheduler admits together; it counts the null block."""
        return self.pool.requests_admitted if self.kv_request_blocks is not None and self.pool else None

    @property
    def requests_held(self) -> Count | None:
        """Requests of full length that the pool holds beside its null block."""
        return self.pool.requests_held if self.kv_request_blocks is not None and self.pool else None

    @property
    def block_size(self) -> int:
        """Tokens of one block."""
        return int(self.resolved.block_size or self.engine.defaults["block_size"].value)

    def requests_that_fit(self, tokens: Count) -> Count:
        """Requests of one length whose blocks the pool holds beside its null block."""
        if self.kv_blocks is None:
            raise ValueError("a plan without blocks holds no requests")
        need = vllm_neuron.request_blocks(
            max_model_len=tokens, block_size=self.block_size, contexts=self.resolved.decode_context_parallel_size
        )
        return kv_cache.requests_beside_null_block(kv_blocks=self.kv_blocks, request_blocks=need)

    # What to say

    @property
    def named(self) -> str:
        """What is deployed, in words."""
        name = f"{self.model.short_name} in {self.resolved.dtype}" if self.model is not None else "the stated weights"
        return name if self.draft is None else f"{name} with {self.draft.short_name} as draft"

    @property
    def place(self) -> str:
        """Where it runs, in words, such as `8 logical cores of Trainium2 at LNC 2`."""
        d, n = self.resolved, self.n_ranks
        if self.route == "cpu":
            return f"the host, one of {d.local_workers} workers"
        cores = f"{n} logical core{'' if n == 1 else 's'}"
        if self.chip is None:
            return cores
        compiled = "compiled for " if self.route == "cpu_compile" else ""
        return f"{compiled}{cores} of {self.chip.title} at LNC {d.logical_nc_config}"

    @property
    def sentence(self) -> str:
        """What was asked, what there is, by how much, and what would work."""
        return words.neuron_sentence(self)

    @property
    def answers(self) -> tuple[Answer, ...]:
        """What would make it start or keep it as it is, each answer checked by the formula."""
        return _answers(self)

    def answer(self, name: str) -> Answer | None:
        """One of the answers by its name."""
        return next((found for found in self.answers if found.name == name), None)

    def cap_for_tokens(self, tokens: int) -> Answer | None:
        """The cap whose pool holds some tokens; None where the pool or the default policy's budget is not known."""
        b = _default_budget(self)
        if b is None or self.kv_block_bytes is None:
            return None
        return vllm_neuron.cap_for_tokens(
            b,
            tokens,
            block_size=self.block_size,
            block_bytes=int(self.kv_block_bytes),
            contexts=self.resolved.decode_context_parallel_size,
        )

    def cap_for_bytes(self, wanted: int) -> Answer | None:
        """The cap that makes the cache just so many bytes."""
        b = _default_budget(self)
        return None if b is None else vllm_neuron.cap_for_bytes(b, wanted)

    # What the solver asks

    @property
    def logical_cores(self) -> int | None:
        """Logical cores of the instance, or of the chips that were counted; None where neither is stated."""
        d = self.resolved
        chips = d.instance_chips
        if chips is None and self.instance is not None:
            chips = self.instance.chips.value
        if chips is None or self.chip is None:
            return None
        return self.chip.logical_cores(int(d.logical_nc_config or 1), chips=chips)

    @property
    def rank_sizes(self) -> tuple[int, ...]:
        """Tensor parallel sizes to try: those that the chip's programs support, on the cores that there are."""
        if self.chip is None or self.budget is None or self.route == "cpu":
            return ()
        return self.chip.rank_sizes(int(self.resolved.logical_nc_config or 1), most=self.logical_cores)

    def at_ranks(self, size: int) -> dict[str, Any]:
        """The settings that ask for another number of ranks; stated weights are taken as shared equally."""
        asked = self.asked
        settings: dict[str, Any] = {"tensor_parallel_size": size, "tokens": None, "requests": None}
        if asked.weights_bytes is not None:
            settings["weights_bytes"] = -(-int(asked.weights_bytes) * asked.tensor_parallel_size // size)
            if asked.bytes_per_block is not None and size != asked.tensor_parallel_size:
                # How stated blocks shrink with ranks is not known: the budget alone is asked then.
                settings |= {"max_model_len": None, "bytes_per_block": 1}
        return settings

    @property
    def claims(self) -> tuple[tuple[str, Any, str], ...]:
        """Settings of the budget alone that would hold one request: the setting, its value, how it is said."""
        b, pool, block = self.budget, self.pool, self.kv_block_bytes
        if b is None or pool is None or block is None:
            return ()
        wanted = int((pool.request_blocks + 1) * block)
        if b.policy == "headroom":
            most = policy.maximum_headroom_bytes(share=b.share_bytes, weights_bytes=b.weights_bytes, minimum=wanted)
            typed = vllm_neuron.floor_gib(int(most))
            holds = f"{environment.HEADROOM.name} up to {typed} holds one"
            return ((environment.HEADROOM.field, float(typed), holds),) if most >= 0 else ()
        answers = (vllm_neuron.smallest_utilization(b, wanted), vllm_neuron.smallest_cap(b, wanted))
        return tuple((a.field, a.value, f"{a.field} {a.typed} holds one") for a in answers if a.value is not None)

    @property
    def longest(self) -> tuple[int, str] | None:
        """The longest length that starts as it is, and how it is said; None where none does."""
        length = self.estimated_max_model_len
        if length is None or length < 1:
            return None
        return int(length), f"max_model_len {int(length):,} starts as it is"

    def ranks_words(self, size: int, found: Plan) -> str:
        """How a number of ranks that starts is said."""
        return f"tensor_parallel_size {size} starts"

    def sizes_of(self, name: str) -> tuple[int, ...]:
        """Sizes to offer for a parallel setting."""
        return self.rank_sizes or (1, 2, 4, 8, 16, 32, 64)

    @property
    def cap_curve(self) -> Curve | None:
        """The default policy's cache over its cap, also where a reserve is set; None where no budget is known."""
        return _cap_curve(self)

    @property
    def headroom_curve(self) -> Curve | None:
        """The cache over the reserve, from none to the whole share and a larger one in force; None without a budget."""
        return _headroom_curve(self)

    @property
    def default_budget_bytes(self) -> int | None:
        """What the default policy gives the cache, also where a reserve is set; None where it is not known."""
        b = _default_budget(self)
        return None if b is None else int(b.kv_budget_bytes)

    @property
    def says(self) -> str:
        """The refusal of a budget below the minimum, else of the first rule that is broken; empty where it starts."""
        if is_array(self.verdict):
            return ""
        if self.verdict == "refused" or self.budget is None:
            return self.refused[0].why if self.refused else ""
        return "" if self.budget.starts else vllm_neuron.refusal(self.budget)

    def parity(self, *, target: str | None = None, logical_nc_config: int | None = None) -> Parity | None:
        """This deployment on its device beside the same compiled without one; None where either has no budget.

        target             the compiler's target, else what was set, else the chip
        logical_nc_config  the degree while compiling, else that of the device
        """
        return _parity(self, target, logical_nc_config)

    @property
    def stack(self) -> tuple[Piece, ...]:
        """One stack from end to end: what each logical core's share holds; the pieces sum to the stack."""
        return _stack(self)

    @property
    def log_lines(self) -> tuple[str, ...]:
        """Figures to look for in each worker's log while it starts."""
        return _log_lines(self)

    @property
    def environment_lines(self) -> tuple[str, ...]:
        """The variables to set, as lines for a shell."""
        return environment.lines(stated(self.asked))

    @property
    def command(self) -> str | None:
        """The engine's command line; None where no model was named."""
        return command(self.model.name, self.asked) if self.model is not None else None

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain values under the public names, for JSON; one configuration at a time."""
        return public.neuron_dict(self)


def make(q: Question, r: Resolved) -> NeuronPlan:
    """The plan of a resolved deployment."""
    if not isinstance(r, NeuronResolved):
        raise TypeError("a plan on Neuron needs what its rules resolve")
    line, block, d = r.weights, r.block, r.d
    degree = int(d.logical_nc_config or 1)
    known = line is not None and not any(f.mask is None and f.field in BUDGET_FIELDS for f in r.refused)
    b: Budget | None = q.rules.budget(r.case) if known else None
    kept = q.rules.held(q.model, q.place.draft, q.asked)
    found = NeuronPlan(
        model=q.model,
        draft=q.place.draft,
        asked=q.asked,
        resolved=d,
        chip=r.case.chip,
        instance=q.place.instance,
        engine=q.engine,
        verdict="refused",
        refused=r.refused,
        assumed=r.assumed,
        overridden=r.overridden,
        data=(*r.data, *(q.model.data if q.model is not None else ())),
        ledger=Ledger(q.rules.lines(line, b, q.engine, degree)),
        weights=line,
        held=() if kept is None else tuple(h for _, one in kept for h in one.held),
        budget=b,
        page=None if block is None else block.page,
        kv_block_bytes=None if block is None else block.bytes,
        again=q.again,
        resolve_again=q.resolve_again,
    )
    if b is None or block is None or line is None:
        return found
    pool = _pool(d, b, block.bytes, found.block_size)
    computed = kv_cache.whole_blocks(budget_bytes=b.kv_budget_bytes, block_bytes=block.bytes)
    override = d.num_gpu_blocks_override
    more = () if override is None else (_overridden_blocks(d, computed),)
    found = replace(
        found, overridden=(*r.overridden, *more), pool=pool, computed_blocks=computed, kv_blocks=pool.kv_blocks
    )
    if d.max_model_len is not None:
        longest = kv_cache.tokens_of_blocks(
            kv_blocks=pool.kv_blocks,
            block_size=found.block_size,
            decode_context_parallel_size=d.decode_context_parallel_size,
        )
        found = found.with_capacity(pool.kv_blocks, pool.request_blocks, at_most(longest, d.max_model_len))
    if r.stops:
        return found

    def at(point: str) -> tuple[Budget, Pool]:
        held = {"value": line.bytes, "high": line.high, "low": line.bytes}[point]
        if held is line.bytes:
            return b, pool
        other = q.rules.budget(replace(r.case, weights_bytes=held))
        return other, _pool(d, other, block.bytes, found.block_size)

    centre, worst, best = at_points(at)
    within: Flag = True if override is None else override <= computed
    answer = verdict(
        starts=_starts(*centre, null_block=True),
        worst=both(_starts(*worst, null_block=True), within),
        best=_starts(*best, null_block=False),
        refused=r.refused,
    )
    return replace(found, verdict=answer)


BUDGET_FIELDS = (
    "cpu_mode",
    "platform_target_override",
    "chip",
    "logical_nc_config",
    "runtime_bytes_free",
    "host_available_bytes",
    "weights_bytes",
    "reserved_headroom_gib",
    "min_kv_budget_gib",
    "gpu_memory_utilization",
    "kv_gmu_budget_cap_fraction",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "enable_expert_parallel",
    "quantization",
    "dtype",
)
"""Settings without which no budget can be given, or only a wrong one."""


def _overridden_blocks(d: Deployment, computed: Count) -> Finding:
    said = "another number of" if is_array(d.num_gpu_blocks_override) else f"{d.num_gpu_blocks_override:,}"
    given = "another number" if is_array(computed) else f"{computed:,}"
    return Finding(
        field="num_gpu_blocks_override",
        asked=d.num_gpu_blocks_override,
        happens=f"{said} blocks",
        why=f"stated, and taken in place of the {given} that the budget gives",
        source="vllm, config/cache.py, CacheConfig.num_gpu_blocks_override",
    )


def _pool(d: Deployment, b: Budget, block_bytes: int, block_size: int) -> Pool:
    need: Count = 1
    if d.max_model_len is not None:
        need = vllm_neuron.request_blocks(
            max_model_len=at_least(d.max_model_len, 1),
            block_size=block_size,
            contexts=max(d.decode_context_parallel_size, 1),
        )
    return vllm_neuron.pool(
        budget_bytes=b.kv_budget_bytes,
        block_bytes=block_bytes,
        request_blocks=need,
        override=d.num_gpu_blocks_override,
    )


def _starts(b: Budget, pool: Pool, *, null_block: bool) -> Flag:
    """Whether the minimum is kept and the pool holds a request, its null block left out or counted."""
    blocks = pool.allocatable_blocks if null_block else pool.kv_blocks
    return both(both(b.starts, b.kv_budget_bytes > 0), both(blocks >= pool.request_blocks, pool.kv_blocks > 0))


# Answers


def _default_budget(p: NeuronPlan) -> Budget | None:
    """The budget by the default policy, the one in force or the one that leaving the reserve out would give."""
    if p.budget is None or is_array(p.verdict):
        return None
    return p.budget if p.budget.policy == "default" else p.at(reserved_headroom_gib=None).budget


def _answers(p: NeuronPlan) -> tuple[Answer, ...]:
    if p.budget is None or is_array(p.verdict):
        return ()
    found: list[Answer] = []
    default = _default_budget(p)
    if default is not None:
        if p.budget.policy == "default":
            found += [vllm_neuron.smallest_utilization(default), vllm_neuron.smallest_cap(default)]
        found.append(vllm_neuron.headroom_of_default(default))
    found.append(vllm_neuron.largest_headroom(p.budget))
    ranks = _fewest_ranks(p)
    return tuple(found if ranks is None else [*found, ranks])


def _fewest_ranks(p: NeuronPlan) -> Answer | None:
    """The fewest ranks of the supported sizes with which it starts; stated weights are taken as shared equally."""
    sizes = p.rank_sizes
    if not sizes:
        return None
    listed, found = ", ".join(map(str, sizes)), fewest_ranks(p)
    if found is None:
        most = p.logical_cores
        end = "; choose smaller weights, a shorter context or a chip with more memory"
        says = f"none of {listed} ranks starts" + ("" if most is None else f" on {most} logical cores") + end
        return Answer(
            name="fewest_ranks", field="tensor_parallel_size", value=None, typed="", kv_budget_bytes=None, says=says
        )
    t = found.settings["tensor_parallel_size"]
    how = "" if p.asked.weights_bytes is None else ", if the stated weights are shared equally"
    return Answer(
        name="fewest_ranks",
        field="tensor_parallel_size",
        value=t,
        typed=str(t),
        kv_budget_bytes=int(found.plan.kv_budget_bytes),
        says=f"tensor_parallel_size {t} is the fewest of {listed} that starts{how}",
    )


# Curves


def _cap_curve(p: NeuronPlan) -> Curve | None:
    b = _default_budget(p)
    if b is None or b.kv_gmu_budget_cap_fraction is None:
        return None
    turn = None
    if b.user_budget_bytes is not None and b.user_budget_bytes > 0:
        found = vllm_neuron.smallest_cap(b, int(b.user_budget_bytes)).value
        turn = None if found is None else float(found)
    now = float(b.kv_gmu_budget_cap_fraction)
    return curve(
        p.at(reserved_headroom_gib=None),
        environment.CAP.field,
        longest=1.0,
        now=now if p.policy == "default" else None,
        default=now,
        turn=turn,
        above_zero=True,
    )


def _headroom_curve(p: NeuronPlan) -> Curve | None:
    if p.budget is None or is_array(p.verdict):
        return None
    keeps, largest = p.answer("headroom_of_default"), p.answer("largest_headroom")
    default, turn = (
        None if a is None or a.value is None else float(ratio(int(a.value), GIB)) for a in (keeps, largest)
    )
    now = None if p.asked.reserved_headroom_gib is None else float(p.asked.reserved_headroom_gib)
    longest = max(float(ratio(p.budget.share_bytes, GIB)), now or 0.0)
    return curve(p, environment.HEADROOM.field, longest=longest, now=now, default=default, turn=turn)


# The same deployment, compiled and run


def _parity(p: NeuronPlan, target: str | None, degree: int | None) -> Parity | None:
    asked = vllm_neuron.place(p.asked).d
    aim = target or asked.platform_target_override or asked.chip
    on = replace(asked, cpu_compile=False, cpu_mode=False, platform_target_override=None)
    off = replace(asked, cpu_compile=True, cpu_mode=False, platform_target_override=aim)
    off = replace(off, runtime_bytes_used=None, runtime_bytes_free=None)
    if degree is not None:
        off = replace(off, logical_nc_config=degree)
    if on.chip not in vllm_neuron.target_aliases().values():
        return None
    device, compiled = p.again(on), p.again(off)
    a, b = device.budget, compiled.budget
    if a is None or b is None or is_array(a.kv_budget_bytes):
        return None
    causes = []
    if device.chip is not None and compiled.chip is not None and device.chip is not compiled.chip:
        causes.append(f"the target is {compiled.chip.name} and the chip {device.chip.name}")
    elif a.hbm_stack_bytes is not None and b.hbm_stack_bytes is not None and a.hbm_stack_bytes != b.hbm_stack_bytes:
        gap = int(b.hbm_stack_bytes) - int(a.hbm_stack_bytes)
        causes.append(
            f"the runtime reports {a.hbm_stack_bytes:,} bytes, and the static table's {b.hbm_stack_bytes:,} "
            f"are {abs(gap):,} {'more' if gap > 0 else 'fewer'}"
        )
    if device.resolved.logical_nc_config != compiled.resolved.logical_nc_config:
        causes.append(
            f"{environment.DEGREE.name} is {compiled.resolved.logical_nc_config} while compiling and "
            f"{device.resolved.logical_nc_config} on the device"
        )
    return Parity(
        device=a,
        compiled=b,
        device_blocks=None if device.kv_blocks is None else int(device.kv_blocks),
        compiled_blocks=None if compiled.kv_blocks is None else int(compiled.kv_blocks),
        causes=tuple(causes),
    )


# What a page shows


def _stack(p: NeuronPlan) -> tuple[Piece, ...]:
    b = p.budget
    if b is None or b.hbm_stack_bytes is None or b.logical_cores_per_hbm_stack is None or is_array(p.verdict):
        return ()
    share, cores, held = (
        int(b.share_bytes),
        b.logical_cores_per_hbm_stack,
        min(int(b.weights_bytes), int(b.share_bytes)),
    )
    cache = int(b.kv_budget_bytes)
    pieces = [("weights", held), ("cache", cache)]
    if b.headroom_bytes is not None:
        pieces.append(("headroom", share - held - cache))
    else:
        inside = max(int(b.total_budget_bytes or 0) - held - cache, 0)
        pieces += [("left by the cap", inside), ("outside the utilization", share - held - cache - inside)]
    found = [Piece(core=core, name=name, bytes=size) for core in range(cores) for name, size in pieces]
    rest = int(b.hbm_stack_bytes) - cores * share
    return (*found, Piece(core=cores - 1, name="remainder", bytes=rest)) if rest else tuple(found)


def _log_lines(p: NeuronPlan) -> tuple[str, ...]:
    b = p.budget
    if b is None or is_array(p.verdict):
        return ()
    found = [f"logical-core HBM: {_share_line(b)}", f"model weights: {show_bytes(p.weights_bytes or 0)}"]
    if b.route == "cpu":
        found = [f"fair share of the host: {_share_line(b)}"]
    if b.policy == "headroom":
        found.append(f"reserved headroom: {show_bytes(b.headroom_bytes or 0)}")
    else:
        found.append("policy: default")
        found.append(f"total budget: {show_bytes(b.total_budget_bytes or 0)}")
        if b.user_budget_bytes is not None:
            found.append(f"user budget: {show_bytes(b.user_budget_bytes)}")
        found.append(f"heuristic cap: {show_bytes(b.heuristic_cap_bytes or 0)}")
        found.append(f"binding: {b.binding}")
    return (*found, f"available for the KV cache: {show_bytes(b.kv_budget_bytes)}")


def _share_line(b: Budget) -> str:
    cores = b.logical_cores_per_hbm_stack
    half = "" if cores in (None, 1) else f" (one of {cores} at a stack of {show_bytes(b.hbm_stack_bytes or 0)})"
    return f"{show_bytes(b.share_bytes)}{half}"
