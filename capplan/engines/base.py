"""What every engine says in the same words: findings, rules, lines of a ledger."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from capplan.registry import Datum
from capplan.units import Count, Flag, every, is_array, negate


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """What the engine does about one setting: refuse it, supply it, or change it.

    field    the setting
    asked    what was said, None where nothing was
    happens  what the engine does
    why      the reason
    source   where that is known from
    mask     for which of many configurations it holds; None for a single one
    stops    whether nothing can be computed beside it; what only the engine would stop at leaves the figures
    """

    field: str
    asked: Any
    happens: str
    why: str
    source: str
    mask: Flag | None = None
    stops: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """Something that an engine will not start with.

    `holds` tells for one configuration or for many whether the rule is kept; `says` is the sentence
    for one that breaks it: what was asked, what there is, what would work.
    """

    name: str
    field: str
    holds: Callable[[Any], Flag]
    says: Callable[[Any], str]
    source: str

    def finding(self, case: Any, asked: Any) -> Finding | None:
        """What is refused of a case, None where the rule is kept; for many configurations with the mask of the broken.

        asked  the deployment whose words the finding quotes
        """
        holds = self.holds(case)
        if every(holds):
            return None
        many = is_array(holds)
        return Finding(
            field=self.field,
            asked=getattr(asked, self.field, None),
            happens="refused",
            why=f"some of the configurations break the rule {self.name}" if many else self.says(case),
            source=self.source,
            mask=negate(holds) if many else None,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One line of the ledger: bytes and their band, how they are known, by which law, from which data."""

    name: str
    bytes: Count
    low: Count
    high: Count
    kind: str
    law: str
    note: str
    data: tuple[Datum, ...] = ()
    parts: tuple[tuple[str, Count], ...] = ()


def exact(name: str, size: Count, law: str, note: str, data: tuple[Datum, ...] = ()) -> Line:
    """A line without a band."""
    return Line(name=name, bytes=size, low=size, high=size, kind="exact", law=law, note=note, data=data)
