"""What vLLM on Neuron will not start, or capplan has no law for, where a model and its ranks are asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from capplan.engines import base
from capplan.engines.base import Rule
from capplan.engines.release import Engine
from capplan.engines.vllm.rules import DISCRETE_RULES, NUMERIC_RULES
from capplan.engines.vllm_neuron.hardware import Instance, NeuronChip
from capplan.engines.vllm_neuron.layout import ELEMENT_BITS
from capplan.model import Model
from capplan.settings.deployment import Deployment


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked(base.Case):
    """What a rule looks at: the model if there is one, the deployment with its defaults, chip and instance."""

    graph: Model | None
    draft: Model | None
    d: Deployment
    chip: NeuronChip | None
    instance: Instance | None
    degree: int
    engine: Engine

    @property
    def model(self) -> Model:
        """The model, which rules of its graph look at; `applies` keeps them from a plan without one."""
        if self.graph is None:
            raise ValueError("a plan without a model has no graph")
        return self.graph

    @property
    def models(self) -> tuple[Model, ...]:
        """The model and its draft, those that are named."""
        return tuple(m for m in (self.graph, self.draft) if m is not None)

    @property
    def name(self) -> str:
        """The model's name as sentences use it."""
        return self.graph.short_name if self.graph is not None else "the model"

    @property
    def dtype(self) -> str:
        """The format in which the engine computes."""
        return self.d.dtype or (self.graph.dtype if self.graph is not None else "bfloat16")

    @property
    def expert_shards(self) -> int:
        """Ranks that share one expert."""
        return self.tp

    @property
    def n_ranks(self) -> int:
        """Logical cores that the deployment takes."""
        return self.tp * self.d.pipeline_parallel_size * self.d.data_parallel_size

    @property
    def logical_cores(self) -> int | None:
        """Logical cores of the instance, or of the chips that were counted."""
        chips = self.d.instance_chips
        if chips is None and self.instance is not None:
            chips = self.instance.chips.value
        return None if chips is None or self.chip is None else self.chip.logical_cores(self.degree, chips=chips)

    @property
    def weights_given(self) -> bool:
        return self.d.weights_bytes is not None

    @property
    def measured(self) -> bool:
        """Whether both figures that the graph would give were stated instead."""
        return self.weights_given and self.d.bytes_per_block is not None


NEEDS_GRAPH = ("heads-divide", "key-value-heads-divide", "matrices-divide", "contexts-need-copies-of-heads")
NEEDS_MODEL = ("contexts-without-windows", "length-of-model")
NEEDS_LENGTH = ("length-positive", "load-positive", "load-within-length")
ALWAYS = ("ranks-at-least-one", "contexts-divide-ranks", "dtype-known", "block-size-positive")

SHARED: tuple[Rule[Any], ...] = tuple(
    rule
    for rule in (*DISCRETE_RULES, *NUMERIC_RULES)
    if rule.name in (*ALWAYS, *NEEDS_GRAPH, *NEEDS_MODEL, *NEEDS_LENGTH)
)
"""Rules of vLLM itself, which the plugin keeps, in vLLM's order."""

PLACE_RULES: tuple[Rule[Asked], ...] = (
    Rule(
        name="chip-of-instance",
        field="instance",
        holds=lambda c: c.instance is None or c.chip is None or c.instance.platform == c.chip.name,
        says=lambda c: (
            ""
            if c.instance is None
            else (
                f"{c.instance.title} has {c.instance.platform} chips, and {c.d.chip} was asked; "
                f"choose chip {c.instance.platform} or leave instance out"
            )
        ),
        source="registry, instances",
    ),
    Rule(
        name="cores-for-every-rank",
        field="tensor_parallel_size",
        holds=lambda c: c.logical_cores is None or c.n_ranks <= c.logical_cores,
        says=lambda c: (
            f"{c.n_ranks} ranks need as many logical cores, and there are {c.logical_cores} at LNC {c.degree}; "
            f"choose fewer ranks, more chips{', or LNC 1' if c.degree > 1 else ''}"
        ),
        source="AWS Neuron documentation, instance architecture",
    ),
    Rule(
        name="chips-counted",
        field="instance_chips",
        holds=lambda c: c.d.instance_chips is None or c.d.instance_chips >= 1,
        says=lambda c: f"instance_chips is {c.d.instance_chips}; it must be 1 or more",
        source="capplan, the chips of an instance that the registry does not list",
    ),
    Rule(
        name="override-positive",
        field="num_gpu_blocks_override",
        holds=lambda c: c.d.num_gpu_blocks_override is None or c.d.num_gpu_blocks_override >= 1,
        says=lambda c: f"num_gpu_blocks_override is {c.d.num_gpu_blocks_override}; it must be 1 or more",
        source="vllm, config/cache.py, CacheConfig.num_gpu_blocks_override",
    ),
    Rule(
        name="blocks-have-bytes",
        field="bytes_per_block",
        holds=lambda c: c.d.bytes_per_block is None or c.d.bytes_per_block >= 1,
        says=lambda c: f"bytes_per_block is {c.d.bytes_per_block}; it must be 1 or more, of all layers of one rank",
        source="capplan, the bytes of one block where no law has them",
    ),
    Rule(
        name="cache-format-known",
        field="kv_cache_dtype",
        holds=lambda c: c.d.kv_cache_dtype in (None, "auto", *ELEMENT_BITS),
        says=lambda c: (
            f"kv_cache_dtype is {c.d.kv_cache_dtype!r}; there are laws for auto, {', '.join(ELEMENT_BITS)}; "
            "bytes_per_block states any other"
        ),
        source="AWS Neuron documentation, vLLM Neuron, KV cache quantization",
    ),
)
"""What holds with and without a model."""

MODEL_RULES: tuple[Rule[Asked], ...] = (
    Rule(
        name="one-stage",
        field="pipeline_parallel_size",
        holds=lambda c: c.d.pipeline_parallel_size == 1 or c.measured,
        says=lambda c: (
            f"pipeline_parallel_size is {c.d.pipeline_parallel_size}, and capplan knows the tensors of one stage only; "
            "choose 1, or state weights_bytes and bytes_per_block of the tightest rank"
        ),
        source="capplan, laws of vLLM on Neuron",
    ),
    Rule(
        name="experts-are-sliced",
        field="enable_expert_parallel",
        holds=lambda c: not c.d.enable_expert_parallel or c.weights_given,
        says=lambda c: (
            "enable_expert_parallel was asked, and capplan does not know how the plugin places whole experts; "
            "leave it out, or state weights_bytes"
        ),
        source="capplan, laws of vLLM on Neuron",
    ),
    Rule(
        name="experts-of-one-replica",
        field="data_parallel_size",
        holds=lambda c: c.weights_given or c.d.data_parallel_size == 1 or c.graph is None or c.graph.experts is None,
        says=lambda c: (
            f"data_parallel_size is {c.d.data_parallel_size}, and capplan does not know how replicas share the experts "
            f"of {c.name} on Neuron; choose 1, or state weights_bytes"
        ),
        source="capplan, laws of vLLM on Neuron",
    ),
    Rule(
        name="weights-known",
        field="weights_bytes",
        holds=lambda c: c.weights_given or all(m.quantization is None for m in c.models),
        says=lambda c: (
            f"{c.name} is stored in {_method(c)}, and capplan does not know how the plugin holds that after loading; "
            "state weights_bytes, the sum of the parameters and buffers on one rank"
        ),
        source="capplan, laws of vLLM on Neuron",
    ),
    Rule(
        name="quantization-of-checkpoint",
        field="quantization",
        holds=lambda c: c.weights_given or c.d.quantization is None,
        says=lambda c: (
            f"quantization {c.d.quantization} was asked, and capplan has no law for the weights that it leaves; "
            "state weights_bytes, or leave it out"
        ),
        source="capplan, laws of vLLM on Neuron",
    ),
    Rule(
        name="caches-are-attention",
        field="bytes_per_block",
        holds=lambda c: c.d.bytes_per_block is not None or all(m.attention for m in c.models),
        says=lambda c: (
            f"{c.name} keeps caches of its own, for which capplan has no page on Neuron; "
            "state bytes_per_block, of all layers of one rank"
        ),
        source="capplan, laws of vLLM on Neuron",
    ),
    Rule(
        name="page-known",
        field="bytes_per_block",
        holds=lambda c: c.d.bytes_per_block is not None or all(not m.latent for m in c.models),
        says=lambda c: (
            f"{c.name} keeps a latent cache, for which capplan has no page on Neuron; "
            "state bytes_per_block, of all layers of one rank"
        ),
        source="capplan, laws of vLLM on Neuron",
    ),
)
"""What a figure of the graph needs; stating the figure lifts the rule."""


def _method(c: Asked) -> str:
    found = next(m.quantization for m in c.models if m.quantization is not None)
    return found.method if found is not None else "a quantized format"


def applies(rule: Rule[Any], c: Asked) -> bool:
    """Whether a rule of vLLM itself is asked: most of them only where there is what they look at."""
    if rule.name in NEEDS_GRAPH:
        return c.graph is not None and not c.measured
    if rule.name in NEEDS_MODEL:
        return c.graph is not None
    return rule.name not in NEEDS_LENGTH or (c.d.max_model_len is not None and c.d.tokens is not None)
