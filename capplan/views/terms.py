"""The words, signs and colours of every view, once: one colour a term, everywhere."""

from __future__ import annotations

from dataclasses import dataclass

from capplan.engines.frame import ROWS


@dataclass(frozen=True, kw_only=True, slots=True)
class Term:
    """One part of a rank's memory as people see it: its name, colours in light and dark, what it means."""

    key: str
    name: str
    light: str
    dark: str
    ansi: int
    means: str


TERMS = (
    Term(
        key="weights",
        name="weights",
        light="#33548f",
        dark="#6f8fd0",
        ansi=67,
        means="this rank's tensors after loading, as the allocator holds them",
    ),
    Term(
        key="engine_state",
        name="engine state",
        light="#8577b5",
        dark="#a99bdb",
        ansi=104,
        means="what the runner keeps before it profiles: sampling counters, masks, workspaces",
    ),
    Term(
        key="activations",
        name="activations",
        light="#e0a030",
        dark="#e8b458",
        ansi=179,
        means="the peak of the profiling pass: the larger of the forward and the sampler's",
    ),
    Term(
        key="non_torch",
        name="outside the allocator",
        light="#a09488",
        dark="#b5a99d",
        ansi=145,
        means="what grows outside the tensor allocator while loading and profiling",
    ),
    Term(
        key="cuda_graphs",
        name="CUDA graphs",
        light="#c8684f",
        dark="#e08a72",
        ansi=167,
        means="captured steps, which replay without launching each kernel",
    ),
    Term(
        key="cache",
        name="cache",
        light="#3c9688",
        dark="#58b8a8",
        ansi=72,
        means="the pool of blocks that hold keys and values of the requests",
    ),
    Term(
        key="outside",
        name="outside the budget",
        light="#e9e6df",
        dark="#2b2c2a",
        ansi=250,
        means="what the engine leaves: the context and communicators live there",
    ),
)
"""Parts of the memory bar, in the ledger's order."""

NEURON_TERMS = (
    Term(
        key="headroom",
        name="headroom",
        light="#d8b36a",
        dark="#b8924a",
        ansi=179,
        means="the reserve: programs, activations, scratchpad, rings and the runtime have to live in it",
    ),
    Term(
        key="left_by_cap",
        name="left by the cap",
        light="#c3d3df",
        dark="#43525e",
        ansi=152,
        means="inside the utilization and given to nobody, because the cap ends the cache before",
    ),
    Term(
        key="outside_utilization",
        name="outside the utilization",
        light="#e9e6df",
        dark="#2b2c2a",
        ansi=250,
        means="the part of the share that gpu_memory_utilization leaves alone",
    ),
    Term(
        key="remainder",
        name="remainder",
        light="#f7f6f3",
        dark="#151615",
        ansi=255,
        means="bytes of the stack that do not divide among its logical cores",
    ),
)
"""Parts of a Neuron stack besides weights and cache, in the order in which they follow."""

TERM_OF_LINE = {name: row.term for name, row in ROWS.items()}
"""The term under which each ledger line is drawn."""

TERM = {term.key: term for term in (*TERMS, *NEURON_TERMS)}

LINE_WORDS = {name: row.words for name, row in ROWS.items()}
"""Names of the ledger lines in words."""

BOUNDED = {"sliding": "windows", "chunked": "chunks", "recurrent": "states", "ring": "rings"}
"""What stops growing with a request, in words."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sign:
    """How a verdict is said: a word, a sign, colours."""

    word: str
    mark: str
    ansi: int


SIGNS = {
    "fits": Sign(word="Fits", mark="✓", ansi=35),
    "close": Sign(word="Close", mark="~", ansi=172),
    "does-not-fit": Sign(word="Does not fit", mark="✕", ansi=160),
    "refused": Sign(word="Refused", mark="|", ansi=95),
}

GLOSSARY = {
    "rank": "one GPU's process; a model split over four chips has four ranks",
    "block": "the unit in which the cache is handed out, a fixed number of tokens of every layer of a group",
    "KV cache": "keys and values that attention keeps of every token of a request",
    "group": "layers that share one table of blocks",
    "stack": "one package of memory of a chip; the cores beside it share it, and their ranks too",
    "null block": "one block that the engine keeps empty",
    "pre-snapshot": "memory taken before the engine first looks at what is free",
}
"""Terms of art, each with a short definition."""
