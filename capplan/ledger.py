"""A ledger: lines found by name, the charged ones summed, the policy at three points of their bands, the verdict."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from capplan.engines.base import Finding, Line
from capplan.units import Count, Flag, both, choose, either, is_array

VERDICTS = ("fits", "close", "does-not-fit", "refused")
"""Verdicts; a plan for many gives their places in this list."""

B = TypeVar("B")


@dataclass(frozen=True, slots=True)
class Ledger:
    """The lines of one rank in the order in which the bytes are spent, each found by its name."""

    lines: tuple[Line, ...] = ()

    def get(self, name: str) -> Line | None:
        """The line of a name, None where there is none."""
        return next((line for line in self.lines if line.name == name), None)

    def __getitem__(self, name: str) -> Line:
        found = self.get(name)
        if found is None:
            raise KeyError(f"the ledger has no line {name!r}; there are {', '.join(line.name for line in self.lines)}")
        return found

    def of(self, role: str) -> tuple[Line, ...]:
        """The lines of one role: charged, beside, limit, result."""
        return tuple(line for line in self.lines if line.role == role)

    def bytes_of(self, name: str) -> Count | None:
        """Bytes of the line of a name, None where there is none."""
        line = self.get(name)
        return None if line is None else line.bytes


def fixed_line(lines: Iterable[Line]) -> Line:
    """The charged lines together, at the centre of every band and at both ends."""
    size: Count = 0
    low: Count = 0
    high: Count = 0
    for line in lines:
        if line.role == "charged":
            size, low, high = size + line.bytes, low + line.low, high + line.high
    return Line(
        name="fixed",
        bytes=size,
        low=low,
        high=high,
        kind="derived",
        law="the sum of what is charged",
        note="what the cache does not get",
        role="result",
    )


def at_points(policy: Callable[[str], B]) -> tuple[B, B, B]:
    """The policy at the centre of every band, at the far end and at the near end of all of them.

    policy  given `value`, `high` or `low`: the end of what is held; the device then stands at its other end
    """
    return policy("value"), policy("high"), policy("low")


def verdict(*, starts: Flag, worst: Flag, best: Flag, refused: Iterable[Finding]) -> Any:
    """A word, or for many configurations an int8 array of places in `VERDICTS`.

    fits where it starts at the centre and at the far end; close where only at one of them or at the near end
    """
    code = choose(both(starts, worst), 0, choose(either(starts, best), 1, 2))
    for finding in refused:
        code = choose(True if finding.mask is None else finding.mask, 3, code)
    return code.astype("int8") if is_array(code) else VERDICTS[code]
