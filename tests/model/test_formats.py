"""What a checkpoint's quantization says, and what it is refused for."""

from typing import Any

import pytest

from capplan.hub import load_model
from capplan.model import Model
from capplan.registry import Refused

BLOCKS = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
PACKED = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}


def quantized(config: dict[str, Any], name: str = "Qwen/Qwen3-8B") -> Model:
    return load_model(name, overrides={"quantization_config": config})


def compressed(weights: dict[str, Any], activations: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": activations}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}, **more}


def forms(model: Model) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for tensor in model.tensors:
        found.setdefault(tensor.name, set()).add(tensor.form.name if tensor.form else "plain")
    return found


def test_blocks_quantize_matrices_and_leave_tables_and_norms():
    found = forms(quantized(BLOCKS))
    assert found["layers.attention.qkv"] == found["layers.mlp.down"] == {"fp8-block"}
    assert found["embed_tokens"] == found["lm_head"] == found["layers.norm_1"] == {"plain"}


def test_a_named_module_is_left_alone_by_its_packed_or_its_own_names():
    q = [f"model.layers.0.self_attn.{part}_proj" for part in "qkv"]
    for names in (q, ["model.layers.0.self_attn.qkv_proj"]):
        found = quantized({**BLOCKS, "modules_to_not_convert": names})
        split = {t.form is not None: t.layers for t in found.tensors if t.name == "layers.attention.qkv"}
        assert split == {False: (0,), True: tuple(range(1, 36))}


def test_parts_of_one_packed_matrix_cannot_differ():
    with pytest.raises(Refused, match=r"some parts of model\.layers\.0\.self_attn\.qkv_proj"):
        quantized({**BLOCKS, "modules_to_not_convert": ["model.layers.0.self_attn.q_proj"]})


def test_a_pattern_of_compressed_tensors_is_a_regular_expression():
    found = forms(quantized(compressed(PACKED, ignore=["lm_head", "re:.*self_attn.*"])))
    assert found["layers.attention.qkv"] == {"plain"}
    assert found["layers.mlp.gate_up"] == {"int-packed"}


def test_a_star_of_modelopt_leaves_out_a_module_and_what_is_in_it():
    config = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head", "model.layers.1.mlp*"]}
    found = quantized(config)
    left = [t.layers for t in found.tensors if t.name == "layers.mlp.down" and t.form is None]
    assert left == [(1,)]


def test_a_table_without_a_method_is_no_quantization():
    assert quantized({"quant_algo": "FP8", "ignore": ["lm_head"]}).quantization is None


def test_a_checkpoint_s_own_cache_format_is_kept():
    config = {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}
    found = quantized(config).quantization
    assert found is not None
    assert found.kv_cache_dtype == "fp8_e4m3"


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"quant_method": "quip"}, "is 'quip'; capplan has laws for fp8, modelopt"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes"),
        ({"quant_method": "fp8", "activation_scheme": "odd"}, "activation_scheme"),
        ({**BLOCKS, "weight_block_size": [128]}, "weight_block_size"),
        ({**BLOCKS, "store_dtype": "mxfp4"}, "store_dtype"),
        ({"quant_method": "awq", "bits": 8, "group_size": 128, "zero_point": True}, "AWQ of 8 bits"),
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": False}, "zero_point False"),
        ({"quant_method": "gptq", "bits": 3, "group_size": 128, "sym": True}, "GPTQ of 3 bits"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": True}, "desc_act"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "dynamic": {"-:x": {}}}, "dynamic"),
        ({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}, "W4A8_AWQ"),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "NVFP4"}, "kv_cache_scheme"),
        ({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}, "quantized_layers"),
        (compressed({"num_bits": 8, "type": "int", "strategy": "channel"}, {"dynamic": True}), "no law for this"),
        (compressed(PACKED, kv_cache_scheme={"num_bits": 8}), "kv_cache_scheme"),
        ({"quant_method": "compressed-tensors", "config_groups": {}}, "config_groups"),
        ("fp8", "must be a table"),
    ],
)
def test_what_no_law_covers_is_refused_by_its_name(config, says):
    with pytest.raises(Refused, match=says):
        quantized(config)
