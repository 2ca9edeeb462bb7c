"""Engines: a data file each, and the rules that it names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from capplan.registry import Datum, Refused, Table, closest, names, open_table
from capplan.units import Flag


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """What the engine does about one setting: refuse it, supply it, or change it.

    field    the setting
    asked    what was said, None where nothing was
    happens  what the engine does
    why      the reason
    source   where that is known from
    mask     for which of many configurations it holds; None for a single one
    """

    field: str
    asked: Any
    happens: str
    why: str
    source: str
    mask: Flag | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """Something that an engine will not start with.

    `holds` tells for one configuration or for many whether the rule is kept; `says` is the sentence
    for one that breaks it: what was asked, what there is, what would work.
    """

    name: str
    field: str
    holds: Callable[[Any], Flag]
    says: Callable[[Any], str]
    source: str


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
class ScaleLayout:
    """How the block scales of fp8 matrices lie after loading."""

    capabilities: tuple[str, ...]
    linear: str
    experts: str


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Engine:
    """One release: its defaults, constants, estimates, and the module whose rules it names."""

    name: str
    title: str
    rules: str
    defaults: Mapping[str, Datum]
    constants: Mapping[str, Datum]
    estimates: Mapping[str, Datum]
    batch_defaults: tuple[BatchDefaults, ...]
    backends: tuple[Backend, ...]
    experts_kernels: tuple[ExpertsKernel, ...]
    scale_layouts: tuple[ScaleLayout, ...]
    latent_dims: tuple[tuple[int, ...], ...]
    no_effect: tuple[str, ...]
    switches: tuple[str, ...]
    not_planned: tuple[str, ...]


RULES = ("vllm", "vllm_neuron")
"""Modules of rules that an engine's file may name."""


def capability_matches(wanted: tuple[str, ...], capability: tuple[int, int] | None) -> bool:
    """Whether a chip's compute capability is among those of a row: `9.x` any of 9, `rocm` none at all.

    >>> capability_matches(("8.x", "9.x"), (8, 9)), capability_matches(("rocm",), None)
    (True, True)
    """
    if capability is None:
        return "rocm" in wanted
    major, minor = capability
    return f"{major}.x" in wanted or f"{major}.{minor}" in wanted


def _data(table: Table | None) -> dict[str, Datum]:
    return {key: table.datum(key) for key in table} if table is not None else {}


def _ints(table: Table, key: str) -> tuple[int, ...]:
    value = table.get(key, list, "a list of whole numbers", [])
    if not all(isinstance(v, int) and not isinstance(v, bool) for v in value):
        raise table.fail(key, f"is {value!r}; it must be a list of whole numbers")
    return tuple(value)


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
    layouts = []
    for row in table.tables("scale_layouts", []):
        ways = ("grid", "packed-rows")
        layouts.append(
            ScaleLayout(
                capabilities=row.words("capabilities"),
                linear=row.word("linear", ways),
                experts=row.word("experts", ways),
            )
        )
        row.done()
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
        rules=table.word("rules", RULES),
        defaults=_data(table.table("defaults")),
        constants=_data(table.table("constants")),
        estimates=_data(table.table("estimates")),
        batch_defaults=tuple(batches),
        backends=tuple(backends),
        experts_kernels=tuple(kernels),
        scale_layouts=tuple(layouts),
        latent_dims=dims,
        no_effect=flags.words("no_effect") if flags else (),
        switches=flags.words("switches", ()) if flags else (),
        not_planned=flags.words("not_planned") if flags else (),
    )
    for read in (latent, flags, table):
        if read is not None:
            read.done()
    return engine
