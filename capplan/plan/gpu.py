"""A plan: the ledger of every distinct rank, the pool of the tightest, the verdict, and what to say about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from capplan.engines import blis, pool, vllm
from capplan.engines.base import Finding, Line
from capplan.engines.declared import own_pages_finding
from capplan.engines.frame import Frame, Setting
from capplan.engines.pool import Group, Member
from capplan.engines.release import Engine, load_engine
from capplan.laws import kv_cache, runtime
from capplan.ledger import LINE_NAMES, LINES, RankPlan, rank_plan
from capplan.model import Guess, Model
from capplan.plan import public
from capplan.policies import vllm_gpu
from capplan.registry import Chip, Datum, Refused, load_chip
from capplan.settings.deployment import Deployment, checked, unread
from capplan.units import (
    Count,
    Flag,
    Share,
    at_least,
    at_most,
    both,
    ceil_div,
    choose,
    either,
    is_array,
    ratio,
    show_bytes,
    some,
    whole_product,
)

VERDICTS = ("fits", "close", "does-not-fit", "refused")
"""Verdicts; a plan for many gives their places in this list."""

PLANS: dict[str, Callable[[Any, Deployment], Any]] = {}
"""How engines of other rules are planned, by the rules that their files name; the roof of the package fills it."""

DISPLAYS: dict[str, Callable[[Plan], str]] = {}
"""How a plan shows itself in a notebook, by media type; the roof of the package fills it from the views."""

BYTE_FIELDS = (*(f"{name}_bytes" for name in LINE_NAMES), "fixed_bytes", "kv_budget_bytes")
"""Public names of a rank's bytes, in the order in which they are spent."""


MOST_TOKENS = 1 << 36
"""Lengths from here on are refused where many are asked at once: int64 would not hold their bytes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolPart:
    """The pages of one kind in a block: of which layers, a page, and what of it is only padding."""

    name: str
    spec: str
    layers: tuple[int, ...]
    page_bytes: int
    padding_bytes: int

    @property
    def bytes(self) -> int:
        """Its pages together, padding included."""
        return len(self.layers) * self.page_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolBlock:
    """One block of the pool as a group fills it: each page, what they leave empty, and how many a request holds.

    wasted_bytes   what the pages leave of the block
    padding_bytes  what the pages themselves were padded with
    steady         blocks of a request in steady decode at full length
    admission      blocks that the engine sets aside for it at admission
    """

    group: Group
    pages: tuple[Member, ...]
    block_bytes: int
    wasted_bytes: int
    padding_bytes: int
    steady: Count
    admission: Count

    def parts(self) -> tuple[PoolPart, ...]:
        """The pages by kind, in the order of the first of each."""
        found: dict[tuple[str, str, int, int], list[int]] = {}
        paddings = self.group.paddings or (0,) * len(self.pages)
        for page, padding in zip(self.pages, paddings, strict=True):
            found.setdefault((page.name, page.spec, page.page_bytes, padding), []).append(page.layer)
        return tuple(
            PoolPart(name=name, spec=spec, layers=tuple(layers), page_bytes=size, padding_bytes=len(layers) * padding)
            for (name, spec, size, padding), layers in found.items()
        )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Plan:
    """What a model, deployed this way, occupies on its tightest rank, and whether it starts.

    Byte fields are of one rank, the tightest, and None where what they rest on is missing.  `verdict` is a word,
    or for many configurations an int8 array of places in `VERDICTS`; `ranks` has each distinct rank once, the
    tightest first.  `weights_bytes` and the other lines' bytes are there under their public names too.
    Where the weights are unknown there is no rank: `known_lines` has the lines that do not rest on them.
    """

    model: Model
    asked: Deployment
    resolved: Deployment
    chip: Chip
    engine: Engine
    verdict: Any
    refused: tuple[Finding, ...]
    assumed: tuple[Finding, ...]
    overridden: tuple[Finding, ...]
    data: tuple[Datum, ...]
    frame: Frame | None = None
    ranks: tuple[RankPlan, ...] = ()
    tightest: RankPlan | None = None
    kv_blocks: Count | None = None
    kv_request_blocks: Count | None = None
    kv_cache_tokens: Count | None = None
    max_concurrency: Share | None = None
    estimated_max_model_len: Count | None = None
    in_flight_tokens: Count = 0
    ignored_flags: tuple[str, ...] = ()
    known_lines: tuple[Line, ...] = ()
    known_pre_snapshot: Line | None = None

    # The ledger

    @property
    def device_bytes(self) -> int:
        """What the driver reports of the chip."""
        return int(self.chip.device_bytes.value)

    @property
    def requested_bytes(self) -> Count | None:
        """What the engine claims; None where the cache was stated instead."""
        return self.tightest.requested_bytes if self.tightest else None

    @property
    def weights_bytes(self) -> Count | None:
        """This rank's tensors after loading."""
        return self._line("weights")

    @property
    def allocator_rounding_bytes(self) -> Count | None:
        """What the tensor allocator adds to the weights."""
        return self._line("allocator_rounding")

    @property
    def eplb_bytes(self) -> Count | None:
        """Replicas of experts."""
        return self._line("eplb")

    @property
    def engine_state_bytes(self) -> Count | None:
        """What the runner keeps before it profiles."""
        return self._line("engine_state")

    @property
    def activations_bytes(self) -> Count | None:
        """Peak of the profiling pass."""
        return self._line("activations")

    @property
    def non_torch_bytes(self) -> Count | None:
        """Growth outside the tensor allocator."""
        return self._line("non_torch")

    @property
    def cuda_graphs_bytes(self) -> Count | None:
        """The engine's estimate of its graphs."""
        return self._line("cuda_graphs")

    @property
    def communication_bytes(self) -> Count | None:
        """Always 0: communicators exist before the budget."""
        return self._line("communication")

    @property
    def fixed_bytes(self) -> Count | None:
        """The lines that are charged, together."""
        return self.tightest.fixed_bytes if self.tightest else None

    @property
    def kv_budget_bytes(self) -> Count | None:
        """What the cache gets."""
        return self.tightest.kv_budget_bytes if self.tightest else None

    @property
    def pre_snapshot_bytes(self) -> Count | None:
        """What is held before the engine looks at free memory."""
        line = self.tightest.pre_snapshot if self.tightest else self.known_pre_snapshot
        return line.bytes if line is not None else None

    @property
    def kv_block_bytes(self) -> Count | None:
        """Bytes of one block of the pool."""
        if self.tightest is None:
            return self.frame.block_bytes if self.frame is not None else None
        return self.tightest.kv_block_bytes

    @property
    def lines(self) -> tuple[Line, ...]:
        """The ledger of the tightest rank."""
        return self.tightest.lines if self.tightest else self.known_lines

    @property
    def kv_groups(self) -> tuple[Group, ...]:
        """The groups of the tightest rank."""
        if self.tightest is None:
            return self.frame.groups if self.frame is not None else ()
        return self.tightest.groups

    @property
    def model_load_bytes(self) -> Count | None:
        """Weights with the allocator's rounding: what the engine prints as taken by loading."""
        if self.tightest is None:
            return None
        return self.tightest.bytes_of("weights") + self.tightest.bytes_of("allocator_rounding")

    @property
    def outside_bytes(self) -> Count | None:
        """Bytes of the device beside what the engine claims."""
        rank = self.tightest
        if rank is None:
            return None
        return vllm_gpu.outside_bytes(device_bytes=self.device_bytes, claimed=rank.claimed_bytes)

    @property
    def request_bytes(self) -> Count:
        """Bytes of the pool that one request of max_model_len needs at admission."""
        return (0 if self.kv_request_blocks is None else self.kv_request_blocks) * self._block()

    def _line(self, name: str) -> Count | None:
        return next((line.bytes for line in self.lines if line.name == name), None)

    # What a request holds

    def sequence_variable_bytes(self, tokens: Count) -> Count:
        """Bytes that a request's growing caches take at a length."""
        frame, d = self._frame(), self.resolved
        tokens = self._counted(tokens)
        if frame.token_half_bits is not None:
            divides = all(g.divides for g in frame.groups if not g.bounded and not g.extra_pages)
            charged = kv_cache.charged_tokens(
                context_tokens=tokens,
                decode_context_parallel_size=d.decode_context_parallel_size if divides else 1,
                block_size=frame.block_size,
            )
            kept = kv_cache.sequence_bytes(charged=charged, half_bits=frame.token_half_bits)
            states = tuple(g for g in frame.groups if g.kind == pool.RECURRENT and not g.bounded)
            return kept + self._held((g, pool.decoding(g, d, tokens)) for g in states)
        growing = (g for g in frame.groups if not g.bounded)
        return self._held((g, pool.decoding(g, d, tokens)) for g in growing) + 0 * tokens

    def sequence_fixed_bytes(self, tokens: Count | None = None) -> Count:
        """Bytes that a request's windows, rings and states take in steady decode, at a length or at any."""
        frame, d = self._frame(), self.resolved
        at = None if tokens is None else self._counted(tokens)
        bounded = (g for g in frame.groups if g.bounded)
        return self._held((g, pool.decoding(g, d, at)) for g in bounded)

    def sequence_admission_bytes(self, tokens: Count | None = None) -> Count:
        """Bytes that the engine sets aside for a request's windows, rings and states at admission."""
        length, d = self._length(tokens), self.resolved
        bounded = (g for g in self._groups() if g.bounded)
        return self._held((g, pool.admitted(g, d, length, self.in_flight_tokens)) for g in bounded)

    def sequence_bytes(self, tokens: Count) -> Count:
        """Bytes that a request of a length holds in steady decode."""
        return self.sequence_variable_bytes(tokens) + self.sequence_fixed_bytes(tokens)

    def sequence_own_bytes(self, tokens: Count) -> Count:
        """Bytes of a request's own pages in steady decode: what it would hold if whole blocks wasted nothing."""
        total: Count = 0
        for g in self._groups():
            total = total + pool.decoding(g, self.resolved, self._counted(tokens)) * g.block_bytes
        return total

    @property
    def evidence(self) -> dict[str, int]:
        """How many registry numbers are in scope, and how many of them were obtained in each way."""
        return evidence(self.sources)

    @property
    def states_caches(self) -> bool:
        """Whether caches are sized by what is stated of them, so that a bounded one holds the same at any length."""
        return self.engine.rules == "blis" or self.model.caches is not None

    def pool_blocks(self) -> tuple[PoolBlock, ...]:
        """One block of each group of the tightest rank: the pages that share it, and what they leave of it empty."""
        return _pool_blocks(self)

    def requests_that_fit(self, tokens: Count) -> Count:
        """Requests of one length whose blocks the pool holds in steady decode, beside its null block."""
        if self.kv_blocks is None:
            raise ValueError("a refused plan holds no requests")
        tokens = self._counted(tokens)
        if self._frame().shared:
            steady = pool.steady_blocks(self._groups(), self.resolved, tokens)
        else:
            steady = ceil_div(self.sequence_bytes(tokens), self._block())
        return kv_cache.requests_beside_null_block(kv_blocks=self.kv_blocks, request_blocks=steady)

    def _frame(self) -> Frame:
        if self.frame is None:
            raise ValueError("a refused plan holds no requests")
        return self.frame

    def _groups(self) -> tuple[Group, ...]:
        return self._frame().groups

    def _counted(self, tokens: Count) -> Count:
        """Tokens of a request: none where fewer are asked, and many at once only where int64 holds their bytes.

        Raises Refused for lengths that would wrap.
        """
        if is_array(tokens) and some(tokens >= MOST_TOKENS):
            raise Refused(
                f"tokens has lengths of {MOST_TOKENS:,} and more, whose bytes int64 does not hold; ask for less"
            )
        return at_least(tokens, 0)

    def _length(self, tokens: Count | None) -> Count:
        length = self.resolved.max_model_len if tokens is None else tokens
        if length is None:
            raise ValueError("a refused plan has no length")
        return length

    def _block(self) -> Count:
        block = self.kv_block_bytes
        if block is None:
            raise ValueError("a refused plan has no blocks")
        return block

    def _held(self, held: Iterable[tuple[Group, Count]]) -> Count:
        """Bytes of some blocks of some groups: of the pool's, or of each group's own where none is shared."""
        shared, block = self._frame().shared, self._block()
        total: Count = 0
        for group, blocks in held:
            total = total + blocks * (block if shared else group.block_bytes)
        return total

    @property
    def holds_load(self) -> bool | None:
        """Whether the stated load fits at once: `requests` of `tokens`; None where no load is stated."""
        tokens, requests = self.resolved.tokens, self.asked.requests
        if requests is None or tokens is None or self.kv_blocks is None or is_array(self.kv_blocks):
            return None
        return bool(self.requests_that_fit(tokens) >= requests)

    # What to say

    @property
    def sentence(self) -> str:
        """What was asked, what there is, by how much, and what would work; and what was guessed of the model."""
        guess = self.model.guess
        return _sentence(self) if guess is None else f"{_sentence(self)} {_guess_sentence(guess)}"

    @property
    def question(self) -> str:
        """What was asked, in words."""
        asked = f"{self.model.short_name} in {self.resolved.dtype} on {self.chips}"
        length = self.resolved.max_model_len
        return asked if length is None or is_array(length) else f"{asked}, requests up to {length:,} tokens"

    @property
    def chips(self) -> str:
        """The chips in words, such as `4 x H100 SXM 80 GB`."""
        n = self.asked.n_chips
        return self.chip.title if n == 1 else f"{n} x {self.chip.title}"

    @property
    def sources(self) -> tuple[Datum, ...]:
        """Every registry number in scope, once."""
        seen: dict[tuple[str, str], Datum] = {}
        pre = self.tightest.pre_snapshot if self.tightest else self.known_pre_snapshot
        lines = (*self.lines, *((pre,) if pre is not None else ()))
        for datum in (*self.data, *(d for line in lines for d in line.data)):
            seen.setdefault((datum.file, datum.key), datum)
        return tuple(seen.values())

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        if is_array(self.verdict):
            return {"text/plain": f"a plan of {len(self.verdict):,} configurations: {self.question}"}
        return {media: show(self) for media, show in DISPLAYS.items()}

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain values under the public names, for JSON; one configuration at a time."""
        return public.to_dict(self)


def plan(model: Model, asked: Deployment) -> Plan:
    """What a model, deployed this way, occupies, and whether it fits.

    model  a graph, from `load_model`
    asked  the deployment; its numeric fields may be int64 arrays (utilization float64) of one length,
           and the plan's byte and block fields, verdict and masks are arrays then

    An engine whose file names other rules is planned by them: vLLM on Neuron answers with a `NeuronPlan`.

    Raises Refused for an unknown chip or engine, or a setting of the wrong kind.
    """
    asked, engine = checked(asked), load_engine(asked.engine)
    # On Neuron a model may be left out.
    guess = model.guess if isinstance(model, Model) else None
    if guess is not None and not asked.assume_generic:
        raise Refused(f"{model.name}: {guess.says}; say so in the deployment too, with assume_generic=True")
    if guess is not None and engine.rules in PLANS:
        raise Refused(f"{model.name}: {guess.says}, which {engine.title} is not planned with; choose an engine on GPUs")
    if engine.rules in PLANS:
        other: Plan = PLANS[engine.rules](model, asked)
        return other
    foreign = next(iter(unread(asked, engine.rules)), None)
    if foreign is not None:
        raise Refused(
            f"{foreign} was set, which {engine.title} does not read; leave it out, or choose engine vllm-neuron"
        )
    if (asked.hf_overrides or "") != model.overrides:
        raise Refused("hf_overrides change the model: load it with the same ones, load_model(..., overrides=...)")
    chip = RULES[engine.rules].device(load_chip(asked.chip))
    answer: Plan = at_longest(_plan(model, asked, chip, engine), lambda d: _plan(model, d, chip, engine))
    return answer


def at_longest(found: Any, again: Callable[[Deployment], Any]) -> Any:
    """A plan as it is, or where max_model_len is -1, the plan of the longest length that it holds."""
    length = found.asked.max_model_len
    if is_array(length) or length != -1 or found.estimated_max_model_len is None:
        return found
    longest = at_least(found.estimated_max_model_len, 1)
    finding = Finding(
        field="max_model_len",
        asked=-1,
        happens="the longest length that fits" if is_array(longest) else f"{longest:,}",
        why="-1 lets the engine take the longest length that passes its start check",
        source="vllm, v1/core/kv_cache_planning.py, _auto_fit_max_model_len",
    )
    fitted = again(replace(found.asked, max_model_len=longest))
    return replace(fitted, asked=found.asked, overridden=(finding, *fitted.overridden))


def evidence(data: Sequence[Datum]) -> dict[str, int]:
    """How many registry numbers there are, and how many of them were obtained in each way."""
    return {"numbers": len(data), **Counter(datum.method for datum in data)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """What a plan on GPUs asks of an engine's module."""

    device: Callable[[Chip], Chip]
    resolve: Callable[[Model, Deployment, Chip, Engine], vllm.Resolved]
    frame: Callable[[Model, Deployment, Chip, Engine], Frame]
    why_not: Callable[[Model, Deployment, Chip, Engine], str | None]


RULES = {
    "vllm": Rules(device=lambda chip: chip, resolve=vllm.resolve, frame=vllm.frame, why_not=vllm.why_not),
    "blis": Rules(device=blis.as_the_catalog_has_it, resolve=blis.resolve, frame=blis.frame, why_not=blis.why_not),
}
"""The modules that an engine's file may name for its rules on GPUs."""


def _plan(model: Model, asked: Deployment, chip: Chip, engine: Engine) -> Plan:
    rules = RULES[engine.rules]
    r = rules.resolve(model, asked, chip, engine)
    found = Plan(
        model=model,
        asked=asked,
        resolved=r.d,
        chip=chip,
        engine=engine,
        verdict="refused",
        refused=r.refused,
        assumed=r.assumed,
        overridden=r.overridden,
        data=(*model.data, chip.device_bytes, *r.data),
    )
    d = r.d
    length, seqs, tokens = d.max_model_len, d.max_num_seqs, d.max_num_batched_tokens
    if any(f.mask is None and f.stops for f in r.refused) or length is None or seqs is None or tokens is None:
        return found
    frame = rules.frame(model, d, chip, engine)
    if frame.why_not_shared:
        found = replace(found, assumed=(*found.assumed, own_pages_finding(frame.why_not_shared)))
    in_flight = runtime.in_flight_tokens(max_num_batched_tokens=tokens, n_batches=pool.n_batches(d))
    found = replace(found, frame=frame, in_flight_tokens=in_flight)
    need = _request_blocks(found, length)
    setting = Setting(
        model=model,
        d=d,
        chip=chip,
        engine=engine,
        frame=frame,
        request_blocks=need,
        seqs=seqs,
        tokens=tokens,
    )
    if not frame.ranks:
        return _caches_only(found, setting)
    ranks = [rank_plan(setting, rank) for rank in frame.ranks]
    tightest = _tightest(ranks)
    starts = _all(rank.starts for rank in ranks)
    worst = _all(rank.starts_at_worst for rank in ranks)
    best = both(_all(rank.starts_at_best for rank in ranks), _all(rank.context_fits for rank in ranks))
    code = choose(both(starts, worst), 0, choose(either(starts, best), 1, 2))
    for finding in r.refused:
        code = choose(True if finding.mask is None else finding.mask, 3, code)
    found = replace(
        found,
        verdict=code.astype("int8") if is_array(code) else VERDICTS[code],
        ranks=tuple(ranks),
        tightest=tightest,
    )
    return _with_capacity(found, tightest.kv_blocks, need)


def _request_blocks(p: Plan, length: Count) -> Count:
    """Blocks of one request at admission; where caches share no pool, its bytes in blocks of the growing ones."""
    frame = p.frame
    if frame is None or frame.shared:
        return pool.request_blocks(() if frame is None else frame.groups, p.resolved, length, p.in_flight_tokens)
    return ceil_div(p.sequence_variable_bytes(length) + p.sequence_admission_bytes(length), frame.block_bytes)


def _with_capacity(p: Plan, blocks: Count, need: Count) -> Plan:
    """A plan with what a pool of some blocks holds, as the engine prints it."""
    length, frame = p.resolved.max_model_len, p.frame
    if length is None or frame is None:
        raise ValueError("capacity needs a length and a pool")
    # A refused length of 0 among many needs no blocks; its figures mean nothing, and must not warn.
    concurrency = ratio(blocks, at_least(need, 1))
    return replace(
        p,
        kv_blocks=blocks,
        kv_request_blocks=need,
        kv_cache_tokens=whole_product(concurrency, length),
        max_concurrency=concurrency,
        estimated_max_model_len=_longest_length(p, blocks),
    )


def _longest_length(p: Plan, blocks: Count) -> Count:
    """The longest length that a pool of some blocks takes beside its null block."""
    frame = p._frame()
    if frame.shared or (len(frame.groups) == 1 and not frame.groups[0].bounded):
        return pool.longest_length(frame.groups, p.resolved, blocks, p.in_flight_tokens)
    return pool.longest_of(p.resolved, blocks, lambda length: _request_blocks(p, length))


def _caches_only(p: Plan, s: Setting) -> Plan:
    """A plan of a model whose weights are unknown: its caches, its buffers, and a pool only where one is stated."""
    lines, pre = LINES(s, None)
    why = (
        f"the weights of {p.model.short_name} are unknown: its file states facts and caches and no shapes of them, so "
        "no budget follows; num_gpu_blocks_override or kv_cache_memory_bytes would size the pool"
    )
    finding = Finding(
        field="model", asked=p.model.name, happens="refused", why=why, source="registry, the model's file", stops=False
    )
    p = replace(p, refused=(*p.refused, finding), known_lines=lines, known_pre_snapshot=pre)
    stated, override = s.d.kv_cache_memory_bytes, s.d.num_gpu_blocks_override
    blocks = override
    if blocks is None and stated is not None:
        blocks = kv_cache.whole_blocks(budget_bytes=stated, block_bytes=p._block())
    return (
        replace(p, kv_request_blocks=s.request_blocks)
        if blocks is None
        else _with_capacity(p, blocks, s.request_blocks)
    )


def _pool_blocks(p: Plan) -> tuple[PoolBlock, ...]:
    frame, length, d = p._frame(), p._length(None), p.resolved
    found = []
    for g in p.kv_groups:
        block = int(p._block()) if frame.shared else g.block_bytes
        found.append(
            PoolBlock(
                group=g,
                pages=g.caches(),
                block_bytes=block,
                wasted_bytes=block - g.block_bytes,
                padding_bytes=sum(g.paddings),
                steady=pool.decoding(g, d, length),
                admission=pool.admitted(g, d, length, p.in_flight_tokens),
            )
        )
    return tuple(found)


def _all(flags: Iterator[Flag]) -> Flag:
    found: Flag = True
    for flag in flags:
        found = both(found, flag)
    return found


def _tightest(ranks: list[RankPlan]) -> RankPlan:
    """The rank with the fewest blocks, put first; of many configurations, each one's own, figure by figure."""
    if len(ranks) == 1:
        return ranks[0]
    if not is_array(ranks[0].kv_blocks):
        ranks.sort(key=lambda rank: (int(rank.kv_blocks), -int(rank.short_bytes)))
        return ranks[0]
    found = ranks[0]
    for rank in ranks[1:]:
        found = _tighter(found, rank, rank.kv_blocks < found.kv_blocks)
    return found


RANK_FIGURES = (
    "fixed_bytes",
    "fixed_low_bytes",
    "fixed_high_bytes",
    "kv_budget_bytes",
    "kv_budget_low_bytes",
    "kv_budget_high_bytes",
    "claimed_bytes",
    "short_bytes",
    "lacking_bytes",
    "over_device_bytes",
    "kv_block_bytes",
    "kv_blocks",
    "starts",
    "starts_at_worst",
    "starts_at_best",
    "context_fits",
)


def _tighter(a: RankPlan, b: RankPlan, where: Flag) -> RankPlan:
    """b's figures where it is the tighter of the two, else a's."""
    lines = tuple(
        replace(
            x, **{key: choose(where, getattr(y, key), getattr(x, key)) for key in ("bytes", "low", "high")}, parts=()
        )
        for x, y in zip(a.lines, b.lines, strict=True)
    )
    figures = {name: choose(where, getattr(b, name), getattr(a, name)) for name in RANK_FIGURES}
    return replace(a, lines=lines, **figures)


def remedies(p: Plan) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Changes that would make one plan start, each with the settings it changes and a phrase.

    A smaller claim where the device is the limit, the longest length that starts as it is, and the next legal
    tensor_parallel_size that starts.
    """
    rank = p.tightest
    if p.verdict == "fits" or rank is None or is_array(p.verdict):
        return
    claim = _smaller_claim(p, rank)
    if claim is not None:
        yield claim
    if rank.context_fits:
        length = _longest(p, rank)
        if length is not None:
            sure = "starts as it is" if p.verdict == "does-not-fit" else "fits at every far end"
            yield {"max_model_len": length}, f"max_model_len {length:,} {sure}"
    for t in range(p.asked.tensor_parallel_size + 1, p.model.n_heads + 1):
        trial = replace(p.asked, tensor_parallel_size=t)
        wanted = replace(p.resolved, tensor_parallel_size=t, block_size=p.asked.block_size)
        if RULES[p.engine.rules].why_not(p.model, wanted, p.chip, p.engine) is not None:
            continue
        found = plan(p.model, trial)
        if found.verdict in ("fits", "close"):
            word = "starts" if found.verdict == "fits" else "may start"
            yield (
                {"tensor_parallel_size": t},
                f"tensor_parallel_size {t} {word}, with {found.max_concurrency:.2f} requests of full length",
            )
            return


def _smaller_claim(p: Plan, rank: RankPlan) -> tuple[Mapping[str, Any], str] | None:
    """The utilization, or the cache bytes, that leave room for what is held before the budget, at the far end."""
    room = int(p.chip.device_bytes.low) - int(rank.pre_snapshot.high)
    if rank.requested_bytes is None:
        most = room - int(rank.fixed_high_bytes)
        if int(rank.kv_budget_bytes) <= most or most < 1:
            return None
        return {"kv_cache_memory_bytes": most}, f"kv_cache_memory_bytes {most:,} leaves room for what is held before it"
    if int(rank.requested_bytes) <= room:
        return None
    share = room * 100 // int(p.chip.device_bytes.low)
    return {
        "gpu_memory_utilization": share / 100
    }, f"gpu_memory_utilization {share / 100:.2f} leaves room for what is held before it"


def _longest(p: Plan, rank: RankPlan) -> int | None:
    """The longest length that starts: as it is, or for a close plan at the far end; None where that is no change."""
    limit = p.resolved.max_model_len
    if p.frame is None or limit is None:
        return None
    budget = rank.kv_budget_low_bytes if p.verdict == "close" else rank.kv_budget_bytes
    blocks = kv_cache.whole_blocks(budget_bytes=budget, block_bytes=rank.kv_block_bytes)
    if p.verdict != "close" and p.kv_blocks is not None:
        blocks = at_most(blocks, p.kv_blocks)
    longest = int(_longest_length(p, blocks))
    return longest if 0 < longest < int(limit) else None


def _sentence(p: Plan) -> str:
    if is_array(p.verdict):
        raise ValueError("a plan for many has a sentence for none; take one configuration")
    rank = p.tightest
    if p.verdict == "refused" or rank is None or p.kv_request_blocks is None:
        return f"{p.question} would be refused: {p.refused[0].why}."
    need, budget = p.request_bytes, rank.kv_budget_bytes
    band = ""
    if rank.requested_bytes is not None:
        band = f" ({show_bytes(rank.kv_budget_low_bytes)} to {show_bytes(rank.kv_budget_high_bytes)} by the estimates)"
    there = f"{p.question}: {show_bytes(budget)} are left for the cache{band} and one request needs {show_bytes(need)}"
    if p.resolved.num_gpu_blocks_override is not None:
        budget = (p.kv_blocks or 0) * rank.kv_block_bytes
        there = (
            f"{p.question}: {p.kv_blocks:,} blocks of {rank.kv_block_bytes:,} bytes were stated, "
            f"{show_bytes(budget)}, and one request needs {show_bytes(need)}"
        )
    if p.verdict == "fits":
        spare = show_bytes(budget - need - rank.kv_block_bytes)
        return f"{there}; it starts with {spare} to spare, and {p.max_concurrency:.2f} requests of full length fit."
    if p.verdict == "close":
        how = (
            "at the central figures and not at the far end"
            if rank.starts
            else "only if the estimates err in its favour"
        )
        return f"{there}; it starts {how}; {_remedy(p)}."
    if not rank.context_fits:
        return _outside_sentence(p, rank)
    if rank.short_bytes or not budget:
        biggest = max(rank.lines, key=lambda line: int(line.bytes))
        return (
            f"{p.question}: {show_bytes(rank.fixed_bytes)} are held before any request, {show_bytes(biggest.bytes)} "
            f"of them {biggest.name.replace('_', ' ')}, and the budget is {show_bytes(rank.requested_bytes or 0)}, "
            f"{show_bytes(rank.short_bytes)} too few; "
            f'the engine says "No available memory for the cache blocks"; {_remedy(p)}.'
        )
    return f"{there}, {show_bytes(rank.lacking_bytes)} too few with the null block; {_remedy(p)}."


def _guess_sentence(guess: Guess) -> str:
    band = guess.weights_percent
    says = guess.says[0].upper() + guess.says[1:]
    return f"{says}: its weights may lie between {band.low} and {band.high} % of the figure."


def _outside_sentence(p: Plan, rank: RankPlan) -> str:
    """What to say where the budget and what is held before it exceed the device."""
    before = rank.pre_snapshot.bytes
    if rank.requested_bytes is None or rank.claimed_bytes > rank.requested_bytes:
        total = rank.claimed_bytes + before
        return (
            f"{p.question}: fixed memory, the stated cache and what is held before them come to {show_bytes(total)}, "
            f"and the device has {show_bytes(p.device_bytes)}, {show_bytes(rank.over_device_bytes)} too few; "
            f"{_remedy(p)}."
        )
    return (
        f"{p.question}: the engine would claim {show_bytes(rank.requested_bytes)}, and with {show_bytes(before)} held "
        f"before it only {show_bytes(p.device_bytes - before)} are free, {show_bytes(rank.over_device_bytes)} too few; "
        f"{_remedy(p)}."
    )


def _remedy(p: Plan) -> str:
    """What would work, in words."""
    ways = [words for _, words in remedies(p)]
    return "; or ".join(ways) or "no shorter length and no more ranks would start it; choose a larger chip"
