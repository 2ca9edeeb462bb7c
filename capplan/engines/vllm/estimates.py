"""What only evidence gives: which figures and laws a deployment takes, and their bands."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from capplan.engines.frame import Frame, Rank
from capplan.engines.pool import speculative_tokens
from capplan.engines.release import Engine
from capplan.engines.vllm.case import discrete
from capplan.laws import activations, runtime
from capplan.model import Model
from capplan.registry import Chip, Datum
from capplan.settings.deployment import Deployment
from capplan.units import Count, at_most, choose


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimates:
    """The registry's figures for a deployment: each a datum with its band, and what picks among laws."""

    bytes_per_logit: Datum
    sampler_buffer_words: int
    forward_percent: Datum
    forward_data: tuple[Datum, ...]
    widest: int
    non_torch: Datum
    graphs: Datum
    graphs_few_low: Datum
    few_tokens: Datum
    pre_snapshot: Datum


def estimates(model: Model, d: Deployment, chip: Chip, engine: Engine) -> Estimates:
    """The figures that only evidence gives, for one deployment.

    Source: the start-up records that the engine's file quotes; docs/decisions/0003-estimates.md.
    """
    return _estimates(model, discrete(d), chip, engine)


@lru_cache(maxsize=4096)
def _estimates(model: Model, d: Deployment, chip: Chip, engine: Engine) -> Estimates:
    e, t, experts = engine.estimates, d.tensor_parallel_size, model.experts
    flashinfer = _samples_with_flashinfer(chip, engine)
    replicas = d.data_parallel_size if experts is not None else 1
    ranks = "more_ranks" if t * d.pipeline_parallel_size * replicas > 1 else "one_rank"
    # Uncompiled, the forward pass keeps three hidden states of a token beside the feed-forward block, compiled one.
    residual = 3 if d.enforce_eager else 1
    inner = (model.intermediate if experts is None else experts.shared_intermediate) // t
    widest = int(activations.gated_width(hidden=model.hidden, intermediate=inner, n_residual=residual))
    forward: tuple[Datum, ...] = (e["dense_forward_percent"],)
    large = False
    if experts is not None:
        forward = (e["experts_forward_percent"], e["experts_hidden_states"])
        widest = max(widest, e["experts_hidden_states"].value * model.hidden)
        large = model.n_parameters > e["large_experts_parameters"].value
    return Estimates(
        bytes_per_logit=e["bytes_per_logit" if flashinfer else "bytes_per_logit_without_flashinfer"],
        sampler_buffer_words=0
        if flashinfer or chip.multiprocessors is None
        else chip.multiprocessors.value * model.vocab,
        forward_percent=forward[0],
        forward_data=forward,
        widest=widest,
        non_torch=e[f"non_torch_{ranks}_bytes"],
        graphs=e["cuda_graphs_large_experts_bytes" if large else "cuda_graphs_bytes"],
        graphs_few_low=e["cuda_graphs_few_tokens_low_bytes"],
        few_tokens=e["cuda_graphs_few_tokens"],
        pre_snapshot=e[f"pre_snapshot_{ranks}_bytes"],
    )


def _samples_with_flashinfer(chip: Chip, engine: Engine) -> bool:
    """Whether FlashInfer's sampling runs on a chip; of a chip that is no CUDA device nothing else is known."""
    if chip.capability is None:
        return True
    capability = chip.capability[0] * 10 + chip.capability[1]
    k = engine.constants
    return bool(k["flashinfer_sampling_least"].value <= capability <= k["flashinfer_sampling_most"].value)


def captured_tokens(d: Deployment, chip: Chip, engine: Engine, *, own: int | None = None) -> Count:
    """The largest captured step in tokens: the ceiling, lowered to a size on the engine's grid.

    own  the ceiling that the model's class states, as an operator would; None where it states none

    The grid is 1, 2, 4, multiples of 8 up to 256, then multiples of 16.

    Source: vllm, config/vllm.py, VllmConfig._set_cudagraph_sizes.
    """
    blackwell = chip.capability is not None and chip.capability[0] == 10
    limit = engine.constants["capture_limit_blackwell" if blackwell else "capture_limit"].value
    if d.max_num_seqs is None or d.max_num_batched_tokens is None:
        raise ValueError("a resolved deployment has its steps")
    stated = d.max_cudagraph_capture_size or own
    if stated is not None:
        return at_most(stated, d.max_num_batched_tokens)
    ceiling = runtime.capture_ceiling(
        max_num_seqs=d.max_num_seqs,
        decode_query_tokens=1 + speculative_tokens(d),
        largest_capture=limit,
        max_num_batched_tokens=d.max_num_batched_tokens,
    )
    tiny = choose(ceiling >= 4, 4, choose(ceiling >= 2, 2, 1))
    fine = choose(ceiling >= 8, ceiling // 8 * 8, tiny)
    snapped: Count = choose(ceiling >= 256, ceiling // 16 * 16, fine)
    return snapped


@dataclass(frozen=True, kw_only=True, slots=True)
class Workspace:
    """What the experts' kernel keeps, its band, how it is known, and which kernel it is."""

    bytes: Count
    low: Count
    high: Count
    kind: str
    note: str


def workspace(model: Model, d: Deployment, f: Frame, rank: Rank, engine: Engine) -> Workspace | None:
    """What the experts' kernel keeps after the profiling pass; None where there are no experts on the stage.

    The kernel's shape functions give it where the engine has its own.  What FlashInfer's kernel keeps inside
    is not known, so it is bounded: nothing at the least, its output in the middle, Triton's workspaces at the most.

    Source: vllm, model_executor/layers/fused_moe/experts, workspace_shapes.
    """
    experts, kernel, tokens = model.experts, f.kernel, d.max_num_batched_tokens
    if experts is None or kernel is None or tokens is None or not any(i in rank.layers for i in experts.layers):
        return None
    inner = experts.intermediate // (1 if d.enable_expert_parallel else d.tensor_parallel_size * d.data_parallel_size)
    two = runtime.experts_workspace_bytes(
        max_num_batched_tokens=tokens,
        top_k=experts.top_k,
        hidden=model.hidden,
        expert_intermediate=inner,
        act_bits=f.act_bits,
    )
    if kernel.workspace == "two":
        return Workspace(bytes=two, low=two, high=two, kind="derived", note=f"{kernel.name} computes the experts")
    output = activations.forward_peak_bytes(max_num_batched_tokens=tokens, widest=model.hidden, act_bits=f.act_bits)
    if kernel.workspace == "output":
        note = f"{kernel.name} computes the experts and keeps its output"
        return Workspace(bytes=output, low=output, high=output, kind="derived", note=note)
    if kernel.workspace == "padded":
        padded = runtime.padded_experts_workspace_bytes(
            max_num_batched_tokens=tokens,
            top_k=experts.top_k,
            hidden=model.hidden,
            expert_intermediate=inner,
            n_local_experts=rank.experts,
            row_alignment=engine.constants["workspace_alignment"].value,
            act_bits=f.act_bits,
        )
        note = f"{kernel.name} computes the experts, rows of each padded"
        return Workspace(bytes=padded, low=padded, high=padded, kind="derived", note=note)
    note = f"{kernel.name} computes the experts; what it keeps inside is bounded, not known"
    return Workspace(bytes=output, low=0 * output, high=two, kind="assumed", note=note)
