"""What a checkpoint's quantization says about each matrix: the method, its formats, and what it leaves alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from typing import Any

from capplan.model.config import Config
from capplan.model.graph import Format, Quantization, Tensor
from capplan.registry import Refused

ONLINE = {"fp8": Format(name="fp8-online", bits=8), "fp8_per_tensor": Format(name="fp8-online", bits=8)}
"""Formats that the engine makes of an unquantized checkpoint while it loads, by the name that asks for them."""

PACKS = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
"""What checkpoints call the matrices that the engine packs into one."""

MODELOPT = {
    "FP8": Format(name="fp8-static", bits=8),
    "NVFP4": Format(name="nvfp4", bits=4, columns=16),
    "W4A16_NVFP4": Format(name="nvfp4-weights", bits=4, columns=16),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Scheme:
    """A quantization as a checkpoint states it.

    `form` is the format of matrices, `experts` that of routed experts where it is another one, `by_module` that of
    named modules where the checkpoint lists them one by one; `ignored` and `matching` say what is left alone.
    """

    method: str
    form: Format | None
    experts: Format | None
    matching: str
    ignored: tuple[str, ...] = ()
    by_module: Mapping[str, Format | None] = field(default_factory=dict)
    heads: bool = False
    kv_cache_dtype: str | None = None
    serves: tuple[str, ...] = ()


# What the methods say


def scheme(c: Config, beside: Mapping[str, Any] | None) -> Scheme | None:
    """The scheme of a config.json, or of the hf_quant_config.json beside it; None where nothing is quantized.

    Raises Refused for a method, a scheme or a key that no law covers, by its name.
    """
    stated = c.get("quantization_config")
    c.read.add("quantization_config")
    key = "quantization_config"
    if stated is None and beside is not None:
        stated, key = dict(beside), "hf_quant_config.json"
    if stated is None:
        return None
    if not isinstance(stated, Mapping):
        raise c.fail(key, f"is {stated!r}; it must be a table")
    method = _method(stated)
    if method is None:
        return None
    found = METHODS.get(method)
    if found is None:
        raise c.fail(f"{key}.quant_method", f"is {method!r}; capplan has laws for {', '.join(METHODS)}")
    return found(c, stated)


def _method(stated: Mapping[str, Any]) -> str | None:
    """The method's name; a table that names none is not quantized for the engine.

    Source: vllm, transformers_utils/model_arch_config_convertor.py, _normalize_quantization_config.
    """
    inner, producer = stated.get("quantization"), stated.get("producer")
    by = producer.get("name") if isinstance(producer, Mapping) else None
    if by == "modelopt" and isinstance(inner, Mapping) and inner.get("quant_algo") is not None:
        return "modelopt"
    method = str(stated.get("quant_method") or "").lower().replace("compressed_tensors", "compressed-tensors")
    return ("modelopt" if method.startswith("modelopt") else method) or None


def _known(c: Config, stated: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for key in stated:
        if key not in known and stated[key] not in (None, False, [], {}):
            raise c.fail(f"quantization_config.{key}", "is not a key that capplan knows there")


def _names(c: Config, stated: Mapping[str, Any], *keys: str) -> tuple[str, ...]:
    for key in keys:
        value = stated.get(key)
        if value:
            if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
                raise c.fail(f"quantization_config.{key}", "must be a list of module names")
            return tuple(value)
    return ()


def _fp8(c: Config, stated: Mapping[str, Any]) -> Scheme:
    _known(
        c,
        stated,
        (
            "quant_method",
            "weight_block_size",
            "fmt",
            "activation_scheme",
            "modules_to_not_convert",
            "ignored_layers",
            "scale_fmt",
        ),
    )
    block, activations = stated.get("weight_block_size"), stated.get("activation_scheme")
    if activations is None and block is not None:
        # Blocks go with activations that are scaled on the way, and with no others.
        activations = "dynamic"
    if activations not in ("static", "dynamic"):
        raise c.fail("quantization_config.activation_scheme", f"is {activations!r}; there are static and dynamic")
    if block is None:
        form = Format(name="fp8-static" if activations == "static" else "fp8-tensor", bits=8)
    elif isinstance(block, list) and len(block) == 2 and all(isinstance(b, int) and b > 0 for b in block):
        form = Format(name="fp8-block", bits=8, rows=block[0], columns=block[1])
    else:
        raise c.fail("quantization_config.weight_block_size", f"is {block!r}; it must be two sizes")
    experts = form
    width = c.get("expert_dtype")
    if width not in (None, "fp8", "fp4"):
        raise c.fail("expert_dtype", f"is {width!r}; capplan has laws for fp8 and fp4")
    if width == "fp4":
        experts = Format(name="mxfp4-unbiased", bits=4, columns=32)
    ignored = _names(c, stated, "ignored_layers", "modules_to_not_convert")
    return Scheme(method="fp8", form=form, experts=experts, matching="exact", ignored=ignored, serves=("fp8",))


def _modelopt(c: Config, stated: Mapping[str, Any]) -> Scheme:
    inner = stated["quantization"] if isinstance(stated.get("quantization"), Mapping) else stated
    algorithm = str(inner.get("quant_algo") or "").upper()
    cache = inner.get("kv_cache_scheme") or stated.get("kv_cache_scheme") or inner.get("kv_cache_quant_algo")
    if isinstance(cache, Mapping):
        known = cache.get("dynamic") is False and cache.get("num_bits") == 8 and cache.get("type") == "float"
        cache = "FP8" if known else str(cache)
    if cache is not None and str(cache).upper() != "FP8":
        raise c.fail("quantization_config.kv_cache_scheme", f"is {cache}; capplan has a law for caches in FP8")
    ignored = _names(c, inner, "ignore", "exclude_modules")
    # A pattern that ends in a star leaves out the module and what lies in it.
    split = tuple(
        part
        for name in ignored
        for part in (
            (name[:-1], f"{name[:-1]}.*") if len(name) > 1 and name[-1] == "*" and name[-2] != "." else (name,)
        )
    )
    common: dict[str, Any] = {
        "method": f"modelopt {algorithm}",
        "matching": "modelopt",
        "ignored": split,
        "heads": True,
        "kv_cache_dtype": "fp8_e4m3" if cache is not None else None,
        "serves": ("modelopt", "modelopt_fp4", "modelopt_mixed"),
    }
    if algorithm == "MIXED_PRECISION":
        layers = inner.get("quantized_layers")
        if not isinstance(layers, Mapping) or not layers:
            raise c.fail("quantization_config.quantized_layers", "is missing; MIXED_PRECISION needs it")
        by_module = {}
        for module, how in layers.items():
            if not isinstance(how, Mapping):
                raise c.fail(f"quantization_config.quantized_layers.{module}", f"is {how!r}; it must be a table")
            own = str(how.get("quant_algo", "")).upper()
            if own not in MODELOPT:
                raise c.fail(
                    f"quantization_config.quantized_layers.{module}",
                    f"is in {own!r}; capplan has laws for {', '.join(MODELOPT)}",
                )
            by_module[module] = MODELOPT[own]
        return Scheme(form=None, experts=None, by_module=by_module, **common)
    if algorithm not in MODELOPT:
        raise c.fail(
            "quantization_config.quant_algo",
            f"is {algorithm!r}; capplan has laws for {', '.join(MODELOPT)} and MIXED_PRECISION",
        )
    return Scheme(form=MODELOPT[algorithm], experts=MODELOPT[algorithm], **common)


def _awq(c: Config, stated: Mapping[str, Any]) -> Scheme:
    known = ("quant_method", "bits", "w_bit", "group_size", "q_group_size", "version", "zero_point", "backend")
    _known(c, stated, (*known, "modules_to_not_convert"))
    bits, group = stated.get("bits", stated.get("w_bit")), stated.get("group_size", stated.get("q_group_size"))
    if bits != 4 or not isinstance(group, int) or group < 1 or stated.get("zero_point") is not True:
        raise c.fail(
            "quantization_config",
            f"is AWQ of {bits} bits in groups of {group}, zero_point {stated.get('zero_point')}; "
            "capplan has a law for 4 bits, a positive group_size and zero_point true",
        )
    form = Format(name="awq", bits=4, columns=group)
    serves = ("awq", "auto_awq", "awq_marlin")
    ignored = _names(c, stated, "modules_to_not_convert")
    return Scheme(method="awq", form=form, experts=form, matching="substring", ignored=ignored, serves=serves)


def _gptq(c: Config, stated: Mapping[str, Any]) -> Scheme:
    known = (
        "quant_method",
        "bits",
        "group_size",
        "sym",
        "damp_percent",
        "true_sequential",
        "checkpoint_format",
        "meta",
    )
    _known(c, stated, (*known, "static_groups", "desc_act", "quantizer", "tokenizer", "dataset", "cache_block_outputs"))
    bits, group = stated.get("bits"), stated.get("group_size")
    if bits not in (4, 8) or not isinstance(group, int) or group < 1 or stated.get("sym") is not True:
        raise c.fail(
            "quantization_config",
            f"is GPTQ of {bits} bits in groups of {group}, sym {stated.get('sym')}; "
            "capplan has laws for 4 and 8 bits, a positive group_size and sym true",
        )
    if stated.get("desc_act"):
        raise c.fail("quantization_config.desc_act", "is true; capplan has no law for reordered groups")
    form = Format(name="gptq", bits=bits, columns=group)
    serves = ("gptq", "auto_gptq", "gptq_marlin")
    return Scheme(method="gptq", form=form, experts=form, matching="exact", serves=serves)


def _compressed(c: Config, stated: Mapping[str, Any]) -> Scheme:
    _known(
        c,
        stated,
        (
            "quant_method",
            "format",
            "quantization_status",
            "ignore",
            "kv_cache_scheme",
            "config_groups",
            "global_compression_ratio",
            "version",
        ),
    )
    groups = stated.get("config_groups")
    if not isinstance(groups, Mapping) or len(groups) != 1:
        raise c.fail("quantization_config.config_groups", "must be one group; capplan has laws for no other number")
    group = next(iter(groups.values()))
    if group.get("targets") != ["Linear"]:
        raise c.fail(
            "quantization_config.config_groups", f"targets {group.get('targets')}; capplan has a law for ['Linear']"
        )
    weights, acts = group.get("weights") or {}, group.get("input_activations")
    what = (weights.get("type"), weights.get("num_bits"), weights.get("strategy"))
    form = None
    if what == ("float", 8, "channel") and acts and acts.get("dynamic") is True:
        form = Format(name="fp8-channel", bits=8)
    elif what == ("float", 8, "tensor") and acts:
        form = Format(name="fp8-tensor" if acts.get("dynamic") else "fp8-static", bits=8)
    elif what == ("float", 8, "block") and acts and acts.get("dynamic") is True:
        rows, columns = weights.get("block_structure") or (128, 128)
        form = Format(name="fp8-block", bits=8, rows=rows, columns=columns)
    elif what in (("int", 4, "group"), ("int", 8, "group")) and acts is None and weights.get("symmetric") is not False:
        form = Format(name="int-packed", bits=weights["num_bits"], columns=weights.get("group_size") or 128)
    if form is None:
        raise c.fail(
            "quantization_config.config_groups",
            f"has weights of type, bits and strategy {what} with activations {acts}; "
            "capplan has no law for this compressed-tensors scheme",
        )
    if stated.get("kv_cache_scheme") is not None:
        raise c.fail(
            "quantization_config.kv_cache_scheme", "is stated; capplan has no law for it in compressed-tensors"
        )
    ignored = _names(c, stated, "ignore")
    return Scheme(
        method="compressed-tensors",
        form=form,
        experts=form,
        matching="compressed-tensors",
        ignored=ignored,
        serves=("compressed-tensors",),
    )


def _mxfp4(c: Config, stated: Mapping[str, Any]) -> Scheme:
    _known(c, stated, ("quant_method", "modules_to_not_convert"))
    form = Format(name="mxfp4", bits=4, columns=32)
    return Scheme(method="mxfp4", form=None, experts=form, matching="exact", serves=("mxfp4", "gpt_oss_mxfp4"))


METHODS: Mapping[str, Callable[[Config, Mapping[str, Any]], Scheme]] = {
    "fp8": _fp8,
    "modelopt": _modelopt,
    "compressed-tensors": _compressed,
    "awq": _awq,
    "gptq": _gptq,
    "mxfp4": _mxfp4,
}


# What they leave alone


def formed(c: Config, s: Scheme | None, tensors: list[Tensor]) -> list[Tensor]:
    """The tensors, each with its format; a class whose layers differ is one class for each format.

    Source: vllm, model_executor/layers/quantization, get_quant_method of each configuration.
    """
    if s is None:
        return tensors
    ignored = tuple(_renamed(name, c.family.vllm.renames) for name in s.ignored)
    by_module = {_renamed(name, c.family.vllm.renames): form for name, form in s.by_module.items()}
    exact = frozenset(ignored)
    found = []
    for tensor in tensors:
        if not tensor.quantized or (tensor.line == "head" and not s.heads):
            found.append(tensor)
            continue
        ways: dict[Format | None, list[int]] = {}
        for layer in tensor.layers or (0,):
            module = tensor.module.replace("#", str(layer))
            form = s.experts if tensor.n_experts else s.form
            if by_module:
                form = _listed(module, tensor, by_module, c)
            elif form is not None and _skipped(module, tensor, s.matching, ignored, exact, c):
                form = None
            ways.setdefault(form, []).append(layer)
        for form, layers in ways.items():
            found.append(replace(tensor, form=form, layers=tuple(layers) if tensor.layers else ()))
    return found


def _renamed(name: str, renames: tuple[tuple[str, str], ...]) -> str:
    for old, new in renames:
        if name == old.rstrip(".") or name.startswith(old):
            return new.rstrip(".") + name[len(old.rstrip(".")) :]
    return name


def _shards(module: str, tensor: Tensor) -> list[str]:
    base, _, last = module.rpartition(".")
    packs = tensor.packs or PACKS.get(last, ())
    return [f"{base}.{part}" for part in packs] or [module]


def _skipped(
    module: str, tensor: Tensor, matching: str, ignored: tuple[str, ...], exact: frozenset[str], c: Config
) -> bool:
    """Whether a checkpoint leaves a module unquantized, by the way in which its method names modules."""
    if not ignored:
        return False
    shards = _shards(module, tensor)
    if matching == "substring":
        return any(name in module for name in ignored) or _all(
            c, [any(n in s for n in ignored) for s in shards], module
        )
    if matching == "compressed-tensors":
        return _all(c, [any(_target(s, name) for name in ignored) for s in shards], module)
    if tensor.n_experts:
        found = any("experts" in name and module in name for name in ignored)
    else:
        found = module in exact or _all(c, [s in exact for s in shards], module)
    if found or matching == "exact":
        return found
    bare = module.removeprefix("language_model.")
    return any(
        (name != module and (name in module or (bare != module and name in bare))) or fnmatch(module, name)
        for name in ignored
    )


def _all(c: Config, flags: list[bool], module: str) -> bool:
    if any(flags) and not all(flags):
        raise Refused(
            f"{c.name}: quantization_config leaves some parts of {module} unquantized and not others, "
            "which the engine cannot pack into one matrix"
        )
    return all(flags)


def _target(module: str, name: str) -> bool:
    return re.match(name[3:], module) is not None if name.startswith("re:") else name == module


def _listed(module: str, tensor: Tensor, by_module: Mapping[str, Format | None], c: Config) -> Format | None:
    """The format of a module in a checkpoint that lists them one by one."""
    names = [module] + (["lm_head"] if tensor.line == "head" else [])
    for name in names:
        if name in by_module:
            return by_module[name]
    shards = [by_module[s] for s in _shards(module, tensor) if s in by_module]
    if len(set(shards)) > 1:
        raise Refused(f"{c.name}: quantization_config has several formats within {module}; the engine needs one")
    if shards:
        return shards[0]
    if tensor.n_experts:
        parent = module.removesuffix(".experts")
        for name, form in by_module.items():
            if name.startswith((f"{module}.", f"{parent}.")):
                return form
    return None


def summary(s: Scheme | None, tensors: list[Tensor]) -> Quantization | None:
    """What a model says of its quantization: the formats that some matrix has."""
    if s is None:
        return None
    forms = tuple(dict.fromkeys(t.form for t in tensors if t.form is not None))
    return Quantization(method=s.method, forms=forms, kv_cache_dtype=s.kv_cache_dtype, serves=s.serves)
