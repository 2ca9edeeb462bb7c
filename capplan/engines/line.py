"""One line of a ledger, as every engine writes it."""

from __future__ import annotations

from dataclasses import dataclass

from capplan.registry import Datum
from capplan.units import Count


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
