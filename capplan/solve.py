"""What would change an answer: legal values, what makes a plan start, what holds more, curves; asked by `Plan.at`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from capplan.engines.base import Finding
from capplan.ledger import VERDICTS
from capplan.settings.deployment import SETTINGS
from capplan.units import is_array

STARTS = ("fits", "close")

SIZES = {
    "tensor_parallel_size": (1, 2, 4, 6, 8, 16),
    "pipeline_parallel_size": (1, 2, 4),
    "data_parallel_size": (1, 2, 4, 8),
    "decode_context_parallel_size": (1, 2, 4, 8),
}
"""Sizes to offer, by setting; a tensor parallel size that a model takes besides these, up to a node, is offered too."""

NODE = 8

MOST_RANKS = 64

MOST_CHANGES = 5

WORTH = 1.02
"""A change that holds less than two hundredths more is not worth a line."""

SAMPLES = 200
"""Points of a curve, beside those where something turns."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """Settings that would change an answer, the plan that is asked with them, what it costs or saves.

    now     the plan that would change
    cost    what it gives up or what it does, in words
    better  whether the answer is a better one, and not only a cheaper
    """

    now: Any
    settings: Mapping[str, Any]
    cost: str
    better: bool = True

    @property
    def plan(self) -> Any:
        """The plan with these settings."""
        return self.now.at(**self.settings)

    @property
    def gain(self) -> float:
        """Requests of full length that it holds beyond those of now."""
        return float((self.plan.max_concurrency or 0) - (self.now.max_concurrency or 0))


# Legal values


def supplied(p: Any, name: str) -> Finding | None:
    """What the engine supplies for a setting while it is not said."""
    default = SETTINGS[name].default if name in SETTINGS else None
    assumed = p.assumed if getattr(p.asked, name, None) == default else p.resolve_at(**{name: default}).assumed
    return next((finding for finding in assumed if finding.field == name), None)


def against(p: Any, name: str, value: Any) -> str | None:
    """The engine's reason against a value of a setting, None where it takes it."""
    settings = {name: value}
    if name == "tensor_parallel_size":
        # What divides ranks follows the ranks, so it is no reason against their number.
        settings["decode_context_parallel_size"] = 1
    return next((finding.why for finding in p.resolve_at(**settings).refused if finding.field == name), None)


def legal_sizes(p: Any, name: str) -> list[tuple[int, str | None]]:
    """The sizes to offer for a parallel setting, each with the engine's reason against it or None."""
    now = getattr(p.asked, name)
    offered = {*p.sizes_of(name), now}
    if name == "tensor_parallel_size":
        offered |= {size for size in range(1, NODE + 1) if against(p, name, size) is None}
    return [(size, against(p, name, size)) for size in sorted(offered)]


# What makes a plan start


@dataclass(frozen=True, kw_only=True, slots=True)
class Move:
    """A setting that a change made illegal, and where it went."""

    field: str
    before: Any
    after: Any
    why: str

    @property
    def says(self) -> str:
        """The move as a sentence."""
        went = "is left out" if self.after is None else f"moved from {_plain(self.before)} to {_plain(self.after)}"
        return f"{self.field} {went}: {self.why.partition(';')[0]}."


def settle(p: Any, *, kept: frozenset[str]) -> tuple[Any, list[Move]]:
    """The plan, after moving what a change made illegal to the nearest legal value, and the moves.

    kept  the settings that were just said: these are not moved, and a refusal of one stands
    """
    moves: list[Move] = []
    for _ in SETTINGS:
        move = next((move for finding in p.refused for move in _moves(p, finding, kept)), None)
        if move is None:
            break
        moves.append(move)
        p = p.at(**{move.field: move.after})
    return p, moves


def _moves(p: Any, finding: Finding, kept: frozenset[str]) -> Iterator[Move]:
    """Ways out of one refusal that leave what was just said alone."""
    asked, name = p.asked, finding.field
    if name not in SETTINGS:
        return
    pairs = {name: _nearest(p, name)}
    if name == "max_num_batched_tokens":
        pairs = {name: p.resolved.max_num_seqs, "max_num_seqs": p.resolved.max_num_batched_tokens}
    for field, after in pairs.items():
        before = getattr(asked, field)
        if field not in kept and before != SETTINGS[field].default and after != before and (after is None or after > 0):
            yield Move(field=field, before=before, after=after, why=finding.why)


def _nearest(p: Any, name: str) -> Any:
    """The legal value nearest to the one asked; None, not said, where values have no order."""
    if name == "max_model_len":
        return p.model.max_positions
    if name not in SIZES:
        return SETTINGS[name].default
    now = getattr(p.asked, name)
    sizes = sorted(range(1, MOST_RANKS + 1), key=lambda size: (abs(size - now), size))

    def taken(size: int) -> bool:
        return not any(finding.field == name for finding in p.resolve_at(**{name: size}).refused)

    return next((size for size in sizes if taken(size)), now)


def fewest_ranks(p: Any) -> Change | None:
    """The first of a plan's sizes of ranks with which it starts, None where none does."""
    for size in p.rank_sizes:
        settings = p.at_ranks(size)
        if p.resolve_at(**settings).stops:
            continue
        found = p.at(**settings)
        if found.verdict in STARTS and found.kv_budget_bytes is not None:
            return Change(now=p, settings=settings, cost=p.ranks_words(size, found))
    return None


def remedies(p: Any) -> Iterator[Change]:
    """Changes that would make one plan start, each with the settings that it changes and a phrase.

    A claim that leaves room or holds a request, the longest length that starts as it is, and the first legal number
    of ranks that starts.
    """
    if is_array(p.verdict) or p.verdict == "fits" or p.kv_budget_bytes is None:
        return
    for field, value, words in p.claims:
        yield Change(now=p, settings={field: value}, cost=words)
    longest = p.longest
    if longest is not None:
        yield Change(now=p, settings={"max_model_len": longest[0]}, cost=longest[1])
    ranks = fewest_ranks(p)
    if ranks is not None and ranks.settings["tensor_parallel_size"] != p.asked.tensor_parallel_size:
        yield ranks


# What would hold more


def changes(p: Any) -> list[Change]:
    """Other answers: the ones that start with the most certainty first, then by how many requests they hold."""
    found: dict[tuple[tuple[str, Any], ...], Change] = {}
    repairs = [{move.field: move.after} for finding in p.refused for move in _moves(p, finding, frozenset())]
    starts = [*repairs, *(change.settings for change in remedies(p))]
    for settings, cost in (*((settings, "") for settings in starts), *_tries(p)):
        key = tuple(sorted(settings.items()))
        then = p.at(**settings)
        if key in found or then.max_concurrency is None or then.verdict not in STARTS:
            continue
        holds = p.max_concurrency is None or then.max_concurrency > p.max_concurrency * WORTH
        better = _rank(then) < _rank(p) or (_rank(then) == _rank(p) and bool(holds))
        chips = then.asked.n_chips - p.asked.n_chips
        if better or chips < 0:
            found[key] = Change(now=p, settings=settings, cost=_chips(chips) or cost, better=better)

    def order(one: Change) -> tuple[bool, int, float]:
        return not one.better, _rank(one.plan), -float(one.plan.max_concurrency or 0)

    return sorted(found.values(), key=order)[:MOST_CHANGES]


def _rank(p: Any) -> int:
    return VERDICTS.index(p.verdict)


def _tries(p: Any) -> Iterator[tuple[Mapping[str, Any], str]]:
    asked = p.asked
    if asked.kv_cache_dtype in (None, "auto"):
        yield {"kv_cache_dtype": "fp8"}, "half the cache of a token"
    fewer = range(asked.tensor_parallel_size - 1, 0, -1)
    legal = (size for size in fewer if p.at(tensor_parallel_size=size).verdict in STARTS)
    if (size := next(legal, None)) is not None:
        yield {"tensor_parallel_size": size}, ""
    if p.model.experts is not None and not asked.enable_expert_parallel and asked.tensor_parallel_size > 1:
        yield {"enable_expert_parallel": True}, "whole experts on each rank"
    if not asked.enforce_eager:
        yield {"enforce_eager": True}, "no graphs, slower steps"
    if (p.resolved.max_num_seqs or 0) > 256:
        yield {"max_num_seqs": 256}, "a smaller sampler pass"


def _chips(more: int) -> str:
    if not more:
        return ""
    unit = "chip" if abs(more) == 1 else "chips"
    return f"{more} more {unit}" if more > 0 else f"saves {-more} {unit}"


def _plain(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


# Curves


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Curve:
    """What the cache gets over one setting, all else equal.

    field            the setting
    values           its values, float64, growing
    kv_budget_bytes  what the cache gets at each
    binding          which term of the budget decides at each
    minimum_bytes    below this a budget is refused
    now              its value in force, None where another policy is
    default          the value that keeps what the default policy gives; None for none
    turn             from here on something else decides, or the largest value that starts; None for none
    """

    field: str
    values: Any
    kv_budget_bytes: Any
    binding: Any
    minimum_bytes: int
    now: float | None
    default: float | None
    turn: float | None


def curve(
    p: Any,
    field: str,
    *,
    longest: float,
    now: float | None,
    default: float | None,
    turn: float | None,
    above_zero: bool = False,
) -> Curve | None:
    """What the cache gets over one setting up to a longest value, asked at every point and mark in one plan for many.

    above_zero  whether the setting takes no 0
    """
    import numpy as np

    spread = np.linspace(0.0, longest, SAMPLES + 1)
    marks = np.array([m for m in (now, default, turn) if m is not None], dtype=np.float64)
    values = np.unique(np.concatenate([spread, marks]))
    lowest = longest / SAMPLES / 10 if above_zero else 0.0
    values = values[(values >= lowest) & (values <= longest)]
    many = p.at(**{field: values})
    if many.kv_budget_bytes is None:
        return None
    return Curve(
        field=field,
        values=values,
        kv_budget_bytes=many.kv_budget_bytes,
        binding=np.broadcast_to(many.binding, values.shape),
        minimum_bytes=int(many.minimum_bytes),
        now=now,
        default=default,
        turn=turn,
    )
