"""Families as registry data, and a config.json being read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from capplan.model.graph import Assumption
from capplan.registry import Datum, Refused, RegistryError, Table, names, open_table

KINDS = (
    "full_attention",
    "sliding_attention",
    "chunked_attention",
    "linear_attention",
    "mamba",
    "mlp",
    "moe",
)
"""Kinds of layers that capplan knows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KindKeys:
    """Where config.json says the sizes of one kind of attention, where it says them apart."""

    heads: str | None
    kv_heads: str | None
    head_dim: str | None
    value_dim: str | None
    theta: str | None
    sinks: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpertKeys:
    """How a family's layers choose and hold experts."""

    layers: str
    count: str
    top_k: str
    intermediate: str
    dense_intermediate: str
    shared: str | None
    shared_width: str | None
    shared_gate: bool
    shared_multiple: int
    router_bias: str
    router_bias_bits: int | None
    router_bits: int | None
    router_narrow_on: tuple[str, ...]
    renormalize: str
    scoring: str
    router_quantized: bool
    least_intermediate: int
    latent: str | None
    biases: bool
    beside_dense: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Modules:
    """What the engine calls the modules of a layer, by which checkpoints name what they leave unquantized."""

    root: str
    head: str
    attention: str
    mlp: str
    experts: str
    router: str
    shared: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """How the classes of one architecture build their layers, as registry data."""

    name: str
    architectures: tuple[str, ...]
    nested: str | None
    tower: str | None
    tower_config: str
    attention: str
    head_dim_from: str
    head_dim_key: str
    query_key_norms: str
    norms_over: str
    value_norms: bool
    output_gate: str
    qkv_bias: str
    output_bias: str
    mlp_bias: str
    gated: bool
    norms: tuple[str, ...]
    scaled_embedding: bool
    norm_everywhere: bool
    embedding_everywhere: bool
    head_everywhere: bool
    ties: bool
    layer_types: str
    full_every: str | None
    mixed_windows: str
    window_switch: str | None
    chunk: str | None
    local_rope_theta: str | None
    rope: str
    rope_dim: str | None
    rope_bits: int | None
    index_rope: str | None
    mrope: bool
    positions: str
    scaled_positions: bool
    kinds: Mapping[str, KindKeys]
    mixers: Mapping[str, str]
    extras: tuple[str, ...]
    experts: ExpertKeys | None
    modules: Modules
    renames: tuple[tuple[str, str], ...]
    draft_layers: str | None
    float16: bool
    refuses: tuple[str, ...]
    band_covers: tuple[str, ...]
    aliases: tuple[tuple[str, tuple[str, ...]], ...]
    weights_percent: Datum | None
    attention_type: str
    default_dtype: str | None
    capture_limit: int | None
    item_tokens: int
    deep_gemm: bool
    cache_formats: Mapping[str, str]
    defaults: Mapping[str, Datum]


def _kind(table: Table) -> KindKeys:
    found = KindKeys(
        heads=table.text("heads", None),
        kv_heads=table.text("kv_heads", None),
        head_dim=table.text("head_dim", None),
        value_dim=table.text("value_dim", None),
        theta=table.text("theta", None),
        sinks=table.text("sinks", "never"),
    )
    table.done()
    return found


def _experts(table: Table) -> ExpertKeys:
    intermediate = table.text("intermediate")
    found = ExpertKeys(
        layers=table.word("layers", ("all", "sparse_step", "after_dense", "interleaved", "listed", "kinds", "usual")),
        count=table.text("count"),
        top_k=table.text("top_k", "num_experts_per_tok"),
        intermediate=intermediate,
        dense_intermediate=table.text("dense_intermediate", "intermediate_size"),
        shared=table.text("shared", None),
        shared_width=table.text("shared_width", None),
        shared_gate=table.flag("shared_gate", False),
        shared_multiple=table.count("shared_multiple", 1),
        router_bias=table.text("router_bias", "never"),
        router_bias_bits=table.count("router_bias_bits", 32) or None,
        router_bits=table.count("router_bits", None),
        router_narrow_on=table.words("router_narrow_on", ()),
        renormalize=table.text("renormalize", "norm_topk_prob"),
        scoring=table.text("scoring", "scoring_func"),
        router_quantized=table.flag("router_quantized", False),
        least_intermediate=table.count("least_intermediate", 0),
        latent=table.text("latent", None),
        biases=table.flag("biases", False),
        beside_dense=table.flag("beside_dense", False),
    )
    table.done()
    return found


def _modules(table: Table | None) -> Modules:
    def text(key: str, default: str) -> str:
        return str(table.text(key, default)) if table is not None else default

    mlp = text("mlp", "mlp")
    root = text("root", "model")
    found = Modules(
        root=root,
        head=text("head", "lm_head"),
        attention=text("attention", "self_attn"),
        mlp=mlp,
        experts=text("experts", f"{mlp}.experts"),
        router=text("router", f"{mlp}.gate"),
        shared=text("shared", f"{mlp}.shared_experts"),
    )
    if table is not None:
        table.done()
    return found


@lru_cache(maxsize=64)
def load_family(name: str) -> Family:
    """One family's file. Raises RegistryError where it says something that it may not."""
    table = open_table("families", name)
    parts = table.table("parts")
    experts = table.table("experts", None)
    kinds = table.table("kinds", None)
    mixers = table.table("mixers", None)
    renames = table.table("renames", None)
    aliases = table.table("aliases", None)
    formats = table.table("cache_formats", None)
    defaults = table.table("defaults", None)
    family = Family(
        name=table.text("name"),
        architectures=table.words("architectures"),
        nested=table.text("nested", None),
        tower=table.text("tower", None),
        tower_config=table.text("tower_config", "vision_config"),
        attention=parts.word("attention", ("grouped", "latent", "part"), "grouped"),
        head_dim_from=parts.word("head_dim_from", ("config", "hidden"), "config"),
        head_dim_key=parts.text("head_dim", "head_dim"),
        query_key_norms=parts.text("query_key_norms", "never"),
        norms_over=parts.word("norms_over", ("head", "heads"), "head"),
        value_norms=parts.flag("value_norms", False),
        output_gate=parts.text("output_gate", "never"),
        qkv_bias=parts.text("qkv_bias", "never"),
        output_bias=parts.text("output_bias", "never"),
        mlp_bias=parts.text("mlp_bias", "never"),
        gated=parts.flag("gated", True),
        norms=parts.words("norms", ("norm_1", "norm_2")),
        scaled_embedding=parts.flag("scaled_embedding", False),
        norm_everywhere=parts.flag("norm_everywhere", False),
        embedding_everywhere=parts.flag("embedding_everywhere", False),
        head_everywhere=parts.flag("head_everywhere", False),
        ties=parts.flag("ties", True),
        layer_types=parts.word(
            "layer_types",
            (
                "stated",
                "alternating",
                "pattern",
                "max_window_layers",
                "interval",
                "letters",
                "flags",
                "no_rope",
                "kda_lists",
            ),
            "stated",
        ),
        full_every=parts.text("full_every", None),
        mixed_windows=parts.word("mixed_windows", ("allowed", "refused"), "allowed"),
        window_switch=parts.text("window_switch", None),
        chunk=parts.text("chunk", None),
        local_rope_theta=parts.text("local_rope_theta", None),
        rope=parts.word("rope", ("yes", "none"), "yes"),
        rope_dim=parts.text("rope_dim", None),
        rope_bits=parts.count("rope_bits", None),
        index_rope=parts.text("index_rope", None),
        mrope=parts.flag("mrope", False),
        positions=parts.text("positions", "max_position_embeddings"),
        scaled_positions=parts.flag("scaled_positions", True),
        kinds={kind: _kind(kinds.table(kind)) for kind in kinds} if kinds else {},
        mixers={kind: mixers.text(kind) for kind in mixers} if mixers else {},
        extras=parts.words("extras", ()),
        experts=_experts(experts) if experts else None,
        modules=_modules(table.table("modules", None)),
        renames=tuple((key, renames.text(key)) for key in renames) if renames else (),
        draft_layers=parts.text("draft_layers", None),
        float16=parts.flag("float16", True),
        refuses=parts.words("refuses", ()),
        band_covers=parts.words("band_covers", ()),
        aliases=tuple((key, aliases.words(key)) for key in aliases) if aliases else (),
        weights_percent=table.datum("weights_percent", None),
        attention_type=parts.text("attention_type", ""),
        default_dtype=parts.text("default_dtype", None),
        capture_limit=parts.count("capture_limit", None),
        item_tokens=parts.count("item_tokens", 0),
        deep_gemm=parts.flag("deep_gemm", True),
        cache_formats={key: formats.text(key) for key in formats} if formats else {},
        defaults={key: defaults.datum(key) for key in defaults} if defaults else {},
    )
    for part in (table, parts, kinds, mixers, renames, aliases, formats, defaults):
        if part:
            part.done()
    return family


@lru_cache(maxsize=1)
def architectures() -> dict[str, str]:
    """Every architecture in the registry, with the family that builds it."""
    found: dict[str, str] = {}
    for name in names("families"):
        for architecture in open_table("families", name).words("architectures"):
            if architecture in found:
                raise RegistryError(f"registry/families/{name}.toml: {architecture} is in {found[architecture]} too")
            found[architecture] = name
    return found


class Config:
    """A config.json being read: says what is missing or absurd, remembers what was read and what was supplied."""

    def __init__(self, name: str, data: Mapping[str, Any], family: Family) -> None:
        self.name = name
        self.whole = data
        self.family = family
        self.read: set[str] = set()
        self.assumed: dict[str, Assumption] = {}
        self.data: Mapping[str, Any] = data
        if family.nested is not None:
            inner = data.get(family.nested)
            if not isinstance(inner, Mapping):
                raise Refused(
                    f"{name}: {family.nested} in config.json is {inner!r}; {family.name} models need the table"
                )
            own = {key: data[key] for key in ("dtype", "torch_dtype", "quantization_config") if key in data}
            tied = {"tie_word_embeddings": data["tie_word_embeddings"]} if "tie_word_embeddings" in data else {}
            self.data = {**tied, **inner, **own}
        for key, others in family.aliases:
            other = next((o for o in (key, *others) if self.data.get(o) is not None), key)
            if other != key:
                self.read.update((key, other))
                self.data = {**self.data, key: self.data[other]}

    def fail(self, key: str, says: str) -> Refused:
        return Refused(f"{self.name}: {key} in config.json {says}")

    def has(self, key: str) -> bool:
        self.read.add(key)
        return self.data.get(key) is not None

    def get(self, key: str) -> Any:
        """The stated value, else the class's; null stands where the config says null."""
        self.read.add(key)
        if key in self.data:
            return self.data[key]
        datum = self.family.defaults.get(key)
        if datum is None:
            return None
        self.assumed[key] = Assumption(
            key=key,
            value=datum.value,
            datum=datum,
            why=f"config.json leaves {key} out; "
            + ("capplan assumes it" if self.family.weights_percent else f"the class of {self.family.name} supplies it"),
        )
        return datum.value

    def count(self, key: str, *, least: int = 1, most: int = 1 << 40) -> int:
        """A whole number that must be there."""
        value = self.get(key)
        if value is None:
            raise self.fail(key, f"is missing; {self.family.name} models need it")
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.fail(key, f"is {value!r}; it must be a whole number")
        if not least <= value <= most:
            raise self.fail(
                key, f"is {value}; it must be at least {least}" + ("" if value < least else f" and at most {most}")
            )
        return value

    def maybe(self, key: str, *, least: int = 1) -> int | None:
        """A whole number, or None where the config says null or nothing."""
        return None if self.get(key) is None else self.count(key, least=least)

    def flag(self, key: str) -> bool:
        """true or false; false where nothing says otherwise."""
        value = self.get(key)
        if value is None:
            return False
        if not isinstance(value, bool):
            raise self.fail(key, f"is {value!r}; it must be true or false")
        return value

    def switch(self, rule: str) -> bool:
        """always, never, what a key says, or whether a key has a value: `key=value`."""
        key, equals, word = rule.partition("=")
        if equals:
            return str(self.get(key)) == word
        return rule == "always" or (rule != "never" and self.flag(rule))

    def listed(self, key: str, length: int) -> list[Any] | None:
        """A list with one entry a layer, None where nothing says it."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) < length:
            raise self.fail(key, f"must list {length} entries, one for each layer")
        return value[:length]
