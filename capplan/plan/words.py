"""What a plan says: what was asked, what there is, by how much, and what would work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from capplan.model import Guess
from capplan.plan.rank import RankPlan
from capplan.solve import remedies
from capplan.units import Count, is_array, show_bytes

if TYPE_CHECKING:
    from capplan.engines.vllm_neuron import Budget
    from capplan.plan.gpu import GpuPlan
    from capplan.plan.neuron import NeuronPlan

GPU_LAST = "no shorter length and no more ranks would start it; choose a larger chip"
NEURON_LAST = "choose more ranks, smaller weights or a shorter context"
"""What to say where no change helps."""


def remedy(p: Any, last: str) -> str:
    """What would work, in words."""
    return "; or ".join(change.cost for change in remedies(p)) or last


# On GPUs


def gpu_sentence(p: GpuPlan) -> str:
    """The sentence of a plan on GPUs, and what was guessed of the model."""
    guess = p.model.guess
    return _gpu_sentence(p) if guess is None else f"{_gpu_sentence(p)} {_guess_sentence(guess)}"


def _gpu_sentence(p: GpuPlan) -> str:
    if is_array(p.verdict):
        raise ValueError("a plan for many has a sentence for none; take one configuration")
    rank = p.tightest
    if p.verdict == "refused" or rank is None or p.kv_request_blocks is None:
        return f"{p.question} would be refused: {p.refused[0].why}."
    need, budget = p.request_bytes, rank.kv_budget_bytes
    band = ""
    if rank.requested_bytes is not None:
        band = f" ({show_bytes(rank.kv_budget_low_bytes)} to {show_bytes(rank.kv_budget_high_bytes)} by the estimates)"
    there = f"{p.question}: {show_bytes(budget)} are left for the cache{band} and one request needs {show_bytes(need)}"
    if p.resolved.num_gpu_blocks_override is not None:
        budget = (p.kv_blocks or 0) * rank.kv_block_bytes
        there = (
            f"{p.question}: {p.kv_blocks:,} blocks of {rank.kv_block_bytes:,} bytes were stated, "
            f"{show_bytes(budget)}, and one request needs {show_bytes(need)}"
        )
    if p.verdict == "fits":
        spare = show_bytes(budget - need - rank.kv_block_bytes)
        return f"{there}; it starts with {spare} to spare, and {p.max_concurrency:.2f} requests of full length fit."
    if p.verdict == "close":
        how = (
            "at the central figures and not at the far end"
            if rank.starts
            else "only if the estimates err in its favour"
        )
        return f"{there}; it starts {how}; {remedy(p, GPU_LAST)}."
    if not rank.context_fits:
        return _outside_sentence(p, rank)
    if rank.short_bytes or not budget:
        biggest = max(rank.lines, key=lambda line: int(line.bytes))
        return (
            f"{p.question}: {show_bytes(rank.fixed_bytes)} are held before any request, {show_bytes(biggest.bytes)} "
            f"of them {biggest.name.replace('_', ' ')}, and the budget is {show_bytes(rank.requested_bytes or 0)}, "
            f"{show_bytes(rank.short_bytes)} too few; "
            f'the engine says "No available memory for the cache blocks"; {remedy(p, GPU_LAST)}.'
        )
    return f"{there}, {show_bytes(rank.lacking_bytes)} too few with the null block; {remedy(p, GPU_LAST)}."


def _guess_sentence(guess: Guess) -> str:
    band = guess.weights_percent
    says = guess.says[0].upper() + guess.says[1:]
    return f"{says}: its weights may lie between {band.low} and {band.high} % of the figure."


def _outside_sentence(p: GpuPlan, rank: RankPlan) -> str:
    """What to say where the budget and what is held before it exceed the device."""
    before = rank.pre_snapshot.bytes
    if rank.requested_bytes is None or rank.claimed_bytes > rank.requested_bytes:
        total = rank.claimed_bytes + before
        return (
            f"{p.question}: fixed memory, the stated cache and what is held before them come to {show_bytes(total)}, "
            f"and the device has {show_bytes(p.device_bytes)}, {show_bytes(rank.over_device_bytes)} too few; "
            f"{remedy(p, GPU_LAST)}."
        )
    return (
        f"{p.question}: the engine would claim {show_bytes(rank.requested_bytes)}, and with {show_bytes(before)} held "
        f"before it only {show_bytes(p.device_bytes - before)} are free, {show_bytes(rank.over_device_bytes)} too few; "
        f"{remedy(p, GPU_LAST)}."
    )


# On Neuron


def neuron_sentence(p: NeuronPlan) -> str:
    """The sentence of a plan on Neuron."""
    if is_array(p.verdict):
        raise ValueError("a plan for many has a sentence for none; take one configuration")
    b, pool, block = p.budget, p.pool, p.kv_block_bytes
    if p.verdict == "refused" or b is None or pool is None or block is None:
        return f"{p.question} would be refused: {p.refused[0].why}."
    if not b.starts:
        ranks = p.answer("fewest_ranks")
        more = f"; {ranks.says}" if ranks is not None and ranks.value != p.resolved.tensor_parallel_size else ""
        return f'{p.question}: it does not start, "{p.says}"{more}.'
    there = f"{p.question}: {show_bytes(b.kv_budget_bytes)} of {_share_words(b)} are left for the cache"
    need = p.kv_request_blocks
    if not b.kv_budget_bytes:
        return (
            f'{there}, the minimum is off, and vLLM itself then says "No available memory for the cache blocks"; '
            f"{remedy(p, NEURON_LAST)}."
        )
    if need is None:
        return f"{there}, {pool.kv_blocks:,} blocks; state max_model_len to see how many requests they hold."
    there += f" and one request needs {show_bytes(need * block)}"
    if p.verdict == "does-not-fit":
        over = show_bytes((need + 1) * block - pool.kv_blocks * block)
        return f"{there}, {over} too few with the null block; {remedy(p, NEURON_LAST)}."
    held = f"{_counted(pool.requests_held)} of full length fit" + ("s" if pool.requests_held == 1 else "")
    if p.verdict == "fits":
        more = "" if pool.requests_admitted == pool.requests_held else f", {pool.requests_admitted:,} are admitted"
        return f"{there}; it starts, and {held}{more}."
    if pool.allocatable_blocks < need:
        return f"{there}; it starts only because the scheduler counts the null block; {remedy(p, NEURON_LAST)}."
    if p.computed_blocks is not None and pool.kv_blocks > p.computed_blocks:
        return (
            f"{there}; num_gpu_blocks_override asks for {pool.kv_blocks:,} blocks, more than the {p.computed_blocks:,} "
            f"of the budget, and may exhaust the device; leave it out."
        )
    return f"{there}; it starts, {held}, and not if the class keeps rotary tables; {remedy(p, NEURON_LAST)}."


def _counted(requests: Count) -> str:
    return "1 request" if not is_array(requests) and requests == 1 else f"{requests:,} requests"


def _share_words(b: Budget) -> str:
    if b.route == "cpu":
        return f"a worker's share of {show_bytes(b.share_bytes)} of the host"
    return f"a logical core's {show_bytes(b.share_bytes)}"
