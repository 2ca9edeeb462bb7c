"""Caches, states and buffers that a model file states, for one deployment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from capplan.engines.base import Finding
from capplan.engines.pool import (
    FULL,
    RECURRENT,
    RING,
    SLIDING,
    Cache,
    CannotGroup,
    Group,
    Spec,
    grouped,
    own_pages,
    pool_block_bytes,
    speculative_tokens,
)
from capplan.engines.release import Engine
from capplan.laws import buffers, kv_cache, recurrent, weights
from capplan.model import Model
from capplan.model.declared import Caches, StatedCache, StatedState
from capplan.model.states import STATES
from capplan.registry import Chip
from capplan.settings.deployment import Deployment
from capplan.units import Count, choose


def drafts(caches: Caches, d: Deployment) -> bool:
    """Whether the model's own drafter runs."""
    return speculative_tokens(d) > 0 and caches.drafter is not None and d.speculative_method in (None, caches.drafter)


def stored_format(caches: Caches, d: Deployment, chip: Chip) -> str | None:
    """The format in which the caches lie, which the kernels decide; None where no row admits what is asked."""
    asked = d.kv_cache_dtype or "auto"
    if not caches.formats:
        return asked
    for row in caches.formats:
        ranks = row.tensor_parallel_sizes
        if chip.generation in row.generations and asked in row.asked and (not ranks or d.tensor_parallel_size in ranks):
            return row.stores
    return None


def why_format(caches: Caches, d: Deployment, chip: Chip) -> str:
    """Why the caches lie in the format that they do."""
    asked = d.kv_cache_dtype or "auto"
    for row in caches.formats:
        ranks = row.tensor_parallel_sizes
        if chip.generation in row.generations and asked in row.asked and (not ranks or d.tensor_parallel_size in ranks):
            return row.why
    return "the model's own format"


def block_size(caches: Caches, d: Deployment, chip: Chip) -> int | None:
    """Context tokens of one block where nobody asks for another."""
    form = stored_format(caches, d, chip) or ""
    return caches.block_size.of(chip.generation, form) if caches.block_size is not None else None


def faults(model: Model, d: Deployment, chip: Chip) -> Iterator[Finding]:
    """What of a model's stated caches a deployment cannot have, each as a refusal."""
    caches = model.caches
    if caches is None:
        return
    name, asked = model.short_name, d.kv_cache_dtype or "auto"
    form = stored_format(caches, d, chip)
    if form is None:
        there = [f"{' or '.join(r.generations)} takes {', '.join(r.asked)}" for r in caches.formats]
        here = any(chip.generation in r.generations for r in caches.formats)
        yield _refusal(
            "kv_cache_dtype" if here else "chip",
            asked if here else d.chip,
            f"the caches of {name} are stated for no kv_cache_dtype {asked} on {chip.title} ({chip.generation}); "
            + "; ".join(there),
        )
        return
    block = d.block_size
    for cache in caches.owned:
        if cache.drafter and not drafts(caches, d):
            continue
        layers = ", ".join(map(str, cache.layers))
        if cache.record_bytes.of(chip.generation, form) is None:
            there = sorted({f"{g} {f}" for g, f, _ in cache.record_bytes.values})
            yield _refusal(
                "kv_cache_dtype",
                asked,
                f"{name} states no record of its {cache.name} cache (layers {layers}) for {form} on "
                f"{chip.generation}; it states {', '.join(there)}",
            )
        elif cache.entries is None and (cache.page_tokens or block or 0) % cache.tokens_per_record:
            yield _refusal(
                "block_size",
                block,
                f"block_size {block} does not hold whole records of the {cache.name} cache of {name} "
                f"(layers {layers}), which are of {cache.tokens_per_record} tokens; choose a multiple of "
                f"{cache.tokens_per_record}",
            )


def _refusal(field: str, asked: object, why: str) -> Finding:
    return Finding(field=field, asked=asked, happens="refused", why=why, source="registry, the model's stated caches")


def ring_entries(cache: StatedCache, drafted: int) -> int:
    """Entries of a ring: as many as stated, by powers of two more where a step needs them.

    Source: vllm 0.33.0, models/deepseek_v4, the compressor's state.
    """
    entries = cache.entries or 1
    if cache.entries_beside is None:
        return entries
    needed = 1
    while needed < drafted + cache.entries_beside:
        needed *= 2
    return max(entries, needed)


def stated_caches(model: Model, d: Deployment, chip: Chip) -> tuple[Cache, ...]:
    """Every stated cache that a deployment has, in the order of the layers."""
    caches = model.caches
    if caches is None:
        return ()
    form, drafted = stored_format(caches, d, chip) or "", speculative_tokens(d)
    found: list[Cache] = []
    for cache in caches.owned:
        if not cache.drafter or drafts(caches, d):
            spec = _spec(cache, d, chip, form, drafted)
            found += [Cache(layer=layer, spec=spec) for layer in cache.layers]
    for state in caches.states:
        found += [Cache(layer=layer, spec=state_spec(state, d)) for layer in state.layers]
    return tuple(sorted(found, key=lambda cache: cache.layer))


def _spec(cache: StatedCache, d: Deployment, chip: Chip, form: str, drafted: int) -> Spec:
    record = cache.record_bytes.of(chip.generation, form)
    if record is None or d.block_size is None:
        raise ValueError("stated caches need a resolved deployment")
    tokens = cache.page_tokens or d.block_size
    ring = cache.entries is not None
    page = kv_cache.record_page_bytes(
        page_tokens=ring_entries(cache, drafted) if ring else tokens,
        tokens_per_record=1 if ring else cache.tokens_per_record,
        record_bytes=record,
        alignment=cache.alignment.of(chip.generation, form) or 1,
    )
    kind = RING if ring else SLIDING if cache.window is not None else FULL
    return Spec(
        spec={RING: "ring", SLIDING: "sliding window", FULL: "every token"}[kind],
        kind=kind,
        block_size=d.block_size if ring else tokens,
        page_bytes=int(page),
        name=cache.name,
        latent=cache.latent,
        window=cache.window,
        pages=1 if ring else None,
        divides=kind == FULL,
        stride=record if chip.generation in cache.whole_records else 1,
    )


def state_page_bytes(law: str, sizes: Mapping[str, int], bits: tuple[int, int], *, ranks: int, drafted: int) -> int:
    """Bytes of one recurrent state of one layer on a rank, by the law that its file names.

    sizes  what the law takes of the model, by the law's own names
    bits   of an element of the convolution's part and of the temporal part
    """
    laws = STATES[law]
    conv = laws.conv_elements(
        **{name: sizes[name] for name in laws.conv_sizes}, num_speculative_tokens=drafted, tensor_parallel_size=ranks
    )
    temporal = laws.temporal_elements(**{name: sizes[name] for name in laws.temporal_sizes}, tensor_parallel_size=ranks)
    page = recurrent.state_page_bytes(
        conv_elements=conv, conv_bits=bits[0], temporal_elements=temporal, temporal_bits=bits[1]
    )
    return int(page)


def state_bytes(state: StatedState, d: Deployment, *, splits: bool = True) -> int:
    """Bytes of one stated state of one layer on a rank; ranks split it unless the kernel is too old to."""
    bits = (state.conv_bits, state.temporal_bits)
    ranks, sizes = d.tensor_parallel_size if splits else 1, state.sizes
    if sizes.get("n_groups", ranks) % ranks:
        # Groups that ranks do not divide are repeated until each rank has one.
        sizes = {**sizes, "n_groups": ranks}
    return state_page_bytes(state.law, sizes, bits, ranks=ranks, drafted=speculative_tokens(d))


def state_pages(mode: str | None, drafted: int) -> int | None:
    """States that a request holds of one layer whatever its length; None where one is kept for each block."""
    if mode == "all":
        return None
    return int(recurrent.fixed_state_pages(kept=2 if mode == "align" else 1, num_speculative_tokens=drafted))


def state_spec(state: StatedState, d: Deployment, *, splits: bool = True) -> Spec:
    """A recurrent state as the pool sees it."""
    drafted, mode = speculative_tokens(d), d.mamba_cache_mode
    return Spec(
        spec=state.law,
        kind=RECURRENT,
        block_size=d.block_size or 1,
        page_bytes=state_bytes(state, d, splits=splits),
        name="state",
        pages=state_pages(mode, drafted),
        extra_pages=drafted if mode == "all" else 0,
        divides=False,
    )


# A model's own buffers


def own_buffers(
    model: Model, d: Deployment, chip: Chip, engine: Engine, tokens: Count
) -> tuple[tuple[str, Count], ...]:
    """The buffers that a model allocates for itself, each with its name; none where none are stated.

    A lane of the workspace is as large as its largest request; lanes and buffers add up.
    """
    caches, length = model.caches, d.max_model_len
    if caches is None or caches.buffers is None or length is None:
        return ()
    b, k = caches.buffers, engine.constants
    lane = {"lane_alignment": b["lane_alignment"]}
    step = {
        "max_num_batched_tokens": tokens,
        "window": b["window"],
        "prefill_chunk": b["prefill_chunk"],
        "head_dim": b["head_dim"],
        "act_bits": b["act_bits"],
    }
    factor = choose(length > k["gather_long_tokens"].value, k["gather_factor_long"].value, k["gather_factor"].value)
    attention: Count = 0
    index: Count = 0
    for ratio in b["tokens_per_record"]:
        asked = buffers.attention_lane_bytes(
            max_model_len=length, tokens_per_record=ratio, index_topk=b["index_topk"], **step, **lane
        )
        attention = buffers.lane_bytes(one=attention, other=asked)
        gathered = buffers.index_lane_bytes(
            max_model_len=length,
            tokens_per_record=ratio,
            gather_factor=factor,
            index_key_bytes=b["index_key_bytes"],
            index_scale_bytes=b["index_scale_bytes"],
            **lane,
        )
        index = buffers.lane_bytes(one=index, other=gathered + k["index_scratch_bytes"].value)
    chosen = buffers.choices_bytes(max_num_batched_tokens=tokens, choices=b["index_topk"])
    found: list[tuple[str, Count]] = [
        ("workspace lane 0", buffers.lane_bytes(one=attention, other=index)),
        ("index logits", b["index_logits_bytes"]),
        ("top-k buffer", chosen),
        (
            "candidate blocks",
            buffers.choices_bytes(max_num_batched_tokens=tokens, choices=b["candidate_topk_blocks"]),
        ),
        (
            "rotary caches",
            b["rope_tables"]
            * weights.rotary_cache_bytes(
                n_positions=b["rope_positions"], rotary_dim=b["rope_dim"], cache_bits=b["rope_bits"]
            ),
        ),
    ]
    if drafts(caches, d):
        states = buffers.drafter_states_bytes(
            max_num_batched_tokens=tokens, streams=b["streams"], hidden=b["hidden"], act_bits=b["act_bits"]
        )
        found += [
            ("workspace lane 1", buffers.drafter_lane_bytes(**step, **lane)),
            ("drafter's top-k buffer", chosen),
            ("drafter's hidden states", states),
        ]
    return tuple(found)


# The pool


@dataclass(frozen=True, kw_only=True, slots=True)
class Pooled:
    """Caches in groups: whether they share a pool, its block, and why not where they do not."""

    groups: tuple[Group, ...]
    shared: bool
    block_bytes: int
    why: str


def pooled(caches: Sequence[Cache], *, layout: str, groups_caches: bool, hybrid: bool = True) -> Pooled:
    """Caches in one pool, or each at its own pages where the release has no rule that groups them."""
    why = "this release has no rule that groups caches of several kinds"
    if groups_caches:
        try:
            groups = grouped(caches, hybrid=hybrid, packed=layout == "block-outermost")
            return Pooled(groups=groups, shared=True, block_bytes=pool_block_bytes(groups, caches), why="")
        except CannotGroup as refusal:
            why = str(refusal)
    groups = own_pages(caches)
    growing = [g for g in groups if not g.bounded] or groups
    return Pooled(groups=groups, shared=False, block_bytes=sum(g.block_bytes for g in growing), why=why)


def own_pages_finding(why: str) -> Finding:
    """What a plan says where caches share no pool."""
    return Finding(
        field="kv_groups",
        asked=None,
        happens="every cache at its own pages",
        why=f"{why}; sizes are plain sums, without what whole blocks would waste",
        source="capplan, the fallback where caches cannot be grouped",
    )
