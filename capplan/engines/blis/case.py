"""A deployment in question, and what the kernel derives from it: widths, shares, the layout of the cache."""

from __future__ import annotations

from dataclasses import dataclass, replace

from capplan.engines import base
from capplan.engines.blis.own import CacheFormat, Own, SparseBackend, own
from capplan.engines.release import Engine, capability_matches
from capplan.laws import kv_cache
from capplan.model import DTYPE_BITS, Attention, Model, Tensor
from capplan.registry import Chip, Datum
from capplan.settings.deployment import Deployment

TWO_BYTES = 16
"""Bits below which a cache is not kept where nobody states its format."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Case(base.Case):
    """What a rule looks at: the model, the deployment with its defaults filled in, the chip and the engine."""

    model: Model
    d: Deployment
    chip: Chip
    engine: Engine

    @property
    def own(self) -> Own:
        return own(self.engine)

    @property
    def dp(self) -> int:
        return self.d.data_parallel_size

    @property
    def pcp(self) -> int:
        """Ranks that share one prefill."""
        return max(1, self.d.prefill_context_parallel_size)

    @property
    def dcp(self) -> int:
        """Ranks that share one context."""
        return max(1, self.d.decode_context_parallel_size)

    @property
    def ep(self) -> int:
        """Ranks that share experts whole; 1 where experts are sliced."""
        return self.tp * max(self.dp, self.pcp, 1) if self.d.enable_expert_parallel else 1

    @property
    def expert_shards(self) -> int:
        """Ranks that slice each expert: all of them, those that share a prefill too."""
        return 1 if self.d.enable_expert_parallel else self.tp * self.dp * self.pcp

    @property
    def communicates(self) -> bool:
        """Whether a rank shares anything with another."""
        group = self.ep if self.d.enable_expert_parallel else self.tp * self.pcp * self.dp if self.dp > 1 else 1
        return max(self.tp, group, self.pcp, self.dcp) > 1

    @property
    def redundant(self) -> int:
        """Replicas of experts in each layer."""
        return (self.d.num_redundant_experts or 0) if self.d.enable_eplb else 0

    # Widths

    @property
    def act_bits(self) -> int:
        """Bits of the compute format."""
        dtype = self.d.dtype
        return DTYPE_BITS[self.model.dtype if dtype in (None, "auto") else dtype]

    @property
    def served_bits(self) -> int:
        """Bits in which matrices are served: what the flag says, else the checkpoint's."""
        serves, bits = self.own.quantizations.get(self.d.quantization or "", ("checkpoint", 0))
        return checkpoint_bits(self.model) if serves == "checkpoint" else bits

    def table_bits(self, table: str) -> int:
        """Bits of one of the two tables of words, embedding or head: before quantization, as the checkpoint has it, or
        as matrices are served."""
        width = self.engine.behaviours[table]
        if width == "served":
            return self.served_bits
        return checkpoint_bits(self.model) if width == "checkpoint" else DTYPE_BITS[self.model.dtype]

    def node_bits(self, tensor: Tensor) -> int:
        """Bits of one class of matrices: its own width, else the table's, else the served one."""
        if tensor.line == "embedding":
            return self.table_bits("embedding")
        if tensor.form is not None:
            return tensor.form.bits
        if tensor.bits is not None:
            return tensor.bits
        if tensor.line == "head":
            return self.table_bits("head")
        kept = self.model.quantization is not None and not tensor.quantized
        return DTYPE_BITS[self.model.dtype] if kept else self.served_bits

    # The cache

    @property
    def stated_layers(self) -> frozenset[int]:
        """Layers that a model file sizes."""
        return self.model.caches.opted_in if self.model.caches is not None else frozenset()

    @property
    def kept(self) -> tuple[Attention, ...]:
        """The layers whose caches no file states, kind by kind; what an indexer keeps is not among them."""
        found = []
        for a in self.model.attention:
            layers = tuple(i for i in a.layers if i not in self.stated_layers)
            if layers:
                found.append(a if layers == a.layers else replace(a, layers=layers))
        return tuple(found)

    @property
    def sparse(self) -> bool:
        """Whether latent attention chooses among its tokens."""
        return self.model.attention_type == "sparse-latent"

    @property
    def heads_per_rank(self) -> int:
        return -(-self.model.n_heads // self.tp)

    @property
    def asked_format(self) -> str:
        return self.d.kv_cache_dtype or "auto"

    @property
    def format(self) -> CacheFormat | None:
        """The format that is asked for; None for the compute format or an unknown one."""
        return self.own.cache_formats.get(self.asked_format)

    @property
    def backend(self) -> SparseBackend | None:
        """The kernels that win sparse latent attention."""
        for row in self.own.sparse_backends:
            few = not row.most_heads or self.quantized_cache or self.heads_per_rank <= row.most_heads
            admits = (
                capability_matches(row.capabilities, self.chip.capability)
                and self.asked_format in row.takes
                and few
                and (self.dcp == 1 or self._shares_context(row))
            )
            if admits:
                return row
        return None

    @property
    def quantized_cache(self) -> bool:
        return self.asked_format not in ("auto", "float16", "bfloat16")

    def _shares_context(self, row: SparseBackend) -> bool:
        """Whether kernels serve ranks that share a context."""
        if row.contexts == "one-kind":
            return self.pcp == 1
        if row.contexts != "flashmla":
            return False
        heads = self.heads_per_rank
        packed = row.packs.get(self.asked_format, self.asked_format)
        return (
            self.quantized_cache
            and (self.d.dcp_comm_backend or "ag_rs") == "ag_rs"
            and (packed == "fp8_ds_mla" if self.pcp > 1 else heads < 32)
            and _padded_heads(heads) == _padded_heads(heads * self.dcp)
        )

    @property
    def stored_format(self) -> str:
        """The format in which the cache lies: what is asked for, as the kernels that win pack it."""
        if not self.sparse or self.backend is None:
            return self.asked_format
        return self.backend.packs.get(self.asked_format, self.asked_format)

    def half_bits(self, a: Attention) -> int:
        """Half bits that one token occupies in the layers of one kind."""
        found = self.own.cache_formats.get(self.stored_format)
        if found is not None and found.record_bytes:
            return len(a.layers) * found.record_bytes * 16
        bits = max(TWO_BYTES, self.act_bits) * 2 if found is None else found.half_bits
        heads = kv_cache.kv_heads_per_rank(n_kv_heads=a.n_kv_heads, tensor_parallel_size=self.tp)
        kept = kv_cache.token_half_bits(
            n_layers=len(a.layers), n_kv_heads=heads, head_dim=a.head_dim, head_dim_v=a.head_dim_v, kv_half_bits=bits
        )
        return int(kept)

    @property
    def divides_context(self) -> bool:
        """Whether ranks that share a context divide its tokens: only where every layer keeps every token."""
        return all(a.kind in ("full", "latent") for a in self.kept)

    @property
    def width(self) -> int:
        """Elements of one token in an activation buffer: the widest attention's, the hidden state's of a latent one."""
        hidden = self.model.hidden
        widths = [hidden if a.kind == "latent" else a.n_heads * a.head_dim for a in self.model.attention]
        return max(widths, default=hidden)


def _padded_heads(heads: int) -> int:
    """Heads as the sparse kernels pad them."""
    return 64 if heads <= 64 else 128 if heads <= 128 else heads


def checkpoint_bits(model: Model) -> int:
    """Bits in which a checkpoint stores its matrices."""
    if model.quantization is None:
        return DTYPE_BITS[model.dtype]
    # Of experts alone the format is theirs, and the rest of the checkpoint is as it was.
    dense = [t.form.bits for t in model.tensors if t.form is not None and not t.n_experts]
    return dense[0] if dense else DTYPE_BITS[model.dtype]


def as_the_catalog_has_it(chip: Chip) -> Chip:
    """A chip whose device is as large as the catalog says, which is what the kernel divides."""
    size = chip.catalog_bytes
    return replace(chip, device_bytes=replace(size, low=size.value, high=size.value))


def snapped(engine: Engine, prefix: str, ranks: int, suffix: str = "") -> Datum:
    """The figure of the widest stated number of ranks that is not above those asked, else of the narrowest.

    Raises RegistryError where the engine's file states none.
    """
    stated = {
        int(key[len(prefix) : len(key) - len(suffix)]): datum
        for key, datum in engine.estimates.items()
        if key.startswith(prefix) and key.endswith(suffix) and key[len(prefix) : len(key) - len(suffix)].isdigit()
    }
    if not stated:
        return engine.estimates[f"{prefix}1{suffix}"]
    return stated[max((n for n in stated if n <= ranks), default=min(stated))]
