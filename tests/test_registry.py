"""Every file of the registry loads and is well formed, and a file that is not says what is wrong with it."""

import re
import sys
import tomllib
from pathlib import Path

import pytest

from capplan.engines.release import load_engine
from capplan.engines.vllm_neuron.hardware import load_instance, load_neuron_chip
from capplan.hub import load_model
from capplan.model import architectures, load_family
from capplan.model.facts import known_models
from capplan.model.parts import load_part
from capplan.registry import KINDS, METHODS, Refused, RegistryError, Table, closest, file_of, load_chip, names, sources
from capplan.units import GIB

REGISTRY = Path(__file__).resolve().parents[1] / "registry"
FILES = sorted(path.relative_to(REGISTRY).as_posix() for path in REGISTRY.rglob("*.toml"))
QUOTING = [file for file in FILES if file != "sources.toml"]
SHARED = [file for file in FILES if file.count("/") > 1 and not file.rpartition("/")[2][0].isdigit()]
LOADERS = {
    "chips": load_chip,
    "engines": load_engine,
    "families": load_family,
    "instances": load_instance,
    "models": load_model,
    "neuron": load_neuron_chip,
    "parts": load_part,
}


def tables(value, path=""):
    """Every table of a parsed file, with its path."""
    if isinstance(value, dict):
        yield path, value
        for key, inner in value.items():
            yield from tables(inner, f"{path}.{key}".strip("."))
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from tables(inner, f"{path}[{i}]")


def parsed(file):
    return tomllib.loads((REGISTRY / file).read_text(encoding="utf-8"))


@pytest.mark.parametrize("file", [file for file in QUOTING if file not in SHARED])
def test_a_file_loads_whole_under_its_own_name(file):
    kind, _, rest = file.partition("/")
    name = rest.removesuffix(".toml").replace("__", "/")
    name = name.replace("/", "-") if kind == "engines" else name
    assert LOADERS[kind](name).name == parsed(file)["name"] == name
    assert file_of(kind, name) == file


@pytest.mark.parametrize("file", SHARED)
def test_a_shared_file_is_named_by_an_engine(file):
    name = file.partition("/")[2].removesuffix(".toml")
    said = [value for other in QUOTING for value in parsed(other).values()]
    assert name in [value.get("like") if isinstance(value, dict) else value for value in said]


def test_every_source_has_a_title_and_a_kind():
    assert set(sources()) == set(parsed("sources.toml"))
    assert all(source.title and source.kind for source in sources().values())


@pytest.mark.parametrize("file", QUOTING)
def test_every_number_has_a_method_and_an_origin(file):
    whole = parsed(file)
    for path, table in tables(whole):
        if "value" in table:
            # A table of data may say the method and the source of all that say none.
            table = {**whole[path.partition(".")[0]], **table} if "method" not in table else table
            assert table["method"] in METHODS, path
            assert ("source" in table and ("where" in table or "class" in table)) or "why" in table, path
        if isinstance(table.get("source"), str):
            assert table["source"] in sources(), path
            assert "where" not in table or table["where"].strip(), path


def test_every_source_is_quoted_by_somebody():
    quoted = {table.get("source") for file in QUOTING for _, table in tables(parsed(file))}
    assert set(sources()) - quoted == set()


@pytest.mark.parametrize("file", FILES)
def test_whole_numbers_are_written_whole_with_underscores(file):
    values = re.sub(r'"[^"]*"|#.*', "", (REGISTRY / file).read_text(encoding="utf-8"))
    assert re.findall(r"\b\d{5,}\b(?!\.\d)|\b\d+(?:\.\d+)?[eE]\d+", values) == []


# What a wrong file says


def datum(**changed):
    """A good number with something changed; None takes a key away."""
    good = {"value": 2, "method": "measured", "source": "startup-logs", "where": "vl-001"}
    return {"x": {key: value for key, value in {**good, **changed}.items() if value is not None}}


READ = {
    "text": lambda t: t.text("x"),
    "flag": lambda t: t.flag("x"),
    "count": lambda t: t.count("x"),
    "words": lambda t: t.words("x"),
    "word": lambda t: t.word("x", ("a", "b")),
    "table": lambda t: t.table("x"),
    "tables": lambda t: t.tables("x"),
    "raw": lambda t: t.raw("x"),
    "datum": lambda t: t.datum("x"),
}


@pytest.mark.parametrize("read", READ)
def test_a_missing_key_is_named(read):
    with pytest.raises(RegistryError, match=r"^registry/chips/a\.toml: x is missing"):
        READ[read](Table("chips/a.toml", {}))


@pytest.mark.parametrize(
    ("read", "value", "allowed"),
    [
        ("text", 5, "a text"),
        ("flag", 1, "true or false"),
        ("count", True, "a whole number, zero or more"),
        ("count", -1, "a whole number, zero or more"),
        ("count", 1.0, "a whole number, zero or more"),
        ("count", "4", "a whole number, zero or more"),
        ("words", "a", "a list of texts"),
        ("words", ["a", 1], "a list of texts"),
        ("word", "c", "one of a, b"),
        ("word", 1, "one of a, b"),
        ("table", [1], "a table"),
        ("tables", {"a": 1}, "a list of tables"),
        ("tables", [1], "a list of tables"),
    ],
)
def test_a_value_of_the_wrong_kind_is_named_with_what_is_allowed(read, value, allowed):
    with pytest.raises(RegistryError) as error:
        READ[read](Table("chips/a.toml", {"x": value}))
    assert str(error.value).startswith("registry/chips/a.toml: x")
    assert repr(value) in str(error.value) or repr(value[0]) in str(error.value)
    assert allowed in str(error.value)


@pytest.mark.parametrize(
    ("changed", "key", "says"),
    [
        ({"value": None}, "x.value", "is missing"),
        ({"value": [1]}, "x.value", "must be a number"),
        ({"method": None}, "x.method", "is missing"),
        ({"method": "guessed"}, "x.method", "measured"),
        ({"source": None}, "x.source", "needs source and where, or why"),
        ({"where": None}, "x.where", "page, line or command"),
        ({"source": "startup-log"}, "x.source", "the closest is startup-logs"),
        ({"method": "assumed"}, "x.why", "what would replace it"),
        ({"low": 3}, "x.low", "must not fall"),
        ({"high": 1}, "x.low", "must not fall"),
        ({"low": True}, "x.low", "must be a number"),
        ({"high": "much"}, "x.high", "must be a number"),
        ({"unit": "bytes"}, "x.unit", "is not a key that capplan knows here"),
        ({"hihg": 3}, "x.hihg", "the closest is high"),
    ],
)
def test_a_wrong_number_names_the_file_the_key_and_what_is_allowed(changed, key, says):
    with pytest.raises(RegistryError) as error:
        Table("chips/a.toml", datum(**changed)).datum("x")
    assert str(error.value).startswith(f"registry/chips/a.toml: {key} ")
    assert says in str(error.value)


def test_a_good_number_has_a_band_a_kind_and_an_origin():
    plain = Table("chips/a.toml", datum()).datum("x")
    assert (plain.low, plain.value, plain.high, plain.kind) == (2, 2, 2, "measured")
    assert plain.origin() == "startup-logs, vl-001"
    wide = Table("chips/a.toml", datum(low=1, high=3, method="fitted")).datum("x")
    assert (wide.low, wide.high, wide.kind) == (1, 3, "estimated")
    alone = Table("chips/a.toml", datum(source=None, where=None, method="assumed", why="a guess")).datum("x")
    assert (alone.kind, alone.origin()) == ("assumed", "a guess")


def test_methods_lead_to_kinds_of_lines():
    assert set(METHODS.values()) <= set(KINDS)


def test_a_band_touches_its_value():
    for low, high in ((2, 2), (2, 3), (1, 2)):
        assert Table("chips/a.toml", datum(low=low, high=high)).datum("x").value == 2


def test_an_unread_key_is_an_error_with_the_closest_known_one():
    table = Table("chips/a.toml", {"title": "a", "titel": "b"})
    table.text("title")
    with pytest.raises(RegistryError, match="titel is not a key that capplan knows here; the closest is title"):
        table.done()


@pytest.fixture
def shelf(tmp_path, monkeypatch):
    """A registry of its own that a test fills; nothing that was read before is remembered."""

    def forget():
        for name, module in list(sys.modules.items()):
            if name.startswith("capplan."):
                for value in vars(module).values():
                    getattr(value, "cache_clear", lambda: None)()

    def put(**files):
        for file, text in files.items():
            path = tmp_path / (file.replace("__", "/", 1) + ".toml")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        forget()

    put(sources='[log]\ntitle = "A log"\nkind = "log"\n')
    monkeypatch.setenv("CAPPLAN_REGISTRY", str(tmp_path))
    yield put
    monkeypatch.undo()
    forget()


CHIP = """
name = "{name}"
title = "A chip"
vendor = "nvidia"
device_name = "NVIDIA A1"
capability = "9.0"
aliases = ["{alias}"]
device_bytes = {{ value = 10, method = "measured", source = "log", where = "line 1" }}
catalog_bytes = {{ value = 10, method = "measured", source = "log", where = "line 1" }}
"""


def test_a_chip_is_found_by_name_and_alias_whatever_the_case(shelf):
    shelf(chips__one=CHIP.format(name="one", alias="uno"))
    assert load_chip("one").name == load_chip(" UNO ").name == "one"
    assert load_chip("one").capability == (9, 0)


def test_aliases_that_collide_name_both_chips(shelf):
    shelf(chips__one=CHIP.format(name="one", alias="uno"), chips__two=CHIP.format(name="two", alias="Uno"))
    with pytest.raises(RegistryError, match=r"registry/chips/two\.toml: aliases has 'Uno', which one has too"):
        load_chip("uno")


@pytest.mark.parametrize(
    ("change", "to", "says"),
    [
        ('name = "one"', 'name = "two"', "name must be 'one', as the file is called"),
        ('vendor = "nvidia"', 'vendor = "intel"', "vendor is 'intel'; it must be one of nvidia, amd, aws"),
        ('capability = "9.0"', 'capability = "nine"', "capability is 'nine'; it must be a compute capability such as"),
        ('capability = "9.0"', "capability = 9.0", "capability is 9.0; it must be a text"),
        ('aliases = ["uno"]', 'aliases = "uno"', "aliases is 'uno'; it must be a list of texts"),
        ('title = "A chip"', "", "title is missing"),
        ("value = 10", "value = true", "device_bytes.value is True; it must be"),
        ("value = 10", 'value = "ten"', "device_bytes.value is 'ten'; it must be"),
        ("value = 10", "value = 10.5", "device_bytes.value is 10.5; it must be"),
        ("value = 10", "value = -10", "device_bytes.value is -10; it must be"),
        ("value = 10", "value = 10, unit = 5", "device_bytes.unit is not a key that capplan knows here"),
        ('title = "A chip"', 'title = "A chip"\nwatts = 700', "watts is not a key that capplan knows here"),
        ('title = "A chip"', "title = ", "is not TOML: Invalid value (at line 3, column 9)"),
    ],
)
def test_a_broken_chip_file_names_file_key_and_what_is_allowed(shelf, change, to, says):
    text = CHIP.format(name="one", alias="uno")
    assert change in text
    shelf(chips__one=text.replace(change, to, 1))
    with pytest.raises(RegistryError) as error:
        load_chip("one")
    assert str(error.value).startswith("registry/chips/one.toml")
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[log]\nkind = "log"', "registry/sources.toml: log.title is missing"),
        ('[log]\ntitle = "A log"\nkind = "rumour"', "registry/sources.toml: log.kind is 'rumour'"),
        ('[log]\ntitle = "A log"\nkind = "log"\nurl = ""', "registry/sources.toml: log.url is not a key"),
        ('log = "A log"', "registry/sources.toml: log is 'A log'; it must be a table"),
    ],
)
def test_a_broken_list_of_sources_names_the_key(shelf, text, says):
    shelf(sources=text)
    with pytest.raises(RegistryError, match=re.escape(says)):
        sources()


MODEL = """
name = "one/model"
method = "vendor"
source = "log"
where = "line 1"
nulls = []
[config]
architectures = ["A"]
"""


@pytest.mark.parametrize(
    ("change", "to", "says"),
    [
        ('name = "one/model"', 'name = "model"', "name must be 'one/model'"),
        ('method = "vendor"', 'method = "heard"', "method is 'heard'"),
        ('method = "vendor"', 'method = "assumed"', "why is missing"),
        ('source = "log"', 'source = "blog"', "source is 'blog', which sources.toml does not list"),
        ('where = "line 1"', "", "where is missing"),
        ("nulls = []", 'nulls = ["architectures"]', "nulls names architectures, which config states"),
        ("nulls = []", "nils = []", "nils is not a key that capplan knows here; the closest is nulls"),
        ('[config]\narchitectures = ["A"]', "", "config is missing"),
    ],
)
def test_a_broken_model_file_names_file_key_and_what_is_allowed(shelf, change, to, says):
    assert change in MODEL
    shelf(models__one__model=MODEL.replace(change, to, 1))
    with pytest.raises(RegistryError) as error:
        load_model("one/model")
    assert str(error.value).startswith("registry/models/one__model.toml: ")
    assert says in str(error.value)


ENGINE = {
    file: (REGISTRY / f"engines/vllm/{file}.toml").read_text() for file in ("0.33.0", "flags", "kernels", "layouts")
}
LISTED = (REGISTRY / "sources.toml").read_text()


def put_engine(shelf, **more):
    """The engine's files on a shelf, and more."""
    engine = {f"engines__vllm/{file}": text for file, text in {**ENGINE, **more.pop("changed", {})}.items()}
    shelf(sources=LISTED, **engine, **{f"engines__{name}": text for name, text in more.items()})


@pytest.mark.parametrize(
    ("file", "change", "to", "says"),
    [
        ("0.33.0", 'rules = "vllm"', 'rules = "sglang"', "rules is 'sglang'; it must be one of vllm"),
        ("0.33.0", 'title = "vLLM 0.33.0"', "", "title is missing"),
        (
            "0.33.0",
            "least_device_bytes = 0",
            "least_device_bytes = -1",
            "batch_defaults.any.least_device_bytes is -1; it must be",
        ),
        (
            "0.33.0",
            'skips = ["a100", "gb10"]',
            "skips = [1]",
            "batch_defaults.from-70-gib.skips is [1]; it must be a list of texts",
        ),
        ("kernels", "latent = true", "latent = 0", "backends.flash-attn-mla-9.latent is 0; it must be true or false"),
        ("kernels", "block_multiple = 16", "block_multipel = 16", "backends.flash-attn-9.block_multiple is missing"),
        (
            "kernels",
            "head_dims = [64",
            'head_dims = ["64"',
            "backends.flashinfer-8-9-12.head_dims is ['64', 128, 256, 512]; it must be a list of",
        ),
        (
            "kernels",
            'workspace = "padded"',
            'workspace = "some"',
            "experts_kernels.deep-gemm.workspace is 'some'; it must be one of two",
        ),
        ("layouts", 'of = "linear"', 'of = "rows"', "layouts.fp8-linear-cutlass.of is 'rows'; it must be one of"),
        # a word of a formula that nobody gives, and what is no formula
        (
            "layouts",
            'weight = "up(rows, 16), up(columns, 16) @ 8"',
            'weight = "up(rows, 16), up(colums, 16) @ 8"',
            "layouts.fp8-linear-cutlass.weight is 'up(colums, 16)', where nobody gives 'colums'; the closest",
        ),
        (
            "layouts",
            "padded // group @ activations",
            "paded // group @ activations",
            "layouts.awq-linear-marlin.more is 'paded // group', where nobody gives 'paded'",
        ),
        (
            "layouts",
            'when = "columns % group == 0"',
            'when = "inner % group == 0"',
            "layouts.awq-linear-marlin.when is 'inner % group == 0', where nobody gives 'inner'",
        ),
        (
            "layouts",
            '"scale: 1 @ 32"',
            '"scale: 1"',
            "layouts.fp8-linear-cutlass.more is 'scale: 1'; it must",
        ),
        ("flags", "[flags]", "[flags]\nmore = 1", "flags.more is not a key that capplan knows here"),
        (
            "0.33.0",
            "bytes_per_logit.low = 6",
            "bytes_per_logit.low = 60",
            "estimates.bytes_per_logit.low 60, value 14 and high 18 must not fall",
        ),
        (
            "0.33.0",
            "[defaults]",
            "[behaviours]\nsampler = 5\n[defaults]",
            "behaviours.sampler is 5; it must be",
        ),
    ],
)
def test_a_broken_engine_file_names_file_key_and_what_is_allowed(shelf, file, change, to, says):
    assert change in ENGINE[file]
    put_engine(shelf, changed={file: ENGINE[file].replace(change, to, 1)})
    with pytest.raises(RegistryError) as error:
        load_engine("vllm-0.33.0")
    assert str(error.value).startswith(f"registry/engines/vllm/{file}.toml: ")
    assert says in str(error.value)


NEXT = """
name = "vllm-0.34.0"
title = "vLLM 0.34.0"
like = "vllm-0.33.0"
"""


def test_a_release_that_says_nothing_more_is_the_one_that_it_is_like(shelf):
    put_engine(shelf, **{"vllm/0.34.0": NEXT})
    assert names("engines") == ("vllm-0.33.0", "vllm-0.34.0")
    old, new = load_engine("vllm-0.33.0"), load_engine("vllm-0.34.0")
    assert (new.name, new.title, new.rules) == ("vllm-0.34.0", "vLLM 0.34.0", "vllm")
    assert (new.backends, new.layouts, new.no_effect) == (old.backends, old.layouts, old.no_effect)
    assert new.defaults == old.defaults and new.estimates == old.estimates
    # what nobody said again keeps the file in which it stands
    assert new.constants["vocab_padding"].file == "engines/vllm/0.33.0.toml"


DIFFERS = """
[constants]
method = "code"
source = "startup-logs"
vocab_padding = { value = 128, where = "line 1" }

[backends]
without = ["triton-attn-7-80-86"]
flash-attn-9 = { block_multiple = 32 }
new = { before = "flashinfer-10", name = "N", capabilities = [], block_multiple = 8, kv_cache_dtypes = [], where = "-" }

[flags]
no_effect = { with = ["new-flag"], without = ["seed"] }

[layouts.awq-linear-machete]
when = "columns % 64 == 0"
"""


def test_a_difference_replaces_a_datum_extends_a_row_and_leaves_one_out(shelf):
    put_engine(shelf, **{"vllm/0.34.0": NEXT + DIFFERS, "vllm/0.35.0": NEXT.replace("4", "5").replace("33", "34")})
    old = load_engine("vllm-0.33.0")
    for name in ("vllm-0.34.0", "vllm-0.35.0"):
        new = load_engine(name)
        padding = new.constants["vocab_padding"]
        assert (padding.value, padding.source, padding.file) == (128, "startup-logs", "engines/vllm/0.34.0.toml")
        assert new.constants["attention_scalars"] == old.constants["attention_scalars"]
        assert list(new.constants) == list(old.constants)
        found = [b.name for b in new.backends]
        assert len(found) == len(old.backends) and found.count("TRITON_ATTN") == 1
        assert found[found.index("N") + 1] == "FLASHINFER" and found[found.index("N") - 1] == "FLASHINFER"
        assert new.backends[0].block_multiple == 32 and new.backends[0].where == old.backends[0].where
        assert "new-flag" in new.no_effect and "seed" not in new.no_effect
        machete = next(row for row in new.layouts if row.name == "awq-linear-machete")
        assert machete.when.text == "columns % 64 == 0" and machete.kernel == "Machete"


def test_a_shared_file_that_is_named_again_replaces_the_one_before(shelf):
    other = ENGINE["flags"].replace('"additional-config", ', "")
    more = {"vllm/other": other, "vllm/0.34.0": NEXT + 'flags = "vllm/other"\n[constants.vocab_padding]\n' + LAID}
    put_engine(shelf, **more)
    old, new = load_engine("vllm-0.33.0"), load_engine("vllm-0.34.0")
    assert set(old.not_planned) - set(new.not_planned) == {"additional-config"}
    assert new.layouts == old.layouts and new.constants["vocab_padding"].value == 64


LAID = 'value = 64\nmethod = "code"\nsource = "vllm-0-33-0"\nwhere = "line 1"\n'


@pytest.mark.parametrize(
    ("more", "file", "says"),
    [
        # each is said of the file in which it stands
        (
            "[constants]\nvocab_padding.value = 1\nvocab_padding.why = 'x'",
            "0.34.0",
            "constants.vocab_padding.method is",
        ),
        ("[backends.flash-attn-9]\nsinks = 'some'", "0.34.0", "backends.flash-attn-9.sinks is 'some'"),
        ("[backends]\nwithout = ['flash-attn-99']", "0.34.0", "backends.without names 'flash-attn-99'; the closest"),
        ("[backends.new]\nbefore = 'flash'", "0.34.0", "backends.new.before names 'flash'; the closest"),
        (
            "[flags]\nno_effect = { without = ['sed'] }",
            "0.34.0",
            "flags.no_effect.without names what is not there: sed",
        ),
        ("[backends.flash-attn-10]\nwhen = 1", "0.34.0", "backends.flash-attn-10.when is not a key"),
    ],
)
def test_a_wrong_difference_is_said_of_its_own_file(shelf, more, file, says):
    put_engine(shelf, **{"vllm/0.34.0": f"{NEXT}\n{more}\n"})
    with pytest.raises(RegistryError) as error:
        load_engine("vllm-0.34.0")
    assert str(error.value).startswith(f"registry/engines/vllm/{file}.toml: {says}")


def test_what_is_wrong_in_the_file_that_another_is_like_is_said_of_that_one(shelf):
    wrong = ENGINE["kernels"].replace('sinks = "kept"', 'sinks = "some"', 1)
    put_engine(shelf, changed={"kernels": wrong}, **{"vllm/0.34.0": NEXT})
    with pytest.raises(RegistryError, match=r"^registry/engines/vllm/kernels\.toml: backends\.flash-attn-9\.sinks is"):
        load_engine("vllm-0.34.0")


@pytest.mark.parametrize(
    ("like", "says"),
    [
        ("vllm-0.3.0", "like is 'vllm-0.3.0'; the closest"),
        ("vllm-0.34.0", "like leads back to this file"),
    ],
)
def test_a_file_is_like_another_that_there_is(shelf, like, says):
    put_engine(shelf, **{"vllm/0.34.0": NEXT.replace("vllm-0.33.0", like)})
    with pytest.raises(RegistryError, match=re.escape(f"registry/engines/vllm/0.34.0.toml: {says}")):
        load_engine("vllm-0.34.0")


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ("smapler = 'free'", "behaviours.smapler is no behaviour that capplan knows; the closest are sampler"),
        ("sampler = 'fre'", "behaviours.sampler.value is 'fre'; it must be one of charged, free"),
    ],
)
def test_a_behaviour_is_a_known_word(shelf, said, says):
    origin = "method = 'code'\nsource = 'startup-logs'\nwhere = 'x'"
    put_engine(shelf, **{"vllm/0.34.0": f"{NEXT}[behaviours]\n{origin}\n{said}\n", "sources": LISTED})
    with pytest.raises(RegistryError, match=re.escape(f"registry/engines/vllm/0.34.0.toml: {says}")):
        load_engine("vllm-0.34.0")


@pytest.mark.parametrize(
    ("kind", "name", "change", "to", "says"),
    [
        (
            "families",
            "qwen2",
            'qkv_bias = "',
            'output_bias = "attntion_bias"\nqkv_bias = "',
            "parts.output_bias is 'attn",
        ),
        (
            "families",
            "qwen3",
            '"attention_bias"',
            '"atention_bias"',
            "parts.qkv_bias is 'atention_bias', a key of config",
        ),
        (
            "families",
            "qwen3-moe",
            '"moe_intermediate_size"',
            '"moe_intermediate"',
            "experts.intermediate is 'moe_inter",
        ),
        (
            "families",
            "gemma4",
            '"global_head_dim"\n',
            '"global_haed_dim"\n',
            "kinds.full_attention.head_dim is 'global_h",
        ),
        ("families", "qwen3-next", "linear_attention =", "linaer_attention =", "mixers.linaer_attention is no kind of"),
        ("parts", "mamba2", "channels * width", "chanels * width", "made.inner is 'chanels * width', where nobody"),
        (
            "parts",
            "mamba2",
            '"groups * states |',
            '"groups * state |',
            "tensors.layers.mamba.input.rows is 'groups * st",
        ),
        (
            "parts",
            "mamba2",
            'n_heads = "channels"',
            'n_heads = "chanels"',
            "state.sizes.n_heads is 'chanels', where nob",
        ),
        ("parts", "mamba2", 'law = "mamba2"', 'law = "mamba3"', "state.law is 'mamba3'; it must be one of mamba2"),
        (
            "parts",
            "mamba2",
            '"mamba_ssm_cache_dtype:',
            '"mamba_cache_dtype:',
            "state.formats names 'mamba_cache_dtype'",
        ),
        (
            "parts",
            "kimi-tower",
            '"vt_hidden_size"',
            '"vt_hiden_size"',
            "tensors.vision.blocks.norms.rows is 'vt_hiden_",
        ),
        (
            "parts",
            "compressed-latent",
            '"compress_ratios=128"',
            '"compress_ratio=128"',
            "tensors.layers.compressor.pos",
        ),
    ],
)
def test_a_word_that_nobody_gives_is_refused_when_the_file_is_loaded(shelf, kind, name, change, to, says):
    text = (REGISTRY / kind / f"{name}.toml").read_text()
    assert change in text
    parts = {f"parts__{path.stem}": path.read_text() for path in (REGISTRY / "parts").glob("*.toml")}
    shelf(sources=LISTED, **{**parts, f"{kind}__{name}": text.replace(change, to, 1)})
    with pytest.raises(RegistryError) as error:
        LOADERS[kind](name)
    assert str(error.value).startswith(f"registry/{kind}/{name}.toml: {says}")


def test_an_architecture_in_two_families_names_both(shelf):
    family = 'name = "{}"\narchitectures = ["A"]\n[parts]\nattention = "grouped"\n'
    shelf(families__one=family.format("one"), families__two=family.format("two"))
    with pytest.raises(RegistryError, match=r"registry/families/two\.toml: A is in one too"):
        architectures()


def test_a_folder_that_is_no_registry_is_named(shelf, tmp_path, monkeypatch):
    monkeypatch.setenv("CAPPLAN_REGISTRY", str(tmp_path / "nowhere"))
    shelf()
    with pytest.raises(RegistryError, match="nowhere"):
        names("chips")


@pytest.mark.parametrize(
    ("asked", "says"),
    [("h100-sxn", "the closest are h100-sxm, h100-pcie"), ("zzz", "there are a, h100-pcie, h100-sxm")],
)
def test_an_unknown_word_is_answered_with_the_closest_ones(asked, says):
    assert closest(asked, ["h100-sxm", "h100-pcie", "a"]) == says


@pytest.mark.parametrize("load", [load_chip, load_engine])
def test_an_unknown_thing_is_refused_with_what_there_is(load):
    with pytest.raises(Refused, match=r"there is no .* 'h100-vllm' in the registry; (the closest|there) (is|are) "):
        load("h100-vllm")


# What the chips and the models say

CHIPS = {name: load_chip(name) for name in names("chips")}


@pytest.mark.parametrize("name", CHIPS)
def test_a_chip_reports_a_band_round_its_size(name):
    size, catalog = CHIPS[name].device_bytes, CHIPS[name].catalog_bytes
    assert 0 < size.low <= size.value <= size.high
    # the driver reports up to 10 % less than the box says, and never a tenth more
    assert 0.88 * catalog.low <= size.value <= 1.1 * catalog.high


def test_the_engine_gives_hopper_large_steps_and_blackwell_larger_ones():
    # vllm 0.33.0, EngineArgs.get_batch_defaults: rows from 70 GiB and from 160 GiB of reported memory
    rows = {
        name: (chip.device_bytes.low >= 70 * GIB, chip.device_bytes.high >= 160 * GIB) for name, chip in CHIPS.items()
    }
    for name in CHIPS:
        if name.startswith(("h100", "h200", "h20", "a100-80gb", "rtx-pro", "dgx")):
            assert rows[name] == (True, False), name
        if name.startswith(("b200", "b300", "gb200")):
            assert CHIPS[name].device_bytes.low >= 160 * GIB, name


def test_an_a100_is_told_by_its_name():
    # vllm 0.33.0 tells it by "a100" in the device's name, whatever the case, and a DGX Spark by "gb10"
    assert all("A100" in CHIPS[name].device_name for name in CHIPS if name.startswith("a100"))
    assert "GB10" in CHIPS["dgx-spark"].device_name
    assert not any("a100" in CHIPS[name].device_name.lower() for name in CHIPS if not name.startswith("a100"))


@pytest.mark.parametrize(
    ("name", "capability"),
    [
        # NVIDIA's table of compute capabilities
        ("t4", (7, 5)),
        ("a100-80gb", (8, 0)),
        ("a10g", (8, 6)),
        ("rtx-3090", (8, 6)),
        ("l4", (8, 9)),
        ("l40s", (8, 9)),
        ("rtx-4090", (8, 9)),
        ("h100-sxm", (9, 0)),
        ("h200", (9, 0)),
        ("h20", (9, 0)),
        ("b200", (10, 0)),
        ("gb200", (10, 0)),
        ("b300", (10, 3)),
        ("rtx-5090", (12, 0)),
        ("rtx-pro-6000", (12, 0)),
        ("dgx-spark", (12, 1)),
    ],
)
def test_a_chip_has_the_compute_capability_of_the_makers_table(name, capability):
    assert CHIPS[name].capability == capability


def test_the_registry_has_models_and_each_builds_a_graph():
    models = known_models()
    assert len(models) >= 21
    assert [model.name for model in models] == list(names("models"))
    assert all((model.tensors and model.n_parameters) or model.caches for model in models)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        # counts of the checkpoints' safetensors headers, as the hub and the models' cards have them
        ("meta-llama/Meta-Llama-3.1-8B", 8_030_261_248),
        ("meta-llama/Meta-Llama-3.1-70B", 70_553_706_496),
        ("meta-llama/Llama-2-7b-hf", 6_738_415_616),
        ("meta-llama/Llama-3.2-1B", 1_235_814_400),
        ("mistralai/Mistral-7B-v0.1", 7_241_732_096),
        ("mistralai/Mixtral-8x7B-v0.1", 46_702_792_704),
        ("Qwen/Qwen2.5-7B-Instruct", 7_615_616_512),
        ("Qwen/Qwen3-8B", 8_190_735_360),
        ("Qwen/Qwen3-32B", 32_762_123_264),
        ("Qwen/Qwen3-30B-A3B", 30_532_122_624),
        ("google/gemma-2-9b-it", 9_241_705_984),
        ("google/gemma-3-1b-it", 999_885_952),
        # the technical report says 671B; without the draft layer and the scales it is this
        ("deepseek-ai/DeepSeek-V3", 671_026_419_200),
    ],
)
def test_a_model_has_as_many_parameters_as_its_checkpoint(name, parameters):
    assert load_model(name).n_parameters == parameters
