"""A graph while it is built: the config that it is read from, its sizes, and what has been found so far."""

from __future__ import annotations

from typing import Any

from capplan.model.config import Config
from capplan.model.graph import EACH, Buffer, Cached, Extent, Rope, State, Tensor


class Building:
    """What the parts of a family add to, one after another."""

    def __init__(self, config: Config, architecture: str) -> None:
        self.c = c = config
        self.f = config.family
        self.architecture = architecture
        self.hidden = c.count("hidden_size", most=1 << 20)
        self.vocab = c.count("vocab_size", most=1 << 26)
        self.n_layers = c.count("num_hidden_layers", most=4096)
        self.n_heads = c.count("num_attention_heads", most=1 << 14)
        self.layers = tuple(range(self.n_layers))
        self.kinds: tuple[str, ...] = ()
        self.with_rope: tuple[int, ...] = ()
        self.method = ""
        self.tensors: list[Tensor] = []
        self.recurrent: list[State] = []
        self.buffers: list[Buffer] = []
        self.caches: list[Cached] = []
        self.ropes: list[Rope] = []
        self.n_kv_heads = 0
        self.intermediate = 0
        self.nope = self.rope_dim = self.rank = self.value_dim = 0

    def add(
        self, name: str, line: str, rows: tuple[Extent, ...] | Extent, columns: Extent | None = None, **more: Any
    ) -> None:
        rows = rows if isinstance(rows, tuple) else (rows,)
        more.setdefault("layers", self.layers if more.get("place", EACH) == EACH else ())
        if more["layers"] or more.get("place", EACH) != EACH:
            self.tensors.append(Tensor(name=name, line=line, rows=rows, columns=columns, **more))

    def module(self, *names: str) -> str:
        return ".".join((self.f.vllm.modules.root, "layers.#", *names))
