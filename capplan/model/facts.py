"""Models of the registry: by their config, or by facts alone where the weights are not known."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import lru_cache
from typing import Any

from capplan.model.build import from_config
from capplan.model.declared import read_caches
from capplan.model.graph import DTYPE_BITS, Attention, Experts, Model
from capplan.registry import Datum, Refused, RegistryError, Table, names, open_table


@lru_cache(maxsize=1024)
def from_registry(name: str, overrides: str = "", generic: bool = False) -> Model:
    """A model of the registry by its exact name; `overrides` are hf_overrides as canonical JSON."""
    return from_table(open_table("models", name), name, overrides, generic)


def from_table(table: Table, name: str, overrides: str, generic: bool) -> Model:
    """The model that a registry file describes: by its config, or by facts alone where its weights are not known."""
    revision = table.text("revision", None)
    nulls = table.words("nulls", ())
    beside = table.get("hf_quant_config", dict, "the facts of the file beside the config", None)
    facts = table.table("facts", None)
    config = {} if facts is not None else table.get("config", dict, "a table of the config's facts")
    both = set(nulls) & set(config)
    if both:
        raise table.fail("nulls", f"names {sorted(both)[0]}, which config states")
    datum = table.stated(name, what="model", key="config" if facts is None else "facts")
    stated = table.table("caches", None)
    table.done()
    if facts is not None:
        if overrides:
            raise Refused(f"{name}: hf_overrides change a config.json, and this model is described by facts alone")
        model = _from_facts(facts, name, datum)
    else:
        data = {**config, **dict.fromkeys(nulls), **merged(overrides)}
        model = from_config(
            data,
            name=name,
            origin=datum.origin(),
            revision=revision,
            overrides=overrides,
            data_points=(datum,),
            beside=beside,
            assume_generic=generic,
        )
    if stated is None:
        return model
    caches = read_caches(stated, model.n_layers)
    return replace(model, caches=caches, data=(*model.data, *caches.data))


def _from_facts(facts: Table, name: str, datum: Datum) -> Model:
    """A model of which only what caches and buffers follow from is known; its weights are not."""
    n_layers, n_heads, hidden = (_fact(facts, key) for key in ("n_layers", "n_heads", "hidden"))
    n_kv_heads, head_dim = _fact(facts, "n_kv_heads"), _fact(facts, "head_dim")
    dtype = facts.word("dtype", tuple(DTYPE_BITS))
    positions, layers = _fact(facts, "max_positions"), tuple(range(n_layers))
    intermediate, n_experts = facts.count("intermediate", 0), facts.count("n_experts", 0)
    experts = None
    if n_experts:
        experts = Experts(
            n_experts=n_experts,
            top_k=_fact(facts, "top_k"),
            intermediate=intermediate,
            shared_intermediate=intermediate * facts.count("shared_experts", 0),
            routing="other",
            layers=layers,
        )
    latent = facts.flag("latent", n_kv_heads == 1)
    kept = Attention(
        kind="latent" if latent else "full",
        layers=layers,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=head_dim,
        head_dim_v=0 if latent else head_dim,
    )
    vocab = _fact(facts, "vocab")
    facts.done()
    return Model(
        name=name,
        architecture="",
        family="",
        model_type="",
        origin=datum.origin(),
        revision=None,
        hidden=hidden,
        intermediate=intermediate,
        vocab=vocab,
        n_layers=n_layers,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=head_dim,
        dtype=dtype,
        tied=False,
        max_positions=positions,
        default_positions=positions,
        rope_names=(),
        ropes=(),
        tensors=(),
        attention=(kept,),
        experts=experts,
        quantization=None,
        latent=latent,
        latent_nope_dim=0,
        latent_rank=0,
        latent_value_dim=0,
        assumed=(),
        ignored=(),
        data=(datum,),
    )


def _fact(facts: Table, key: str) -> int:
    value: int = facts.count(key)
    if value < 1:
        raise facts.fail(key, f"is {value}; it must be a whole number above zero")
    return value


def merged(overrides: str) -> dict[str, Any]:
    """hf_overrides as a table."""
    found: dict[str, Any] = json.loads(overrides) if overrides else {}
    return found


def known_models() -> tuple[Model, ...]:
    """Every model of the registry, in order."""
    found = []
    for name in names("models"):
        try:
            found.append(from_registry(name))
        except Refused as error:
            raise RegistryError(f"registry/models/{name.replace('/', '__')}.toml: {error}") from None
    return tuple(found)
