"""A plan of any engine: what was asked, what the engine makes of it, its ledger, its pool, the verdict, its words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib.metadata import entry_points
from typing import Any, Self

from capplan.engines import rules_of
from capplan.engines.base import Finding, Line, Resolved, Row, Rules
from capplan.engines.frame import Held
from capplan.engines.release import Engine
from capplan.ledger import Ledger
from capplan.model import Model
from capplan.registry import Datum
from capplan.settings.deployment import Deployment
from capplan.units import Count, Share, at_least, is_array, ratio, whole_product

DISPLAY = "capplan.display"
"""Entry points by which the views offer to show a plan in a notebook, each named by its media type."""


NOTHING = Ledger()


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """What a plan is made from: the model, the deployment, its engine and rules, where it runs; how to ask again."""

    model: Model | None
    asked: Deployment
    engine: Engine
    rules: Rules
    place: Any
    again: Callable[[Deployment], Any]
    resolve_again: Callable[[Deployment], Resolved]


@dataclass(frozen=True, kw_only=True, slots=True)
class RankWeights:
    """The weights of ranks that are alike: stage, how many, layers, bytes, and classes of tensors by sub-line."""

    stage: int
    count: int
    n_layers: int
    bytes: int
    loaded_bytes: int | None
    lines: tuple[tuple[str, int, tuple[Held, ...]], ...]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False, repr=False)
class Plan:
    """What a model, deployed this way, occupies, and whether it starts; figures are of one rank, the tightest.

    Figures are None where what they rest on is missing.  `verdict` is a word, or for many configurations an int8
    array of places in `VERDICTS`.  `ledger` has every line of the rank by name; `at` asks again with other settings.
    """

    model: Model | None
    asked: Deployment
    resolved: Deployment
    engine: Engine
    verdict: Any
    refused: tuple[Finding, ...]
    assumed: tuple[Finding, ...]
    overridden: tuple[Finding, ...]
    data: tuple[Datum, ...]
    ledger: Ledger = NOTHING
    kv_block_bytes: Count | None = None
    kv_blocks: Count | None = None
    kv_request_blocks: Count | None = None
    kv_cache_tokens: Count | None = None
    max_concurrency: Share | None = None
    estimated_max_model_len: Count | None = None
    ignored_flags: tuple[str, ...] = ()
    again: Callable[[Deployment], Any] = field(kw_only=True)
    resolve_again: Callable[[Deployment], Resolved] = field(kw_only=True)

    # Asked again

    def at(self, **settings: Any) -> Self:
        """The plan with other values of some settings, None for not said; of an array, a plan for many.

        Raises Refused as `plan` does.
        """
        found: Self = self.again(replace(self.asked, **settings))
        return found

    def resolve_at(self, **settings: Any) -> Resolved:
        """What the engine refuses, supplies and changes at other values of some settings; nothing is planned."""
        return self.resolve_again(replace(self.asked, **settings))

    # The ledger

    @property
    def rules(self) -> Rules:
        """What the engine's package answers."""
        return rules_of(self.engine.rules)

    @property
    def rows(self) -> dict[str, Row]:
        """How each line of the ledger is shown."""
        return dict(self.rules.rows)

    @property
    def lines(self) -> tuple[Line, ...]:
        """The lines that are charged."""
        return self.ledger.of("charged")

    @property
    def beside(self) -> tuple[Line, ...]:
        """What is held and no budget sees."""
        return self.ledger.of("beside")

    @property
    def weights_bytes(self) -> Count | None:
        """A rank's tensors after loading."""
        return self.ledger.bytes_of("weights")

    @property
    def kv_budget_bytes(self) -> Count | None:
        """What the cache gets."""
        return self.ledger.bytes_of("kv_budget")

    @property
    def weights_by_rank(self) -> tuple[RankWeights, ...]:
        """The weights of each distinct rank, down to classes of tensors."""
        raise NotImplementedError

    # The pool

    def with_capacity(self, blocks: Count, need: Count, longest: Count, **more: Any) -> Self:
        """The plan with what a pool of some blocks holds, as the engine prints it.

        need     blocks of one request of max_model_len
        longest  the longest length that the pool takes
        more     what else the plan gets
        """
        length = self.resolved.max_model_len
        if length is None:
            raise ValueError("capacity needs a length")
        # A refused length of 0 among many needs no blocks; its figures mean nothing, and must not warn.
        concurrency = ratio(blocks, at_least(need, 1))
        return replace(
            self,
            kv_blocks=blocks,
            kv_request_blocks=need,
            kv_cache_tokens=whole_product(concurrency, length),
            max_concurrency=concurrency,
            estimated_max_model_len=longest,
            **more,
        )

    def requests_that_fit(self, tokens: Count) -> Count:
        """Requests of one length whose blocks the pool holds beside its null block."""
        raise NotImplementedError

    @property
    def holds_load(self) -> bool | None:
        """Whether the stated load fits at once: `requests` of `tokens`; None where no load is stated."""
        tokens, requests = self.resolved.tokens, self.asked.requests
        if requests is None or tokens is None or self.kv_blocks is None or is_array(self.kv_blocks):
            return None
        return bool(self.requests_that_fit(tokens) >= requests)

    # What to say

    @property
    def place(self) -> str:
        """Where it runs, in words, such as `4 x H100 SXM 80 GB`."""
        raise NotImplementedError

    @property
    def named(self) -> str:
        """What is deployed, in words."""
        raise NotImplementedError

    @property
    def question(self) -> str:
        """What was asked, in words."""
        asked, length = f"{self.named} on {self.place}", self.resolved.max_model_len
        return asked if length is None or is_array(length) else f"{asked}, requests up to {length:,} tokens"

    @property
    def sentence(self) -> str:
        """What was asked, what there is, by how much, and what would work."""
        raise NotImplementedError

    @property
    def sources(self) -> tuple[Datum, ...]:
        """Every registry number in scope, once."""
        seen: dict[tuple[str, str], Datum] = {}
        for datum in (*self.data, *(d for line in self.ledger.lines for d in line.data)):
            seen.setdefault((datum.file, datum.key), datum)
        return tuple(seen.values())

    @property
    def evidence(self) -> dict[str, int]:
        """How many registry numbers are in scope, and how many of them were obtained in each way."""
        sources = self.sources
        return {"numbers": len(sources), **Counter(datum.method for datum in sources)}

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain values under the public names, for JSON; one configuration at a time."""
        raise NotImplementedError

    def __repr__(self) -> str:
        if is_array(self.verdict):
            return f"a plan of {len(self.verdict):,} configurations: {self.question}"
        return f"{self.verdict}: {self.question}"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        if is_array(self.verdict):
            return {"text/plain": repr(self)}
        shown = {view.name: str(view.load()(self)) for view in entry_points(group=DISPLAY)}
        return shown or {"text/plain": repr(self)}
