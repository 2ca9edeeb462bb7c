"""What a rank holds, down to classes of tensors, as text."""

from __future__ import annotations

from capplan.ledger import RankPlan
from capplan.plan import Plan
from capplan.units import GIB


def weights_text(plan: Plan) -> str:
    """The weights of every distinct rank: each class of tensors with shape, split, width and number.

    A refused plan has none; its sentence says why.
    """
    out = [plan.sentence, ""]
    for rank in plan.ranks:
        out += _rank(plan, rank)
    return "\n".join(out).rstrip() + "\n"


def _rank(plan: Plan, rank: RankPlan) -> list[str]:
    many = f" (like {rank.count} of {plan.asked.n_chips})" if plan.asked.n_chips > 1 else ""
    stage = f"stage {rank.stage}, " if plan.asked.pipeline_parallel_size > 1 else ""
    total, loaded = int(rank.bytes_of("weights")), int(rank.bytes_of("allocator_rounding"))
    out = [
        f"One rank{many}: {stage}{rank.n_layers} layers, {total:,} bytes ({total / GIB:.4f} GiB), "
        f"{total + loaded:,} with the allocator's rounding",
        f"  {'tensors':<44}{'number':>7}  {'shape on this rank':<24}{'bits':>5}  {'split by':<24}{'bytes':>18}",
    ]
    for line, size, held in rank.by_line():
        out.append(f"  {line:<108}{size:>18,}")
        for h in held:
            shape = " x ".join(map(str, h.shape)) or "1"
            out.append(f"    {h.name:<42}{h.count:>7}  {shape:<24}{h.bits:>5}  {h.split:<24}{h.bytes:>18,}")
    return [*out, ""]
