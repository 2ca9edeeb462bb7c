"""A plan on GPUs: the ledger of every distinct rank, the pool of the tightest, what a request holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from capplan.engines import pool
from capplan.engines.base import Finding, Resolved
from capplan.engines.declared import own_pages_finding
from capplan.engines.frame import Frame, Setting
from capplan.engines.pool import Group, Member
from capplan.laws import kv_cache, runtime
from capplan.ledger import Ledger, verdict
from capplan.model import Model
from capplan.plan import public, words
from capplan.plan.base import Plan, Question, RankWeights
from capplan.plan.rank import RankPlan, rank_plan, tightest
from capplan.policies import vllm_gpu
from capplan.registry import Chip, Refused
from capplan.settings.table import MOST_COUNTED
from capplan.solve import SIZES
from capplan.units import Count, Flag, at_least, at_most, both, ceil_div, is_array, some


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


@dataclass(frozen=True, kw_only=True, slots=True, eq=False, repr=False)
class GpuPlan(Plan):
    """What a model, deployed this way, occupies on its tightest rank, and whether it starts.

    `ranks` has each distinct rank once, the tightest first.  `weights_bytes` and the other lines' bytes are there
    under their public names too.  Where the weights are unknown there is no rank: the ledger has the lines that do
    not rest on them.
    """

    model: Model
    chip: Chip
    frame: Frame | None = None
    ranks: tuple[RankPlan, ...] = ()
    tightest: RankPlan | None = None
    in_flight_tokens: Count = 0

    # The ledger

    @property
    def device_bytes(self) -> int:
        """What the driver reports of the chip."""
        return int(self.chip.device_bytes.value)

    @property
    def requested_bytes(self) -> Count | None:
        """What the engine claims; None where the cache was stated instead."""
        return self.ledger.bytes_of("requested")

    @property
    def allocator_rounding_bytes(self) -> Count | None:
        """What the tensor allocator adds to the weights."""
        return self.ledger.bytes_of("allocator_rounding")

    @property
    def eplb_bytes(self) -> Count | None:
        """Replicas of experts."""
        return self.ledger.bytes_of("eplb")

    @property
    def engine_state_bytes(self) -> Count | None:
        """What the runner keeps before it profiles."""
        return self.ledger.bytes_of("engine_state")

    @property
    def activations_bytes(self) -> Count | None:
        """Peak of the profiling pass."""
        return self.ledger.bytes_of("activations")

    @property
    def non_torch_bytes(self) -> Count | None:
        """Growth outside the tensor allocator."""
        return self.ledger.bytes_of("non_torch")

    @property
    def cuda_graphs_bytes(self) -> Count | None:
        """The engine's estimate of its graphs."""
        return self.ledger.bytes_of("cuda_graphs")

    @property
    def communication_bytes(self) -> Count | None:
        """Communicators, where they are charged."""
        return self.ledger.bytes_of("communication")

    @property
    def fixed_bytes(self) -> Count | None:
        """The lines that are charged, together."""
        return self.ledger.bytes_of("fixed")

    @property
    def pre_snapshot_bytes(self) -> Count | None:
        """What is held before the engine looks at free memory."""
        return self.ledger.bytes_of("pre_snapshot")

    @property
    def kv_groups(self) -> tuple[Group, ...]:
        """The groups of the tightest rank."""
        if self.tightest is None:
            return self.frame.groups if self.frame is not None else ()
        return self.tightest.groups

    @property
    def model_load_bytes(self) -> Count | None:
        """Weights with the allocator's rounding: what the engine prints as taken by loading."""
        return None if self.tightest is None else self.tightest.load_bytes

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

    @property
    def weights_by_rank(self) -> tuple[RankWeights, ...]:
        """The weights of each distinct rank, down to classes of tensors."""
        return tuple(
            RankWeights(
                stage=rank.stage,
                count=rank.count,
                n_layers=rank.n_layers,
                bytes=int(rank.bytes_of("weights")),
                loaded_bytes=int(rank.load_bytes),
                lines=rank.by_line(),
            )
            for rank in self.ranks
        )

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
        if is_array(tokens) and some(tokens > MOST_COUNTED):
            raise Refused(f"tokens has lengths above {MOST_COUNTED:,}, whose bytes int64 does not hold; ask for less")
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

    # What the solver asks

    @property
    def claims(self) -> tuple[tuple[str, Any, str], ...]:
        """The utilization, or the cache bytes, that leave room at the far end for what is held before the budget."""
        rank = self.tightest
        if rank is None:
            return ()
        room = int(self.chip.device_bytes.low) - int(rank.pre_snapshot.high)
        leaves = "leaves room for what is held before it"
        if rank.requested_bytes is None:
            most = room - int(rank.fixed_high_bytes)
            if int(rank.kv_budget_bytes) <= most or most < 1:
                return ()
            return (("kv_cache_memory_bytes", most, f"kv_cache_memory_bytes {most:,} {leaves}"),)
        if int(rank.requested_bytes) <= room:
            return ()
        share = room * 100 // int(self.chip.device_bytes.low) / 100
        return (("gpu_memory_utilization", share, f"gpu_memory_utilization {share:.2f} {leaves}"),)

    @property
    def longest(self) -> tuple[int, str] | None:
        """The longest length that starts, as it is or for a close plan at the far end; None where that is no change."""
        rank, limit, close = self.tightest, self.resolved.max_model_len, self.verdict == "close"
        if rank is None or limit is None or not rank.context_fits:
            return None
        budget = rank.kv_budget_low_bytes if close else rank.kv_budget_bytes
        blocks = kv_cache.whole_blocks(budget_bytes=budget, block_bytes=rank.kv_block_bytes)
        if not close and self.kv_blocks is not None:
            blocks = at_most(blocks, self.kv_blocks)
        found = int(longest_length(self, blocks))
        sure = "fits at every far end" if close else "starts as it is"
        return (found, f"max_model_len {found:,} {sure}") if 0 < found < int(limit) else None

    @property
    def rank_sizes(self) -> range:
        """Tensor parallel sizes to try for a plan that does not start: more than there are, up to the heads."""
        return range(self.asked.tensor_parallel_size + 1, self.model.n_heads + 1)

    def at_ranks(self, size: int) -> dict[str, Any]:
        """The settings that ask for another number of ranks."""
        return {"tensor_parallel_size": size}

    def ranks_words(self, size: int, found: Plan) -> str:
        """How a number of ranks that starts is said."""
        word = "starts" if found.verdict == "fits" else "may start"
        return f"tensor_parallel_size {size} {word}, with {found.max_concurrency:.2f} requests of full length"

    def sizes_of(self, name: str) -> tuple[int, ...]:
        """Sizes to offer for a parallel setting."""
        return SIZES[name]

    # What to say

    @property
    def named(self) -> str:
        """What is deployed, in words."""
        return f"{self.model.short_name} in {self.resolved.dtype}"

    @property
    def place(self) -> str:
        """The chips in words, such as `4 x H100 SXM 80 GB`."""
        n = self.asked.n_chips
        return self.chip.title if n == 1 else f"{n} x {self.chip.title}"

    @property
    def chips(self) -> str:
        """The chips in words, as `place`."""
        return self.place

    @property
    def sentence(self) -> str:
        """What was asked, what there is, by how much, and what would work; and what was guessed of the model."""
        return words.gpu_sentence(self)

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain values under the public names, for JSON; one configuration at a time."""
        return public.gpu_dict(self)


def make(q: Question, r: Resolved) -> GpuPlan:
    """The plan of a resolved deployment."""
    model, chip, d = q.model, q.place, r.d
    if model is None:
        raise ValueError("a plan on GPUs needs a model")
    common: dict[str, Any] = {
        "model": model,
        "asked": q.asked,
        "resolved": d,
        "chip": chip,
        "engine": q.engine,
        "verdict": "refused",
        "refused": r.refused,
        "assumed": r.assumed,
        "overridden": r.overridden,
        "data": (*model.data, chip.device_bytes, *r.data),
        "again": q.again,
        "resolve_again": q.resolve_again,
    }
    length, seqs, tokens = d.max_model_len, d.max_num_seqs, d.max_num_batched_tokens
    if r.stops or length is None or seqs is None or tokens is None:
        return GpuPlan(**common)
    frame = q.rules.frame(model, d, chip, q.engine)
    if frame.why_not_shared:
        common["assumed"] = (*r.assumed, own_pages_finding(frame.why_not_shared))
    in_flight = runtime.in_flight_tokens(max_num_batched_tokens=tokens, n_batches=pool.n_batches(d))
    found = GpuPlan(**common, frame=frame, in_flight_tokens=in_flight, kv_block_bytes=frame.block_bytes)
    need = request_blocks(found, length)
    setting = Setting(
        model=model, d=d, chip=chip, engine=q.engine, frame=frame, request_blocks=need, seqs=seqs, tokens=tokens
    )
    if not frame.ranks:
        return _caches_only(found, setting)
    ranks = [rank_plan(setting, rank, q.rules) for rank in frame.ranks]
    most = tightest(ranks)
    fits = _all(rank.context_fits for rank in ranks)
    return found.with_capacity(
        most.kv_blocks,
        need,
        longest_length(found, most.kv_blocks),
        verdict=verdict(
            starts=_all(rank.starts for rank in ranks),
            worst=_all(rank.starts_at_worst for rank in ranks),
            best=both(_all(rank.starts_at_best for rank in ranks), fits),
            refused=r.refused,
        ),
        ranks=tuple(ranks),
        tightest=most,
        ledger=most.ledger,
        kv_block_bytes=most.kv_block_bytes,
    )


def request_blocks(p: GpuPlan, length: Count) -> Count:
    """Blocks of one request at admission; where caches share no pool, its bytes in blocks of the growing ones."""
    frame = p.frame
    if frame is None or frame.shared:
        return pool.request_blocks(() if frame is None else frame.groups, p.resolved, length, p.in_flight_tokens)
    return ceil_div(p.sequence_variable_bytes(length) + p.sequence_admission_bytes(length), frame.block_bytes)


def longest_length(p: GpuPlan, blocks: Count) -> Count:
    """The longest length that a pool of some blocks takes beside its null block."""
    frame = p._frame()
    if frame.shared or (len(frame.groups) == 1 and not frame.groups[0].bounded):
        return pool.longest_length(frame.groups, p.resolved, blocks, p.in_flight_tokens)
    return pool.longest_of(p.resolved, blocks, lambda length: request_blocks(p, length))


def _caches_only(p: GpuPlan, s: Setting) -> GpuPlan:
    """A plan of a model whose weights are unknown: its caches, its buffers, and a pool only where one is stated."""
    why = (
        f"the weights of {p.model.short_name} are unknown: its file states facts and caches and no shapes of them, so "
        "no budget follows; num_gpu_blocks_override or kv_cache_memory_bytes would size the pool"
    )
    finding = Finding(
        field="model", asked=p.model.name, happens="refused", why=why, source="registry, the model's file", stops=False
    )
    p = replace(p, refused=(*p.refused, finding), ledger=Ledger(p.rules.lines(s, None)))
    stated, blocks = s.d.kv_cache_memory_bytes, s.d.num_gpu_blocks_override
    if blocks is None and stated is not None:
        blocks = kv_cache.whole_blocks(budget_bytes=stated, block_bytes=p._block())
    if blocks is None:
        return replace(p, kv_request_blocks=s.request_blocks)
    return p.with_capacity(blocks, s.request_blocks, longest_length(p, blocks))


def _pool_blocks(p: GpuPlan) -> tuple[PoolBlock, ...]:
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
