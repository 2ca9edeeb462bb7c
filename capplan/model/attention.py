"""Attention with keys and values of its own heads, and latent attention: matrices, and what a cache follows from."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from capplan.model.building import Building
from capplan.model.config import KindKeys
from capplan.model.graph import Attention, Extent
from capplan.model.kinds import SHORT_KINDS, window_in_force
from capplan.registry import Refused

NO_KEYS = KindKeys(heads=None, kv_heads=None, head_dim=None, value_dim=None, theta=None, sinks="never")
"""Sizes that no kind of attention states apart."""


def grouped_attention(b: Building) -> tuple[Attention, ...]:
    c, f = b.c, b.f
    b.n_kv_heads = c.maybe("num_key_value_heads") or b.n_heads
    if c.get("use_bidirectional_attention") not in (None, False, "vision"):
        raise c.fail("use_bidirectional_attention", "is true; capplan plans decoders that look backwards only")
    present = [k for k in dict.fromkeys(b.kinds) if k in SHORT_KINDS]
    window = window_in_force(b) if "sliding_attention" in present else None
    if "sliding_attention" in present and window is None:
        raise c.fail("sliding_window", "is missing, while layer_types has sliding layers")
    if len(present) > 1 and f.mixed_windows == "refused" and "sliding_attention" in present:
        raise Refused(
            f"{c.name}: some layers slide and some do not, which the engine's class {b.architecture} refuses; "
            "max_window_layers must be 0 or num_hidden_layers"
        )
    found = []
    apart = len(present) > 1 and bool(f.kinds)
    for kind in present:
        layers = tuple(i for i, k in enumerate(b.kinds) if k == kind)
        keys = f.kinds.get(kind) or NO_KEYS
        a = head_sizes(b, kind, keys, layers)
        a = replace(
            a, window=window if a.kind == "sliding" else c.count(f.chunk or "") if a.kind == "chunked" else None
        )
        word = f"layers.attention.{a.kind}" if apart else "layers.attention"
        grouped_matrices(b, word, a)
        found.append(a)
    if f.query_key_norms == "rotated" and c.flag("use_qk_norm"):
        # One norm for queries and keys alike, in 32 bits, where positions are rotated.
        b.add(
            "layers.attention.query_key_norm",
            "norms",
            Extent(size=found[0].head_dim),
            bits=32,
            layers=b.with_rope,
        )
    return tuple(found)


def head_sizes(b: Building, kind: str, keys: KindKeys, layers: tuple[int, ...]) -> Attention:
    c, f = b.c, b.f
    n_heads = (c.maybe(keys.heads) if keys.heads else None) or b.n_heads
    n_kv = (c.maybe(keys.kv_heads) if keys.kv_heads else None) or b.n_kv_heads
    stated = c.maybe(f.head_dim) if f.head_dim_from == "config" else None
    if f.head_dim_from == "hidden":
        c.read.discard(f.head_dim)
    if stated is None and b.hidden % b.n_heads:
        raise c.fail("hidden_size", f"is {b.hidden}, which {b.n_heads} attention heads do not divide")
    head = (c.maybe(keys.head_dim) if keys.head_dim else None) or stated or b.hidden // b.n_heads
    if n_heads % n_kv:
        raise c.fail(keys.kv_heads or "num_key_value_heads", f"is {n_kv}, which does not divide {n_heads} heads")
    value = (c.maybe(keys.value_dim) if keys.value_dim else None) or head
    return Attention(
        kind=SHORT_KINDS[kind],
        layers=layers,
        n_heads=n_heads,
        n_kv_heads=n_kv,
        head_dim=head,
        head_dim_v=value,
        sinks=c.switch(keys.sinks),
    )


def grouped_matrices(b: Building, word: str, a: Attention) -> None:
    c, f = b.c, b.f
    gate = 2 if c.switch(f.output_gate) else 1
    heads = Extent(size=a.n_heads * a.head_dim * gate, split="ranks", unit=a.head_dim)
    keys = Extent(size=a.n_kv_heads * a.head_dim, split="kv_heads", unit=a.head_dim)
    values = Extent(size=a.n_kv_heads * a.head_dim_v, split="kv_heads", unit=a.head_dim_v)
    out = Extent(size=a.n_heads * a.head_dim_v, split="ranks", unit=a.head_dim_v)
    hidden, of = Extent(size=b.hidden), dict[str, Any](layers=a.layers)
    attention = f.vllm.modules.attention
    qkv, o = b.module(attention, "qkv_proj"), b.module(attention, "o_proj")
    b.add(f"{word}.qkv", "matrices", (heads, keys, values), hidden, quantized=True, module=qkv, **of)
    if c.switch(f.qkv_bias):
        b.add(f"{word}.qkv_bias", "norms", (heads, keys, values), **of)
    b.add(f"{word}.output", "matrices", hidden, out, quantized=True, module=o, **of)
    if c.switch(f.output_bias):
        b.add(f"{word}.output_bias", "norms", hidden, **of)
    if f.query_key_norms != "rotated" and c.switch(f.query_key_norms):
        whole = f.norms_over == "heads"
        query = Extent(size=a.n_heads * a.head_dim, split="ranks", unit=a.head_dim)
        b.add(f"{word}.query_norm", "norms", query if whole else Extent(size=a.head_dim), **of)
        b.add(f"{word}.key_norm", "norms", keys if whole else Extent(size=a.head_dim), **of)
        if f.value_norms:
            b.add(f"{word}.value_norm", "norms", Extent(size=a.head_dim_v), **of)
    if a.sinks:
        b.add(f"{word}.sinks", "norms", Extent(size=a.n_heads, split="ranks"), **of)


def latent_attention(b: Building) -> tuple[Attention, ...]:
    c = b.c
    b.n_kv_heads = 1
    c.read.update(("num_key_value_heads", "head_dim"))
    b.rank = c.count("kv_lora_rank", most=1 << 16)
    b.nope = c.count("qk_nope_head_dim", most=1 << 16)
    b.rope_dim = c.count("qk_rope_head_dim", most=1 << 16)
    b.value_dim = c.count("v_head_dim", most=1 << 16)
    query_rank = c.maybe("q_lora_rank")
    layers = tuple(i for i, k in enumerate(b.kinds) if k in SHORT_KINDS)
    hidden, latent, of = Extent(size=b.hidden), b.rank + b.rope_dim, dict[str, Any](layers=layers)
    query = Extent(size=b.n_heads * (b.nope + b.rope_dim), split="ranks")
    word = b.f.vllm.modules.attention

    def add(name: str, module: str, rows: Any, columns: Extent, *packs: str) -> None:
        own: dict[str, Any] = {"quantized": True, "module": b.module(word, module), "packs": packs}
        b.add(f"layers.attention.{name}", "matrices", rows, columns, **own, **of)

    if query_rank is None:
        add("query", "q_proj", query, hidden)
        add("latent", "kv_a_proj_with_mqa", Extent(size=latent), hidden)
    else:
        down = (Extent(size=query_rank), Extent(size=latent))
        add("query_latent_down", "fused_qkv_a_proj", down, hidden, "q_a_proj", "kv_a_proj_with_mqa")
        b.add("layers.attention.query_norm", "norms", Extent(size=query_rank), **of)
        add("query_up", "q_b_proj", query, Extent(size=query_rank))
    b.add("layers.attention.latent_norm", "norms", Extent(size=b.rank), **of)
    up = Extent(size=b.n_heads * (b.nope + b.value_dim), split="ranks")
    add("latent_up", "kv_b_proj", up, Extent(size=b.rank))
    add("output", "o_proj", hidden, Extent(size=b.n_heads * b.value_dim, split="ranks"))
    return (
        Attention(
            kind="latent",
            layers=layers,
            n_heads=b.n_heads,
            n_kv_heads=1,
            head_dim=latent,
            head_dim_v=0,
        ),
    )
