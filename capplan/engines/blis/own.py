"""What only the kernel's engine files say: how a graph is read, and which formats and kernels there are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from capplan.engines.release import Engine
from capplan.registry import Table

WIDTHS = ("unquantized", "checkpoint", "served")
"""Widths of the two tables of words: before quantization, as the checkpoint is stored, as matrices are served."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheFormat:
    """A format of the cache: half bits of an element, or bytes of a packed record; neither where it is not sized."""

    names: tuple[str, ...]
    half_bits: int
    record_bytes: int
    not_latent: bool
    not_sized: bool
    capabilities: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class SparseBackend:
    """Kernels of sparse latent attention: which formats they take, how they pack them, which contexts they share."""

    name: str
    capabilities: tuple[str, ...]
    takes: tuple[str, ...]
    packs: Mapping[str, str]
    most_heads: int
    contexts: str


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Own:
    """The kernel's own tables of one engine file."""

    left_out: tuple[str, ...]
    embedding: str
    head: str
    sampler: bool
    communication_in_total: bool
    groups_caches: bool
    splits_states: bool
    quantizations: Mapping[str, tuple[str, int]]
    cache_formats: Mapping[str, CacheFormat]
    sparse_backends: tuple[SparseBackend, ...]


@lru_cache(maxsize=16)
def own(engine: Engine) -> Own:
    """The kernel's own tables of an engine file.

    Raises RegistryError where one says something that it may not.
    """
    return _read(Table(f"engines/{engine.name}.toml", engine.own, "own"))


def _read(table: Table) -> Own:
    graph, behaviour = table.table("graph"), table.table("behaviour")
    for part in (graph, behaviour):
        for key in ("method", "source", "where"):
            part.text(key)
        part.text("why", None)
    quantizations: dict[str, tuple[str, int]] = {}
    for row in table.tables("quantizations"):
        serves = row.text("serves")
        bits = row.count("bits", 0)
        quantizations |= dict.fromkeys(row.words("flags"), (serves, bits))
        row.done()
    formats: dict[str, CacheFormat] = {}
    for row in table.tables("cache_formats"):
        found = CacheFormat(
            names=row.words("names"),
            half_bits=row.count("half_bits", 0),
            record_bytes=row.count("record_bytes", 0),
            not_latent=row.flag("not_latent", False),
            not_sized=row.flag("not_sized", False),
            capabilities=row.words("capabilities", ()),
        )
        formats |= dict.fromkeys(found.names, found)
        row.done()
    backends = tuple(map(_backend, table.tables("sparse_backends")))
    result = Own(
        left_out=graph.words("left_out"),
        embedding=graph.word("embedding", WIDTHS),
        head=graph.word("head", WIDTHS),
        sampler=behaviour.flag("sampler"),
        communication_in_total=behaviour.flag("communication_in_total"),
        groups_caches=behaviour.flag("groups_caches"),
        splits_states=behaviour.flag("splits_states"),
        quantizations=quantizations,
        cache_formats=formats,
        sparse_backends=backends,
    )
    for part in (graph, behaviour, table):
        part.done()
    return result


def _backend(row: Table) -> SparseBackend:
    packs: Mapping[str, Any] = row.get("packs", dict, "a table of formats", {})
    found = SparseBackend(
        name=row.text("name"),
        capabilities=row.words("capabilities"),
        takes=row.words("takes"),
        packs=packs,
        most_heads=row.count("most_heads", 0),
        contexts=row.word("contexts", ("none", "flashmla", "one-kind"), "none"),
    )
    row.done()
    return found
