"""What one distinct rank of GPUs holds, and the cache that its budget gives: graph, laws and policy meet here."""

from __future__ import annotations

from dataclasses import dataclass, replace

from capplan.engines.base import Line, Rules
from capplan.engines.frame import WEIGHT_LINES, Budget, Held, Rank, Setting
from capplan.engines.pool import Group
from capplan.laws import kv_cache
from capplan.ledger import Ledger, at_points, fixed_line
from capplan.model import Guess
from capplan.registry import Refused
from capplan.units import Count, Flag, at_least, both, ceil_div, choose, is_array, some

MOST_BYTES = (1 << 62) - 1
"""What an array of bytes may come to, with room for what is added to it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankPlan:
    """What one distinct rank holds, and the cache that its budget gives.

    `claimed_bytes` is where the engine's claim on the device ends.  By how much it falls short: `short_bytes` of
    the lines before the cache, `lacking_bytes` of the cache for one request and the null block,
    `over_device_bytes` of the device for the claim and what is held before it; each 0 where it does not.
    `starts` tells whether the engine would start it at the centre of every band, `starts_at_worst` at the far
    end, `starts_at_best` at the near end; `context_fits` whether budget and what is held before it fit the device.
    """

    stage: int
    count: int
    n_layers: int
    ledger: Ledger
    claimed_bytes: Count
    short_bytes: Count
    lacking_bytes: Count
    over_device_bytes: Count
    kv_block_bytes: Count
    kv_blocks: Count
    groups: tuple[Group, ...]
    held: tuple[Held, ...]
    starts: Flag
    starts_at_worst: Flag
    starts_at_best: Flag
    context_fits: Flag

    @property
    def lines(self) -> tuple[Line, ...]:
        """The lines that are charged."""
        return self.ledger.of("charged")

    @property
    def fixed_bytes(self) -> Count:
        """The charged lines together."""
        return self.ledger["fixed"].bytes

    @property
    def fixed_low_bytes(self) -> Count:
        """The charged lines at the near end of their bands."""
        return self.ledger["fixed"].low

    @property
    def fixed_high_bytes(self) -> Count:
        """The charged lines at the far end of their bands."""
        return self.ledger["fixed"].high

    @property
    def kv_budget_bytes(self) -> Count:
        """What the cache gets."""
        return self.ledger["kv_budget"].bytes

    @property
    def kv_budget_low_bytes(self) -> Count:
        """What the cache gets where every other line lies at its far end."""
        return self.ledger["kv_budget"].low

    @property
    def kv_budget_high_bytes(self) -> Count:
        """What the cache gets where every other line lies at its near end."""
        return self.ledger["kv_budget"].high

    @property
    def pre_snapshot(self) -> Line:
        """What is held before the engine looks at free memory."""
        return self.ledger["pre_snapshot"]

    @property
    def requested_bytes(self) -> Count | None:
        """What the engine claims; None where the cache was stated instead."""
        return self.ledger.bytes_of("requested")

    @property
    def load_bytes(self) -> Count:
        """Weights with the allocator's rounding."""
        return self.bytes_of("weights") + self.bytes_of("allocator_rounding")

    def by_line(self) -> tuple[tuple[str, int, tuple[Held, ...]], ...]:
        """The weights' sub-lines in order: name, bytes, and the classes of tensors in it."""
        return by_line(self.held)

    def bytes_of(self, name: str) -> Count:
        """Bytes of one line by its name."""
        return self.ledger[name].bytes


def by_line(held: tuple[Held, ...]) -> tuple[tuple[str, int, tuple[Held, ...]], ...]:
    """Classes of tensors under their sub-lines in order: name, bytes, classes."""
    found = []
    for line in dict.fromkeys((*WEIGHT_LINES, *(h.line for h in held))):
        own = tuple(h for h in held if h.line == line)
        if own:
            found.append((line, sum(h.bytes for h in own), own))
    return tuple(found)


def rank_plan(s: Setting, rank: Rank, rules: Rules) -> RankPlan:
    """The ledger of one distinct rank and the cache that its budget gives."""
    lines: tuple[Line, ...] = rules.lines(s, rank)
    guess = s.model.guess
    if guess is not None:
        guessed = ("weights", "eplb") if rank.replica_bytes else ("weights",)
        lines = tuple(_guessed(line, guess) if line.name in guessed else line for line in lines)
    held = Ledger((*lines, fixed_line(lines)))
    fixed, pre, device = held["fixed"], held["pre_snapshot"], s.chip.device_bytes
    override = s.d.num_gpu_blocks_override
    stated = None if override is None else override * _countable(rank.block_bytes, override)
    ends = {
        "value": (device.value, fixed.bytes, pre.bytes),
        "high": (device.low, fixed.high, pre.high),
        "low": (device.high, fixed.low, pre.low),
    }

    def policy(point: str) -> Budget:
        size, spent, before = ends[point]
        found: Budget = rules.budget(s.d, device_bytes=size, fixed=spent, before=before, pool=stated)
        return found

    centre, worst, best = at_points(policy)
    needed = rank.block_bytes * (s.request_blocks + 1)
    claimed = fixed.bytes + centre.cache if centre.requested is None else centre.requested
    blocks = kv_cache.whole_blocks(budget_bytes=centre.cache, block_bytes=rank.block_bytes)
    if override is not None and stated is not None:
        blocks, claimed = override + 0 * blocks, at_least(claimed, fixed.bytes + stated)
    return RankPlan(
        stage=rank.stage,
        count=rank.count,
        n_layers=rank.n_layers,
        ledger=Ledger((*held.lines, *_results(centre, worst, best))),
        claimed_bytes=claimed,
        short_bytes=0 if centre.requested is None else at_least(fixed.bytes - centre.requested, 0),
        lacking_bytes=at_least(needed - centre.pool, 0),
        over_device_bytes=at_least(claimed + pre.bytes - device.value, 0),
        kv_block_bytes=rank.block_bytes,
        kv_blocks=blocks,
        groups=rank.groups,
        held=rules.held(s, rank),
        starts=both(centre.pool >= needed, centre.fits),
        starts_at_worst=both(worst.pool >= needed, worst.fits),
        starts_at_best=both(best.pool >= needed, best.fits),
        context_fits=centre.fits,
    )


def _countable(block_bytes: int, blocks: Count) -> int:
    """The bytes of a block, once an array of blocks holds that many times as many.

    Raises Refused for blocks whose bytes would wrap.
    """
    if is_array(blocks) and some(blocks > MOST_BYTES // max(block_bytes, 1)):
        raise Refused(
            f"num_gpu_blocks_override has more than {MOST_BYTES // block_bytes:,} blocks of {block_bytes:,} bytes, "
            "which int64 does not count; ask for fewer, or for one configuration at a time"
        )
    return block_bytes


def _results(centre: Budget, worst: Budget, best: Budget) -> tuple[Line, ...]:
    """The claim and the cache as lines: the cache's low end is what the far end of everything else leaves."""
    cache = Line(
        name="kv_budget",
        bytes=centre.cache,
        low=worst.cache,
        high=best.cache,
        kind="derived",
        law="what the claim leaves" if centre.requested is not None else "as stated",
        note="what the cache gets",
        role="result",
    )
    if centre.requested is None or worst.requested is None or best.requested is None:
        return (cache,)
    claim = Line(
        name="requested",
        bytes=centre.requested,
        low=worst.requested,
        high=best.requested,
        kind="derived",
        law="the device times gpu_memory_utilization, rounded up",
        note="what the engine claims",
        role="limit",
    )
    return claim, cache


def _guessed(line: Line, guess: Guess) -> Line:
    """A line with the band of a model that is not known whole."""
    percent = guess.weights_percent
    return replace(
        line,
        low=line.low * percent.low // 100,
        high=ceil_div(line.high * percent.high, 100),
        kind="estimated",
        note=f"{line.note}; a guess: its class is not known whole",
        data=(*line.data, percent),
    )


def tightest(ranks: list[RankPlan]) -> RankPlan:
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


FIGURES = (
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
        for x, y in zip(a.ledger.lines, b.ledger.lines, strict=True)
    )
    figures = {name: choose(where, getattr(b, name), getattr(a, name)) for name in FIGURES}
    return replace(a, ledger=Ledger(lines), **figures)
