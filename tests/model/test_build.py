"""Graphs out of a config.json: what is built, what is supplied, what is refused and with which words."""

import pytest

from capplan.hub import load_model
from capplan.model import Model, from_config
from capplan.registry import Refused, load, names

GONE = object()

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "torch_dtype": "bfloat16",
    "hidden_size": 64,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 512,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
}
EXPERTS = {
    **{key: LLAMA[key] for key in LLAMA if key not in ("mlp_bias", "intermediate_size")},
    "architectures": ["Qwen3MoeForCausalLM"],
    "intermediate_size": 256,
    "head_dim": 16,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "decoder_sparse_step": 1,
    "norm_topk_prob": True,
    "use_sliding_window": False,
}
GEMMA = {
    "architectures": ["Gemma2ForCausalLM"],
    "torch_dtype": "bfloat16",
    "hidden_size": 64,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
}
FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}


def graph(base=LLAMA, **changed) -> Model:
    """The graph of a config with keys changed, or taken out with GONE."""
    data = {key: value for key, value in {**base, **changed}.items() if value is not GONE}
    return from_config(data, name="tiny", origin="a test")


def shapes(model):
    return {tensor.name: (tensor.shape, tensor.count) for tensor in model.tensors}


def supplied(model):
    return {a.key: a.value for a in model.assumed}


def refusal(base=LLAMA, **changed) -> str:
    with pytest.raises(Refused) as error:
        graph(base, **changed)
    return str(error.value)


def test_a_llama_holds_the_tensors_of_its_config():
    assert shapes(graph()) == {
        "embed_tokens": ((1000, 64), 1),
        "lm_head": ((1000, 64), 1),
        "layers.attention.qkv": ((64 + 2 * 16, 64), 2),
        "layers.attention.output": ((64, 64), 2),
        "layers.mlp.gate_up": ((512, 64), 2),
        "layers.mlp.down": ((64, 256), 2),
        "layers.norm_1": ((64,), 2),
        "layers.norm_2": ((64,), 2),
        "norm": ((64,), 1),
    }


def test_parameters_are_the_elements_of_all_tensors():
    assert graph().n_parameters == 2 * 64_000 + 2 * (96 * 64 + 64 * 64 + 3 * 256 * 64 + 2 * 64) + 64
    assert graph(tie_word_embeddings=True).n_parameters == graph().n_parameters - 64_000


def test_switches_of_a_config_add_biases():
    more = shapes(graph(attention_bias=True, mlp_bias=True)).keys() - shapes(graph()).keys()
    kinds = ("attention.qkv_bias", "attention.output_bias", "mlp.gate_up_bias", "mlp.down_bias")
    assert more == {f"layers.{kind}" for kind in kinds}


def test_a_stated_head_size_need_not_divide_the_hidden_size():
    # Mistral-Nemo: hidden 5,120, 32 heads of 128; vllm 0.33.0 builds qkv_proj with 6,144 rows
    model = load_model("mistralai/Mistral-Nemo-Instruct-2407")
    assert shapes(model)["layers.attention.qkv"] == ((6144, 5120), 40)
    assert graph(head_dim=32).head_dim == 32


def test_heads_without_a_key_value_number_are_all_key_value_heads():
    assert graph(num_key_value_heads=GONE).n_kv_heads == graph(num_key_value_heads=None).n_kv_heads == 8


# What is refused


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"architectures": ["LlamaForCausalLN"]}, ("LlamaForCausalLN", "LlamaForCausalLM", "registry/families")),
        ({"architectures": ["MambaForCausalLM"]}, ("no graph for architecture MambaForCausalLM",)),
        ({"architectures": GONE}, ("architectures", "None", "must name the model's class")),
        ({"architectures": []}, ("architectures", "[]")),
        ({"architectures": "LlamaForCausalLM"}, ("architectures", "'LlamaForCausalLM'")),
        ({"rope_scaling": {"rope_type": "spiral", "factor": 2}}, ("rope_scaling", "'spiral'", "yarn")),
        ({"rope_scaling": {"type": "mrope", "mrope_section": [1]}}, ("rope_scaling", "'mrope'")),
        ({"rope_scaling": {"type": "default", "mrope_section": [16, 24, 24]}}, ("mrope_section",)),
        ({"rope_scaling": {"rope_type": "yarn"}}, ("rope_scaling.factor", "missing", "yarn")),
        ({"rope_scaling": {"rope_type": "linear", "factor": 0}}, ("rope_scaling.factor", "is 0", "positive")),
        ({"rope_scaling": {"rope_type": "linear", "factor": "4"}}, ("rope_scaling.factor", "'4'")),
        ({"rope_scaling": {"rope_type": "linear", "factor": float("nan")}}, ("rope_scaling.factor", "nan")),
        ({"rope_scaling": "yarn"}, ("rope_scaling", "'yarn'", "a table or null")),
        ({"rope_parameters": {"full_attention": 5}}, ("rope_parameters", "5")),
        ({"partial_rotary_factor": 1.5}, ("partial_rotary_factor", "1.5", "(0, 1]")),
        ({"quantization_config": {"quant_method": "marlin"}}, ("quant_method", "'marlin'", "fp8")),
        ({"quantization_config": {"quant_method": "fp8"}}, ("activation_scheme", "None", "static and dynamic")),
        ({"quantization_config": {**FP8, "weight_block_size": [128]}}, ("weight_block_size", "[128]")),
        ({"quantization_config": {**FP8, "weight_block_size": [0, 128]}}, ("weight_block_size", "[0, 128]")),
        (
            {"quantization_config": {**FP8, "kv_cache_scheme": {"num_bits": 4}}},
            ("quantization_config.kv_cache_scheme",),
        ),
        ({"quantization_config": {**FP8, "ignored_layers": 5}}, ("ignored_layers", "a list of module names")),
        ({"quantization_config": "fp8"}, ("quantization_config", "'fp8'", "a table")),
        ({"layer_types": ["full_attention", "linear_attention"]}, ("layer_types", "'linear_attention'", "full_atten")),
        ({"layer_types": ["full_attention"]}, ("layer_types", "2 kinds")),
        ({"layer_types": ["full_attention", "sliding_attention"]}, ("sliding_window", "missing")),
        ({"num_attention_heads": 7}, ("hidden_size", "64", "7 attention heads")),
        ({"torch_dtype": "int8"}, ("torch_dtype", "'int8'", "bfloat16")),
        ({"dtype": "float8"}, ("dtype", "'float8'")),
    ],
)
def test_what_capplan_does_not_know_is_refused_by_name(changed, words):
    says = refusal(**changed)
    assert says.startswith("tiny: ")
    assert all(word in says for word in words), says


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("hidden_size", GONE, ("is missing", "llama")),
        ("hidden_size", None, ("is missing", "llama")),
        ("vocab_size", -1, ("is -1", "at least 1")),
        ("num_hidden_layers", 0, ("is 0", "at least 1")),
        ("num_hidden_layers", 10**6, ("is 1000000", "at most 4096")),
        ("hidden_size", 10**30, ("at most",)),
        ("num_attention_heads", True, ("is True", "a whole number")),
        ("num_attention_heads", 8.0, ("is 8.0", "a whole number")),
        ("intermediate_size", "256", ("is '256'", "a whole number")),
        ("num_key_value_heads", 0, ("is 0", "at least 1")),
        ("max_position_embeddings", 2**40, ("at most",)),
        ("tie_word_embeddings", "no", ("is 'no'", "true or false")),
        ("attention_bias", 1, ("is 1", "true or false")),
    ],
)
def test_a_wrong_number_is_named_with_what_would_do(key, value, words):
    says = refusal(**{key: value})
    assert all(word in says for word in (key, *words)), says


def test_key_value_heads_that_do_not_divide_the_heads_are_refused():
    # vllm 0.33.0's attention layer takes whole groups of query heads to a key-value head
    for heads in (3, 16):
        says = refusal(num_key_value_heads=heads)
        assert "num_key_value_heads" in says and str(heads) in says


@pytest.mark.parametrize(
    ("key", "value"), [("num_experts_per_tok", 5), ("num_experts_per_tok", 0), ("moe_intermediate_size", -1)]
)
def test_wrong_numbers_of_experts_are_named(key, value):
    assert key in refusal(EXPERTS, **{key: value})


@pytest.mark.parametrize("value", [1, "all", {"0": True}])
def test_a_list_of_dense_layers_must_be_a_list(value):
    assert "mlp_only_layers" in refusal(EXPERTS, mlp_only_layers=value)


# What the class supplies, what is not read, what null means


def test_a_full_config_leaves_nothing_to_the_class():
    assert graph().assumed == ()


@pytest.mark.parametrize(
    ("key", "value"),
    [("tie_word_embeddings", False), ("max_position_embeddings", 2048), ("rope_theta", 10000.0), ("mlp_bias", False)],
)
def test_what_a_config_leaves_out_is_supplied_by_the_class_and_listed(key, value):
    # transformers 5.20.2, LlamaConfig
    model = graph(**{key: GONE})
    assert supplied(model) == {key: value}
    assert model.assumed[0].datum.source == "transformers-5-20-2"
    assert key in model.assumed[0].why


def test_gemma_2_ties_its_tables_and_begins_with_a_sliding_layer():
    # transformers 5.20.2, Gemma2Config; vllm 0.33.0 puts layers 0, 2, ... into the sliding group
    model = graph(GEMMA)
    assert model.tied and "lm_head" not in shapes(model)
    assert {a.kind: (a.layers, a.window, a.head_dim) for a in model.attention} == {
        "sliding": ((0, 2), 4096, 256),
        "full": ((1, 3), None, 256),
    }
    assert {"tie_word_embeddings", "sliding_window", "head_dim", "layer_types"} <= supplied(model).keys()


def test_gemma_3_has_a_full_layer_after_five_sliding_ones_and_two_rotary_tables():
    # vllm 0.33.0, Gemma 3 1B: layers 5, 11, 17 and 23 are full; two tables of 32,768 x 256
    model = load_model("google/gemma-3-1b-it")
    full = next(a for a in model.attention if a.kind == "full")
    assert full.layers == (5, 11, 17, 23)
    assert [(rope.positions, rope.rotary_dim, rope.theta) for rope in model.ropes] == [
        (32_768, 256, 10_000.0),
        (32_768, 256, 1_000_000.0),
    ]


def test_null_is_not_absence():
    # transformers 5.20.2, MistralConfig: absent means a window of 4,096, null means none
    mistral = {**LLAMA, "architectures": ["MistralForCausalLM"]}
    windows = [graph(mistral, sliding_window=w).attention[0].window for w in (GONE, None, 128)]
    assert windows == [4096, None, 128]
    assert "sliding_window" in supplied(graph(mistral))
    assert "sliding_window" not in supplied(graph(mistral, sliding_window=None))


def test_qwen_2_5_does_not_slide_until_a_switch_says_so():
    qwen = {**LLAMA, "architectures": ["Qwen2ForCausalLM"], "sliding_window": 128, "use_sliding_window": False}
    assert [a.kind for a in graph(qwen, max_window_layers=0).attention] == ["full"]
    assert [a.kind for a in graph(qwen, max_window_layers=0, use_sliding_window=True).attention] == ["sliding"]
    assert "max_window_layers" in refusal(qwen, max_window_layers=1, use_sliding_window=True)


def test_keys_that_no_law_reads_are_listed():
    model = graph(hidden_act="silu", transformers_version="5.0", torch_dtype="bfloat16")
    assert model.ignored == ("hidden_act", "transformers_version")


def test_draft_layers_are_not_loaded_and_said_so():
    # vllm 0.33.0 loads num_nextn_predict_layers only for speculation
    model = load_model("deepseek-ai/DeepSeek-V3")
    assert model.n_layers == 61
    assert supplied(model) == {"num_nextn_predict_layers": 0}


def test_a_config_without_a_format_is_served_in_bfloat16_and_said_so():
    assert (graph(torch_dtype=GONE).dtype, supplied(graph(torch_dtype=GONE))) == (
        "bfloat16",
        {"torch_dtype": "bfloat16"},
    )


# The same facts in other words


def test_dtype_and_torch_dtype_are_one():
    for key in ("dtype", "torch_dtype"):
        for value in ("float16", "torch.float16"):
            assert graph(**{"torch_dtype": GONE, key: value}).dtype == "float16"
    assert graph(dtype="float16", torch_dtype="float32").dtype == "float16"


def test_rope_parameters_of_transformers_5_are_rope_scaling_and_theta():
    scaling = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 64}
    old = graph(rope_theta=500000.0, rope_scaling=scaling)
    new = graph(rope_theta=GONE, rope_parameters={**scaling, "rope_theta": 500000.0})
    assert old.ropes == new.ropes
    assert old.max_positions == new.max_positions == 512


def test_rope_parameters_may_differ_between_kinds_of_layers():
    kinds = {
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
    }
    model = graph({**GEMMA, "architectures": ["Gemma3ForCausalLM"]}, rope_parameters=kinds, sliding_window_pattern=2)
    assert [(rope.rope_type, rope.factor, rope.theta) for rope in model.ropes] == [
        ("default", 1.0, 10000.0),
        ("linear", 8.0, 1000000.0),
    ]


def test_linear_scaling_lengthens_what_a_model_holds():
    # vllm, config/model.py, _get_and_verify_max_len
    assert graph(rope_scaling={"type": "linear", "factor": 4.0}).max_positions == 2048
    assert graph(rope_scaling={"rope_type": "llama3", "factor": 8.0}).max_positions == 512


def test_yarn_does_not_lengthen_what_a_model_holds():
    # vllm 0.33.0 refuses 131,072 tokens of a Qwen3 whose rope is made yarn with factor 4: it derives 40,960
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32_768}
    model = load_model("Qwen/Qwen3-32B", overrides={"rope_scaling": yarn})
    assert model.max_positions == 40_960
    assert [(rope.rope_type, rope.factor, rope.original_positions) for rope in model.ropes] == [("yarn", 4.0, 32_768)]
    # DeepSeek-V3 states the scaled length itself, 40 x 4,096
    assert load_model("deepseek-ai/DeepSeek-V3").max_positions == 163_840


def test_longrope_is_taken_at_its_original_length_unasked():
    # transformers 5.20.2, Phi3Config, and vllm, _get_and_verify_max_len: longer lengths must be asked for
    phi = {**LLAMA, "architectures": ["Phi3ForCausalLM"], "original_max_position_embeddings": 64}
    model = graph(phi, rope_scaling={"type": "longrope", "short_factor": [1.0], "long_factor": [1.0]})
    assert (model.default_positions, model.max_positions) == (64, 512)
    old = graph(phi, rope_scaling={"type": "su", "original_max_position_embeddings": 64})
    assert (old.default_positions, old.max_positions) == (64, 512)


def test_an_experts_model_has_a_router_and_experts_in_each_layer():
    model = graph(EXPERTS)
    assert shapes(model)["layers.router"] == ((4, 64), 2)
    assert shapes(model)["layers.experts.gate_up"] == ((4, 64, 64), 2)
    assert shapes(model)["layers.experts.down"] == ((4, 64, 32), 2)
    assert "layers.mlp.down" not in shapes(model)
    assert (model.experts.n_experts, model.experts.top_k, model.experts.layers) == (4, 2, (0, 1))


def test_dense_layers_among_the_experts_are_where_the_config_says():
    assert graph(EXPERTS, mlp_only_layers=[0]).experts.layers == (1,)
    assert graph(EXPERTS, decoder_sparse_step=2).experts.layers == (1,)
    # DeepSeek-V3: the first three layers are dense
    assert load_model("deepseek-ai/DeepSeek-V3").experts.layers == tuple(range(3, 61))


@pytest.mark.parametrize(
    ("layers", "number", "shape"),
    [
        # vllm 0.33.0, DeepSeek-V3 on H100 tp 8 holds an eighth of these
        ("layers.experts.gate_up", 58, (256, 4096, 7168)),
        ("layers.experts.down", 58, (256, 7168, 2048)),
        ("layers.attention.query_latent_down", 61, (2112, 7168)),
        ("layers.attention.query_up", 61, (24_576, 1536)),
        ("layers.attention.latent_up", 61, (32_768, 512)),
        ("layers.mlp.gate_up", 3, (36_864, 7168)),
        ("layers.router", 58, (256, 7168)),
    ],
)
def test_deepseek_v3_has_the_matrices_of_its_checkpoint(layers, number, shape):
    assert shapes(load_model("deepseek-ai/DeepSeek-V3"))[layers] == (shape, number)


@pytest.mark.parametrize(
    ("name", "routing"),
    [
        # vllm 0.33.0, get_routing_method_type
        ("deepseek-ai/DeepSeek-V3", "grouped-sigmoid"),
        ("deepseek-ai/DeepSeek-V2-Lite", "plain"),
        ("Qwen/Qwen3-30B-A3B", "renormalize"),
        ("mistralai/Mixtral-8x7B-v0.1", "renormalize"),
    ],
)
def test_how_tokens_choose_their_experts(name, routing):
    assert load_model(name).experts.routing == routing


@pytest.mark.parametrize("name", names("models"))
def test_a_graph_is_consistent(name):
    model = load_model(name)
    layers = [layer for a in model.attention for layer in a.layers]
    assert len(set(layers)) == len(layers), "no layer attends in two ways"
    assert set(layers) <= set(range(model.n_layers))
    assert len({(tensor.name, tensor.layers, tensor.place) for tensor in model.tensors}) == len(model.tensors)
    assert all(extent > 0 for tensor in model.tensors for extent in tensor.shape)
    assert not set(model.ignored) & set(supplied(model))
    assert model.default_positions <= model.max_positions
    stated = load("models", name)
    assert set(model.ignored) <= set(stated.get("config", ())) | set(stated.get("nulls", ()))


@pytest.mark.parametrize(
    ("name", "changed", "words"),
    [
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", {"ssm_state_size": 0}, ("ssm_state_size", "is 0", "1 or more")),
        ("zai-org/GLM-5.2-FP8", {"index_topk_pattern": False}, ("index_topk_pattern", "False", "a list")),
        (
            "moonshotai/Kimi-Linear-48B-A3B-Instruct",
            {"linear_attn_config": {"kda_layers": [None]}},
            ("linear_attn_config.kda_layers", "[None]", "list layers"),
        ),
    ],
)
def test_parts_of_the_wrong_kind_are_refused_by_key(name, changed, words):
    with pytest.raises(Refused) as refused:
        load_model(name, overrides=changed)
    assert all(word in str(refused.value) for word in words), str(refused.value)
