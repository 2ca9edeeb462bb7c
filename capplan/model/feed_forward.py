"""Feed-forward layers, dense and with experts."""

from __future__ import annotations

from typing import Any

from capplan.model.building import Building
from capplan.model.config import ExpertKeys
from capplan.model.graph import Experts, Extent


def feed_forward(b: Building) -> Experts | None:
    c, f, e = b.c, b.f, b.f.experts
    apart = "mlp" in b.kinds or "moe" in b.kinds or f.layer_types == "letters"
    all_layers = b.layers if not apart else tuple(i for i, k in enumerate(b.kinds) if k in ("mlp", "moe"))
    sparse = sparse_layers(b, e)
    dense = tuple(i for i in all_layers if i not in set(sparse) or (e is not None and e.beside_dense))
    key = e.dense_intermediate if e is not None else "intermediate_size"
    other = e is not None and e.intermediate != key
    b.intermediate = c.count(key, most=1 << 22) if dense else (c.maybe(key) or 0) if other else 0
    if dense:
        mlp(b, "layers.mlp", f.vllm.modules.mlp, Extent(size=b.intermediate, split="ranks"), dense)
    if not sparse or e is None:
        return None
    return experts(b, e, sparse)


def experts(b: Building, e: ExpertKeys, sparse: tuple[int, ...]) -> Experts:
    c, f = b.c, b.f
    n_experts = c.count(e.count, most=1 << 16)
    width = c.count(e.intermediate, most=1 << 22)
    top_k = c.count(e.top_k, most=n_experts)
    hidden, of = Extent(size=b.hidden), dict[str, Any](layers=sparse)
    latent = c.maybe(e.latent) if e.latent is not None else None
    inner, columns = Extent(size=latent or b.hidden), Extent(size=width, split="expert_columns")
    names = f.vllm.modules
    router: dict[str, Any] = {
        "quantized": e.router_quantized,
        "bits": e.router_bits,
        "narrow_on": e.router_narrow_on,
        "module": b.module(names.router),
    }
    b.add("layers.router", "matrices", Extent(size=n_experts), hidden, **router, **of)
    if c.switch(e.router_bias):
        b.add("layers.router_bias", "norms", Extent(size=n_experts), bits=e.router_bias_bits or None, **of)
    own: dict[str, Any] = {"n_experts": n_experts, "quantized": True, "module": b.module(names.experts), **of}
    b.add(
        "layers.experts.gate_up" if f.gated else "layers.experts.up",
        "experts",
        (columns,) * (2 if f.gated else 1),
        inner,
        **own,
    )
    b.add("layers.experts.down", "experts", inner, columns, **own)
    if e.biases:
        bias = own
        b.add("layers.experts.gate_up_bias", "experts", (columns, columns), **bias)
        b.add("layers.experts.down_bias", "experts", inner, **bias)
    if latent is not None:
        down, up = b.module(names.mlp, "fc1_latent_proj"), b.module(names.mlp, "fc2_latent_proj")
        b.add("layers.experts.latent_down", "matrices", inner, hidden, quantized=True, module=down, **of)
        b.add("layers.experts.latent_up", "matrices", hidden, inner, quantized=True, module=up, **of)
    shared = shared_width(b, e, width)
    if shared:
        wide = Extent(size=shared, split="shared_expert", unit=e.shared_multiple)
        mlp(b, "layers.shared_experts", names.shared, wide, sparse)
        if e.shared_gate:
            gate = b.module(names.shared + "_gate")
            b.add("layers.shared_experts.gate", "matrices", Extent(size=1), hidden, module=gate, **of)
    return Experts(
        n_experts=n_experts,
        top_k=top_k,
        intermediate=width,
        shared_intermediate=shared,
        routing=routing(b, e),
        layers=sparse,
        hidden=latent or b.hidden,
        gated=f.gated,
        least_intermediate=e.least_intermediate,
        biased=e.biases,
    )


def shared_width(b: Building, e: ExpertKeys, width: int) -> int:
    """Inner size of the dense experts beside the routed ones, 0 where there are none."""
    c = b.c
    if e.layers == "usual":
        stated = c.maybe(e.shared, least=0) if e.shared is not None else None
        own = c.maybe(e.shared_width, least=0) if e.shared_width is not None else None
        return (own or width) * (stated if stated is not None else 1 if own else 0)
    n = c.count(e.shared, least=0, most=1 << 12) if e.shared is not None else 1
    if e.shared_width is not None:
        return n * (c.maybe(e.shared_width, least=0) or 0)
    return width * n if e.shared is not None else 0


def routing(b: Building, e: ExpertKeys) -> str:
    """How a token's scores become weights of experts; some kernels serve only some ways.

    Source: vllm, model_executor/layers/fused_moe/config.py, get_routing_method_type.
    """
    c = b.c
    _, always, word = e.scoring.partition("always ")
    scoring, renormalized = word if always else c.get(e.scoring) or "softmax", c.switch(e.renormalize)
    biased = any(tensor.name == "layers.router_bias" and tensor.bits == 32 for tensor in b.tensors)
    if scoring == "softmax" and not biased:
        return "renormalize" if renormalized else "plain"
    if scoring != "sigmoid" or (biased and not renormalized):
        return "other"
    if biased:
        return "grouped-sigmoid" if (c.maybe("n_group", least=0) or 0) > 0 else "biased-sigmoid"
    return "renormalized-sigmoid" if renormalized else "sigmoid"


def sparse_layers(b: Building, e: ExpertKeys | None) -> tuple[int, ...]:
    c = b.c
    if e is None:
        return ()
    if e.layers == "all":
        return b.layers
    if e.layers == "kinds":
        return tuple(i for i, k in enumerate(b.kinds) if k == "moe")
    if c.maybe(e.count, least=0) in (None, 0):
        return ()
    if e.layers == "usual":
        return usual_layers(b)
    if e.layers == "interleaved":
        step = c.count("interleave_moe_layer_step", least=0)
        stated = c.get("moe_layers")
        if stated is not None and not isinstance(stated, list):
            raise c.fail("moe_layers", f"is {stated!r}; it must be a list of layers")
        if stated:
            return tuple(i for i in b.layers if i in stated)
        return tuple(i for i in b.layers if step and (i + 1) % step == 0)
    if e.layers == "listed":
        flags = c.listed("moe_layer_freq", b.n_layers)
        if flags is None:
            raise c.fail("moe_layer_freq", "is missing; it must list the layers with experts")
        return tuple(i for i in b.layers if flags[i])
    if e.layers == "sparse_step":
        step = c.count("decoder_sparse_step")
        dense_only = c.get("mlp_only_layers") or []
        if not isinstance(dense_only, list):
            raise c.fail("mlp_only_layers", f"is {dense_only!r}; it must be a list of layers")
        sparse = tuple(i for i in b.layers if i not in dense_only and (i + 1) % step == 0)
        if not sparse:
            raise c.fail(
                "decoder_sparse_step",
                f"and mlp_only_layers leave no layer with experts, which {b.architecture} needs",
            )
        return sparse
    first, every = c.maybe("first_k_dense_replace", least=0) or 0, c.maybe("moe_layer_freq") or 1
    return tuple(i for i in b.layers if i >= first and i % every == 0)


def usual_layers(b: Building) -> tuple[int, ...]:
    """The layers with experts by whichever of the usual keys config.json states; all where it states none."""
    c = b.c
    c.read.add("moe_layer_freq")
    listed = c.listed("moe_layer_freq", b.n_layers) if isinstance(c.data.get("moe_layer_freq"), list) else None
    dense_only = c.get("mlp_only_layers") or []
    if not isinstance(dense_only, list):
        raise c.fail("mlp_only_layers", f"is {dense_only!r}; it must be a list of layers")
    first, step = c.maybe("first_k_dense_replace", least=0) or 0, c.maybe("decoder_sparse_step") or 1
    every = 1 if listed is not None else c.maybe("moe_layer_freq") or 1
    return tuple(
        i
        for i in b.layers
        if i >= first
        and i % every == 0
        and (i + 1) % step == 0
        and i not in dense_only
        and (listed is None or listed[i])
    )


def mlp(b: Building, name: str, module: str, wide: Extent, layers: tuple[int, ...]) -> None:
    gated, hidden = b.f.gated, Extent(size=b.hidden)
    up, word = ((wide, wide), "gate_up") if gated else ((wide,), "up")
    of: dict[str, Any] = {"layers": layers, "quantized": True}
    b.add(f"{name}.{word}", "matrices", up, hidden, module=b.module(module, f"{word}_proj"), **of)
    b.add(f"{name}.down", "matrices", hidden, wide, module=b.module(module, "down_proj"), **of)
    if b.c.switch(b.f.mlp_bias):
        b.add(f"{name}.{word}_bias", "norms", up, layers=layers)
        b.add(f"{name}.down_bias", "norms", hidden, layers=layers)
