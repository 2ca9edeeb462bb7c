"""Where a config.json is found, and what is said where there is none that can be read."""

import json
import os
import socket

import pytest

from capplan.hub import MAX_CONFIG_BYTES, load_model
from capplan.registry import Refused, load, names

LLAMA = load("models", "meta-llama/Meta-Llama-3.1-8B")["config"]


def folder(path, config=LLAMA, name="meta-llama__Tiny"):
    """A folder that holds a config.json, as a dictionary or as it stands."""
    path = path / name
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(config if isinstance(config, str) else json.dumps(config), encoding="utf-8")
    return path


def test_a_folder_its_config_and_its_text_are_one_model(tmp_path):
    found = folder(tmp_path)
    for reference in (found, str(found), found / "config.json", f" {found}/config.json "):
        model = load_model(reference)
        assert (model.name, model.n_layers) == ("meta-llama/Tiny", 32)
        assert model.origin == str(found / "config.json")


def test_a_file_of_another_name_is_called_by_it(tmp_path):
    file = tmp_path / "my-model.json"
    file.write_text(json.dumps(LLAMA))
    assert load_model(file).name == "my-model"


@pytest.mark.parametrize("name", [name for name in names("models") if "config" in load("models", name)])
def test_a_config_gives_the_same_graph_from_the_registry_and_from_a_file(tmp_path, name):
    entry = load("models", name)
    config = {**entry["config"], **dict.fromkeys(entry.get("nulls", ()))}
    found = folder(tmp_path, config)
    if "hf_quant_config" in entry:
        (found / "hf_quant_config.json").write_text(json.dumps(entry["hf_quant_config"]), encoding="utf-8")
    ours, theirs = load_model(name), load_model(found)
    for part in ("tensors", "attention", "ropes", "experts", "quantization", "dtype", "tied", "assumed", "ignored"):
        assert getattr(ours, part) == getattr(theirs, part), part
    assert (ours.max_positions, ours.default_positions) == (theirs.max_positions, theirs.default_positions)
    assert ours.data and not theirs.data


def test_a_registry_name_is_found_in_any_case_and_without_its_maker():
    for reference in ("Qwen/Qwen3-32B", "qwen/qwen3-32b", "Qwen3-32B", "qwen3-32b", " Qwen/Qwen3-32B "):
        assert load_model(reference).name == "Qwen/Qwen3-32B"


def test_overrides_change_the_graph(tmp_path):
    for reference in ("meta-llama/Meta-Llama-3.1-8B", folder(tmp_path)):
        assert load_model(reference, overrides={"num_hidden_layers": 4}).n_layers == 4
        assert load_model(reference, overrides={"tie_word_embeddings": True}).tied
        assert load_model(reference, overrides={}).n_layers == load_model(reference).n_layers == 32
        with pytest.raises(Refused, match=r"num_hidden_layers in config\.json is 'many'"):
            load_model(reference, overrides={"num_hidden_layers": "many"})


def test_a_changed_file_is_read_again(tmp_path):
    found = folder(tmp_path)
    os.utime(found / "config.json", ns=(1, 1))
    assert load_model(found).n_layers == 32
    folder(tmp_path, {**LLAMA, "num_hidden_layers": 3})
    os.utime(found / "config.json", ns=(2, 2))
    assert load_model(found).n_layers == 3


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            '{\n  "hidden_size": 64,\n  oops\n}',
            "is not JSON: Expecting property name enclosed in double quotes in line 3",
        ),
        ("", "is not JSON: Expecting value in line 1, column 1"),
        ("[1, 2]", "holds a list; a config.json is a JSON object"),
        ('"text"', "holds a str; a config.json is a JSON object"),
        ("{}", "architectures in config.json is None; it must name the model's class"),
    ],
)
def test_a_file_that_is_no_config_says_what_it_is(tmp_path, text, says):
    with pytest.raises(Refused) as error:
        load_model(folder(tmp_path, text))
    assert says in str(error.value)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"hidden_size": ' + "9" * 5000 + "}"], ids=["deep", "long number"])
def test_json_beyond_what_python_reads_is_refused_too(tmp_path, text):
    with pytest.raises(Refused, match=r"config\.json"):
        load_model(folder(tmp_path, text))


def test_a_file_that_is_no_text_is_refused(tmp_path):
    found = folder(tmp_path)
    (found / "config.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(Refused, match="is no text in UTF-8"):
        load_model(found)


@pytest.mark.parametrize(("size", "refused"), [(MAX_CONFIG_BYTES, "is not JSON"), (MAX_CONFIG_BYTES + 1, "too many")])
def test_a_file_too_large_for_a_config_is_not_read(tmp_path, size, refused):
    found = folder(tmp_path)
    os.truncate(found / "config.json", size)
    with pytest.raises(Refused, match=refused):
        load_model(found)


def test_a_folder_without_a_config_is_named(tmp_path):
    with pytest.raises(Refused) as error:
        load_model(tmp_path)
    assert str(error.value).startswith(f"{tmp_path} has no config.json; ")


@pytest.mark.parametrize(
    "reference", ["nowhere/else/config.json", "config-not-here.json", "./nowhere", "~/nowhere-at-all"]
)
def test_a_path_to_nothing_is_called_no_file(reference):
    with pytest.raises(Refused, match="there is no file"):
        load_model(reference)


@pytest.mark.parametrize(
    ("reference", "closest"), [("Qwen/Qwen3-33B", "Qwen/Qwen3-32B"), ("llama-3.1-8b", "meta-llama/Meta-Llama-3.1-8B")]
)
def test_an_unknown_model_is_answered_with_the_closest_ones(reference, closest):
    with pytest.raises(Refused) as error:
        load_model(reference)
    assert repr(reference) in str(error.value)
    assert closest in str(error.value)


@pytest.mark.parametrize("reference", ["", "  "])
def test_a_model_must_be_named(reference):
    with pytest.raises(Refused, match="no model is named"):
        load_model(reference)


def test_a_model_in_the_hubs_cache_is_found_without_a_network(tmp_path, monkeypatch):
    hub = pytest.importorskip("huggingface_hub")
    # the cache's own layout: refs/main names a commit, snapshots/<commit> holds its files
    cached = tmp_path / "models--maker--cached-model"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs" / "main").write_text("abc123")
    (cached / "snapshots").mkdir()
    folder(cached / "snapshots", {**LLAMA, "num_hidden_layers": 7}, name="abc123")
    monkeypatch.setattr(hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("capplan fetches nothing"))
    model = load_model("maker/cached-model")
    assert (model.name, model.n_layers) == ("maker/cached-model", 7)
    assert "cache" in model.origin
    for reference in ("maker/not-cached", "not a name/at all"):
        with pytest.raises(Refused, match="there is no model"):
            load_model(reference)
