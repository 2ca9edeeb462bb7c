"""What each layer is: full, sliding or chunked attention, a recurrent layer, a feed-forward one."""

from __future__ import annotations

from capplan.model.building import Building
from capplan.model.config import KINDS
from capplan.model.graph import Assumption
from capplan.registry import RegistryError

SHORT_KINDS = {
    "full_attention": "full",
    "sliding_attention": "sliding",
    "chunked_attention": "chunked",
}
"""Kinds of attention, by the words that graphs use."""

LETTERS = {"M": "mamba", "*": "full_attention", "-": "mlp", "E": "moe"}
"""What the letters of a hybrid pattern mean."""


def layer_kinds(b: Building) -> tuple[str, ...]:
    """What each layer is, where the config or the class says it; full or sliding attention where neither does."""
    c, f = b.c, b.f
    stated = c.get("layer_types") if f.layer_types not in ("letters", "flags", "kda_lists") else None
    if stated is not None:
        if not isinstance(stated, list) or len(stated) != b.n_layers:
            raise c.fail("layer_types", f"must list {b.n_layers} kinds, one for each layer")
        for kind in stated:
            known = [k for k in KINDS if k in SHORT_KINDS or k in f.mixers or f.layer_types is None]
            if kind not in known:
                raise c.fail(
                    "layer_types",
                    f"has {kind!r}, a layer kind that capplan does not know there; there are {', '.join(known)}",
                )
        return tuple(stated)
    if f.layer_types == "alternating":
        c.assumed["layer_types"] = Assumption(
            key="layer_types",
            value="sliding, full, sliding, ...",
            datum=None,
            why=f"config.json leaves layer_types out; the class of {f.name} alternates from a sliding layer",
        )
        return tuple("full_attention" if i % 2 else "sliding_attention" for i in b.layers)
    if f.layer_types == "pattern":
        every = c.count("sliding_window_pattern")
        return tuple("sliding_attention" if (i + 1) % every else "full_attention" for i in b.layers)
    if f.layer_types == "interval":
        every = c.count(f.full_every or "full_attention_interval")
        return tuple("linear_attention" if (i + 1) % every else "full_attention" for i in b.layers)
    if f.layer_types == "letters":
        return letters(b)
    if f.layer_types == "flags":
        flags = c.listed("hybrid_layer_pattern", b.n_layers)
        if flags is None:
            raise c.fail("hybrid_layer_pattern", f"is missing; {f.name} models need it")
        return tuple("sliding_attention" if flag == 1 else "full_attention" for flag in flags)
    if f.layer_types == "no_rope":
        flags = c.listed("no_rope_layers", b.n_layers) or [
            int((i + 1) % c.count("no_rope_layer_interval") != 0) for i in b.layers
        ]
        chunked = "chunked_attention" if c.get(f.chunk or "attention_chunk_size") else "full_attention"
        b.with_rope = tuple(i for i in b.layers if flags[i])
        return tuple(chunked if flag else "full_attention" for flag in flags)
    if f.layer_types == "kda_lists":
        own = c.get("linear_attn_config")
        if not isinstance(own, dict) or not isinstance(own.get("kda_layers"), list):
            raise c.fail("linear_attn_config", "must be a table with kda_layers")
        if not all(isinstance(i, int) for i in own["kda_layers"]):
            raise c.fail("linear_attn_config.kda_layers", f"is {own['kda_layers']!r}; it must list layers")
        linear = {i - 1 for i in own["kda_layers"]}
        return tuple("linear_attention" if i in linear else "full_attention" for i in b.layers)
    window = window_in_force(b)
    if f.layer_types == "max_window_layers" and window is not None:
        first = c.count("max_window_layers", least=0)
        return tuple("sliding_attention" if i >= first else "full_attention" for i in b.layers)
    return ("sliding_attention" if window else "full_attention",) * b.n_layers


def letters(b: Building) -> tuple[str, ...]:
    c = b.c
    pattern = c.get("hybrid_override_pattern")
    kinds = c.get("layers_block_type")
    if pattern is None and isinstance(kinds, list):
        words = {"mamba": "mamba", "attention": "full_attention", "mlp": "mlp", "moe": "moe"}
        unknown = [kind for kind in kinds if kind not in words]
        if unknown:
            raise c.fail("layers_block_type", f"has {unknown[0]!r}; there are {', '.join(words)}")
        return tuple(words[kind] for kind in kinds)
    if not isinstance(pattern, str) or len(pattern) != b.n_layers:
        raise c.fail("hybrid_override_pattern", f"is {pattern!r}; it must have {b.n_layers} letters")
    for letter in pattern:
        if letter not in LETTERS:
            raise c.fail("hybrid_override_pattern", f"has {letter!r}; there are {', '.join(LETTERS)}")
    return tuple(LETTERS[letter] for letter in pattern)


def window_in_force(b: Building) -> int | None:
    """The sliding window that is in force, None where there is none."""
    c = b.c
    window = c.maybe("sliding_window", least=0)
    if b.f.window_switch is not None and not c.flag(b.f.window_switch):
        c.assumed.pop("sliding_window", None)
        return None
    return window or None


def chosen(b: Building, text: str, own: tuple[int, ...]) -> tuple[int, ...]:
    """Some of a part's layers: `own` or all, `key=value` by a list of config.json, `<key` the first so many."""
    if text == "own":
        return own
    if text == "latent":
        return tuple(i for i in own if b.kinds[i] in SHORT_KINDS)
    if text == "indexed":
        return indexed(b, own)
    if text[0] in "<>":
        n = b.c.count(text[1:], least=0)
        return tuple(i for i in own if (i < n) == (text[0] == "<"))
    key, equals, words = text.partition("=")
    listed = b.c.listed(key.rstrip("!"), b.n_layers)
    if not equals or listed is None:
        if listed is None and equals:
            return own if key.endswith("!") or "none" in words.split(",") else ()
        raise RegistryError(f"layers = {text!r} is neither own, <key, >key nor key=value")
    wanted = words.split(",")
    return tuple(i for i in own if (str(listed[i]) in wanted) != key.endswith("!"))


def indexed(b: Building, own: tuple[int, ...]) -> tuple[int, ...]:
    """The layers that pick tokens themselves; the others attend to what the last of these picked.

    Source: vllm, models/deepseek_v32/attention.py, skip_topk.
    """
    c = b.c
    c.read.update(("indexer_types", "index_share_for_mtp_iteration"))
    pattern = c.get("index_topk_pattern")
    if pattern is not None:
        if not isinstance(pattern, list | str):
            raise c.fail("index_topk_pattern", f"is {pattern!r}; it must be a list or a text of letters")
        return tuple(i for i in own if i >= len(pattern) or str(pattern[i]) not in ("S", "shared"))
    every, offset = c.maybe("index_topk_freq") or 1, c.maybe("index_skip_topk_offset", least=0)
    first = 2 if offset is None else offset
    return tuple(i for i in own if max(i - first + 1, 0) % every == 0)
