"""Caches that a model file states: what it may say, and what a plan makes of it."""

import pytest

from capplan.hub import load_model
from capplan.plan import plan
from capplan.registry import RegistryError
from capplan.settings.deployment import from_mapping

FACTS = """
name = "made-up"
method = "assumed"
why = "a test's model"

[facts]
n_layers = 4
n_heads = 8
n_kv_heads = 2
head_dim = 64
hidden = 512
vocab = 32_000
dtype = "bfloat16"
max_positions = 65_536
"""
CACHES = """
[caches]
layout = "block-outermost"
method = "assumed"
why = "a test's caches"

[[caches.owned]]
name = "keys"
layers = [0, 2]
tokens_per_record = 4
record_bytes = { sm90 = { auto = 200, fp8 = 100 }, sm100 = 96 }
alignment = 256
method = "assumed"
why = "a test's cache"

[[caches.owned]]
name = "window"
layers = "all"
window = 64
page_tokens = 16
record_bytes = 50
method = "assumed"
why = "a test's cache"
"""
STATES = """
[caches]
layout = "layer-outermost"
method = "assumed"
why = "a test's states"

[[caches.states]]
law = "{kind}"
layers = [1, 3]
conv_bits = 16
temporal_bits = 32
method = "assumed"
why = "a test's state"
{sizes}
"""


@pytest.fixture
def model_file(tmp_path):
    def write(text):
        file = tmp_path / "made-up.toml"
        file.write_text(text)
        return file

    return write


def asked(file, **said):
    return plan(load_model(file), from_mapping({"engine": "blis-kernel", "chip": "h200", **said}))


def test_a_model_file_is_named_by_its_path_and_its_caches_are_sized_from_what_it_states(model_file):
    p = asked(model_file(FACTS + CACHES), max_num_batched_tokens=1024, max_num_seqs=8, tokens=1000)
    # keys: 16 tokens are 4 records of 200 bytes, 800, rounded up to 1,024; window: 16 x 50 = 800
    assert p.verdict == "refused"
    groups = sorted((g.kind, len(g.members), g.block_bytes) for g in p.kv_groups)
    assert groups == [("full", 2, 2048), ("sliding", 2, 1600), ("sliding", 2, 1600)]
    assert p.kv_block_bytes == 2048
    assert p.sequence_variable_bytes(1000) == 63 * 2048
    # ceil(64 / 16) + 1 pages of each of two groups; at admission min(63 + 2 x 1,024, 65,536) tokens
    assert p.sequence_fixed_bytes() == 2 * 5 * 2048
    assert p.sequence_admission_bytes() == 2 * (-(-2111 // 16) + 1) * 2048
    assert p.to_dict()["weights_bytes"] is None
    assert "weights" in p.sentence


def test_the_record_follows_the_chip_s_generation_and_the_format(model_file):
    file = model_file(FACTS + CACHES)
    pages = {
        (chip, form): asked(file, chip=chip, kv_cache_dtype=form).pool_blocks()
        for chip, form in (("h200", "auto"), ("h200", "fp8"), ("b300", "fp8"))
    }
    keys = {
        key: next(m.page_bytes for b in blocks for m in b.pages if m.name == "keys") for key, blocks in pages.items()
    }
    assert keys == {("h200", "auto"): 1024, ("h200", "fp8"): 512, ("b300", "fp8"): 512}


def test_a_record_that_is_not_stated_is_refused(model_file):
    p = asked(model_file(FACTS + CACHES), kv_cache_dtype="bfloat16")
    assert "states no record of its keys cache (layers 0, 2) for bfloat16 on sm90" in p.sentence
    assert "sm90 fp8" in p.sentence


def test_a_layer_that_reads_another_s_cache_holds_nothing(model_file):
    text = CACHES.replace('layers = "all"', "layers = [1]").replace("[caches]", "[caches]\nreads = [3]", 1)
    p = asked(model_file(FACTS + text))
    assert {m.layer for b in p.pool_blocks() for m in b.pages} == {0, 1, 2}
    # A layer of which nothing is said keeps the generic law: two heads of 64 elements, keys and values
    p = asked(model_file(FACTS + text.replace("reads = [3]", "")))
    other = [m for b in p.pool_blocks() for m in b.pages if m.layer == 3]
    assert [m.page_bytes for m in other] == [16 * 2 * 2 * 64 * 2]


def test_an_older_release_cannot_group_and_the_plan_says_so(model_file):
    file = model_file(FACTS + CACHES)
    p = asked(file, engine="blis-kernel-0.1", tokens=1000)
    note = next(f for f in p.assumed if f.field == "kv_groups")
    assert note.happens == "every cache at its own pages"
    assert p.sequence_fixed_bytes() == 4 * 5 * 800
    assert p.sequence_variable_bytes(1000) == 63 * 2 * 1024
    assert p.sequence_own_bytes(1000) == p.sequence_variable_bytes(1000) + p.sequence_fixed_bytes()
    newest = asked(file, tokens=1000)
    assert newest.sequence_fixed_bytes() + newest.sequence_variable_bytes(1000) >= p.sequence_own_bytes(1000)


def test_pages_that_cannot_be_made_alike_are_charged_by_themselves(model_file):
    text = CACHES.replace("block-outermost", "layer-outermost").replace("alignment = 256", "latent = true")
    p = asked(model_file(FACTS + text.replace("record_bytes = 50", "record_bytes = 57")), tokens=1000)
    assert "neither divide the largest" in next(f.why for f in p.assumed if f.field == "kv_groups")


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        (
            "tokens_per_record = 4",
            "tokens_per_record = 0",
            r"\(keys, layers 0, 2\)\.tokens_per_record is 0; it must be",
        ),
        ("layers = [0, 2]", "layers = [0, 4]", r"keys, layers 0, 4\)\.layers is \[0, 4\]; .* from 0 to 3"),
        ("layers = [0, 2]", "layers = [0, 0]", r"layers is \[0, 0\]; it names a layer twice"),
        ("layers = [0, 2]", "layers = []", r"layers is \[\]; it must be a list of layers"),
        ("auto = 200", "auto = -1", r"keys, layers 0, 2\)\.record_bytes\.sm90\.auto is -1; it must be a whole number"),
        ("auto = 200", 'auto = "x"', r"record_bytes\.sm90\.auto is 'x'"),
        (
            "record_bytes = 50",
            "",
            r"window, layers all\)\.record_bytes is missing; it must be a whole number above zero",
        ),
        ("record_bytes = 50", "record_bytes = true", r"record_bytes is True"),
        ("alignment = 256", "alignment = 0", r"alignment is 0"),
        ("window = 64", "window = 64\nentries = 8", r"entries stands beside window; a cache is bounded by one"),
        ("window = 64", "window = -4", r"window is -4; it must be a whole number above zero"),
        ("page_tokens = 16", "page_tokens = 6\ntokens_per_record = 4", r"page_tokens is 6, .* a multiple of 4"),
        ("window = 64", "entries_beside = 2", r"entries_beside needs entries"),
        ("page_tokens = 16", "page_tokenz = 16", r"page_tokenz is not a key .* the closest are page_tokens"),
        (
            '"block-outermost"',
            '"sideways"',
            r"layout is 'sideways'; it must be one of block-outermost, layer-outermost",
        ),
        ('layers = "all"\n', "layers = [4]\n", r"window, layers 4\)\.layers is \[4\]; .* from 0 to 3"),
        ('layers = "all"\n', "layers = [1]\ndrafter = true\n", r"layers is \[1\]; .* from 4 to 67"),
        ('name = "window"', 'name = "keys"', r"layers has layer 0, whose keys is stated in caches\.owned\[0\]"),
        ("[caches]", "[caches]\nreads = [2]", r"reads has layer 2, which owns keys"),
        ('why = "a test\'s caches"', "", r"caches\.source is missing; a statement needs source and where, or why"),
    ],
)
def test_a_statement_out_of_form_names_the_layers_the_key_and_what_is_allowed(model_file, before, after, says):
    assert before in CACHES
    with pytest.raises(RegistryError, match=says):
        load_model(model_file(FACTS + CACHES.replace(before, after, 1)))


KINDS = {
    # Nemotron 3 Ultra on 8 ranks with one token drafted, from the engine's shapes: 1,067,008 bytes
    "mamba2": ({"inner": 16384, "n_groups": 8, "n_heads": 256, "head_dim": 64, "state_size": 128}, 1_067_008),
    # 4 x (2 x 2,048 + 4,096) / 8 x 2 bytes, and 4 heads of 128 x 128 in fp32
    "gated-delta-net": (
        {"n_k_heads": 16, "k_head_dim": 128, "n_v_heads": 32, "v_head_dim": 128},
        4 * 1024 * 2 + 4 * 128 * 128 * 4,
    ),
    # 4 x 12,288 / 8 x 2 bytes, and 4 heads of 128 x 128 in fp32
    "kda": ({"value_width": 4096, "key_width": 4096, "n_heads": 32, "head_dim": 128}, 4 * 1536 * 2 + 4 * 128 * 128 * 4),
}


def test_a_state_says_its_law_and_once_said_its_kind(model_file):
    text = FACTS + STATES.format(
        kind="mamba2", sizes="\n".join(f"{key} = 8" for key in (*KINDS["mamba2"][0], "conv_kernel"))
    )
    said, once = (load_model(str(model_file(t))).caches.states for t in (text, text.replace("law = ", "kind = ")))
    assert said[0].law == once[0].law == "mamba2" and said[0].sizes == once[0].sizes
    with pytest.raises(RegistryError, match=r"\.law is 'mamba9'; it must be one of mamba2, gated-delta-net, kda"):
        load_model(str(model_file(text.replace('"mamba2"', '"mamba9"'))))


@pytest.mark.parametrize("kind", KINDS)
def test_recurrent_states_are_this_rank_s_share_and_follow_the_mode(model_file, kind):
    sizes, page = KINDS[kind]
    text = "\n".join(f"{key} = {value}" for key, value in {**sizes, "conv_kernel": 4}.items())
    file = model_file(FACTS + STATES.format(kind=kind, sizes=text))
    said = {"tensor_parallel_size": 8, "num_speculative_tokens": 1, "enable_prefix_caching": False, "tokens": 1000}
    none = asked(file, **said)
    assert none.sequence_fixed_bytes() == 2 * page * (1 + 1)
    align = asked(file, **{**said, "enable_prefix_caching": True})
    assert align.sequence_fixed_bytes() == 2 * page * (2 + 1)
    assert align.resolved.mamba_cache_mode == "align"
    assert [f.field for f in align.overridden] == ["mamba_cache_mode"]
    every = asked(file, **said, mamba_cache_mode="all")
    assert every.sequence_fixed_bytes() == 0
    tokens = -(-1000 // 16)
    keys = tokens * 16 * 2 * 1 * 2 * 64 * 2
    assert every.sequence_variable_bytes(1000) == keys + 2 * page * (tokens + 1)
    assert every.sequence_variable_bytes(0) == 0
    assert none.sequence_variable_bytes(1000) == keys


def test_the_registry_s_v41_states_what_the_engine_lays_out():
    model = load_model("deepseek-ai/DeepSeek-V4.1-Flash")
    assert (model.name, model.tensors) == ("deepseek-v4.1-flash", ())
    owners: dict[str, int] = {}
    for cache in model.caches.owned:
        owners[cache.name] = owners.get(cache.name, 0) + len(cache.layers)
    assert owners == {"compressed": 4, "index": 4, "window": 43, "compressor state": 3}


def test_a_ring_grows_by_powers_of_two_where_a_step_drafts_more(model_file):
    model = load_model("deepseek-v4.1-flash")
    pages = []
    for drafted in (0, 6, 7):
        p = plan(model, from_mapping({"engine": "blis-kernel", "chip": "h200", "num_speculative_tokens": drafted}))
        pages.append(next(m.page_bytes for b in p.pool_blocks() for m in b.pages if m.name == "compressor state"))
    assert pages == [32_768, 32_768, 65_536]


def test_a_pool_that_is_stated_gives_capacity_without_weights():
    model = load_model("deepseek-v4.1-flash")
    said = {"engine": "vllm-0.33.0", "chip": "h200", "speculative_method": "dspark", "max_num_batched_tokens": 8192}
    p = plan(model, from_mapping({**said, "kv_cache_memory_bytes": 500_000 * 116_928 + 7}))
    assert (p.kv_blocks, p.kv_cache_tokens) == (500_000, 25_548_852)
    assert p.verdict == "refused"
    assert p.kv_budget_bytes is None
    unsized = plan(model, from_mapping(said))
    assert unsized.kv_blocks is None
    assert unsized.kv_request_blocks == 20_521
