"""The graph of a model: what is stored, in which shape, split how, how often."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from capplan.model.declared import Caches
from capplan.registry import Datum

DTYPE_BITS = {"bfloat16": 16, "float16": 16, "float32": 32}
"""Widths of the number formats that a model may be served in."""

SPLITS = ("whole", "ranks", "kv_heads", "vocab", "experts", "expert_columns", "shared_expert", "groups", "padded")
"""How one extent of a tensor is divided over ranks; engines say what each means."""

FIRST, LAST, EVERY, EACH = "first", "last", "every", "layers"
"""Where a tensor is held: the first pipeline stage, the last, every one, or the stages of its layers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Extent:
    """One extent of a tensor: its size in the whole model and how ranks share it.

    A `kv_heads` extent counts elements of all heads; `unit` is one head's.  Of `groups` each rank
    holds at least one of `unit` elements, and of what is `padded` a share that is a multiple of `unit`, as of a
    `shared_expert` whose unit is not 1.
    """

    size: int
    split: str = "whole"
    unit: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Format:
    """How a matrix is stored: the scheme's name, bits of an element, and what one scale serves.

    `rows` and `columns` are those of a scale's block; 0 rows is one scale for each row, 0 columns all of them.
    """

    name: str
    bits: int
    rows: int = 0
    columns: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Tensor:
    """One class of stored tensors: the same name, shape and width in each of its layers.

    `module` is what the engine calls its matrix, `#` for the layer, and `packs` what checkpoints call
    the matrices packed into it; both decide which format a quantized checkpoint has for it.  `narrow_on` names
    the chips on which it is kept in the model's format in spite of `bits`.
    """

    name: str
    line: str
    rows: tuple[Extent, ...]
    columns: Extent | None = None
    n_experts: int = 0
    bits: int | None = None
    quantized: bool = False
    place: str = EACH
    layers: tuple[int, ...] = ()
    copies: int = 1
    module: str = ""
    packs: tuple[str, ...] = ()
    form: Format | None = None
    narrow_on: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """How many tensors of this class the whole model has."""
        return self.copies * (len(self.layers) if self.place == EACH else 1)

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
    """The layers that keep one kind of cache.

    `kind` is full, sliding, chunked or latent; `window` the tokens that a sliding layer looks back or a chunk holds.
    """

    kind: str
    layers: tuple[int, ...]
    n_heads: int
    n_kv_heads: int
    head_dim: int
    head_dim_v: int
    window: int | None = None
    sinks: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """The layers that keep a recurrent state: its law, what that takes, and the bits of its two parts.

    `kind` is what answers call it; bits are None where they are the model's. `chunk` is the step in tokens at which a
    prefix's state may be kept, `checkpoints` the states kept beside the running one for that; both only on the chips
    that `exports_on` names.
    """

    law: str
    kind: str
    layers: tuple[int, ...]
    sizes: Mapping[str, int]
    bits: tuple[int | None, ...]
    chunk: int
    checkpoints: int
    exports_on: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Cached:
    """A cache that some layers keep beside or in place of plain attention's.

    `block_size` is in tokens, 0 for the deployment's own; an entry of `entry_bytes` serves `tokens_per_entry`
    tokens, and a page of entries is a multiple of `alignment`.
    """

    name: str
    spec: str
    kind: str
    layers: tuple[int, ...]
    block_size: int
    entry_bytes: int
    tokens_per_entry: int
    window: int | None
    alignment: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Buffer:
    """Memory that follows the engine's step: elements for each batched token and each sequence, and some beside.

    `wants` names what the attention kernels must be for it to exist, empty where it always does; of one that
    `leads`, a stage whose first layer has none makes one more.
    """

    name: str
    bits: int | None
    count: int
    per_token: int
    per_sequence: int
    beside: int
    layers: tuple[int, ...] = ()
    place: str = EVERY
    wants: tuple[str, ...] = ()
    leads: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Rope:
    """One rotary table: its type, the positions it is made for, what scales them, and the layers that alone read it."""

    rope_type: str
    positions: int
    rotary_dim: int
    factor: float = 1.0
    original_positions: int | None = None
    theta: float | None = None
    bits: int | None = None
    use: str = ""
    layers: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Experts:
    """The routed experts of a model, the dense ones beside them, and how tokens choose among them."""

    n_experts: int
    top_k: int
    intermediate: int
    shared_intermediate: int
    routing: str
    layers: tuple[int, ...]
    hidden: int = 0
    gated: bool = True
    least_intermediate: int = 0
    biased: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Quantization:
    """How a checkpoint stores its matrices: the method as it names it, every format in use, and its cache's format."""

    method: str
    forms: tuple[Format, ...]
    kv_cache_dtype: str | None = None
    serves: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Assumption:
    """A fact that config.json leaves out and the family's class supplies."""

    key: str
    value: Any
    datum: Datum | None
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Guess:
    """What was assumed of a model that capplan does not know whole, because a person asked for it.

    says  what is not known and what was assumed, in a sentence without its full stop
    weights_percent  the band of the weights, in percent of what was computed
    """

    says: str
    weights_percent: Datum


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Model:
    """What a model stores, from its config.json; sizes are of the whole model.

    `name`, `architecture` and `family` say what it is; `tensors` lists every stored class;
    `attention` the layers that keep a cache and `recurrent` those that keep a recurrent state; `ropes` the
    rotary tables; `buffers` what follows the engine's step; `experts` and `quantization` are None where
    there are none. `max_positions` is the longest length the engine derives, `default_positions` the one
    it takes unasked, `assumed` what the family's class supplied, `ignored` the keys of config.json that no
    law reads, `caches` what a model file states of them, `guess` what was assumed of one that is not known whole.
    Without tensors the weights are unknown.
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
    caches: Caches | None = None
    recurrent: tuple[State, ...] = ()
    buffers: tuple[Buffer, ...] = ()
    layer_caches: tuple[Cached, ...] = ()
    attention_type: str = ""
    guess: Guess | None = None

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
