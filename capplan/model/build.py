"""The graph of a model, out of its config.json and its family's parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from capplan.model.attention import grouped_attention, latent_attention
from capplan.model.building import Building
from capplan.model.config import Config, architectures, load_family
from capplan.model.feed_forward import feed_forward
from capplan.model.formats import formed, scheme, summary
from capplan.model.graph import DTYPE_BITS, EVERY, FIRST, LAST, Assumption, Attention, Extent, Guess, Model
from capplan.model.kinds import layer_kinds
from capplan.model.parts import load_part
from capplan.model.placed import named, put, tower
from capplan.model.ropes import ropes
from capplan.registry import Datum, Refused, closest


def from_config(
    data: Mapping[str, Any],
    *,
    name: str,
    origin: str,
    revision: str | None = None,
    overrides: str = "",
    data_points: tuple[Datum, ...] = (),
    beside: Mapping[str, Any] | None = None,
    assume_generic: bool = False,
) -> Model:
    """The graph of the model that a config.json describes.

    data    the parsed config.json, hf_overrides already merged
    name    what to call the model
    origin  where the config came from, for people
    overrides  the hf_overrides that were merged, as canonical JSON
    beside  the parsed hf_quant_config.json that lies beside it, where there is one
    assume_generic  build an unknown architecture as a plain decoder, with a band; a known one is built as ever

    Raises Refused: an unknown architecture, rope type, quantization or layer kind by its name;
    a missing, negative or absurd field by its name.
    """
    stated = data.get("architectures")
    if not isinstance(stated, list) or not stated or not isinstance(stated[0], str):
        raise Refused(f"{name}: architectures in config.json is {stated!r}; it must name the model's class")
    architecture = stated[0]
    family_name = architectures().get(architecture)
    who = {"name": name, "origin": origin, "revision": revision, "overrides": overrides, "data": data_points}

    def built(family: str, guess: bool) -> Model:
        return _build(Building(Config(name, data, load_family(family)), architecture), beside, who, guess)

    if family_name is not None:
        return built(family_name, assume_generic)
    known = sorted(architectures())
    unknown = (
        f"{name}: capplan has no graph for architecture {architecture}; {closest(architecture, known)}; {ADD_FILE}"
    )
    try:
        found = built(GENERIC, True)
    except Refused as error:
        why = str(error).removeprefix(f"{name}: ")
        raise Refused(f"{unknown}; it cannot be planned as a plain decoder either: {why}") from None
    if not assume_generic:
        raise Refused(f"{unknown}; --assume-generic would plan it as a plain decoder, with a wider band")
    return found


GENERIC = "generic"
"""The family that stands in for an unknown one, where a person asks for it."""

ADD_FILE = "a family is added as registry/families/<name>.toml"


def _build(b: Building, beside: Mapping[str, Any] | None, who: Mapping[str, Any], assume_generic: bool) -> Model:
    """Composes the parts of a family into a graph; where asked, without what it has no part for."""
    c, f = b.c, b.f
    c.read.update(("architectures", "model_type"))
    stray = tuple(key for key in f.refuses if c.get(key))
    for key in stray:
        if not assume_generic or key not in f.band_covers:
            offer = "; --assume-generic would plan it without, with a wider band" if key in f.band_covers else ""
            raise c.fail(key, f"is {c.get(key)!r}; capplan has no part for it in {f.name} models yet{offer}")
    guess = _guess(b, stray)
    dtype = _dtype(b)
    quantized = scheme(c, beside)
    b.method = quantized.method.partition(" ")[0] if quantized is not None else ""
    tied = c.flag("tie_word_embeddings") and f.ties
    max_positions = c.count(f.positions, most=1 << 31)
    b.kinds = layer_kinds(b)
    _embedding(b, tied)
    attention: tuple[Attention, ...] = ()
    if f.attention == "latent":
        attention = latent_attention(b)
    elif f.attention == "grouped":
        attention = grouped_attention(b)
    else:
        b.n_kv_heads = c.maybe("num_key_value_heads") or b.n_heads
    for kind, part in f.mixers.items():
        layers = tuple(i for i, k in enumerate(b.kinds) if k == kind)
        if layers:
            put(b, load_part(part), named(b, load_part(part)), layers)
    rotary_of = b.rope_dim if f.attention == "latent" else None
    tables, rope_names, derived, default = ropes(c, max_positions, attention, rotary_of)
    if f.index_rope is not None and tables and not c.flag(f.index_rope):
        b.ropes.append(replace(tables[0], use="rotary_index"))
    experts = feed_forward(b)
    _norms(b)
    for extra in f.extras:
        put(b, load_part(extra), named(b, load_part(extra)), b.layers)
    if f.tower is not None:
        tower(b, load_part(f.tower))
    if f.draft_layers is not None and c.maybe(f.draft_layers, least=0):
        c.assumed[f.draft_layers] = Assumption(
            key=f.draft_layers,
            value=0,
            datum=None,
            why="the checkpoint's draft layers are not loaded unless speculation asks for them",
        )
    tensors = formed(c, quantized, b.tensors)
    ignored = tuple(sorted(key for key in c.data if key not in c.read))
    latent = f.attention == "latent"
    head_dim = b.nope + b.rope_dim if latent else attention[0].head_dim if attention else 0
    return Model(
        **who,
        architecture=b.architecture,
        family=f.name,
        model_type=str(c.data.get("model_type", "")),
        hidden=b.hidden,
        intermediate=b.intermediate,
        vocab=b.vocab,
        n_layers=b.n_layers,
        n_heads=b.n_heads,
        n_kv_heads=b.n_kv_heads,
        head_dim=head_dim,
        dtype=dtype,
        tied=tied,
        max_positions=derived,
        default_positions=default,
        rope_names=rope_names,
        ropes=(*tables, *b.ropes),
        tensors=tuple(tensors),
        attention=attention,
        experts=experts,
        quantization=summary(quantized, tensors),
        latent=latent,
        latent_nope_dim=b.nope,
        latent_rank=b.rank,
        latent_value_dim=b.value_dim,
        assumed=(*_guessed(b, stray, guess), *c.assumed.values()),
        ignored=ignored,
        recurrent=tuple(b.recurrent),
        buffers=tuple(b.buffers),
        layer_caches=tuple(b.caches),
        attention_type=f.attention_type,
        guess=guess,
    )


def _guess(b: Building, stray: tuple[str, ...]) -> Guess | None:
    """What is assumed of an architecture that is not known, or of a known one's keys that have no part."""
    percent = load_family(GENERIC).weights_percent
    if percent is None or not (stray or b.f.name == GENERIC):
        return None
    says = f"the architecture {b.architecture} is not known and generic layers were assumed"
    if stray:
        says = f"what {b.architecture} does with {' and '.join(stray)} is not known and was left out"
    return Guess(says=says, weights_percent=percent)


def _guessed(b: Building, stray: tuple[str, ...], guess: Guess | None) -> tuple[Assumption, ...]:
    """The guess among what was assumed: by the key that is not known, with the file that would replace it."""
    if guess is None:
        return ()
    band = guess.weights_percent
    width = f"the weights may lie between {band.low} and {band.high} % of the figure, the cache's pages are as computed"
    what = "grouped attention, gated MLPs, RMS norms, experts by their usual keys"
    file = f"registry/families/{b.f.name if stray else '<name>'}.toml"
    why = f"{guess.says}{'' if stray else f': {what}'}; {width} and as unsure; {file} would replace this"
    key, value = (stray[0], "left out") if stray else ("architectures", "generic layers")
    return (Assumption(key=key, value=value, datum=band, why=why),)


def _dtype(b: Building) -> str:
    c = b.c
    key = "dtype" if c.has("dtype") else "torch_dtype"
    value = c.get(key)
    if value is None:
        supplied = b.f.vllm.default_dtype or "bfloat16"
        c.assumed["torch_dtype"] = Assumption(
            key="torch_dtype",
            value=supplied,
            datum=None,
            why="config.json names no dtype; the engine serves such a model in bfloat16",
        )
        return supplied
    value = str(value).removeprefix("torch.")
    if value not in DTYPE_BITS:
        raise c.fail(key, f"is {value!r}; capplan knows {', '.join(DTYPE_BITS)}")
    return value


def _embedding(b: Building, tied: bool) -> None:
    table, f = Extent(size=b.vocab, split="vocab"), b.f
    place = EVERY if f.vllm.embedding_everywhere else FIRST
    b.add("embed_tokens", "embedding", table, Extent(size=b.hidden), place=place)
    if not tied:
        place = EVERY if f.vllm.head_everywhere else LAST
        head = f.vllm.modules.head
        b.add("lm_head", "head", table, Extent(size=b.hidden), place=place, quantized=True, module=head)


def _norms(b: Building) -> None:
    hidden = Extent(size=b.hidden)
    for name in b.f.norms:
        b.add(f"layers.{name}", "norms", hidden)
    b.add("norm", "norms", hidden, place=EVERY if b.f.vllm.norm_everywhere else LAST)
    if b.f.scaled_embedding:
        b.add("embedding_scale", "buffers", Extent(size=1), place=EVERY)
