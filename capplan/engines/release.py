"""Engines: a data file each, and the rules that it names."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from capplan.engines import ENGINES
from capplan.model.formulas import Formula, formula
from capplan.registry import Datum, Refused, RegistryError, Table, closest, names, open_table


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
    latent: bool
    capabilities: tuple[str, ...]
    dtypes: tuple[str, ...]
    kv_cache_dtypes: tuple[str, ...]
    block_multiple: int
    head_dims: tuple[int, ...]
    head_dim_multiple: int
    head_dim_most: int
    nope_dims: tuple[int, ...]
    counter_buffer: bool
    attention: tuple[str, ...]
    sinks: str
    values: str
    heads_most: int
    assumed: str | None
    where: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpertsKernel:
    """A kernel that computes experts: what it admits, what it pads, the law of the workspace that it keeps."""

    name: str
    formats: tuple[str, ...]
    capabilities: tuple[str, ...]
    routings: tuple[str, ...]
    one_replica: bool
    inner_multiple: int
    workspace: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Laid:
    """One tensor of a format: its extents as formulas, its bits (None for the activations'), and how many there are."""

    name: str
    line: str
    shape: tuple[Formula, ...]
    bits: int | None
    copies: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """How matrices of a format lie after loading: on which chips, when, and what lies beside the elements."""

    format: str
    of: str
    capabilities: tuple[str, ...]
    zero: Formula | None
    weight: Laid
    more: tuple[Laid, ...]
    kernel: str


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
    own: Mapping[str, Any]


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


def _ints(table: Table, key: str) -> tuple[int, ...]:
    value = table.get(key, list, "a list of whole numbers", [])
    if not all(isinstance(v, int) and not isinstance(v, bool) for v in value):
        raise table.fail(key, f"is {value!r}; it must be a list of whole numbers")
    return tuple(value)


PLACES = ("linear", "experts", "experts-up", "experts-down", "experts-up-bias", "experts-down-bias")
"""What a layout may be of: matrices of layers, both matrices of experts, or one of them and its bias."""


def _laid(text: str, file: str) -> Laid:
    """One tensor out of `name(line): n x extents @ bits`."""
    name, _, rest = text.rpartition(":")
    name, _, line = name.partition("(")
    shape, at, bits = rest.partition("@")
    copies, times, extents = shape.partition(" x ")
    if not at or (bits.strip() != "a" and not bits.strip().isdigit()) or (times and not copies.strip().isdigit()):
        raise RegistryError(f"registry/{file}: {text!r} must be extents @ bits")
    tree = ast.parse(f"({extents if times else shape},)", mode="eval").body
    parts = tree.elts if isinstance(tree, ast.Tuple) else [tree]
    return Laid(
        name=name.strip(),
        line=line.strip(" )") or "scales",
        shape=tuple(formula(ast.unparse(part), file) for part in parts),
        bits=None if bits.strip() == "a" else int(bits),
        copies=int(copies) if times else 1,
    )


def _layout(row: Table) -> Layout:
    zero = row.text("zero", None)
    found = Layout(
        format=row.text("format"),
        of=row.word("of", PLACES),
        capabilities=row.words("capabilities"),
        zero=formula(zero, row.file) if zero is not None else None,
        weight=_laid(row.text("weight"), row.file),
        more=tuple(_laid(text, row.file) for text in row.words("more", ())),
        kernel=row.text("kernel"),
    )
    row.text("where")
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
    if table.text("name") != name:
        raise table.fail("name", f"must be {name!r}, as the file is called")
    batches = []
    for row in table.tables("batch_defaults", []):
        tokens = row.table("max_num_batched_tokens")
        where = row.text("where")
        limits = {context: tokens.count(context) for context in tokens}
        seqs = row.count("max_num_seqs")
        batches.append(
            BatchDefaults(
                least_device_bytes=row.count("least_device_bytes"),
                skips=row.words("skips"),
                max_num_seqs=seqs,
                max_num_batched_tokens=limits,
                datum=Datum(
                    key=row.path,
                    file=row.file,
                    value=seqs,
                    low=seqs,
                    high=seqs,
                    method=row.word("method", ("code",)),
                    source=row.text("source"),
                    where=where,
                    why=None,
                ),
            )
        )
        row.done()
    backends = []
    for row in table.tables("backends", []):
        backends.append(
            Backend(
                name=row.text("name"),
                latent=row.flag("latent"),
                capabilities=row.words("capabilities"),
                dtypes=row.words("dtypes"),
                kv_cache_dtypes=row.words("kv_cache_dtypes"),
                block_multiple=row.count("block_multiple"),
                head_dims=_ints(row, "head_dims"),
                head_dim_multiple=row.count("head_dim_multiple", 1),
                head_dim_most=row.count("head_dim_most", 1 << 16),
                nope_dims=_ints(row, "nope_dims"),
                counter_buffer=row.flag("counter_buffer", False),
                attention=row.words("attention", ("",)),
                sinks=row.word("sinks", ("none", "kept", "copied"), "none"),
                values=row.word("values", ("as-keys", "other"), "as-keys"),
                heads_most=row.count("heads_most", 1 << 16),
                assumed=row.text("assumed", None),
                where=row.text("where"),
            )
        )
        row.done()
    kernels = []
    for row in table.tables("experts_kernels", []):
        kernels.append(
            ExpertsKernel(
                name=row.text("name"),
                formats=row.words("formats"),
                capabilities=row.words("capabilities"),
                routings=row.words("routings", ()),
                one_replica=row.flag("one_replica", False),
                inner_multiple=row.count("inner_multiple", 1),
                workspace=row.word("workspace", ("two", "padded", "output", "own")),
            )
        )
        row.done()
    layouts = tuple(_layout(row) for row in table.tables("layouts", []))
    latent = table.table("latent_dims", None)
    dims = tuple(map(tuple, latent.get("allowed", list, "a list of lists of three whole numbers"))) if latent else ()
    flags = table.table("flags", None)
    for noted in (latent, flags):
        if noted is not None:
            for key in ("method", "source", "where"):
                noted.text(key)
    engine = Engine(
        name=name,
        title=table.text("title"),
        rules=table.word("rules", tuple(ENGINES)),
        defaults=Figures(table.table("defaults"), "defaults", table.file),
        constants=Figures(table.table("constants"), "constants", table.file),
        estimates=Figures(table.table("estimates"), "estimates", table.file),
        batch_defaults=tuple(batches),
        backends=tuple(backends),
        experts_kernels=tuple(kernels),
        layouts=layouts,
        latent_dims=dims,
        no_effect=flags.words("no_effect") if flags else (),
        switches=flags.words("switches", ()) if flags else (),
        not_planned=flags.words("not_planned") if flags else (),
        own=table.get("own", dict, "a table that the engine's rules read themselves", {}),
    )
    for read in (latent, flags, table):
        if read is not None:
            read.done()
    return engine
