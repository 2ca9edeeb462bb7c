"""Parts of layers and towers as registry data: what they store, in sizes that are formulas over config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from capplan.model.formulas import Formula, formula
from capplan.model.graph import EACH, EVERY, FIRST, LAST, SPLITS
from capplan.registry import RegistryError, Table, open_table


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
    columns: Size | None
    copies: Formula
    bits: int | None
    wide_with: tuple[str, ...]
    quantized: bool
    layers: str
    place: str
    module: str
    packs: tuple[str, ...]
    when: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class StateRow:
    """The recurrent state of a part's layers: each part's extents, its bits or the key that names its format."""

    kind: str
    parts: tuple[tuple[Size, ...], ...]
    formats: tuple[str, ...]
    chunk: Formula
    checkpoints: int
    exports_on: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class BufferRow:
    """A buffer that follows the engine's step."""

    name: str
    bits: int | None
    count: Formula
    per_token: Formula
    per_sequence: Formula
    beside: Formula
    layers: str | None
    place: str
    wants: tuple[str, ...]
    leads: bool
    when: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheRow:
    """A cache of a part's layers that is no plain attention's."""

    name: str
    spec: str
    kind: str
    layers: str
    block_size: Formula
    entry_bytes: Formula
    tokens_per_entry: Formula
    window: Formula
    alignment: Formula


@dataclass(frozen=True, kw_only=True, slots=True)
class RopeRow:
    """A rotary table beside those of plain attention."""

    name: str
    layers: str
    positions: Formula
    width: Formula
    bits: int | None


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


def _size(text: str, file: str) -> Size:
    size, _, split = text.partition("|")
    word, _, unit = split.strip().partition(" of ")
    word = word.strip() or "whole"
    if word not in SPLITS:
        raise RegistryError(f"registry/{file}: {text!r} names the split {word!r}; there are {', '.join(SPLITS)}")
    return Size(size=formula(size, file), split=word, unit=formula(unit, file) if unit.strip() else None)


def _row(table: Table) -> Row:
    columns = table.text("columns", None)
    found = Row(
        name=table.text("name"),
        line=table.text("line", "matrices" if columns is not None else "norms"),
        rows=tuple(_size(text, table.file) for text in table.words("rows")),
        columns=_size(columns, table.file) if columns is not None else None,
        copies=formula(table.text("copies", "1"), table.file),
        bits=table.count("bits", None),
        wide_with=table.words("wide_with", ()),
        quantized=table.flag("quantized", False),
        layers=table.text("layers", "own"),
        place=table.word("place", (EACH, FIRST, LAST, EVERY), EACH),
        module=table.text("module", ""),
        packs=table.words("packs", ()),
        when=table.text("when", None),
    )
    table.done()
    return found


def _state(table: Table) -> StateRow:
    parts = table.get("parts", list, "a list of lists of texts")
    found = StateRow(
        kind=table.word("kind", ("mamba2", "gdn", "kda")),
        parts=tuple(tuple(_size(text, table.file) for text in part) for part in parts),
        formats=table.words("formats"),
        chunk=formula(table.text("chunk"), table.file),
        checkpoints=table.count("checkpoints"),
        exports_on=table.words("exports_on", ()),
    )
    table.done()
    return found


def _buffer(table: Table) -> BufferRow:
    def of(key: str) -> Formula:
        return formula(table.text(key, "0"), table.file)

    found = BufferRow(
        name=table.text("name"),
        bits=table.count("bits", None),
        count=formula(table.text("count", "1"), table.file),
        per_token=of("per_token"),
        per_sequence=of("per_sequence"),
        beside=of("beside"),
        layers=table.text("layers", None),
        place=table.word("place", (FIRST, LAST, EVERY), EVERY),
        wants=table.words("wants", ()),
        leads=table.flag("leads", False),
        when=table.text("when", None),
    )
    table.done()
    return found


def _cache(table: Table) -> CacheRow:
    def of(key: str, default: str) -> Formula:
        return formula(table.text(key, default), table.file)

    found = CacheRow(
        name=table.text("name"),
        spec=table.text("spec"),
        kind=table.word("kind", ("full", "sliding")),
        layers=table.text("layers", "own"),
        block_size=of("block_size", "0"),
        entry_bytes=formula(table.text("entry_bytes"), table.file),
        tokens_per_entry=of("tokens_per_entry", "1"),
        window=of("window", "0"),
        alignment=of("alignment", "1"),
    )
    table.done()
    return found


def _rope(table: Table) -> RopeRow:
    found = RopeRow(
        name=table.text("name"),
        layers=table.text("layers", "own"),
        positions=formula(table.text("positions"), table.file),
        width=formula(table.text("width"), table.file),
        bits=table.count("bits", None),
    )
    table.done()
    return found


@lru_cache(maxsize=64)
def load_part(name: str) -> Part:
    """One part's file. Raises RegistryError where it says something that it may not."""
    table = open_table("parts", name)
    names, defaults = table.table("names", None), table.table("defaults", None)
    made, words = table.table("made", None), table.table("words", None)
    state = table.table("state", None)
    part = Part(
        name=table.text("name"),
        names={key: names.text(key) for key in names} if names else {},
        defaults={key: defaults.raw(key) for key in defaults} if defaults else {},
        made={key: formula(made.text(key), table.file) for key in made} if made else {},
        words={key: tuple(words.raw(key)) for key in words} if words else {},
        rows=tuple(_row(row) for row in table.tables("tensors", [])),
        state=_state(state) if state else None,
        buffers=tuple(_buffer(row) for row in table.tables("buffers", [])),
        caches=tuple(_cache(row) for row in table.tables("caches", [])),
        ropes=tuple(_rope(row) for row in table.tables("ropes", [])),
    )
    for noted in ("source", "where"):
        table.text(noted, None)
    for read in (names, defaults, made, words, table):
        if read:
            read.done()
    return part
