"""Families as registry data, and a config.json being read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from capplan.model.graph import Assumption
from capplan.registry import (
    Datum,
    Refused,
    RegistryError,
    Table,
    closest,
    names,
    one_of,
    open_table,
    read_fields,
    read_record,
)

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


Key = str
"""A key of config.json: one of the class's defaults or of the family's `keys`."""

Switch = str
"""`always` (and what), `never`, a key that is true or false, or `key=value`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KindKeys:
    """Where config.json says the sizes of one kind of attention, where it says them apart."""

    heads: Key | None = None
    kv_heads: Key | None = None
    head_dim: Key | None = None
    value_dim: Key | None = None
    theta: Key | None = None
    sinks: Switch = "never"


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpertKeys:
    """How a family's layers choose and hold experts."""

    layers: str = one_of("all", "sparse_step", "after_dense", "interleaved", "listed", "kinds", "usual")
    count: Key
    top_k: Key = "num_experts_per_tok"
    intermediate: Key
    dense_intermediate: Key = "intermediate_size"
    shared: Key | None = None
    shared_width: Key | None = None
    shared_gate: bool = False
    shared_multiple: int = 1
    router_bias: Switch = "never"
    router_bias_bits: int | None = 32
    router_bits: int | None = None
    router_narrow_on: tuple[str, ...] = ()
    renormalize: Switch = "norm_topk_prob"
    scoring: Switch = "scoring_func"
    router_quantized: bool = False
    least_intermediate: int = 0
    latent: Key | None = None
    biases: bool = False
    beside_dense: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Modules:
    """What the engine calls the modules of a layer, by which checkpoints name what they leave unquantized."""

    root: str = "model"
    head: str = "lm_head"
    attention: str = "self_attn"
    mlp: str = "mlp"
    experts: str = ""
    router: str = ""
    shared: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class InVllm:
    """What vLLM alone does with a family: its names, what its stages hold, what it serves and sizes otherwise."""

    modules: Modules
    renames: tuple[tuple[str, str], ...]
    cache_formats: Mapping[str, str]
    norm_everywhere: bool = False
    embedding_everywhere: bool = False
    head_everywhere: bool = False
    float16: bool = True
    default_dtype: str | None = None
    capture_limit: int | None = None
    item_tokens: int = 0
    deep_gemm: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """What the layers of a family have."""

    attention: str = one_of("grouped", "latent", "part", default="grouped")
    head_dim_from: str = one_of("config", "hidden", default="config")
    head_dim: Key = "head_dim"
    query_key_norms: Switch = "never"
    norms_over: str = one_of("head", "heads", default="head")
    value_norms: bool = False
    output_gate: Switch = "never"
    qkv_bias: Switch = "never"
    output_bias: Switch = "never"
    mlp_bias: Switch = "never"
    gated: bool = True
    norms: tuple[str, ...] = ("norm_1", "norm_2")
    scaled_embedding: bool = False
    ties: bool = True
    layer_types: str = one_of(
        "stated",
        "alternating",
        "pattern",
        "max_window_layers",
        "interval",
        "letters",
        "flags",
        "no_rope",
        "kda_lists",
        default="stated",
    )
    full_every: Key | None = None
    mixed_windows: str = one_of("allowed", "refused", default="allowed")
    window_switch: Key | None = None
    chunk: Key | None = None
    local_rope_theta: Key | None = None
    rope: str = one_of("yes", "none", default="yes")
    rope_dim: Key | None = None
    rope_bits: int | None = None
    index_rope: Key | None = None
    mrope: bool = False
    positions: Key = "max_position_embeddings"
    scaled_positions: bool = True
    extras: tuple[str, ...] = ()
    draft_layers: Key | None = None
    refuses: tuple[str, ...] = ()
    band_covers: tuple[str, ...] = ()
    attention_type: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Family(Parts):
    """How the classes of one architecture build their layers, as registry data."""

    name: str
    architectures: tuple[str, ...]
    nested: str | None = None
    tower: str | None = None
    tower_config: str = "vision_config"
    kinds: Mapping[str, KindKeys]
    mixers: Mapping[str, str]
    experts: ExpertKeys | None
    aliases: tuple[tuple[str, tuple[str, ...]], ...]
    weights_percent: Datum | None
    vllm: InVllm
    defaults: Mapping[str, Datum]


def _keys(known: Sequence[str]) -> Mapping[str, Any]:
    """Readers of the keys that a family names, which must be known."""

    def checked(table: Table, key: str, word: str) -> str:
        if word not in known:
            raise table.fail(
                key,
                f"is {word!r}, a key of config.json that neither defaults nor keys have; {closest(word, known)}",
            )
        return word

    def key(table: Table, name: str, default: Any) -> Any:
        word = table.text(name, default)
        return checked(table, name, word) if name in table else word

    def switch(table: Table, name: str, default: Any) -> Any:
        word = table.text(name, default)
        if name in table and word not in ("never", "rotated") and not word.startswith("always"):
            checked(table, name, word.partition("=")[0])
        return word

    return {"Key": key, "Switch": switch}


def _vllm(table: Table) -> InVllm:
    inner = table.table("modules", {})
    m = read_record(Modules, inner) if isinstance(inner, Table) else Modules()
    modules = replace(
        m,
        experts=m.experts or f"{m.mlp}.experts",
        router=m.router or f"{m.mlp}.gate",
        shared=m.shared or f"{m.mlp}.shared_experts",
    )
    renames = tuple(table.texts("renames").items())
    return read_record(InVllm, table, modules=modules, renames=renames)


@lru_cache(maxsize=64)
def load_family(name: str) -> Family:
    """One family's file.

    Raises RegistryError where it says something that it may not, as a key of config.json that neither the class's
    defaults nor the family's `keys` have.
    """
    table = open_table("families", name)
    experts, aliases = table.table("experts", None), table.table("aliases", None)
    defaults, vllm = table.table("defaults", None), table.table("vllm", None)
    supplied = {key: defaults.datum(key) for key in defaults} if defaults else {}
    keys = _keys((*supplied, *table.words("keys", ())))
    parts = table.table("parts")
    layers = read_fields(Parts, parts, keys)
    kinds, mixers = table.rows("kinds"), table.texts("mixers")
    for key, words in (("kinds", kinds), ("mixers", mixers)):
        for word in words:
            if word not in KINDS:
                raise table.fail(f"{key}.{word}", f"is no kind of layer; {closest(word, KINDS)}")
    family = Family(
        **layers,
        **read_fields(Family, table, only=("name", "architectures", "nested", "tower", "tower_config")),
        kinds={kind: read_record(KindKeys, row, keys) for kind, row in kinds.items()},
        mixers=mixers,
        experts=read_record(ExpertKeys, experts, keys) if experts else None,
        aliases=tuple((key, aliases.words(key)) for key in aliases) if aliases else (),
        weights_percent=table.datum("weights_percent", None),
        vllm=_vllm(vllm if vllm is not None else Table(table.file, {}, "vllm")),
        defaults=supplied,
    )
    for part in (*mixers.values(), *family.extras, *([family.tower] if family.tower else ())):
        if part not in names("parts"):
            raise table.fail("parts", f"names the part {part!r}, which there is not; {closest(part, names('parts'))}")
    stray = next((word for word in family.band_covers if word not in family.refuses), None)
    if stray is not None:
        raise parts.fail("band_covers", f"has {stray!r}, which refuses does not; {closest(stray, family.refuses)}")
    for read in (parts, table):
        read.done()
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
