"""What only the kernel's engine files say: how a graph is read, and which formats and kernels there are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from capplan.engines.release import BEHAVIOURS, Engine
from capplan.registry import RegistryError, Table, one_of, read_by, read_record


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheFormat:
    """A format of the cache: half bits of an element, or bytes of a packed record; neither where it is not sized."""

    names: tuple[str, ...]
    half_bits: int = 0
    record_bytes: int = 0
    not_latent: bool = False
    not_sized: bool = False
    capabilities: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class SparseBackend:
    """Kernels of sparse latent attention: which formats they take, how they pack them, which contexts they share."""

    name: str
    capabilities: tuple[str, ...]
    takes: tuple[str, ...]
    packs: Mapping[str, str] = read_by(lambda t, key, none: t.get(key, dict, "a table of formats", none or {}), None)
    most_heads: int = 0
    contexts: str = one_of("none", "flashmla", "one-kind", default="none")


@dataclass(frozen=True, kw_only=True, slots=True)
class Quantization:
    """The width in which some quantization flags serve matrices."""

    flags: tuple[str, ...]
    serves: str
    bits: int = 0


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Own:
    """The kernel's own tables of one engine file."""

    left_out: tuple[str, ...]
    quantizations: Mapping[str, tuple[str, int]]
    cache_formats: Mapping[str, CacheFormat]
    sparse_backends: tuple[SparseBackend, ...]


@lru_cache(maxsize=16)
def own(engine: Engine) -> Own:
    """The kernel's own tables of an engine file.

    Raises RegistryError where one says something that it may not.
    """
    if engine.own is None:
        raise RegistryError(f"registry/engines: {engine.name} has no table own, which the rules blis read")
    table = engine.own
    for word in BEHAVIOURS:
        if word not in engine.behaviours:
            raise RegistryError(
                f"registry/engines: {engine.name} says no behaviours.{word}, which the rules blis follow"
            )
    quantizations = [read_record(Quantization, row) for row in table.tables("quantizations")]
    formats = [read_record(CacheFormat, row) for row in table.tables("cache_formats")]
    result = Own(
        left_out=_left_out(table.table("graph")),
        quantizations={flag: (q.serves, q.bits) for q in quantizations for flag in q.flags},
        cache_formats={name: found for found in formats for name in found.names},
        sparse_backends=tuple(read_record(SparseBackend, row) for row in table.tables("sparse_backends")),
    )
    table.done()
    return result


def _left_out(graph: Table) -> tuple[str, ...]:
    """The matrices of a graph that the kernel does not count."""
    graph.stated(None)
    words: tuple[str, ...] = graph.words("left_out")
    graph.done()
    return words
