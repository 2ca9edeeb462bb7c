"""Parts of layers and towers as registry data: what they store, in sizes that are formulas over config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from capplan.model.formulas import Formula, formula
from capplan.model.graph import DTYPE_BITS, EACH, EVERY, FIRST, LAST, SPLITS
from capplan.model.states import STATES
from capplan.registry import Table, closest, one_of, open_table, read_record

ONE, NONE = {"otherwise": "1"}, {"otherwise": "0"}
"""The formula that stands where a file leaves a field out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Size:
    """One extent as a formula, how ranks share it, and the formula of one unit of it."""

    size: Formula
    split: str
    unit: Formula | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One class of tensors of a part; its `bits` hold only beside quantizations of `wide_with`, where any is named."""

    name: str
    line: str
    rows: tuple[Size, ...]
    columns: Size | None = None
    copies: Formula = field(metadata=ONE)
    bits: int | None = None
    wide_with: tuple[str, ...] = ()
    quantized: bool = False
    layers: str = "own"
    place: str = one_of(EACH, FIRST, LAST, EVERY, default=EACH)
    module: str = ""
    packs: tuple[str, ...] = ()
    when: Formula | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class StateRow:
    """The recurrent state of a part's layers: its law, what that takes, its bits or the key that names its format.

    kind  what answers call it, where that is not the law's name
    """

    law: str
    kind: str | None = None
    sizes: Mapping[str, Formula]
    formats: tuple[str, ...]
    chunk: Formula
    checkpoints: int
    exports_on: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class BufferRow:
    """A buffer that follows the engine's step."""

    name: str
    bits: int | None = None
    count: Formula = field(metadata=ONE)
    per_token: Formula = field(metadata=NONE)
    per_sequence: Formula = field(metadata=NONE)
    beside: Formula = field(metadata=NONE)
    layers: str | None = None
    place: str = one_of(FIRST, LAST, EVERY, default=EVERY)
    wants: tuple[str, ...] = ()
    leads: bool = False
    when: Formula | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheRow:
    """A cache of a part's layers that is no plain attention's."""

    name: str
    spec: str
    kind: str = one_of("full", "sliding")
    layers: str = "own"
    block_size: Formula = field(metadata=NONE)
    entry_bytes: Formula
    tokens_per_entry: Formula = field(metadata=ONE)
    window: Formula = field(metadata=NONE)
    alignment: Formula = field(metadata=ONE)


@dataclass(frozen=True, kw_only=True, slots=True)
class RopeRow:
    """A rotary table beside those of plain attention."""

    name: str
    layers: str = "own"
    positions: Formula
    width: Formula
    bits: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """A kind of layer, a tower or the like: the names that its formulas use, and what it stores."""

    name: str
    names: Mapping[str, str]
    defaults: Mapping[str, Any]
    made: Mapping[str, Formula]
    words: Mapping[str, tuple[Any, ...]]
    rows: tuple[Row, ...]
    state: StateRow | None
    buffers: tuple[BufferRow, ...]
    caches: tuple[CacheRow, ...]
    ropes: tuple[RopeRow, ...]


OF = {"layers": ("hidden", "vocab", "heads", "kv_heads"), "tower": ("text_hidden", "text_layers")}
"""What a part may be of, and the sizes that its formulas may name beside its own."""


LAYERS = ("own", "latent", "indexed")
"""Some of a part's layers, in a word."""


class _Reader:
    """Reads the rows of one part, whose formulas may use some names and whose words some keys of config.json."""

    def __init__(self, names: tuple[str, ...], keys: tuple[str, ...], tower: bool) -> None:
        self.names, self.keys, self.tower = names, keys, tower
        self.by = {
            "Formula": self.formula,
            "Size": self.size,
            "tuple[Size, ...]": lambda t, key, none: tuple(self._size(text, t, key) for text in t.words(key, none)),
        }

    def formula(self, table: Table, key: str, default: Any) -> Formula | None:
        text = table.text(key, default)
        return self.one(text, table, key) if text is not None else None

    def one(self, text: str, table: Table, key: str) -> Formula:
        return formula(text, known=self.names, fails=lambda says: table.fail(key, says))

    def size(self, table: Table, key: str, default: Any) -> Size | None:
        text = table.text(key, default)
        return self._size(text, table, key) if text is not None else None

    def _size(self, text: str, table: Table, key: str) -> Size:
        size, _, split = text.partition("|")
        word, _, unit = split.strip().partition(" of ")
        word = word.strip() or "whole"
        if word not in SPLITS:
            raise table.fail(key, f"is {text!r}, which names the split {word!r}; there are {', '.join(SPLITS)}")
        one = self.one(unit, table, key) if unit.strip() else None
        return Size(size=self.one(size, table, key), split=word, unit=one)

    def rows(self, kind: type[Any], table: Table, key: str) -> tuple[Any, ...]:
        found = []
        for label, row in table.rows(key).items():
            layers = row.text("layers", "own")
            if layers[:1] in ("<", ">") or "=" in layers:
                self.known(layers.lstrip("<>").partition("=")[0].rstrip("!"), row, "layers")
            elif layers not in LAYERS:
                raise row.fail("layers", f"is {layers!r}; it must be {', '.join(LAYERS)}, <key, >key or key=value")
            given = {"name": label}
            if kind is Row:
                given["line"] = row.text(
                    "line", "vision" if self.tower else "matrices" if "columns" in row else "norms"
                )
            found.append(read_record(kind, row, self.by, **given))
        return tuple(found)

    def known(self, word: str, table: Table, key: str) -> None:
        if word not in self.keys:
            raise table.fail(key, f"names {word!r}, no key of this part; {closest(word, self.keys)}")

    def state(self, table: Table | None) -> StateRow | None:
        if table is None:
            return None
        law = table.word("law", tuple(STATES))
        sizes = table.table("sizes")
        found = {size: self.one(sizes.text(size), sizes, size) for size in STATES[law].sizes}
        sizes.done()
        for text in table.words("formats"):
            key, colon, word = text.rpartition(":")
            if colon:
                self.known(key, table, "formats")
            if word not in ("model", *DTYPE_BITS):
                raise table.fail("formats", f"has {word!r}; there are model, {', '.join(DTYPE_BITS)}")
        state: StateRow = read_record(StateRow, table, self.by, law=law, sizes=found)
        return state


@lru_cache(maxsize=64)
def load_part(name: str) -> Part:
    """One part's file.

    Raises RegistryError where it says something that it may not, as a formula that uses a name that is no size of the
    model, no key that the file names (`names`, `keys`, `defaults`), and is not `made` there.
    """
    table = open_table("parts", name)
    texts, defaults = table.texts("names"), table.table("defaults", None)
    made, words = table.table("made", None), table.table("words", None)
    of = table.word("of", tuple(OF), "layers")
    supplied = {key: defaults.raw(key) for key in defaults} if defaults else {}
    keys = (*table.words("keys", ()), *supplied, *texts.values())
    read = _Reader((*OF[of], *texts, *(made or ()), *keys), keys, of == "tower")
    part = Part(
        name=table.text("name"),
        names=texts,
        defaults=supplied,
        made={key: read.one(made.text(key), made, key) for key in made} if made else {},
        words={key: tuple(words.raw(key)) for key in words} if words else {},
        rows=read.rows(Row, table, "tensors"),
        state=read.state(table.table("state", None)),
        buffers=read.rows(BufferRow, table, "buffers"),
        caches=read.rows(CacheRow, table, "caches"),
        ropes=read.rows(RopeRow, table, "ropes"),
    )
    for noted in ("source", "where"):
        table.text(noted, None)
    for inner in (made, words, table):
        if inner:
            inner.done()
    return part
