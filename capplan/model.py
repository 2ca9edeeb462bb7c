"""The graph of a model: what is stored, in which shape, split how, how often; read from a config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from capplan.registry import Datum, Refused, RegistryError, closest, names, open_table

DTYPE_BITS = {"bfloat16": 16, "float16": 16, "float32": 32}
"""Widths of the number formats that a model may be served in."""

SPLITS = ("whole", "ranks", "kv_heads", "vocab", "experts", "expert_columns", "shared_expert")
"""How one extent of a tensor is divided over ranks; engines say what each means."""

FIRST, LAST, EVERY, EACH = "first", "last", "every", "layers"
"""Where a tensor is held: the first pipeline stage, the last, every one, or the stages of its layers."""

ROPE_TYPES = ("default", "linear", "dynamic", "ntk", "llama3", "yarn", "longrope")
"""Rotary embeddings whose cache capplan can size."""

LAYER_TYPES = ("full_attention", "sliding_attention")
"""Kinds of attention layers that capplan knows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Extent:
    """One extent of a tensor: its size in the whole model and how ranks share it.

    A `kv_heads` extent counts elements of all heads; `unit` is one head's.
    """

    size: int
    split: str = "whole"
    unit: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Tensor:
    """One class of stored tensors: the same name, shape and width in each of its layers."""

    name: str
    line: str
    rows: tuple[Extent, ...]
    columns: Extent | None = None
    n_experts: int = 0
    bits: int | None = None
    quantized: bool = False
    place: str = EACH
    layers: tuple[int, ...] = ()

    @property
    def count(self) -> int:
        """How many tensors of this class the whole model has."""
        return len(self.layers) if self.place == EACH else 1

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape in the whole model, experts first where there are any."""
        experts = (self.n_experts,) if self.n_experts else ()
        columns = (self.columns.size,) if self.columns else ()
        return (*experts, sum(extent.size for extent in self.rows), *columns)

    @property
    def split(self) -> str:
        """How ranks share it, in words: by rows, by columns, by experts, or not at all."""
        parts = [e.split for e in self.rows if e.split != "whole"]
        if self.columns is not None and self.columns.split != "whole":
            parts.append(self.columns.split)
        return ", ".join(dict.fromkeys(parts)) or "whole"


@dataclass(frozen=True, kw_only=True, slots=True)
class Attention:
    """The layers that keep one kind of cache: full, sliding or latent."""

    kind: str
    layers: tuple[int, ...]
    n_heads: int
    n_kv_heads: int
    head_dim: int
    head_dim_v: int
    window: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Rope:
    """One rotary table: its type, the positions it is made for, and what scales them."""

    rope_type: str
    positions: int
    rotary_dim: int
    factor: float = 1.0
    original_positions: int | None = None
    theta: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Experts:
    """The routed experts of a model, the dense ones beside them, and how tokens choose among them."""

    n_experts: int
    top_k: int
    intermediate: int
    shared_intermediate: int
    routing: str
    layers: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Quantization:
    """How a checkpoint stores its matrices."""

    method: str
    weight_bits: int
    block_rows: int
    block_columns: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Assumption:
    """A fact that config.json leaves out and the family's class supplies."""

    key: str
    value: Any
    datum: Datum | None
    why: str


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Model:
    """What a model stores, from its config.json; sizes are of the whole model.

    `name`, `architecture` and `family` say what it is; `tensors` lists every stored class;
    `attention` the layers that keep a cache; `ropes` the rotary tables; `experts` and
    `quantization` are None where there are none. `max_positions` is the longest length the
    engine derives, `default_positions` the one it takes unasked, `assumed` what the family's
    class supplied, `ignored` the keys of config.json that no law reads.
    """

    name: str
    architecture: str
    family: str
    model_type: str
    origin: str
    revision: str | None
    hidden: int
    intermediate: int
    vocab: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    dtype: str
    tied: bool
    max_positions: int
    default_positions: int
    rope_names: tuple[str, ...]
    ropes: tuple[Rope, ...]
    tensors: tuple[Tensor, ...]
    attention: tuple[Attention, ...]
    experts: Experts | None
    quantization: Quantization | None
    latent: bool
    latent_nope_dim: int
    latent_rank: int
    latent_value_dim: int
    assumed: tuple[Assumption, ...]
    ignored: tuple[str, ...]
    overrides: str = ""
    data: tuple[Datum, ...] = field(default=())

    @property
    def short_name(self) -> str:
        """The name without its organisation."""
        return self.name.rsplit("/", 1)[-1]

    @property
    def n_parameters(self) -> int:
        """Elements of all stored matrices and vectors, tied tables once, scales left out."""
        total = 0
        for tensor in self.tensors:
            size = 0 if tensor.line == "buffers" else 1
            for extent in tensor.shape:
                size *= extent
            total += size * tensor.count
        return total


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """How the classes of one architecture build their layers, as registry data."""

    name: str
    architectures: tuple[str, ...]
    attention: str
    head_dim_from: str
    query_key_norms: bool
    qkv_bias: str
    output_bias: str
    mlp_bias: str
    norms_per_layer: int
    scaled_embedding: bool
    norm_everywhere: bool
    tables_everywhere: bool
    ties: bool
    layer_types: str
    mixed_windows: str
    window_switch: str | None
    local_rope_theta: str | None
    scaled_positions: bool
    experts: str
    expert_count: str
    expert_intermediate: str
    shared_experts: str | None
    shared_width: str | None
    shared_gate: bool
    router_bias: str | None
    renormalize: str
    router_quantized: bool
    draft_layers: str | None
    float16: bool
    defaults: Mapping[str, Datum]


@lru_cache(maxsize=64)
def load_family(name: str) -> Family:
    """One family's file. Raises RegistryError where it says something that it may not."""
    table = open_table("families", name)
    parts = table.table("parts")
    experts = table.table("experts", None)
    defaults = table.table("defaults", None)
    family = Family(
        name=table.text("name"),
        architectures=table.words("architectures"),
        attention=parts.word("attention", ("grouped", "latent")),
        head_dim_from=parts.word("head_dim_from", ("config", "hidden"), "config"),
        query_key_norms=parts.flag("query_key_norms", False),
        qkv_bias=parts.text("qkv_bias", "never"),
        output_bias=parts.text("output_bias", "never"),
        mlp_bias=parts.text("mlp_bias", "never"),
        norms_per_layer=parts.count("norms_per_layer", 2),
        scaled_embedding=parts.flag("scaled_embedding", False),
        norm_everywhere=parts.flag("norm_everywhere", False),
        tables_everywhere=parts.flag("tables_everywhere", False),
        ties=parts.flag("ties", True),
        layer_types=parts.word("layer_types", ("stated", "alternating", "pattern", "max_window_layers"), "stated"),
        mixed_windows=parts.word("mixed_windows", ("allowed", "refused"), "allowed"),
        window_switch=parts.text("window_switch", None),
        local_rope_theta=parts.text("local_rope_theta", None),
        scaled_positions=parts.flag("scaled_positions", True),
        experts=experts.word("layers", ("all", "sparse_step", "after_dense")) if experts else "none",
        expert_count=experts.text("count") if experts else "",
        expert_intermediate=experts.text("intermediate") if experts else "",
        shared_experts=experts.text("shared", None) if experts else None,
        shared_width=experts.text("shared_width", None) if experts else None,
        shared_gate=experts.flag("shared_gate", False) if experts else False,
        router_bias=experts.text("router_bias", None) if experts else None,
        renormalize=experts.text("renormalize", "norm_topk_prob") if experts else "never",
        router_quantized=experts.flag("router_quantized", False) if experts else False,
        draft_layers=parts.text("draft_layers", None),
        float16=parts.flag("float16", True),
        defaults={key: defaults.datum(key) for key in defaults} if defaults else {},
    )
    for part in (table, parts, experts, defaults):
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
        self.data = data
        self.family = family
        self.read: set[str] = set()
        self.assumed: dict[str, Assumption] = {}

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
            why=f"config.json leaves {key} out; the class of {self.family.name} supplies it",
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
        """always, never, or what a key says."""
        return rule == "always" or (rule != "never" and self.flag(rule))


def from_config(
    data: Mapping[str, Any],
    *,
    name: str,
    origin: str,
    revision: str | None = None,
    overrides: str = "",
    data_points: tuple[Datum, ...] = (),
) -> Model:
    """The graph of the model that a config.json describes.

    data    the parsed config.json, hf_overrides already merged
    name    what to call the model
    origin  where the config came from, for people
    overrides  the hf_overrides that were merged, as canonical JSON

    Raises Refused: an unknown architecture, rope type, quantization or layer kind by its name;
    a missing, negative or absurd field by its name.
    """
    stated = data.get("architectures")
    if not isinstance(stated, list) or not stated or not isinstance(stated[0], str):
        raise Refused(f"{name}: architectures in config.json is {stated!r}; it must name the model's class")
    architecture = stated[0]
    family_name = architectures().get(architecture)
    if family_name is None:
        known = sorted(architectures())
        raise Refused(
            f"{name}: capplan has no graph for architecture {architecture}; {closest(architecture, known)}; "
            "a family is added as registry/families/<name>.toml"
        )
    family = load_family(family_name)
    return _Builder(Config(name, data, family), architecture).build(name, origin, revision, overrides, data_points)


class _Builder:
    """Composes the parts of a family into a graph."""

    def __init__(self, config: Config, architecture: str) -> None:
        self.c = config
        self.f = config.family
        self.architecture = architecture
        c = config
        self.hidden = c.count("hidden_size", most=1 << 20)
        self.vocab = c.count("vocab_size", most=1 << 26)
        self.n_layers = c.count("num_hidden_layers", most=4096)
        self.n_heads = c.count("num_attention_heads", most=1 << 14)
        self.layers = tuple(range(self.n_layers))
        self.tensors: list[Tensor] = []

    def build(self, name: str, origin: str, revision: str | None, overrides: str, data: tuple[Datum, ...]) -> Model:
        c = self.c
        c.read.update(("architectures", "model_type"))
        dtype = self.dtype()
        quantization = self.quantization()
        tied = c.flag("tie_word_embeddings") and self.f.ties
        max_positions = c.count("max_position_embeddings", most=1 << 31)
        latent = self.f.attention == "latent"
        self.embedding(tied)
        if latent:
            attention = self.latent_attention()
        else:
            attention = self.grouped_attention()
        head_dim = attention[0].head_dim if not latent else self.nope + self.rope_dim
        rope_dim = self.rope_dim if latent else head_dim
        ropes, rope_names, derived, default = self.ropes(rope_dim, max_positions, attention)
        experts = self.feed_forward()
        self.norms()
        if self.f.draft_layers is not None and c.maybe(self.f.draft_layers, least=0):
            c.assumed[self.f.draft_layers] = Assumption(
                key=self.f.draft_layers,
                value=0,
                datum=None,
                why="the checkpoint's draft layers are not loaded unless speculation asks for them",
            )
        ignored = tuple(sorted(key for key in c.data if key not in c.read))
        return Model(
            name=name,
            architecture=self.architecture,
            family=self.f.name,
            model_type=str(c.data.get("model_type", "")),
            origin=origin,
            revision=revision,
            hidden=self.hidden,
            intermediate=self.intermediate,
            vocab=self.vocab,
            n_layers=self.n_layers,
            n_heads=self.n_heads,
            n_kv_heads=self.n_kv_heads,
            head_dim=head_dim,
            dtype=dtype,
            tied=tied,
            max_positions=derived,
            default_positions=default,
            rope_names=rope_names,
            ropes=ropes,
            tensors=tuple(self.tensors),
            attention=attention,
            experts=experts,
            quantization=quantization,
            latent=latent,
            latent_nope_dim=self.nope if latent else 0,
            latent_rank=self.rank if latent else 0,
            latent_value_dim=self.value_dim if latent else 0,
            assumed=tuple(c.assumed.values()),
            ignored=ignored,
            overrides=overrides,
            data=data,
        )

    # What the whole model is

    def dtype(self) -> str:
        c = self.c
        key = "dtype" if c.has("dtype") else "torch_dtype"
        value = c.get(key)
        if value is None:
            c.assumed["torch_dtype"] = Assumption(
                key="torch_dtype",
                value="bfloat16",
                datum=None,
                why="config.json names no dtype; the engine serves such a model in bfloat16",
            )
            return "bfloat16"
        value = str(value).removeprefix("torch.")
        if value not in DTYPE_BITS:
            raise c.fail(key, f"is {value!r}; capplan knows {', '.join(DTYPE_BITS)}")
        return value

    def quantization(self) -> Quantization | None:
        c = self.c
        stated = c.get("quantization_config")
        if stated is None:
            return None
        if not isinstance(stated, dict):
            raise c.fail("quantization_config", f"is {stated!r}; it must be a table")
        method = stated.get("quant_method")
        if method != "fp8":
            raise c.fail(
                "quantization_config.quant_method", f"is {method!r}; capplan has laws for fp8 with blocks so far"
            )
        block = stated.get("weight_block_size")
        if not (isinstance(block, list) and len(block) == 2 and all(isinstance(b, int) and b > 0 for b in block)):
            raise c.fail(
                "quantization_config.weight_block_size",
                f"is {block!r}; capplan has laws for fp8 with a block of two sizes so far",
            )
        known = (
            "quant_method",
            "weight_block_size",
            "fmt",
            "activation_scheme",
            "modules_to_not_convert",
            "ignored_layers",
            "scale_fmt",
        )
        for key in stated:
            if key not in known:
                raise c.fail(f"quantization_config.{key}", "is not a key that capplan knows there")
        key = "modules_to_not_convert" if stated.get("modules_to_not_convert") else "ignored_layers"
        left = stated.get(key) or []
        if not isinstance(left, list):
            raise c.fail(f"quantization_config.{key}", f"is {left!r}; it must be a list of names")
        for pattern in left:
            if not any(part in str(pattern) for part in ("norm", "lm_head", "embed", "mlp.gate")) or "gate_" in str(
                pattern
            ):
                raise c.fail("quantization_config", f"leaves {pattern} unquantized, which capplan cannot size yet")
        return Quantization(method="fp8", weight_bits=8, block_rows=block[0], block_columns=block[1])

    def ropes(
        self, rotary_of: int, max_positions: int, attention: tuple[Attention, ...]
    ) -> tuple[tuple[Rope, ...], tuple[str, ...], int, int]:
        """The rotary tables, their types, the longest length, and the one taken unasked."""
        c = self.c
        stated = c.get("rope_parameters") or {}
        scaling = c.get("rope_scaling") or {}
        theta = c.get("rope_theta")
        partial = c.get("partial_rotary_factor")
        for key, value in (("rope_parameters", stated), ("rope_scaling", scaling)):
            if not isinstance(value, dict):
                raise c.fail(key, f"is {value!r}; it must be a table or null")
        kinds = list(dict.fromkeys("sliding_attention" if a.kind == "sliding" else "full_attention" for a in attention))
        nested = any(key in stated for key in LAYER_TYPES)
        wanted: list[tuple[dict[str, Any], float | None]] = []
        for kind in kinds:
            if nested:
                own = stated.get(kind) or {}
                if not isinstance(own, dict):
                    raise c.fail(f"rope_parameters.{kind}", f"is {own!r}; it must be a table")
                wanted.append((own, own.get("rope_theta", theta)))
            elif self.f.local_rope_theta and kind == "sliding_attention":
                wanted.append(({}, c.get(self.f.local_rope_theta)))
            else:
                own = stated or scaling
                wanted.append((own, own.get("rope_theta", theta)))
        found: dict[Rope, str] = {}
        scale = 1.0
        for own, base in wanted:
            rope, factor = self.rope(own, base, rotary_of, max_positions, partial)
            found[rope] = rope.rope_type
            scale = factor
        derived = int(max_positions * scale) if self.f.scaled_positions else max_positions
        default = derived
        if "longrope" in found.values():
            original = c.maybe("original_max_position_embeddings")
            default = original or derived
        return tuple(found), tuple(dict.fromkeys(found.values())), derived, default

    def rope(self, own: dict[str, Any], theta: Any, rotary_of: int, positions: int, partial: Any) -> tuple[Rope, float]:
        """One rotary table, and the factor by which it lengthens what the model may hold."""
        c = self.c
        kind = own.get("rope_type", own.get("type", "default"))
        if kind == "su" and "original_max_position_embeddings" not in own:
            raise c.fail("rope_scaling.original_max_position_embeddings", "is missing; su needs it")
        kind = "longrope" if kind == "su" else kind
        if kind not in ROPE_TYPES:
            raise c.fail("rope_scaling", f"has type {kind!r}; capplan knows {', '.join(ROPE_TYPES)}")
        if "mrope_section" in own:
            raise c.fail(
                "rope_scaling", "has mrope_section, a rotary table of several axes, which capplan cannot size yet"
            )
        factor = own.get("factor", 1.0)
        if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor <= 1e6:
            raise c.fail("rope_scaling.factor", f"is {factor!r}; it must be a positive number")
        if kind in ("linear", "yarn") and "factor" not in own:
            raise c.fail("rope_scaling.factor", f"is missing; {kind} needs it")
        original = own.get("original_max_position_embeddings")
        if original is None and kind == "longrope":
            original = c.maybe("original_max_position_embeddings")
        if original is None and kind in ("yarn", "longrope"):
            original = positions
        if original is not None and (isinstance(original, bool) or not isinstance(original, int) or original < 1):
            raise c.fail(
                "rope_scaling.original_max_position_embeddings",
                f"is {original!r}; it must be a whole number, 1 or more",
            )
        share = own.get("partial_rotary_factor", partial if partial is not None else 1.0)
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
            raise c.fail("partial_rotary_factor", f"is {share!r}; it must be in (0, 1]")
        rope = Rope(
            rope_type=kind,
            positions=positions,
            rotary_dim=int(rotary_of * share),
            factor=float(factor),
            original_positions=original,
            theta=float(theta) if isinstance(theta, int | float) else None,
        )
        return rope, float(factor) if kind in ("linear", "dynamic", "ntk") else 1.0

    # Parts

    def add(
        self, name: str, line: str, rows: tuple[Extent, ...] | Extent, columns: Extent | None = None, **more: Any
    ) -> None:
        rows = rows if isinstance(rows, tuple) else (rows,)
        more.setdefault("layers", self.layers if more.get("place", EACH) == EACH else ())
        if more["layers"] or more.get("place", EACH) != EACH:
            self.tensors.append(Tensor(name=name, line=line, rows=rows, columns=columns, **more))

    def embedding(self, tied: bool) -> None:
        table, everywhere = Extent(size=self.vocab, split="vocab"), self.f.tables_everywhere
        self.add("embed_tokens", "embedding", table, Extent(size=self.hidden), place=EVERY if everywhere else FIRST)
        if not tied:
            self.add("lm_head", "head", table, Extent(size=self.hidden), place=EVERY if everywhere else LAST)

    def norms(self) -> None:
        hidden = Extent(size=self.hidden)
        for i in range(self.f.norms_per_layer):
            self.add(f"layers.norm_{i + 1}", "norms", hidden)
        self.add("norm", "norms", hidden, place=EVERY if self.f.norm_everywhere else LAST)
        if self.f.scaled_embedding:
            self.add("embedding_scale", "buffers", Extent(size=1), place=EVERY)

    def layer_types(self) -> tuple[str, ...] | None:
        """Each layer's kind of attention, where the config or the class says it."""
        c = self.c
        stated = c.get("layer_types")
        if stated is not None:
            if not isinstance(stated, list) or len(stated) != self.n_layers:
                raise c.fail("layer_types", f"must list {self.n_layers} kinds, one for each layer")
            for kind in stated:
                if kind not in LAYER_TYPES:
                    raise c.fail(
                        "layer_types",
                        f"has {kind!r}, a layer kind that capplan does not know; there are {', '.join(LAYER_TYPES)}",
                    )
            return tuple(stated)
        if self.f.layer_types == "alternating":
            c.assumed["layer_types"] = Assumption(
                key="layer_types",
                value="sliding, full, sliding, ...",
                datum=None,
                why=f"config.json leaves layer_types out; the class of {self.f.name} alternates from a sliding layer",
            )
            return tuple("full_attention" if i % 2 else "sliding_attention" for i in self.layers)
        if self.f.layer_types == "pattern":
            every = c.count("sliding_window_pattern")
            return tuple("sliding_attention" if (i + 1) % every else "full_attention" for i in self.layers)
        if self.f.layer_types == "max_window_layers" and self.window() is not None:
            first = c.count("max_window_layers", least=0)
            return tuple("sliding_attention" if i >= first else "full_attention" for i in self.layers)
        return None

    def window(self) -> int | None:
        """The sliding window that is in force, None where there is none."""
        c = self.c
        window = c.maybe("sliding_window", least=0)
        if self.f.window_switch is not None and not c.flag(self.f.window_switch):
            c.assumed.pop("sliding_window", None)
            return None
        return window or None

    def grouped_attention(self) -> tuple[Attention, ...]:
        c, f = self.c, self.f
        self.n_kv_heads = c.maybe("num_key_value_heads") or self.n_heads
        stated = c.maybe("head_dim") if f.head_dim_from == "config" else None
        if f.head_dim_from == "hidden":
            c.read.discard("head_dim")
        if stated is None and self.hidden % self.n_heads:
            raise c.fail("hidden_size", f"is {self.hidden}, which {self.n_heads} attention heads do not divide")
        head = stated or self.hidden // self.n_heads
        if self.n_heads % self.n_kv_heads:
            raise c.fail("num_key_value_heads", f"is {self.n_kv_heads}, which does not divide {self.n_heads} heads")
        if c.flag("use_bidirectional_attention"):
            raise c.fail("use_bidirectional_attention", "is true; capplan plans decoders that look backwards only")
        heads = Extent(size=self.n_heads * head, split="ranks", unit=head)
        kv = Extent(size=self.n_kv_heads * head, split="kv_heads", unit=head)
        hidden = Extent(size=self.hidden)
        self.add("layers.attention.qkv", "matrices", (heads, kv, kv), hidden, quantized=True)
        if c.switch(f.qkv_bias):
            self.add("layers.attention.qkv_bias", "norms", (heads, kv, kv))
        self.add("layers.attention.output", "matrices", hidden, heads, quantized=True)
        if c.switch(f.output_bias):
            self.add("layers.attention.output_bias", "norms", hidden)
        if f.query_key_norms:
            self.add("layers.attention.query_norm", "norms", Extent(size=head))
            self.add("layers.attention.key_norm", "norms", Extent(size=head))
        types, window = self.layer_types(), self.window()
        if types is None:
            types = ("sliding_attention" if window else "full_attention",) * self.n_layers
        if "sliding_attention" in types and window is None:
            raise c.fail("sliding_window", "is missing, while layer_types has sliding layers")
        if len(set(types)) > 1 and f.mixed_windows == "refused":
            raise Refused(
                f"{c.name}: some layers slide and some do not, which the engine's class {self.architecture} refuses; "
                "max_window_layers must be 0 or num_hidden_layers"
            )
        found = []
        for kind in dict.fromkeys(types):
            sliding = kind == "sliding_attention"
            found.append(
                Attention(
                    kind="sliding" if sliding else "full",
                    layers=tuple(i for i, t in enumerate(types) if t == kind),
                    n_heads=self.n_heads,
                    n_kv_heads=self.n_kv_heads,
                    head_dim=head,
                    head_dim_v=head,
                    window=window if sliding else None,
                )
            )
        return tuple(found)

    def latent_attention(self) -> tuple[Attention, ...]:
        c = self.c
        self.n_kv_heads = 1
        c.read.update(("num_key_value_heads", "head_dim"))
        self.rank = c.count("kv_lora_rank", most=1 << 16)
        self.nope = c.count("qk_nope_head_dim", most=1 << 16)
        self.rope_dim = c.count("qk_rope_head_dim", most=1 << 16)
        self.value_dim = c.count("v_head_dim", most=1 << 16)
        query_rank = c.maybe("q_lora_rank")
        hidden, latent = Extent(size=self.hidden), self.rank + self.rope_dim
        query = Extent(size=self.n_heads * (self.nope + self.rope_dim), split="ranks")
        if query_rank is None:
            self.add("layers.attention.query", "matrices", query, hidden, quantized=True)
            self.add("layers.attention.latent", "matrices", Extent(size=latent), hidden, quantized=True)
        else:
            down = (Extent(size=query_rank), Extent(size=latent))
            self.add("layers.attention.query_latent_down", "matrices", down, hidden, quantized=True)
            self.add("layers.attention.query_norm", "norms", Extent(size=query_rank))
            self.add("layers.attention.query_up", "matrices", query, Extent(size=query_rank), quantized=True)
        self.add("layers.attention.latent_norm", "norms", Extent(size=self.rank))
        up = Extent(size=self.n_heads * (self.nope + self.value_dim), split="ranks")
        self.add("layers.attention.latent_up", "matrices", up, Extent(size=self.rank), quantized=True)
        values = Extent(size=self.n_heads * self.value_dim, split="ranks")
        self.add("layers.attention.output", "matrices", hidden, values, quantized=True)
        return (
            Attention(
                kind="latent",
                layers=self.layers,
                n_heads=self.n_heads,
                n_kv_heads=1,
                head_dim=latent,
                head_dim_v=0,
            ),
        )

    def feed_forward(self) -> Experts | None:
        c, f = self.c, self.f
        sparse = self.sparse_layers()
        dense = tuple(i for i in self.layers if i not in set(sparse))
        self.intermediate = (
            c.count("intermediate_size", most=1 << 22) if dense or f.expert_intermediate != "intermediate_size" else 0
        )
        if dense:
            self.gated("layers.mlp", "matrices", self.intermediate, "ranks", dense)
        if not sparse:
            return None
        n_experts = c.count(f.expert_count, most=1 << 16)
        width = c.count(f.expert_intermediate, most=1 << 22)
        top_k = c.count("num_experts_per_tok", most=n_experts)
        hidden, columns = Extent(size=self.hidden), Extent(size=width, split="expert_columns")
        self.add(
            "layers.router", "matrices", Extent(size=n_experts), hidden, layers=sparse, quantized=f.router_quantized
        )
        if f.router_bias is not None:
            key, _, word = f.router_bias.partition("=")
            if str(c.get(key)) == word:
                self.add("layers.router_bias", "norms", Extent(size=n_experts), layers=sparse, bits=32)
        common: dict[str, Any] = {"layers": sparse, "n_experts": n_experts, "quantized": True}
        self.add("layers.experts.gate_up", "experts", (columns, columns), hidden, **common)
        self.add("layers.experts.down", "experts", hidden, columns, **common)
        shared = self.shared_width(width)
        if shared:
            self.gated("layers.shared_experts", "matrices", shared, "shared_expert", sparse)
            if f.shared_gate:
                self.add("layers.shared_experts.gate", "matrices", Extent(size=1), hidden, layers=sparse)
        return Experts(
            n_experts=n_experts,
            top_k=top_k,
            intermediate=width,
            shared_intermediate=shared,
            routing=self.routing(),
            layers=sparse,
        )

    def shared_width(self, width: int) -> int:
        """Inner size of the dense experts beside the routed ones, 0 where there are none."""
        c, f = self.c, self.f
        if f.shared_width is not None:
            return c.maybe(f.shared_width, least=0) or 0
        return width * c.count(f.shared_experts, least=0, most=1 << 12) if f.shared_experts is not None else 0

    def routing(self) -> str:
        """How a token's scores become weights of experts; some kernels serve only some ways.

        Source: vllm, model_executor/layers/fused_moe/config.py, get_routing_method_type.
        """
        c = self.c
        scoring, renormalized = c.get("scoring_func") or "softmax", c.switch(self.f.renormalize)
        biased = any(tensor.name == "layers.router_bias" for tensor in self.tensors)
        if scoring == "softmax" and not biased:
            return "renormalize" if renormalized else "plain"
        if scoring != "sigmoid" or (biased and not renormalized):
            return "other"
        if biased:
            return "grouped-sigmoid" if (c.maybe("n_group", least=0) or 0) > 0 else "biased-sigmoid"
        return "renormalized-sigmoid" if renormalized else "sigmoid"

    def sparse_layers(self) -> tuple[int, ...]:
        c, f = self.c, self.f
        if f.experts == "none":
            return ()
        if f.experts == "all":
            return self.layers
        if c.maybe(f.expert_count, least=0) in (None, 0):
            return ()
        if f.experts == "sparse_step":
            step = c.count("decoder_sparse_step")
            dense_only = c.get("mlp_only_layers") or []
            if not isinstance(dense_only, list):
                raise c.fail("mlp_only_layers", f"is {dense_only!r}; it must be a list of layers")
            sparse = tuple(i for i in self.layers if i not in dense_only and (i + 1) % step == 0)
            if not sparse:
                raise c.fail(
                    "decoder_sparse_step",
                    f"and mlp_only_layers leave no layer with experts, which {self.architecture} needs",
                )
            return sparse
        first, every = c.maybe("first_k_dense_replace", least=0) or 0, c.maybe("moe_layer_freq") or 1
        return tuple(i for i in self.layers if i >= first and i % every == 0)

    def gated(self, name: str, line: str, width: int, split: str, layers: tuple[int, ...]) -> None:
        wide, hidden = Extent(size=width, split=split), Extent(size=self.hidden)
        self.add(f"{name}.gate_up", line, (wide, wide), hidden, quantized=True, layers=layers)
        self.add(f"{name}.down", line, hidden, wide, quantized=True, layers=layers)
        if self.c.switch(self.f.mlp_bias):
            self.add(f"{name}.gate_up_bias", "norms", (wide, wide), layers=layers)
            self.add(f"{name}.down_bias", "norms", hidden, layers=layers)
