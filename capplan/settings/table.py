"""One row a setting: its kind, bounds and words, who reads it, and how its value is read out of text or JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, TypeVar

from capplan.registry import Refused
from capplan.settings import environment
from capplan.units import is_array

T = TypeVar("T")

Kind = Literal["count", "flag", "share", "number", "text", "json"]

TYPES: Mapping[str, Any] = {
    "count": int,
    "flag": bool,
    "share": (int, float),
    "number": (int, float),
    "text": str,
    "json": str,
}
"""What a value of each kind is in Python; an array holds int64 of counts, float64 of shares and numbers."""

ACCEPTS = {
    "count": "a whole number such as 4",
    "flag": "true or false",
    "share": "a share in (0, 1] such as 0.9",
    "number": "a number such as 1.5",
    "text": "a text",
    "json": "a text",
}
"""What each kind takes, in words."""

ON_GPUS = ("vllm", "blis")
ON_NEURON = ("vllm_neuron",)
EVERYWHERE = (*ON_GPUS, *ON_NEURON)
"""Who may read a setting: the rules that an engine's file names."""

# The most that an array of a setting may hold. A Python int is exact at any size, int64 wraps in silence, so what a
# plan makes of each number must stay below 2**63: what one token or one request takes is below 2**27 bytes in every
# model, bytes are only added up, and a share meets a device's bytes. Where two settings meet, as blocks with a block's
# bytes, the plan looks at the product.
MOST_COUNTED = (1 << 36) - 1
MOST_BYTES = 1 << 56
MOST_GIB = MOST_BYTES >> 30
MOST_SHARE = 1 << 16

MOST = (1 << 63) - 1
"""The largest number that counts are kept in."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """One row: all that capplan knows of a setting but what it does to memory, which engines say.

    name      as in `Deployment`, and the engine's flag with underscores
    default   what stands where nothing is said
    kind      count, flag, share, number, text or json
    help      one line for `--help`
    unit      of a count or a number, where it has one: tokens, bytes, GiB
    short     short forms of the flag
    synonyms  other words that the engine takes for it
    words     the only texts that it takes, where there are few
    auto      what the word auto stands for, where a count takes it
    most      the most that an array of it may hold; None where it cannot be many at once
    read_by   the rules that read it
    flag      whether vLLM has a flag for it; capplan's own settings and Neuron's variables have none
    page      the group of the planner page, else of Neuron's, where its control stands; nothing where there is none
    variable  Neuron's environment variable that says the same
    """

    name: str = ""
    default: Any
    kind: Kind
    help: str
    unit: str = ""
    short: tuple[str, ...] = ()
    synonyms: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    auto: int | None = None
    most: int | None = None
    read_by: tuple[str, ...] = EVERYWHERE
    flag: bool = True
    page: str = ""
    variable: environment.Variable | None = None

    @property
    def many(self) -> bool:
        """Whether an array may say it for many configurations at once."""
        return self.most is not None

    @property
    def dashed(self) -> str:
        """The setting as a flag."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def accepts(self) -> str:
        """What it takes, in words."""
        return self.variable.accepts if self.variable and self.kind in ("share", "number") else ACCEPTS[self.kind]

    def read(self, raw: Any) -> Any:
        """The value out of text or JSON; arrays pass as they are.

        Raises Refused for a value of the wrong kind, with what would do.
        """
        if raw is None or (self.many and hasattr(raw, "dtype")):
            return raw
        match self.kind:
            case "count":
                return whole(self.name, raw, self.auto)
            case "flag":
                return truth(self.name, raw)
            case "share" | "number":
                return self._number(raw)
            case "json":
                return _canonical(self.name, raw)
        if not isinstance(raw, str):
            raise self._wrong(raw)
        if self.words and raw not in self.words:
            raise Refused(f"{self.name} is {raw!r}; there are {' and '.join(self.words)}")
        return raw.strip()

    def check(self, value: Any) -> int | None:
        """The length of an array, None for a single value.

        Raises Refused for a value that is not of the kind, with what would do.
        """
        if self.most is not None and is_array(value):
            return self._checked_array(value, self.most)
        kind = TYPES[self.kind]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            label = self.variable.label if self.variable else self.name
            raise Refused(f"{label} is {value!r}; it must be {self.accepts}")
        if self.kind == "count" or self.words or self.kind == "json":
            self.read(value)
        return None

    def check_beside(self, value: Any, most: int) -> None:
        """Raise Refused for a single number that is too large to be counted with beside many."""
        if value > most or value < -most:
            raise Refused(
                f"{self.name} is {value:,}, beyond the {most:,} that many at once are counted with; "
                "give a smaller number, or ask one by one"
            )

    def _checked_array(self, value: Any, most: int) -> int:
        wanted = "int64" if self.kind == "count" else "float64"
        if str(value.dtype) != wanted or value.ndim != 1:
            raise Refused(
                f"{self.name} is an array of {value.dtype} in {value.ndim} dimensions; it must be {wanted} in one"
            )
        # The second look is for NaN, which hides the largest and passes here: the engine's rules mask it.
        within = not len(value) or -most <= value.min() <= value.max() <= most
        if not within and ((value > most) | (value < -most)).any():
            raise Refused(
                f"{self.name} has numbers beyond {most:,}, with which int64 would not hold every figure; "
                "give smaller ones, or ask one by one"
            )
        return len(value)

    def _number(self, raw: Any) -> float:
        try:
            if not isinstance(raw, bool):
                return float(str(raw))
        except ValueError:
            pass
        raise self._wrong(raw)

    def _wrong(self, raw: Any) -> Refused:
        if self.variable and self.kind in ("share", "number"):
            return environment.wrong(self.variable, raw)
        return Refused(f"{self.name} is {raw!r}; it must be {self.accepts}")


def row(
    default: T,
    kind: Kind,
    help: str,
    *,
    unit: str = "",
    short: str = "",
    synonyms: tuple[str, ...] = (),
    words: tuple[str, ...] = (),
    auto: int | None = None,
    most: int | None = None,
    read_by: tuple[str, ...] = EVERYWHERE,
    flag: bool | None = None,
    page: str = "",
) -> T:
    """A dataclass field that carries its `Setting`; a flag is vLLM's wherever its rules read the setting."""
    setting = Setting(
        default=default,
        kind=kind,
        help=help,
        unit=unit,
        short=(short,) if short else (),
        synonyms=synonyms,
        words=words,
        auto=auto,
        most=most,
        read_by=read_by,
        flag="vllm" in read_by if flag is None else flag,
        page=page,
    )
    return field(default=default, metadata={"setting": setting})


def table(deployment: Any) -> dict[str, Setting]:
    """The settings of a dataclass of rows, by name."""
    return {
        f.name: replace(f.metadata["setting"], name=f.name, variable=environment.BY_FIELD.get(f.name))
        for f in fields(deployment)
    }


SUFFIXES = {
    "k": 1_000,
    "m": 1_000_000,
    "g": 1_000_000_000,
    "t": 1_000_000_000_000,
    "K": 1 << 10,
    "M": 1 << 20,
    "G": 1 << 30,
    "T": 1 << 40,
}
"""What the engine makes of 1k and 1K in a number that a person writes: decimal in lower case, binary in upper case."""


def whole(key: str, raw: Any, auto: int | None = None) -> int:
    """A whole number out of what a person or a JSON line says.

    >>> whole("max_model_len", "32K"), whole("max_model_len", "32_768"), whole("max_model_len", "1.5k")
    (32768, 32768, 1500)
    """
    found = raw if isinstance(raw, int) and not isinstance(raw, bool) else _whole(raw, auto)
    if found is None:
        raise Refused(f"{key} is {raw!r}; it must be a whole number such as 4, 32768 or 32K")
    if not -MOST <= found <= MOST:
        raise Refused(f"{key} is beyond {MOST:,}, more than any engine counts; give a smaller number")
    return found


def _whole(raw: Any, auto: int | None) -> int | None:
    """A number that is written as text; None where it is none."""
    text = "" if isinstance(raw, bool) else str(raw).strip().replace("_", "").replace(",", "")
    if text.lower() == "auto":
        return auto
    scale = SUFFIXES.get(text[-1:], 1)
    text = text[:-1] if text[-1:] in SUFFIXES else text
    try:
        return int(text) * scale
    except ValueError:
        pass
    try:
        exact = float(text) * scale
        # The engine cuts a decimal with a suffix down to a whole number; without one it takes none.
        return int(exact) if scale > 1 or exact == int(exact) else None
    except (ValueError, OverflowError):
        return None


def truth(key: str, raw: Any) -> bool:
    """true or false out of what a person or a JSON line says."""
    words = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
    if isinstance(raw, bool):
        return raw
    if str(raw).strip().lower() in words:
        return words[str(raw).strip().lower()]
    raise Refused(f"{key} is {raw!r}; it must be true or false")


def _canonical(key: str, raw: Any) -> str | None:
    """A JSON object in one spelling, so that a deployment can be compared and kept; None for an empty one."""
    if isinstance(raw, str):
        try:
            raw = json.loads(raw)
        except json.JSONDecodeError as error:
            raise Refused(f"{key} is not JSON ({error.msg} at character {error.pos + 1}): {raw!r}") from None
        except (ValueError, RecursionError):
            raise Refused(f"{key} is JSON that is nested too deep or holds a number too long to read") from None
    if not isinstance(raw, dict):
        raise Refused(f"{key} is {raw!r}; it must be a JSON object")
    return json.dumps(raw, sort_keys=True) if raw else None
