"""Caches that a model file states, layer by layer, and the recurrent states and buffers stated beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from capplan.model.states import STATES
from capplan.registry import Datum, Table, read_by, read_record

ANY = "any"
"""A generation or a format that stands for every one."""

LAYOUTS = ("block-outermost", "layer-outermost")
"""How the backend lays out the pool: pages of several sizes may share a block only where blocks lie outermost."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ByChip:
    """A number by the chip's generation and the cache's format; `any` stands for every one."""

    values: tuple[tuple[str, str, int], ...]

    def of(self, generation: str, form: str) -> int | None:
        """The number for a chip and a format, the nearest statement first; None where none is stated."""
        found = {(g, f): value for g, f, value in self.values}
        for key in ((generation, form), (generation, ANY), (ANY, form), (ANY, ANY)):
            if key in found:
                return found[key]
        return None


Positive = int
"""A whole number above zero."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StatedCache:
    """One cache that some layers own.

    record_bytes       bytes of one record, or of one entry where a request holds a fixed number of them
    tokens_per_record  context tokens of one record
    page_tokens        context tokens of one page, None for the block's
    alignment          a page is a multiple of this
    window             tokens that the layer looks back, None where it keeps every one
    entries            entries that a request holds whatever its length, None where they follow it
    entries_beside     tokens beside the drafted ones that entries must cover: they grow by powers of two
    drafter            whether it is there only while speculating with the model's own drafter
    whole_records      generations on which a block of the pool is whole records of this
    latent             whether a smaller page of it may not be padded
    """

    name: str
    layers: tuple[int, ...]
    record_bytes: ByChip
    tokens_per_record: Positive = 1
    page_tokens: Positive | None = None
    alignment: ByChip = ByChip(values=((ANY, ANY, 1),))
    window: Positive | None = None
    entries: Positive | None = None
    entries_beside: int | None = None
    drafter: bool = False
    whole_records: tuple[str, ...] = ()
    latent: bool = False
    datum: Datum


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredFormat:
    """In which format the caches lie where one is asked for: the first row that admits chip and ranks."""

    generations: tuple[str, ...]
    asked: tuple[str, ...]
    stores: str
    tensor_parallel_sizes: tuple[int, ...] = read_by(lambda table, key, none: _counts(table, key, none), ())
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class StatedState:
    """The recurrent state of some layers: its law, and what that takes."""

    law: str
    layers: tuple[int, ...]
    sizes: Mapping[str, int]
    conv_bits: Positive
    temporal_bits: Positive
    datum: Datum

    def __hash__(self) -> int:
        return hash((self.law, self.layers))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Caches:
    """Everything that a model file states of its caches."""

    layout: str
    block_size: ByChip | None
    reads: tuple[int, ...]
    drafter: str | None
    draft_tokens: int | None
    formats: tuple[StoredFormat, ...]
    owned: tuple[StatedCache, ...]
    states: tuple[StatedState, ...]
    buffers: Mapping[str, Any] | None
    data: tuple[Datum, ...]

    @property
    def opted_in(self) -> frozenset[int]:
        """Layers that are sized from what is stated, and from nothing else."""
        owners = [*(c.layers for c in self.owned), *(s.layers for s in self.states)]
        return frozenset(self.reads).union(*owners)


BUFFERS = (
    "head_dim",
    "window",
    "index_topk",
    "candidate_topk_blocks",
    "hidden",
    "streams",
    "rope_dim",
    "rope_positions",
    "rope_tables",
    "rope_bits",
    "prefill_chunk",
    "index_key_bytes",
    "index_scale_bytes",
    "index_logits_bytes",
    "lane_alignment",
    "act_bits",
)
"""Numbers that the buffers of a sparse latent model follow from."""


def read_caches(table: Table, n_layers: int) -> Caches:
    """What a model file's `caches` table states.

    Raises RegistryError for a statement out of form, with its layers, the key and what is allowed.
    """
    data = [_statement(table)]
    block = by_chip(table, "block_size", None)
    reads = _layers(table, "reads", n_layers, drafter=False) if "reads" in table else ()
    owned = tuple(_owned(row, n_layers) for row in _rows(table, "owned"))
    states = tuple(_state(row, n_layers) for row in _rows(table, "states"))
    seen: dict[tuple[int, str], str] = {}
    for row, cache in zip(table.tables("owned", []), owned, strict=True):
        for layer in cache.layers:
            if layer in reads:
                raise table.fail("reads", f"has layer {layer}, which owns {cache.name}; a layer reads or owns")
            if (layer, cache.name) in seen:
                raise row.fail(
                    "layers", f"has layer {layer}, whose {cache.name} is stated in {seen[layer, cache.name]}"
                )
            seen[layer, cache.name] = row.path
    buffers = table.table("buffers", None)
    read = None
    if buffers is not None:
        read = {key: _positive(buffers, key) for key in BUFFERS}
        read["tokens_per_record"] = _counts(buffers, "tokens_per_record")
        data.append(_statement(buffers))
        buffers.done()
    found = Caches(
        layout=table.word("layout", LAYOUTS),
        block_size=block,
        reads=reads,
        drafter=table.text("drafter", None),
        draft_tokens=table.count("draft_tokens", None),
        formats=tuple(read_record(StoredFormat, row) for row in table.tables("formats", [])),
        owned=owned,
        states=states,
        buffers=read,
        data=(*data, *(c.datum for c in owned), *(s.datum for s in states)),
    )
    table.done()
    return found


def _rows(table: Table, key: str) -> list[Table]:
    """A list of tables, each named by its place, its name and its layers, so that an error finds it."""
    found = []
    for row in table.tables(key, []):
        name, layers = row.raw("name", row.raw("law", row.raw("kind", ""))), row.raw("layers", [])
        row.path = f"{row.path} ({name}, layers {', '.join(map(str, layers)) if isinstance(layers, list) else layers})"
        found.append(row)
    return found


def _owned(row: Table, n_layers: int) -> StatedCache:
    layers = _layers(row, "layers", n_layers, drafter=row.flag("drafter", False))
    found = read_record(StatedCache, row, READERS, layers=layers, datum=_statement(row))
    if found.window is not None and found.entries is not None:
        raise row.fail("entries", "stands beside window; a cache is bounded by one of them")
    if found.entries_beside is not None and found.entries is None:
        raise row.fail("entries_beside", "needs entries, the fewest that a request holds")
    if found.page_tokens is not None and found.page_tokens % found.tokens_per_record:
        raise row.fail(
            "page_tokens",
            f"is {found.page_tokens}, which records of {found.tokens_per_record} tokens do not fill; it must be a "
            f"multiple of {found.tokens_per_record}",
        )
    return found


def _state(row: Table, n_layers: int) -> StatedState:
    law = row.word("law" if "law" in row else "kind", tuple(STATES))
    layers = _layers(row, "layers", n_layers, drafter=False)
    sizes = {key: _positive(row, key) for key in STATES[law].sizes}
    return read_record(StatedState, row, READERS, law=law, layers=layers, sizes=sizes, datum=_statement(row))


def by_chip(table: Table, key: str, default: Any = ...) -> Any:
    """A number, a table of numbers by generation, or of tables by generation and format."""
    allowed = "a whole number above zero, or a table of them by generation (sm90) and by format (fp8_ds_mla)"
    value = table.get(key, (int, dict), allowed, default)
    if value is default:
        return default
    rows: list[tuple[str, str, Any]] = []
    for generation, inner in value.items() if isinstance(value, dict) else ((ANY, value),):
        for form, number in inner.items() if isinstance(inner, dict) else ((ANY, inner),):
            rows.append((generation, form, number))
    for generation, form, number in rows:
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            where = ".".join(part for part in (key, generation, form) if part != ANY)
            raise table.fail(where, f"is {number!r}; it must be {allowed}")
    if not rows:
        raise table.fail(key, f"is empty; it must be {allowed}")
    return ByChip(values=tuple(rows))


def _positive(table: Table, key: str, default: Any = ...) -> Any:
    value = table.get(key, int, "a whole number above zero", default)
    if value is not default and value < 1:
        raise table.fail(key, f"is {value!r}; it must be a whole number above zero")
    return value


def _counts(table: Table, key: str, default: Any = ...) -> Any:
    value = table.get(key, list, "a list of whole numbers above zero", default)
    if value is not default and not all(type(n) is int and n > 0 for n in value):
        raise table.fail(key, f"is {value!r}; it must be a list of whole numbers above zero")
    return tuple(value)


def _layers(table: Table, key: str, n_layers: int, *, drafter: bool) -> tuple[int, ...]:
    """The layers of a statement; a drafter's come after the model's own."""
    value = table.get(key, (list, str), "a list of layers, or 'all'")
    if value == "all":
        return tuple(range(n_layers))
    low, high = (n_layers, n_layers + 64) if drafter else (0, n_layers)
    allowed = f"a list of layers from {low} to {high - 1}, or 'all'"
    if not isinstance(value, list) or not value or not all(type(n) is int and low <= n < high for n in value):
        raise table.fail(key, f"is {value!r}; it must be {allowed}")
    if len(set(value)) != len(value):
        raise table.fail(key, f"is {value!r}; it names a layer twice")
    return tuple(sorted(value))


def _statement(table: Table) -> Datum:
    """Where a statement is from, as the plan's provenance lists it."""
    return table.stated("stated", what="statement", listed=False)


READERS = {"ByChip": by_chip, "Positive": _positive}
"""How the fields of a statement are read that are no plain numbers."""
