"""A plan of vLLM on Neuron: the share of one logical core, what fills it, its pool, and what would work."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from capplan.engines import vllm_neuron
from capplan.engines.base import Finding, Line
from capplan.engines.release import Engine, load_engine
from capplan.engines.vllm_neuron import Answer, Budget, Geometry, Instance, NeuronChip, Page, Pool
from capplan.engines.vllm_neuron.resolve import Resolved, placed
from capplan.hub import load_model
from capplan.laws import kv_cache
from capplan.model import DTYPE_BITS, Model
from capplan.plan import VERDICTS
from capplan.plan.gpu import at_longest, evidence
from capplan.plan.public import datum_dict, finding_dict, plain
from capplan.policies import vllm_neuron as policy
from capplan.registry import Datum, Refused
from capplan.settings import environment
from capplan.settings.command_line import command
from capplan.settings.deployment import Deployment, read_by, stated
from capplan.units import (
    GIB,
    Count,
    Flag,
    Share,
    at_least,
    at_most,
    both,
    choose,
    is_array,
    ratio,
    show_bytes,
    whole_product,
)


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


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Curve:
    """What the cache gets over one setting, all else equal.

    field            the setting: the cap or the reserve
    values           its values, float64, growing
    kv_budget_bytes  what the cache gets at each
    binding          which term decides at each: user_budget, cap or both; headroom with a reserve
    minimum_bytes    below this a budget is refused
    now              its value in force, None where the other policy is
    default          the cap: what the default policy takes; the reserve: what keeps that policy's cache; None for none
    turn             the cap: from here on what the weights leave binds; the reserve: the largest that the minimum
                     allows; None for none
    """

    field: str
    values: Any
    kv_budget_bytes: Any
    binding: Any
    minimum_bytes: int
    now: float | None
    default: float | None
    turn: float | None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False, repr=False)
class NeuronPlan:
    """What one logical core may give its cache, and whether vLLM starts.

    Figures are of one rank, and None where what they rest on is missing.  `verdict` is a word, or for many
    configurations an int8 array of places in `VERDICTS`.  `model` is None where weights and blocks were stated.
    """

    model: Model | None
    asked: Deployment
    resolved: Deployment
    chip: NeuronChip | None
    instance: Instance | None
    engine: Engine
    verdict: Any
    refused: tuple[Finding, ...]
    assumed: tuple[Finding, ...]
    overridden: tuple[Finding, ...]
    data: tuple[Datum, ...]
    draft: Model | None = None
    geometry: Geometry | None = None
    weights: Line | None = None
    budget: Budget | None = None
    page: Page | None = None
    kv_block_bytes: int | None = None
    pool: Pool | None = None
    computed_blocks: Count | None = None
    ignored_flags: tuple[str, ...] = ()

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
        return self.budget.hbm_stack_bytes if self.budget else None

    @property
    def logical_cores_per_hbm_stack(self) -> int | None:
        """Logical cores that share it."""
        return self.budget.logical_cores_per_hbm_stack if self.budget else None

    @property
    def share_bytes(self) -> Count | None:
        """What one logical core, or one worker of the host, may plan with."""
        return self.budget.share_bytes if self.budget else None

    @property
    def total_budget_bytes(self) -> Count | None:
        """Of that, by utilization; None with a reserve."""
        return self.budget.total_budget_bytes if self.budget else None

    @property
    def weights_bytes(self) -> Count | None:
        """Parameters and buffers on this rank, a draft model's too."""
        return self.weights.bytes if self.weights else None

    @property
    def user_budget_bytes(self) -> Count | None:
        """What the weights leave of the total budget; None with a reserve."""
        return self.budget.user_budget_bytes if self.budget else None

    @property
    def heuristic_cap_bytes(self) -> Count | None:
        """The most that the cap allows; None with a reserve."""
        return self.budget.heuristic_cap_bytes if self.budget else None

    @property
    def headroom_bytes(self) -> Count | None:
        """What is kept back; None by the default policy."""
        return self.budget.headroom_bytes if self.budget else None

    @property
    def kv_budget_bytes(self) -> Count | None:
        """What the cache gets."""
        return self.budget.kv_budget_bytes if self.budget else None

    @property
    def minimum_bytes(self) -> Count | None:
        """Below this a budget is refused; 0 where the check is off."""
        return self.budget.minimum_bytes if self.budget else None

    @property
    def binding(self) -> Any:
        """Which term decides: user_budget, cap or both; headroom with a reserve."""
        return self.budget.binding if self.budget else None

    @property
    def maximum_headroom_bytes(self) -> Count | None:
        """The largest reserve that leaves the minimum; below 0 where none does."""
        return self.budget.maximum_headroom_bytes if self.budget else None

    # The pool

    @property
    def kv_blocks(self) -> Count | None:
        """Blocks of the pool, the null block among them."""
        return self.pool.kv_blocks if self.pool else None

    @property
    def kv_request_blocks(self) -> Count | None:
        """Blocks that one request of max_model_len fills."""
        return self.pool.request_blocks if self.pool and self.resolved.max_model_len is not None else None

    @property
    def requests_admitted(self) -> Count | None:
        """Requests of full length that the scheduler admits together; it counts the null block."""
        return self.pool.requests_admitted if self.kv_request_blocks is not None and self.pool else None

    @property
    def requests_held(self) -> Count | None:
        """Requests of full length that the pool holds beside its null block."""
        return self.pool.requests_held if self.kv_request_blocks is not None and self.pool else None

    @property
    def max_concurrency(self) -> Share | None:
        """Blocks by blocks of one request, as the engine prints it."""
        need, blocks = self.kv_request_blocks, self.kv_blocks
        return None if need is None or blocks is None else ratio(blocks, need)

    @property
    def kv_cache_tokens(self) -> Count | None:
        """Tokens of the pool as the engine prints them."""
        length, times = self.resolved.max_model_len, self.max_concurrency
        return None if times is None or length is None else whole_product(times, length)

    @property
    def estimated_max_model_len(self) -> Count | None:
        """The longest length that the pool holds, up to max_model_len."""
        length, blocks = self.resolved.max_model_len, self.kv_blocks
        if blocks is None or length is None:
            return None
        most = kv_cache.tokens_of_blocks(
            kv_blocks=blocks,
            block_size=self.block_size,
            decode_context_parallel_size=self.resolved.decode_context_parallel_size,
        )
        return at_most(most, length)

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

    @property
    def holds_load(self) -> bool | None:
        """Whether the stated load fits at once; None where no load is stated."""
        tokens, requests = self.resolved.tokens, self.asked.requests
        if requests is None or tokens is None or self.kv_blocks is None or is_array(self.kv_blocks):
            return None
        return bool(self.requests_that_fit(tokens) >= requests)

    # What to say

    @property
    def question(self) -> str:
        """What was asked, in words."""
        d = self.resolved
        name = f"{self.model.short_name} in {d.dtype}" if self.model is not None else "the stated weights"
        if self.draft is not None:
            name += f" with {self.draft.short_name} as draft"
        asked = f"{name} on {self.place}"
        length = d.max_model_len
        return asked if length is None or is_array(length) else f"{asked}, requests up to {length:,} tokens"

    @property
    def place(self) -> str:
        """Where it runs, in words, such as `8 logical cores of Trainium2 at LNC 2`."""
        d = self.resolved
        n = d.tensor_parallel_size * d.pipeline_parallel_size * d.data_parallel_size
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
        return _sentence(self)

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
            block_bytes=self.kv_block_bytes,
            contexts=self.resolved.decode_context_parallel_size,
        )

    def cap_for_bytes(self, wanted: int) -> Answer | None:
        """The cap that makes the cache just so many bytes."""
        b = _default_budget(self)
        return None if b is None else vllm_neuron.cap_for_bytes(b, wanted)

    def at(self, name: str, value: Any) -> NeuronPlan:
        """The same with another value of a setting, None for not said; of an array, a plan for many."""
        settings: dict[str, Any] = {name: value}
        return _plan(self.model, self.draft, replace(self.asked, **settings), self.engine, self.geometry)

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

    @property
    def beside(self) -> tuple[Line, ...]:
        """What neither policy sees and a reserve has to hold, as people reported it; nothing of it is counted."""
        return _beside(self)

    @property
    def sources(self) -> tuple[Datum, ...]:
        """Every registry number in scope, once."""
        seen: dict[tuple[str, str], Datum] = {}
        for datum in (*self.data, *(self.model.data if self.model is not None else ())):
            seen.setdefault((datum.file, datum.key), datum)
        return tuple(seen.values())

    @property
    def evidence(self) -> dict[str, int]:
        """How many registry numbers are in scope, and how many of them were obtained in each way."""
        return evidence(self.sources)

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain values under the public names, for JSON; one configuration at a time."""
        return _to_dict(self)

    def __repr__(self) -> str:
        verdict = self.verdict if isinstance(self.verdict, str) else f"{len(self.verdict)} verdicts"
        return f"NeuronPlan({self.question}: {verdict})"


def neuron_plan(model: Model | None, asked: Deployment, *, geometry: Geometry | None = None) -> NeuronPlan:
    """What vLLM on Neuron may give its cache, and whether it starts.

    model     a graph; None where `weights_bytes` is stated
    asked     the deployment; reserve, cap, minimum, utilization, weights and length may be arrays of one length
    geometry  what the cache keeps of a token, where there is no graph and no `bytes_per_block`

    Raises Refused for an unknown chip, instance or draft model.
    """
    if model is not None and (asked.hf_overrides or "") != model.overrides:
        raise Refused("hf_overrides change the model: load it with the same ones, load_model(..., overrides=...)")
    engine = load_engine(asked.engine)
    draft = load_model(asked.draft_model) if asked.draft_model is not None else None
    found = _plan(model, draft, asked, engine, geometry)
    answer: NeuronPlan = at_longest(found, lambda d: _plan(model, draft, d, engine, geometry))
    return answer


def _plan(
    model: Model | None, draft: Model | None, asked: Deployment, engine: Engine, geometry: Geometry | None
) -> NeuronPlan:
    line = _weights(model, draft, asked)
    r = vllm_neuron.resolve(model, draft, asked, engine, weights=0 if line is None else line.bytes)
    refused = r.refused
    if line is None and not any(f.field == "weights_bytes" for f in refused):
        refused = (*refused, _missing("weights_bytes", "no model is named; state the bytes of parameters and buffers"))
    known = line is not None and not any(f.mask is None and f.field in _BUDGET_FIELDS for f in refused)
    block, page = _block(model, draft, r, geometry)
    if block is None and not any(f.field == "bytes_per_block" for f in refused):
        refused = (
            *refused,
            _missing("bytes_per_block", "no model is named; state the bytes of one block of all layers"),
        )
    found = NeuronPlan(
        model=model,
        draft=draft,
        asked=asked,
        resolved=r.d,
        chip=r.case.chip,
        instance=r.asked.instance,
        engine=engine,
        verdict="refused",
        refused=refused,
        assumed=(*r.assumed, *_said_of_weights(model, line)),
        overridden=r.overridden,
        data=r.data,
        geometry=geometry,
        weights=line,
        page=page,
        kv_block_bytes=block,
    )
    if not known or line is None:
        return found
    b = vllm_neuron.budget_of(r.case)
    found = replace(found, budget=b)
    if block is None:
        return found
    pool = _pool(found, b)
    computed = kv_cache.whole_blocks(budget_bytes=b.kv_budget_bytes, block_bytes=block)
    if r.d.num_gpu_blocks_override is not None:
        found = replace(found, overridden=(*found.overridden, _overridden_blocks(r.d, computed)))
    found = replace(found, pool=pool, computed_blocks=computed)
    if any(f.mask is None for f in refused):
        return found
    return replace(found, verdict=_verdict(found, r, line))


_BUDGET_FIELDS = (
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


def _missing(field: str, why: str) -> Finding:
    return Finding(field=field, asked=None, happens="refused", why=why, source="capplan, figures that a plan needs")


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


def _weights(model: Model | None, draft: Model | None, asked: Deployment) -> Line | None:
    """The ledger line of the weights: as stated, or every stored tensor of the graph."""
    given = asked.weights_bytes
    if given is not None:
        return Line(
            name="weights",
            bytes=given,
            low=given,
            high=given,
            kind="exact",
            law="as stated",
            note="parameters and buffers of one rank, as stated",
        )
    t = asked.tensor_parallel_size
    models = [m for m in (model, draft) if m is not None]
    if model is None or t < 1 or any(m.quantization is not None for m in models):
        return None
    size, rotary = 0, 0
    parts: list[tuple[str, Count]] = []
    for m in models:
        dtype = asked.dtype if asked.dtype not in (None, "auto") else m.dtype
        if dtype not in DTYPE_BITS:
            return None
        held = vllm_neuron.loaded(
            m, tensor_parallel_size=t, expert_shards=t * asked.data_parallel_size, act_bits=DTYPE_BITS[dtype]
        )
        size, rotary = size + held.bytes, rotary + held.rotary_bytes
        parts += held.parts if m is model else [(f"draft: {name}", n) for name, n in held.parts]
    return Line(
        name="weights",
        bytes=size,
        low=size,
        high=size + rotary,
        kind="derived",
        law="every stored tensor, split over the ranks",
        note=f"{model.n_layers} layers" + (f" and {draft.n_layers} of the draft" if draft is not None else ""),
        parts=tuple(parts),
    )


def _said_of_weights(model: Model | None, line: Line | None) -> tuple[Finding, ...]:
    if line is None or line.kind == "exact" or model is None:
        return ()
    return (
        Finding(
            field="weights_bytes",
            asked=None,
            happens=show_bytes(line.bytes),
            why=f"the stored tensors of {model.short_name}; rotary tables, {show_bytes(line.high - line.low)} where a "
            "class keeps them, are at the far end of the band; weights_bytes states the sum that a worker prints",
            source="vllm_neuron, vllm/worker/neuron_worker.py, _get_byte_used_from_model",
        ),
    )


def geometry_of(model: Model, kv_bits: int) -> Geometry:
    """What the cache of a model keeps of a token, each layer alike."""
    first = model.attention[0]
    return Geometry(
        n_layers=sum(len(a.layers) for a in model.attention),
        n_kv_heads=first.n_kv_heads,
        head_dim=first.head_dim,
        kv_bits=kv_bits,
    )


def _block(
    model: Model | None, draft: Model | None, r: Resolved, geometry: Geometry | None
) -> tuple[int | None, Page | None]:
    """Bytes of one block of all layers, those of a draft among them, and its page where a law gave it."""
    d = r.d
    if d.bytes_per_block is not None:
        return d.bytes_per_block if d.bytes_per_block >= 1 else None, None
    size, t = d.block_size or 0, d.tensor_parallel_size
    if size < 1 or t < 1:
        return None, None
    if geometry is not None:
        page = vllm_neuron.page(geometry, block_size=size, tensor_parallel_size=t)
        return page.block_bytes, page
    models = [m for m in (model, draft) if m is not None]
    if model is None or any(m.latent for m in models):
        return None, None
    pages = []
    for m in models:
        form = d.kv_cache_dtype if d.kv_cache_dtype not in (None, "auto") else None
        own = d.dtype if d.dtype is not None else m.dtype
        bits = vllm_neuron.ELEMENT_BITS.get(form) if form is not None else DTYPE_BITS.get(own)
        if bits is None:
            return None, None
        pages.append(vllm_neuron.page(geometry_of(m, bits), block_size=size, tensor_parallel_size=t))
    return sum(page.block_bytes for page in pages), pages[0]


def _pool(p: NeuronPlan, b: Budget) -> Pool:
    d = p.resolved
    need: Count = 1
    if d.max_model_len is not None:
        need = vllm_neuron.request_blocks(
            max_model_len=at_least(d.max_model_len, 1),
            block_size=p.block_size,
            contexts=at_least(d.decode_context_parallel_size, 1),  # type: ignore[arg-type]
        )
    return vllm_neuron.pool(
        budget_bytes=b.kv_budget_bytes,
        block_bytes=p.kv_block_bytes or 1,
        request_blocks=need,
        override=d.num_gpu_blocks_override,
    )


def _verdict(p: NeuronPlan, r: Resolved, line: Line) -> Any:
    """Whether it starts at the centre of the band of the weights, and at its far end."""
    centre, worst = p, p
    if line.high is not line.low:
        c = replace(r.case, weights_bytes=line.high)
        worst = replace(p, budget=vllm_neuron.budget_of(c))
        worst = replace(worst, pool=_pool(worst, worst.budget) if worst.budget else None)
    sure = both(_starts(centre, null_block=True), _starts(worst, null_block=True))
    code = choose(sure, 0, choose(_starts(centre, null_block=False), 1, 2))
    if r.d.num_gpu_blocks_override is not None and p.computed_blocks is not None:
        beyond = r.d.num_gpu_blocks_override > p.computed_blocks
        code = choose(both(code == 0, beyond), 1, code)
    for finding in p.refused:
        code = code if finding.mask is None else choose(finding.mask, 3, code)
    return code.astype("int8") if is_array(code) else VERDICTS[code]


def _starts(p: NeuronPlan, *, null_block: bool) -> Flag:
    """Whether the minimum is kept and the pool holds a request, its null block left out or counted."""
    b, pool = p.budget, p.pool
    if b is None or pool is None:
        return False
    blocks = pool.allocatable_blocks if null_block else pool.kv_blocks
    return both(both(b.starts, b.kv_budget_bytes > 0), both(blocks >= pool.request_blocks, pool.kv_blocks > 0))


# Words


def _sentence(p: NeuronPlan) -> str:
    if is_array(p.verdict):
        raise ValueError("a plan for many has a sentence for none; take one configuration")
    b, pool, block = p.budget, p.pool, p.kv_block_bytes
    if p.verdict == "refused" or b is None or pool is None or block is None:
        return f"{p.question} would be refused: {p.refused[0].why}."
    if not b.starts:
        ranks = _fewest_ranks(p)
        more = f"; {ranks.says}" if ranks is not None and ranks.value != p.resolved.tensor_parallel_size else ""
        return f'{p.question}: it does not start, "{vllm_neuron.refusal(b)}"{more}.'
    there = f"{p.question}: {show_bytes(b.kv_budget_bytes)} of {_share_words(b)} are left for the cache"
    need = p.kv_request_blocks
    if not b.kv_budget_bytes:
        return (
            f'{there}, the minimum is off, and vLLM itself then says "No available memory for the cache blocks"; '
            f"{_remedy(p)}."
        )
    if need is None:
        return f"{there}, {pool.kv_blocks:,} blocks; state max_model_len to see how many requests they hold."
    there += f" and one request needs {show_bytes(need * block)}"
    if p.verdict == "does-not-fit":
        over = show_bytes((need + 1) * block - pool.kv_blocks * block)
        return f"{there}, {over} too few with the null block; {_remedy(p)}."
    held = f"{_counted(pool.requests_held)} of full length fit" + ("s" if pool.requests_held == 1 else "")
    if p.verdict == "fits":
        more = "" if pool.requests_admitted == pool.requests_held else f", {pool.requests_admitted:,} are admitted"
        return f"{there}; it starts, and {held}{more}."
    if pool.allocatable_blocks < need:
        return f"{there}; it starts only because the scheduler counts the null block; {_remedy(p)}."
    if p.computed_blocks is not None and pool.kv_blocks > p.computed_blocks:
        return (
            f"{there}; num_gpu_blocks_override asks for {pool.kv_blocks:,} blocks, more than the {p.computed_blocks:,} "
            f"of the budget, and may exhaust the device; leave it out."
        )
    return f"{there}; it starts, {held}, and not if the class keeps rotary tables; {_remedy(p)}."


def _counted(requests: Count) -> str:
    return "1 request" if not is_array(requests) and requests == 1 else f"{requests:,} requests"


def _share_words(b: Budget) -> str:
    if b.route == "cpu":
        return f"a worker's share of {show_bytes(b.share_bytes)} of the host"
    return f"a logical core's {show_bytes(b.share_bytes)}"


def _remedy(p: NeuronPlan) -> str:
    """What would work where the minimum is kept and a request does not fit."""
    b, pool, block = p.budget, p.pool, p.kv_block_bytes
    if b is None or pool is None or block is None:
        return "choose more ranks"
    ways = []
    wanted = int((pool.request_blocks + 1) * block)
    if b.policy == "headroom":
        most = policy.maximum_headroom_bytes(share=b.share_bytes, weights_bytes=b.weights_bytes, minimum=wanted)
        if most >= 0:
            ways.append(f"{environment.HEADROOM.name} up to {vllm_neuron.floor_gib(int(most))} holds one")
    else:
        answers = (vllm_neuron.smallest_utilization(b, wanted), vllm_neuron.smallest_cap(b, wanted))
        ways += [f"{a.field} {a.typed} holds one" for a in answers if a.value is not None]
    longest = p.estimated_max_model_len
    if longest is not None and longest >= 1:
        ways.append(f"max_model_len {longest:,} starts as it is")
    ranks = _fewest_ranks(p)
    if ranks is not None and ranks.value is not None and ranks.value != p.resolved.tensor_parallel_size:
        ways.append(f"tensor_parallel_size {ranks.value} starts")
    return "; or ".join(ways) or "choose more ranks, smaller weights or a shorter context"


# Answers


def _default_budget(p: NeuronPlan) -> Budget | None:
    """The budget by the default policy, the one in force or the one that leaving the reserve out would give."""
    if p.budget is None or is_array(p.verdict):
        return None
    if p.budget.policy == "default":
        return p.budget
    trial = _plan(p.model, p.draft, replace(p.asked, reserved_headroom_gib=None), p.engine, p.geometry)
    return trial.budget


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


# Curves

SAMPLES = 200
"""Points of a curve, beside those where something turns."""


def _axis(longest: float, *marks: float | None, lowest: float) -> Any:
    """Values up to a longest one, and every mark among them."""
    import numpy as np

    spread = np.linspace(0.0, longest, SAMPLES + 1)
    found = np.unique(np.concatenate([spread, np.array([m for m in marks if m is not None], dtype=np.float64)]))
    return found[(found >= lowest) & (found <= longest)]


def _each(word: Any, values: Any) -> Any:
    """A word at every value, where there is one for all of them."""
    import numpy as np

    return np.broadcast_to(word, values.shape)


def _cap_curve(p: NeuronPlan) -> Curve | None:
    b = _default_budget(p)
    if b is None or b.kv_gmu_budget_cap_fraction is None:
        return None
    turn = None
    if b.user_budget_bytes is not None and b.user_budget_bytes > 0:
        found = vllm_neuron.smallest_cap(b, int(b.user_budget_bytes)).value
        turn = None if found is None else float(found)
    now = float(b.kv_gmu_budget_cap_fraction)
    values = _axis(1.0, now, turn, lowest=1 / SAMPLES / 10)
    many = p.at("reserved_headroom_gib", None).at(environment.CAP.field, values).budget
    if many is None:
        return None
    return Curve(
        field=environment.CAP.field,
        values=values,
        kv_budget_bytes=many.kv_budget_bytes,
        binding=_each(many.binding, values),
        minimum_bytes=int(many.minimum_bytes),
        now=now if p.policy == "default" else None,
        default=now,
        turn=turn,
    )


def _headroom_curve(p: NeuronPlan) -> Curve | None:
    if p.budget is None or is_array(p.verdict):
        return None
    keeps, largest = p.answer("headroom_of_default"), p.answer("largest_headroom")
    default, turn = (
        None if a is None or a.value is None else float(ratio(int(a.value), GIB)) for a in (keeps, largest)
    )
    now = p.asked.reserved_headroom_gib
    now = None if now is None else float(now)
    values = _axis(max(float(ratio(p.budget.share_bytes, GIB)), now or 0.0), default, turn, now, lowest=0.0)
    many = p.at(environment.HEADROOM.field, values).budget
    if many is None:
        return None
    return Curve(
        field=environment.HEADROOM.field,
        values=values,
        kv_budget_bytes=many.kv_budget_bytes,
        binding=_each(many.binding, values),
        minimum_bytes=int(many.minimum_bytes),
        now=now,
        default=default,
        turn=turn,
    )


def _fewest_ranks(p: NeuronPlan) -> Answer | None:
    """The fewest ranks of the supported sizes with which it starts; stated weights are taken as shared equally."""
    if p.chip is None or p.budget is None or p.route == "cpu":
        return None
    d, given = p.resolved, p.asked.weights_bytes
    degree = int(d.logical_nc_config or 1)
    chips = d.instance_chips if d.instance_chips is not None else p.instance.chips.value if p.instance else None
    most = None if chips is None else p.chip.logical_cores(degree, chips=chips)
    sizes = p.chip.rank_sizes(degree, most=most)
    for t in sizes:
        trial = replace(p.asked, tensor_parallel_size=t, tokens=None, requests=None)
        if given is not None:
            trial = replace(trial, weights_bytes=-(-int(given) * p.asked.tensor_parallel_size // t))
            if p.asked.bytes_per_block is not None and t != p.asked.tensor_parallel_size:
                # How stated blocks shrink with ranks is not known: the budget alone is asked then.
                trial = replace(trial, max_model_len=None, bytes_per_block=1)
        found = _plan(p.model, p.draft, trial, p.engine, p.geometry)
        if found.verdict in ("fits", "close") and found.budget is not None:
            how = "" if given is None else ", if the stated weights are shared equally"
            return Answer(
                name="fewest_ranks",
                field="tensor_parallel_size",
                value=t,
                typed=str(t),
                kv_budget_bytes=int(found.budget.kv_budget_bytes),
                says=f"tensor_parallel_size {t} is the fewest of {', '.join(map(str, sizes))} that starts{how}",
            )
    return Answer(
        name="fewest_ranks",
        field="tensor_parallel_size",
        value=None,
        typed="",
        kv_budget_bytes=None,
        says=f"none of {', '.join(map(str, sizes))} ranks starts"
        + ("" if most is None else f" on {most} logical cores")
        + "; choose smaller weights, a shorter context or a chip with more memory",
    )


# The same deployment, compiled and run


def _parity(p: NeuronPlan, target: str | None, degree: int | None) -> Parity | None:
    asked, _ = placed(p.asked)
    aim = target or asked.platform_target_override or asked.chip
    on = replace(asked, cpu_compile=False, cpu_mode=False, platform_target_override=None)
    off = replace(asked, cpu_compile=True, cpu_mode=False, platform_target_override=aim)
    off = replace(off, runtime_bytes_used=None, runtime_bytes_free=None)
    if degree is not None:
        off = replace(off, logical_nc_config=degree)
    if on.chip not in vllm_neuron.target_aliases().values():
        return None
    device, compiled = (_plan(p.model, p.draft, d, p.engine, p.geometry) for d in (on, off))
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


def _beside(p: NeuronPlan) -> tuple[Line, ...]:
    degree = int(p.resolved.logical_nc_config or 1)
    found = []
    for key, datum in p.engine.estimates.items():
        times = degree if key.endswith("_per_physical_core") else 1
        found.append(
            Line(
                name=key.removesuffix("_per_physical_core").removesuffix("_bytes"),
                bytes=datum.value * times,
                low=datum.low * times,
                high=datum.high * times,
                kind=datum.kind,
                law="a figure that people reported",
                note=datum.where or "",
                data=(datum,),
            )
        )
    return tuple(found)


# The public form

FIGURES = (
    "hbm_stack_bytes",
    "logical_cores_per_hbm_stack",
    "share_bytes",
    "total_budget_bytes",
    "weights_bytes",
    "user_budget_bytes",
    "heuristic_cap_bytes",
    "headroom_bytes",
    "kv_budget_bytes",
    "minimum_bytes",
    "binding",
    "maximum_headroom_bytes",
    "kv_block_bytes",
    "kv_blocks",
    "kv_request_blocks",
    "kv_cache_tokens",
    "max_concurrency",
    "estimated_max_model_len",
    "requests_admitted",
    "requests_held",
)
"""Public names of the figures, in the order in which they follow from each other."""


def _to_dict(p: NeuronPlan) -> dict[str, Any]:
    if is_array(p.verdict):
        raise ValueError("a plan for many has no public form; take one configuration")
    parity = p.parity()
    return {
        "model": p.model.name if p.model is not None else None,
        "engine": p.engine.name,
        "chip": p.chip.name if p.chip is not None else None,
        "instance": p.instance.name if p.instance is not None else None,
        "verdict": p.verdict,
        "sentence": p.sentence,
        "route": p.route,
        "policy": p.policy,
        "refused": [finding_dict(f) for f in p.refused],
        "assumed": [finding_dict(f) for f in p.assumed],
        "overridden": [finding_dict(f) for f in p.overridden],
        "ignored": {"flags": list(p.ignored_flags), "config": list(p.model.ignored) if p.model is not None else []},
        "resolved": {name: plain(getattr(p.resolved, name)) for name in read_by(p.engine.rules)},
        **{name: plain(getattr(p, name)) for name in FIGURES},
        "weights_low_bytes": plain(p.weights.low) if p.weights else None,
        "weights_high_bytes": plain(p.weights.high) if p.weights else None,
        "weights": [{"name": name, "bytes": plain(size)} for name, size in p.weights.parts] if p.weights else [],
        "kv_heads_per_rank": p.page.kv_heads_per_rank if p.page else None,
        "kv_head_copies": p.page.kv_head_copies if p.page else None,
        "page_bytes": p.page.page_bytes if p.page else None,
        "tokens": plain(p.resolved.tokens),
        "requests_that_fit": _fits(p),
        "holds_load": p.holds_load,
        "stack": [{"core": x.core, "name": x.name, "bytes": x.bytes} for x in p.stack],
        "answers": [
            {key: getattr(a, key) for key in ("name", "field", "value", "typed", "kv_budget_bytes", "says")}
            for a in p.answers
        ],
        "parity": None
        if parity is None
        else {
            "holds": parity.holds,
            "device_bytes": int(parity.device.kv_budget_bytes),
            "compiled_bytes": int(parity.compiled.kv_budget_bytes),
            "device_blocks": parity.device_blocks,
            "compiled_blocks": parity.compiled_blocks,
            "causes": list(parity.causes),
        },
        "environment": list(p.environment_lines),
        "log": list(p.log_lines),
        "sources": [datum_dict(d) for d in p.sources],
    }


def _fits(p: NeuronPlan) -> Any:
    tokens = p.resolved.tokens
    return None if p.kv_blocks is None or tokens is None or tokens < 1 else plain(p.requests_that_fit(tokens))
