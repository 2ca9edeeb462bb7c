"""Engines: a data file each, and the rules that it names."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from capplan.engines import ENGINES
from capplan.model.formulas import Formula, formula
from capplan.registry import (
    Datum,
    Refused,
    RegistryError,
    Table,
    closest,
    names,
    one_of,
    open_table,
    read_by,
    read_record,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchDefaults:
    """Steps that an engine takes by default on devices of a size."""

    least_device_bytes: int
    skips: tuple[str, ...]
    max_num_seqs: int
    max_num_batched_tokens: Mapping[str, int]
    datum: Datum


@dataclass(frozen=True, kw_only=True, slots=True)
class Backend:
    """Kernels that serve attention, and what they admit."""

    name: str
    latent: bool = False
    capabilities: tuple[str, ...]
    dtypes: tuple[str, ...] = ("bfloat16", "float16")
    kv_cache_dtypes: tuple[str, ...]
    block_multiple: int
    head_dims: tuple[int, ...] = ()
    head_dim_multiple: int = 1
    head_dim_most: int = 1 << 16
    nope_dims: tuple[int, ...] = ()
    counter_buffer: bool = False
    attention: tuple[str, ...] = ("",)
    sinks: str = one_of("none", "kept", "copied", default="none")
    values: str = one_of("as-keys", "other", default="as-keys")
    heads_most: int = 1 << 16
    assumed: str | None = None
    where: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpertsKernel:
    """A kernel that computes experts: what it admits, what it pads, the law of the workspace that it keeps."""

    name: str
    formats: tuple[str, ...]
    capabilities: tuple[str, ...]
    routings: tuple[str, ...] = ()
    one_replica: bool = False
    inner_multiple: int = 1
    workspace: str = one_of("two", "padded", "output", "own")


@dataclass(frozen=True, kw_only=True, slots=True)
class Laid:
    """One tensor of a format: its extents as formulas, its bits (None for the activations'), and how many there are."""

    name: str
    line: str
    shape: tuple[Formula, ...]
    bits: int | None
    copies: int


PLACES = ("linear", "experts", "experts-up", "experts-down", "experts-up-bias", "experts-down-bias")
"""What a layout may be of: matrices of layers, both matrices of experts, or one of them and its bias."""

SIZES = ("rows", "columns", "matrices", "block_rows", "group", "bits", "avoids_deep_gemm")
EXPERTS_SIZES = (*SIZES, "experts", "inner", "outer", "gated")
"""What the formulas of layouts may name, of linear layers and of experts; the file of layouts says what each is."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """How matrices of some formats lie after loading: on which chips, when, and what lies beside the elements."""

    name: str
    formats: tuple[str, ...]
    of: str = one_of(*PLACES)
    capabilities: tuple[str, ...]
    when: Formula | None = None
    weight: Laid
    more: tuple[Laid, ...] = read_by(lambda t, key, none: tuple(_laid(text, t, key) for text in t.words(key, none)), ())
    kernel: str
    where: str


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Engine:
    """One release: its defaults, constants, estimates, the module whose rules it names, and what that reads itself."""

    name: str
    title: str
    rules: str
    defaults: Mapping[str, Datum]
    constants: Mapping[str, Datum]
    estimates: Mapping[str, Datum]
    batch_defaults: tuple[BatchDefaults, ...]
    backends: tuple[Backend, ...]
    experts_kernels: tuple[ExpertsKernel, ...]
    layouts: tuple[Layout, ...]
    latent_dims: tuple[tuple[int, ...], ...]
    no_effect: tuple[str, ...]
    switches: tuple[str, ...]
    not_planned: tuple[str, ...]
    behaviours: Mapping[str, str]
    own: Table | None

    def does(self, behaviour: str, word: str) -> bool:
        """Whether the file names a behaviour by a word."""
        return self.behaviours[behaviour] == word


def capability_matches(wanted: tuple[str, ...], capability: tuple[int, int] | None) -> bool:
    """Whether a chip's compute capability is among those of a row: `9.x` any of 9, `rocm` none at all.

    >>> capability_matches(("8.x", "9.x"), (8, 9)), capability_matches(("rocm",), None)
    (True, True)
    """
    if capability is None:
        return "rocm" in wanted
    major, minor = capability
    return f"{major}.x" in wanted or f"{major}.{minor}" in wanted


class Figures(dict[str, Datum]):
    """Numbers of an engine's file by name; one that is missing stops whatever needs it."""

    def __init__(self, table: Table | None, path: str, file: str) -> None:
        super().__init__({key: table.datum(key) for key in table} if table is not None else {})
        self.path, self.file = path, file

    def __missing__(self, key: str) -> Datum:
        raise RegistryError(
            f"registry/{self.file}: {self.path}.{key} is missing; a plan needs it, and takes nothing in its place"
        )


BEHAVIOURS: Mapping[str, tuple[str, ...]] = {
    "sampler": ("charged", "free"),
    "communicators": ("in-total", "beside-total"),
    "caches": ("grouped", "apart"),
    "states": ("split", "whole"),
    "embedding": ("unquantized", "checkpoint", "served"),
    "head": ("unquantized", "checkpoint", "served"),
}
"""What an engine's file may choose by a word, and the words: each picks a law that its rules have."""


def _behaviours(table: Table | None) -> dict[str, str]:
    if table is None:
        return {}
    found = {}
    for key in table:
        if key not in BEHAVIOURS:
            raise table.fail(key, f"is no behaviour that capplan knows; {closest(key, list(BEHAVIOURS))}")
        datum = table.datum(key)
        if datum.value not in BEHAVIOURS[key]:
            raise table.fail(f"{key}.value", f"is {datum.value!r}; it must be one of {', '.join(BEHAVIOURS[key])}")
        found[key] = datum.value
    return found


def _sized(table: Table, key: str, default: Any) -> Formula | None:
    """A formula over the sizes of a matrix; None where the file leaves it out."""
    text = table.text(key, default)
    return _formula(text, table, key) if text is not None else None


def _formula(text: str, table: Table, key: str) -> Formula:
    made = table.get("made", dict, "a table of formulas", {})
    for name, stands in made.items():
        text = re.sub(rf"\b{name}\b", f"({stands})", text)
    known = SIZES if table.text("of", None) == "linear" else EXPERTS_SIZES
    return formula(text, known=known, fails=lambda says: table.fail(key, says))


def _laid(text: str, table: Table, key: str) -> Laid:
    """One tensor out of `name(line): n x extents @ bits`; bits may be `activations`, those that a plan computes in."""
    name, _, rest = text.rpartition(":")
    name, _, line = name.partition("(")
    shape, at, bits = (part.strip() for part in rest.partition("@"))
    copies, times, extents = shape.partition(" x ")
    if not at or not (bits == "activations" or bits.isdigit()) or (times and not copies.isdigit()):
        raise table.fail(key, f"is {text!r}; it must be extents @ bits")
    try:
        tree = ast.parse(f"({extents if times else shape},)", mode="eval").body
    except SyntaxError:
        raise table.fail(key, f"is {text!r}; its extents are no formulas") from None
    parts = tree.elts if isinstance(tree, ast.Tuple) else [tree]
    return Laid(
        name=name.strip(),
        line=line.strip(" )") or "scales",
        shape=tuple(_formula(ast.unparse(part), table, key) for part in parts),
        bits=int(bits) if bits.isdigit() else None,
        copies=int(copies) if times else 1,
    )


LAYOUT_READERS = {"Formula": _sized, "Laid": lambda table, key, default: _laid(table.text(key), table, key)}


def _batch(row: Table) -> BatchDefaults:
    tokens, seqs = row.table("max_num_batched_tokens"), row.count("max_num_seqs")
    found = BatchDefaults(
        least_device_bytes=row.count("least_device_bytes"),
        skips=row.words("skips"),
        max_num_seqs=seqs,
        max_num_batched_tokens={context: tokens.count(context) for context in tokens},
        datum=row.stated(seqs),
    )
    row.done()
    return found


@lru_cache(maxsize=16)
def load_engine(name: str) -> Engine:
    """An engine release by its registry name.

    Raises Refused for an unknown one, with the closest known names; RegistryError for a bad file.
    """
    if name not in names("engines"):
        raise Refused(f"there is no engine {name!r} in the registry; {closest(name, names('engines'))}")
    table = open_table("engines", name)
    latent, flags = table.table("latent_dims", None), table.table("flags", None)
    for noted in (latent, flags):
        if noted is not None:
            noted.stated(None)
    dims = tuple(map(tuple, latent.get("allowed", list, "a list of lists of three whole numbers"))) if latent else ()
    layouts = table.rows("layouts").items()
    engine = Engine(
        name=name,
        title=table.text("title"),
        rules=table.word("rules", tuple(ENGINES)),
        defaults=Figures(table.table("defaults"), "defaults", table.file),
        constants=Figures(table.table("constants"), "constants", table.file),
        estimates=Figures(table.table("estimates"), "estimates", table.file),
        batch_defaults=tuple(map(_batch, table.rows("batch_defaults").values())),
        backends=tuple(read_record(Backend, row) for row in table.rows("backends").values()),
        experts_kernels=tuple(read_record(ExpertsKernel, row) for row in table.rows("experts_kernels").values()),
        layouts=tuple(read_record(Layout, row, LAYOUT_READERS, name=label) for label, row in layouts),
        latent_dims=dims,
        no_effect=flags.words("no_effect") if flags else (),
        switches=flags.words("switches", ()) if flags else (),
        not_planned=flags.words("not_planned") if flags else (),
        behaviours=_behaviours(table.table("behaviours", None)),
        own=table.table("own", None),
    )
    for read in (latent, flags, table):
        if read is not None:
            read.done()
    return engine
