"""The registry: one TOML file a thing, each number with where it came from."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any

METHODS = {
    "code": "exact",
    "paper": "exact",
    "measured": "measured",
    "fitted": "estimated",
    "assumed": "assumed",
    "vendor": "assumed",
}
"""How a number was obtained, and the kind of the line that rests on it."""

KINDS = ("exact", "derived", "measured", "estimated", "assumed", "overridden")
"""The kinds of a ledger line, the surest first."""


class RegistryError(ValueError):
    """A registry file is missing or says something that it may not."""


class Refused(ValueError):
    """What was asked cannot be planned; the text says what was asked, what there is, what would work.

    code  a word for programs, where there is one
    """

    def __init__(self, says: str = "", code: str = "") -> None:
        super().__init__(says)
        self.code = code


def closest(asked: str, known: Sequence[str], *, n: int = 3) -> str:
    """A phrase that names the known words nearest to the one asked, for an error message.

    >>> closest("h100-sxn", ["h100-sxm", "l4", "t4"])
    'the closest is h100-sxm'
    """
    lower = {word.lower(): word for word in known}
    near = [lower[w] for w in get_close_matches(asked.lower(), lower, n=n, cutoff=0.45)]
    if not near:
        near = [word for word in known if asked.lower() in word.lower()][:n]
    if not near:
        return f"there are {', '.join(sorted(known)[:5])}{f' and {len(known) - 5} more' if len(known) > 5 else ''}"
    return f"the closest {'is' if len(near) == 1 else 'are'} {', '.join(near)}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Datum:
    """One number of the registry with its band, its method and where it came from."""

    key: str
    file: str
    value: Any
    low: Any
    high: Any
    method: str
    source: str | None
    where: str | None
    why: str | None

    @property
    def kind(self) -> str:
        """The kind of a ledger line that rests on this number alone."""
        return METHODS[self.method]

    def origin(self) -> str:
        """Where the number came from, in one line."""
        text = f"{self.source}, {self.where}" if self.source else str(self.why)
        return f"{text} ({self.why})" if self.source and self.why else text


class Table:
    """A TOML table that must be read whole: a key nobody asks for is an error."""

    def __init__(self, file: str, data: Mapping[str, Any], path: str = "") -> None:
        self.file = file
        self.path = path
        self._data = data
        self._read: set[str] = set()

    def _name(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key

    def fail(self, key: str, says: str) -> RegistryError:
        """The error for a key of this table."""
        file = self.file if self.file.startswith("/") else f"registry/{self.file}"
        return RegistryError(f"{file}: {self._name(key)} {says}")

    def __contains__(self, key: str) -> bool:
        return key in self._data

    def __iter__(self) -> Iterator[str]:
        """The keys of the table, in the file's order."""
        return iter(tuple(self._data))

    def get(self, key: str, kind: type | tuple[type, ...], allowed: str, default: Any = ...) -> Any:
        """The value of a key, which must be of a kind; `allowed` says in words what may stand there."""
        self._read.add(key)
        if key not in self._data:
            if default is ...:
                raise self.fail(key, f"is missing; it must be {allowed}")
            return default
        value = self._data[key]
        kinds = kind if isinstance(kind, tuple) else (kind,)
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise self.fail(key, f"is {value!r}; it must be {allowed}")
        return value

    def text(self, key: str, default: Any = ...) -> Any:
        """A string."""
        return self.get(key, str, "a text", default)

    def word(self, key: str, allowed: Sequence[str], default: Any = ...) -> Any:
        """A string out of a list."""
        value = self.get(key, str, f"one of {', '.join(allowed)}", default)
        if value is not default and value not in allowed:
            raise self.fail(key, f"is {value!r}; it must be one of {', '.join(allowed)}")
        return value

    def flag(self, key: str, default: Any = ...) -> Any:
        """true or false."""
        return self.get(key, bool, "true or false", default)

    def count(self, key: str, default: Any = ...) -> Any:
        """A whole number, zero or more."""
        value = self.get(key, int, "a whole number, zero or more", default)
        if value is not default and value < 0:
            raise self.fail(key, f"is {value!r}; it must be a whole number, zero or more")
        return value

    def words(self, key: str, default: Any = ...) -> Any:
        """A list of strings."""
        value = self.get(key, list, "a list of texts", default)
        if value is not default:
            if not all(isinstance(v, str) for v in value):
                raise self.fail(key, f"is {value!r}; it must be a list of texts")
            return tuple(value)
        return value

    def table(self, key: str, default: Any = ...) -> Any:
        """A table inside this one."""
        value = self.get(key, dict, "a table", default)
        return Table(self.file, value, self._name(key)) if isinstance(value, dict) else value

    def tables(self, key: str, default: Any = ...) -> Any:
        """A list of tables."""
        value = self.get(key, list, "a list of tables", default)
        if not all(isinstance(v, dict) for v in value):
            raise self.fail(key, f"is {value!r}; it must be a list of tables")
        return [Table(self.file, v, f"{self._name(key)}[{i}]") for i, v in enumerate(value)]

    def raw(self, key: str, default: Any = ...) -> Any:
        """Anything TOML can say."""
        self._read.add(key)
        if key not in self._data and default is ...:
            raise self.fail(key, "is missing")
        return self._data.get(key, default)

    def datum(self, key: str, default: Any = ...) -> Any:
        """A number with method and origin, and a band where the file gives one."""
        if key not in self._data and default is not ...:
            self._read.add(key)
            return default
        table = self.table(key)
        value = table.raw("value")
        if not isinstance(value, int | float | bool | str):
            raise table.fail("value", f"is {value!r}; it must be a number, a text, true or false")
        method = table.word("method", tuple(METHODS))
        source, where, why = table.text("source", None), table.text("where", None), table.text("why", None)
        if source is None and why is None:
            raise table.fail("source", "is missing; a number needs source and where, or why")
        if source is not None and where is None:
            raise table.fail("where", "is missing; a source needs the page, line or command in it")
        if source is not None and source not in sources():
            raise table.fail(
                "source", f"is {source!r}, which sources.toml does not list; {closest(source, list(sources()))}"
            )
        if method == "assumed" and why is None:
            raise table.fail("why", "is missing; an assumed number says why and what would replace it")
        low, high = table.raw("low", value), table.raw("high", value)
        for name, bound in (("low", low), ("high", high)):
            if isinstance(value, bool | str):
                continue
            if isinstance(bound, bool) or not isinstance(bound, int | float):
                raise table.fail(name, f"is {bound!r}; it must be a number")
        if not isinstance(value, bool | str) and not low <= value <= high:
            raise table.fail("low", f"{low!r}, value {value!r} and high {high!r} must not fall")
        table.done()
        return Datum(
            key=table.path,
            file=self.file,
            value=value,
            low=low,
            high=high,
            method=method,
            source=source,
            where=where,
            why=why,
        )

    def done(self) -> None:
        """Refuse what nobody read."""
        unknown = [key for key in self._data if key not in self._read]
        if unknown:
            known = sorted(self._read)
            raise self.fail(unknown[0], f"is not a key that capplan knows here; {closest(unknown[0], known)}")


@lru_cache(maxsize=1)
def registry_dir() -> Path:
    """The folder of the registry: $CAPPLAN_REGISTRY, else the one in the wheel, else the checkout's."""
    named = os.environ.get("CAPPLAN_REGISTRY")
    here = Path(__file__).resolve().parent
    for folder in [Path(named)] if named else [here / "_registry", here.parent / "registry"]:
        if (folder / "sources.toml").is_file():
            return folder
    raise RegistryError(
        f"no registry at {named or here.parent / 'registry'}; install capplan again, "
        "or let CAPPLAN_REGISTRY name the folder"
    )


def names(kind: str) -> tuple[str, ...]:
    """The names of one kind of thing (chips, models, engines, families), in order."""
    return _names(kind)


@lru_cache(maxsize=16)
def _names(kind: str) -> tuple[str, ...]:
    folder = registry_dir() / kind
    return tuple(sorted(path.stem.replace("__", "/") for path in folder.glob("*.toml")))


@lru_cache(maxsize=256)
def load(kind: str, name: str) -> dict[str, Any]:
    """The parsed file of one thing.

    Raises RegistryError where there is none, or where it is no TOML.
    """
    file = f"{kind}/{name.replace('/', '__')}.toml"
    return _parse(file)


def _parse(file: str) -> dict[str, Any]:
    path = registry_dir() / file
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RegistryError(f"registry/{file} does not exist") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RegistryError(f"registry/{file} is not TOML: {error}") from None


def open_table(kind: str, name: str) -> Table:
    """One thing's file, to be read whole."""
    return Table(f"{kind}/{name.replace('/', '__')}.toml", load(kind, name))


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """Something the registry quotes."""

    key: str
    title: str
    kind: str
    note: str | None


@lru_cache(maxsize=1)
def sources() -> dict[str, Source]:
    """Everything the registry quotes, by key."""
    table = Table("sources.toml", _parse("sources.toml"))
    found = {}
    for key in table:
        entry = table.table(key)
        found[key] = Source(
            key=key,
            title=entry.text("title"),
            kind=entry.word("kind", ("code", "config", "datasheet", "documentation", "log", "paper", "survey")),
            note=entry.text("note", None),
        )
        entry.done()
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class Chip:
    """One device: what the driver reports of it, and what engines ask about it."""

    name: str
    title: str
    vendor: str
    device_name: str
    capability: tuple[int, int] | None
    device_bytes: Datum
    catalog_bytes: Datum
    multiprocessors: Datum | None
    aliases: tuple[str, ...]

    @property
    def generation(self) -> str:
        """The generation whose kernels it runs, such as sm90: from 9.0 on all parts of a major number are one.

        >>> load_chip("b300").generation, load_chip("l4").generation
        ('sm100', 'sm89')
        """
        if self.capability is None:
            return "none"
        major, minor = self.capability
        return f"sm{major}0" if major >= 9 else f"sm{major}{minor}"

    @property
    def nominal(self) -> bool:
        """Whether the size is the box's, for want of a driver's."""
        return self.device_bytes.method in ("assumed", "vendor")


def _counted(table: Table, key: str) -> Datum:
    """A datum that counts something: a whole number, 1 or more."""
    datum: Datum = table.datum(key)
    if isinstance(datum.value, bool) or not isinstance(datum.value, int) or datum.value < 1:
        raise table.fail(f"{key}.value", f"is {datum.value!r}; it must be a whole number, 1 or more")
    return datum


@lru_cache(maxsize=1)
def _chip_aliases() -> dict[str, str]:
    found: dict[str, str] = {}
    for name in names("chips"):
        for alias in (name, *open_table("chips", name).words("aliases", ())):
            if found.setdefault(alias.lower(), name) != name:
                raise RegistryError(
                    f"registry/chips/{name}.toml: aliases has {alias!r}, which {found[alias.lower()]} has too"
                )
    return found


@lru_cache(maxsize=64)
def load_chip(name: str) -> Chip:
    """A chip by its registry name or an alias.

    Raises Refused for an unknown one, with the closest known names; RegistryError for a bad file.
    """
    # The plain name needs no look into the other files.
    known = name if name in names("chips") else _chip_aliases().get(name.strip().lower())
    if known is None:
        raise Refused(f"there is no chip {name!r} in the registry; {closest(name, list(_chip_aliases()))}")
    table = open_table("chips", known)
    if table.text("name") != known:
        raise table.fail("name", f"must be {known!r}, as the file is called")
    capability = table.text("capability", None)
    if capability is not None:
        parts = capability.split(".")
        if len(parts) != 2 or not all(p.isdigit() for p in parts):
            raise table.fail("capability", f"is {capability!r}; it must be a compute capability such as '9.0'")
    chip = Chip(
        name=known,
        title=table.text("title"),
        vendor=table.word("vendor", ("nvidia", "amd", "aws")),
        device_name=table.text("device_name"),
        capability=(int(parts[0]), int(parts[1])) if capability is not None else None,
        device_bytes=_counted(table, "device_bytes"),
        catalog_bytes=_counted(table, "catalog_bytes"),
        multiprocessors=_counted(table, "multiprocessors") if "multiprocessors" in table else None,
        aliases=table.words("aliases", ()),
    )
    table.done()
    return chip
