"""The registry: one TOML file a thing, each number with where it came from."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar, cast

T = TypeVar("T")

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

    def __init__(
        self, file: str, data: Mapping[str, Any], path: str = "", origins: Mapping[str, str] | None = None
    ) -> None:
        self.file = file
        self.path = path
        self._data = data
        self._origins = origins or {}
        self._read: set[str] = set()

    def _name(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key

    def _stands(self, key: str) -> str:
        """The file in which a key stands: of a table merged out of several, the one that states it."""
        return self._origins.get(self._name(key), self.file)

    def fail(self, key: str, says: str) -> RegistryError:
        """The error for a key of this table."""
        file = self._stands(key)
        return RegistryError(f"{file if file.startswith('/') else f'registry/{file}'}: {self._name(key)} {says}")

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
        if not isinstance(value, dict):
            return value
        return Table(self._stands(key), value, self._name(key), self._origins)

    def rows(self, key: str) -> dict[str, Table]:
        """The tables inside a table, each by its name; none where the key is not there."""
        table = self.table(key, None)
        found = {name: table.table(name) for name in table} if table is not None else {}
        return found

    def texts(self, key: str) -> dict[str, str]:
        """A table of texts, empty where the key is not there."""
        table = self.table(key, None)
        return {word: table.text(word) for word in table} if table is not None else {}

    def numbers(self, key: str) -> tuple[int, ...]:
        """A list of whole numbers, empty where the key is not there."""
        value = self.get(key, list, "a list of whole numbers", [])
        if not all(type(v) is int for v in value):
            raise self.fail(key, f"is {value!r}; it must be a list of whole numbers")
        return tuple(value)

    def tables(self, key: str, default: Any = ...) -> Any:
        """A list of tables."""
        value = self.get(key, list, "a list of tables", default)
        if not all(isinstance(v, dict) for v in value):
            raise self.fail(key, f"is {value!r}; it must be a list of tables")
        file = self._stands(key)
        return [Table(file, v, f"{self._name(key)}[{i}]", self._origins) for i, v in enumerate(value)]

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
        low, high = table.raw("low", value), table.raw("high", value)
        for name, bound in (("low", low), ("high", high)):
            if isinstance(value, bool | str):
                continue
            if isinstance(bound, bool) or not isinstance(bound, int | float):
                raise table.fail(name, f"is {bound!r}; it must be a number")
        found = table.stated(value, low=low, high=high)
        if not isinstance(value, bool | str) and not low <= value <= high:
            raise table.fail("low", f"{low!r}, value {value!r} and high {high!r} must not fall")
        table.done()
        return found

    def stated(self, value: Any, *, what: str = "number", listed: bool = True, **more: Any) -> Datum:
        """What this table states, with the method and the origin that stand beside it.

        what    what it states, for an error
        listed  whether the source must be one of sources.toml
        more    fields of the datum that are others than the value's and the table's
        """
        method = self.word("method", tuple(METHODS))
        source, where, why = self.text("source", None), self.text("where", None), self.text("why", None)
        if source is None and why is None:
            raise self.fail("source", f"is missing; a {what} needs source and where, or why")
        if source is not None and where is None and listed:
            raise self.fail("where", "is missing; a source needs the page, line or command in it")
        if source is not None and listed and source not in sources():
            raise self.fail(
                "source", f"is {source!r}, which sources.toml does not list; {closest(source, list(sources()))}"
            )
        if method == "assumed" and why is None and listed:
            raise self.fail("why", f"is missing; an assumed {what} says why and what would replace it")
        fields = {"key": self.path, "file": self.file, "value": value, "low": value, "high": value, **more}
        return Datum(method=method, source=source, where=where, why=why, **fields)

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
    return tuple(_files(kind))


@lru_cache(maxsize=16)
def _files(kind: str) -> dict[str, str]:
    """The file of each thing of a kind; releases may stand in a folder: vllm/0.33.0.toml is vllm-0.33.0."""
    folder = registry_dir() / kind
    found = {path.stem.replace("__", "/"): f"{kind}/{path.name}" for path in folder.glob("*.toml")}
    for path in folder.glob("*/[0-9]*.toml"):
        found[f"{path.parent.name}-{path.stem}"] = f"{kind}/{path.parent.name}/{path.name}"
    return dict(sorted(found.items()))


def file_of(kind: str, name: str) -> str:
    """The file of one thing, below the registry's folder."""
    return _files(kind).get(name, f"{kind}/{name.replace('/', '__')}.toml")


def load(kind: str, name: str) -> dict[str, Any]:
    """What the file of one thing says, with what it takes from another (`like`).

    Raises RegistryError where there is none, or where it is no TOML.
    """
    return _whole(kind, file_of(kind, name))[0]


def open_table(kind: str, name: str) -> Table:
    """One thing's file, to be read whole."""
    file = file_of(kind, name)
    data, origins = _whole(kind, file)
    table = Table(file, data, origins=origins)
    if table.text("name") != name:
        raise table.fail("name", f"must be {name!r}, as the file is called")
    return table


def _parse(file: str) -> dict[str, Any]:
    path = registry_dir() / file
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
        return dict(spelled(found)) if file.startswith("models/") else found
    except FileNotFoundError:
        raise RegistryError(f"registry/{file} does not exist") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RegistryError(f"registry/{file} is not TOML: {error}") from None


def spelled(value: Any) -> Any:
    """What a model's file says, each list of names and each name written out: `a{b,c}` and `layers.{0..2,8..16..4}`.

    >>> spelled({"ignore": ["layers.{0..2,5}.{up,down}", "head"]})["ignore"][3:]
    ['layers.1.down', 'layers.2.up', 'layers.2.down', 'layers.5.up', 'layers.5.down', 'head']
    """
    if isinstance(value, dict):
        return {name: spelled(inner) for key, inner in value.items() for name in _names(key)}
    if isinstance(value, list):
        return [name for v in value for name in (_names(v) if isinstance(v, str) else [spelled(v)])]
    return value


def _names(text: str) -> list[str]:
    before, brace, rest = text.partition("{")
    inner, closed, after = rest.partition("}")
    if not brace or not closed:
        return [text]
    words: list[str] = []
    for word in inner.split(","):
        ends = word.split("..")
        if len(ends) in (2, 3) and all(end.isdigit() for end in ends):
            first, last, step = (*map(int, ends), 1)[:3]
            words += map(str, range(first, last + 1, step or 1))
        else:
            words.append(word)
    return [f"{before}{word}{tail}" for word in words for tail in _names(after)]


# A file of differences

DATA = ("defaults", "constants", "estimates", "behaviours")
"""Tables of data: what one says of `method`, `source`, `where` or `class` holds for each datum that says no method."""

SHARED = ("backends", "experts_kernels", "layouts", "flags")
"""Tables that may be a text: the name of the file that several share."""

Origins = dict[str, str]
"""The file of each key, by its path, that stands in another file than the table round it."""


@lru_cache(maxsize=256)
def _whole(kind: str, file: str, above: tuple[str, ...] = ()) -> tuple[dict[str, Any], Origins]:
    """A file's table, merged into those that it is like, and what of it stands elsewhere.

    A file, or one of its tables, says `like = "<other>"`, and then only what differs: a datum whole, a table key by
    key, a row, which is a table by name, likewise. A new row may stand `before` another; `without` lists what is left
    out; a list of words becomes another by a table of words that it is `with` and `without`.
    """
    if file in above:
        raise RegistryError(f"registry/{file}: like leads back to this file, over {', '.join(above)}")
    data, origins = _parse(file), Origins()
    for key in DATA:
        if isinstance(data.get(key), dict):
            data[key] = _spread(data[key])

    def base(other: Any, key: str) -> tuple[dict[str, Any], Origins, str]:
        wanted = f"{kind}/{other}.toml" if "/" in str(other) else file_of(kind, str(other))
        if not (registry_dir() / wanted).is_file():
            parts = (registry_dir() / kind).glob("*/*.toml")
            known = [*names(kind), *(f"{part.parent.name}/{part.stem}" for part in parts)]
            raise RegistryError(f"registry/{file}: {key} is {other!r}; {closest(str(other), known)}")
        found, theirs = _whole(kind, wanted, (*above, file))
        return found, dict(theirs), wanted

    replaced = set()
    for key, value in data.items():
        other = value.get("like") if isinstance(value, dict) else value if key in SHARED else None
        if isinstance(other, str):
            found, theirs, where = base(other, key)
            own = {k: v for k, v in value.items() if k != "like"} if isinstance(value, dict) else {}
            theirs = {path: stands for path, stands in theirs.items() if path.startswith(f"{key}.")}
            if not isinstance(found.get(key), dict):
                raise RegistryError(f"registry/{file}: {key} is {other!r}, a file that has no {key}")
            data[key] = _merged(found[key], own, key, (file, where), theirs)
            origins |= theirs
            replaced.add(key)
    if "like" not in data:
        return data, origins
    found, theirs, where = base(data["like"], "like")
    own = {key: value for key, value in data.items() if key != "like" and key not in replaced}
    whole = _merged(found, own, "", (file, where), theirs)
    kept = {path: stands for path, stands in theirs.items() if path.partition(".")[0] not in replaced}
    return whole | {key: data[key] for key in replaced}, kept | origins


def _spread(table: dict[str, Any]) -> dict[str, Any]:
    """A table of data in which each says its own origin; of a class, the key is the place."""
    shared = {key: table[key] for key in ("method", "source", "where") if isinstance(table.get(key), str)}
    of = table.get("class")
    if "method" not in shared:
        return table
    found = {}
    for key, value in table.items():
        if key in shared or key == "class":
            continue
        datum = value if isinstance(value, dict) else {"value": value}
        if "method" not in datum:
            place = {"where": f"{of}.{key}"} if isinstance(of, str) else {}
            datum = {**shared, **place, **datum} if "source" not in datum else {"method": shared["method"], **datum}
        found[key] = datum
    return found


def _merged(
    base: Mapping[str, Any], own: Mapping[str, Any], path: str, files: tuple[str, str], origins: Origins
) -> dict[str, Any]:
    """A table with the differences of another; `files` are the other's and its own, `origins` those of its keys."""
    file, theirs = files
    found = dict(base)

    def known(key: str, word: Any) -> Any:
        if word not in base:
            raise RegistryError(f"registry/{file}: {path}.{key} names {word!r}; {closest(str(word), list(base))}")
        return word

    for word in own.get("without", ()):
        del found[known("without", word)]
    for key, value in own.items():
        place = f"{path}.{key}" if path else key
        under = base.get(key)
        if key == "without":
            continue
        if isinstance(value, dict) and isinstance(under, dict) and "value" not in under and "value" not in value:
            found[key] = _merged(under, value, place, (file, origins.pop(place, theirs)), origins)
            continue
        if isinstance(value, dict) and isinstance(under, list) and value.keys() <= {"with", "without"}:
            gone = value.get("without", [])
            if set(gone) - set(under):
                raise RegistryError(f"registry/{file}: {place}.without names what is not there: {', '.join(gone)}")
            value = [*(word for word in under if word not in gone), *value.get("with", [])]
        for stale in [p for p in origins if p == place or p.startswith(f"{place}.")]:
            del origins[stale]
        found[key] = value
        if isinstance(value, dict) and "before" in value:
            found[key] = {k: v for k, v in value.items() if k != "before"}
            after = list(base)[list(base).index(known(f"{key}.before", value["before"])) :]
            found |= {later: found.pop(later) for later in after if later in found and later != key}
    for key in base:
        if key not in own and key in found:
            origins.setdefault(f"{path}.{key}" if path else key, theirs)
    return found


# Records out of tables


def read_by(reader: Callable[[Table, str, Any], Any], default: Any = MISSING) -> Any:
    """A field of a record that a function reads: of the table, the key and the default (`...` where there is none)."""
    return (
        field(metadata={"reader": reader})
        if default is MISSING
        else field(default=default, metadata={"reader": reader})
    )


def one_of(*words: str, default: Any = MISSING) -> Any:
    """A field that is one of some words."""
    return read_by(lambda table, key, none: table.word(key, words, none), default)


READERS: dict[str, Callable[[Table, str, Any], Any]] = {
    "str": Table.text,
    "int": Table.count,
    "bool": Table.flag,
    "Datum": Table.datum,
    "tuple[str, ...]": Table.words,
    "tuple[int, ...]": lambda table, key, default: table.numbers(key),
    "Mapping[str, str]": lambda table, key, default: table.texts(key),
}
"""How a field is read out of a table, by its annotation; `| None` says that it may be left out."""


def read_fields(
    kind: type, table: Table, readers: Mapping[str, Any] | None = None, only: Sequence[str] | None = None
) -> dict[str, Any]:
    """Some fields of a record, or all, as a table has them: by their annotations, or as the field says itself."""
    found = {}
    known = {**READERS, **(readers or {})}
    for f in fields(kind):
        if only is None or f.name in only:
            read = f.metadata.get("reader") or known[str(f.type).removesuffix(" | None")]
            default = f.default if f.default is not MISSING else f.metadata.get("otherwise", ...)
            found[f.name] = read(table, f.name, default)
    return found


def read_record(kind: type[T], table: Table, readers: Mapping[str, Any] | None = None, **given: Any) -> T:
    """A record out of a table that holds nothing else; `given` are the fields that stand elsewhere.

    Raises RegistryError for a key that is missing, of another kind, or unknown.
    """
    found = read_fields(kind, table, readers, [f.name for f in fields(cast(Any, kind)) if f.name not in given])
    table.done()
    return kind(**given, **found)


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
    vendor: str = one_of("nvidia", "amd", "aws")
    device_name: str
    capability: tuple[int, int] | None
    device_bytes: Datum
    catalog_bytes: Datum
    multiprocessors: Datum | None = None
    aliases: tuple[str, ...] = ()

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
    capability = table.text("capability", None)
    if capability is not None:
        parts = capability.split(".")
        if len(parts) != 2 or not all(p.isdigit() for p in parts):
            raise table.fail("capability", f"is {capability!r}; it must be a compute capability such as '9.0'")
    return read_record(
        Chip,
        table,
        {"Datum": lambda table, key, default: _counted(table, key) if default is ... or key in table else default},
        capability=(int(parts[0]), int(parts[1])) if capability is not None else None,
    )
