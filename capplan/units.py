"""Counts, and the few operations in which every law is written.

A `Count` is a Python int, exact at any size, or an int64 array that holds one
count per configuration.  `+`, `-`, `*`, `//` and the functions below mean the
same for both, so each law has one body: it answers one question exactly or a
million in one call.

Where x is an expression, laws write ceil(x / d) as -(x // -d): numpy then reuses
x's own array, which it cannot once x is a function's argument.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import numpy.typing as npt

    Count: TypeAlias = int | npt.NDArray[Any]
    Share: TypeAlias = float | npt.NDArray[Any]
    Flag: TypeAlias = bool | npt.NDArray[Any]
else:
    # numpy is loaded only by those who ask with arrays: a command line that plans one configuration starts without it.
    Count = Share = Flag = Any

GIB = 1 << 30
MIB = 1 << 20
KIB = 1 << 10


def is_array(value: object) -> bool:
    """Whether a value holds one figure per configuration."""
    return hasattr(value, "dtype") and getattr(value, "ndim", 0) > 0


def ceil_div(n: Count, d: Count) -> Count:
    """The smallest integer q with q * d >= n.

    >>> ceil_div(17, 16)
    2
    """
    # The divisor is negated, not the dividend: of a million dividends that saves a pass.
    return -(n // -d)


def round_up(n: Count, step: Count) -> Count:
    """n, raised to a multiple of step.

    >>> round_up(17, 16)
    32
    """
    return -(n // -step) * step


def at_least(n: Count, low: Count) -> Count:
    """n, or low where n is smaller."""
    if isinstance(n, int) and isinstance(low, int):
        return n if n > low else low
    import numpy as np

    larger: Count = np.maximum(n, low)
    return larger


def at_most(n: Count, high: Count) -> Count:
    """n, or high where n is larger."""
    if isinstance(n, int) and isinstance(high, int):
        return n if n < high else high
    import numpy as np

    smaller: Count = np.minimum(n, high)
    return smaller


def ceil_share(n: Count, share: Share) -> Count:
    """ceil(n * share), rounded once in float64, as the engines do."""
    part: Any = n * share
    if not is_array(part):
        one: int = ceil(part)
        return one
    import numpy as np

    whole: Count = np.ceil(part).astype(np.int64)
    return whole


def ratio(n: Count, d: Count) -> Share:
    """n / d in float64: the one true division below the views, where an engine prints one."""
    part: Share = n / d
    return part


def whole_product(share: Share, n: Count) -> Count:
    """int(share * n), multiplied in float64 and then truncated, as the engines do."""
    part: Any = share * n
    if not is_array(part):
        return int(part)
    import numpy as np

    whole: Count = part.astype(np.int64)
    return whole


def choose(flag: Flag, yes: Any, no: Any) -> Any:
    """yes where flag holds, else no; for a rule that compares, never inside a law."""
    if not is_array(flag):
        return yes if flag else no
    import numpy as np

    return np.where(flag, yes, no)


def every(flag: Flag) -> bool:
    """Whether a flag holds for all configurations."""
    return bool(flag.all()) if is_array(flag) else bool(flag)  # type: ignore[union-attr]


def some(flag: Flag) -> bool:
    """Whether a flag holds for one configuration or more."""
    return bool(flag.any()) if is_array(flag) else bool(flag)  # type: ignore[union-attr]


def both(a: Flag, b: Flag) -> Flag:
    """a and b, for one configuration or for each of many."""
    return a & b


def either(a: Flag, b: Flag) -> Flag:
    """a or b, for one configuration or for each of many."""
    return a | b


def negate(a: Flag) -> Flag:
    """not a, for one configuration or for each of many."""
    return not a if isinstance(a, bool) else ~a


def show_bytes(n: Count) -> str:
    """n bytes as text for people.

    >>> show_bytes(66_571_993_088)
    '62.00 GiB'
    """
    return f"{n / GIB:.2f} GiB"
