"""What a rank holds, down to classes of tensors: rows once, for the command line and the page."""

from __future__ import annotations

from dataclasses import dataclass

from capplan.ledger import RankPlan
from capplan.plan import Plan
from capplan.units import GIB

HEADS = ("tensors", "number", "shape on this rank", "bits", "split by", "bytes")
"""What is said of a class of tensors."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorRow:
    """One class of tensors in words, except its bytes."""

    name: str
    number: str
    shape: str
    bits: str
    split: str
    bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RankWeights:
    """The weights of one distinct rank: which it is, their bytes, and each sub-line with its classes of tensors."""

    stage: str
    alike: str
    n_layers: int
    bytes: int
    loaded_bytes: int
    lines: tuple[tuple[str, int, tuple[TensorRow, ...]], ...]

    @property
    def n_classes(self) -> int:
        """How many classes of tensors there are."""
        return sum(len(rows) for _, _, rows in self.lines)


def rank_weights(plan: Plan, rank: RankPlan, *, times: str = " x ") -> RankWeights:
    """The weights of one rank down to classes of tensors.

    times  what stands between the extents of a shape
    """
    weights = int(rank.bytes_of("weights"))
    return RankWeights(
        stage=f"stage {rank.stage}" if plan.asked.pipeline_parallel_size > 1 else "",
        alike=f"like {rank.count} of {plan.asked.n_chips}" if plan.asked.n_chips > 1 else "",
        n_layers=rank.n_layers,
        bytes=weights,
        loaded_bytes=weights + int(rank.bytes_of("allocator_rounding")),
        lines=tuple(
            (
                line,
                size,
                tuple(
                    TensorRow(
                        name=h.name,
                        number=f"{h.count:,}",
                        shape=times.join(map(str, h.shape)) or "1",
                        bits=str(h.bits),
                        split=h.split,
                        bytes=h.bytes,
                    )
                    for h in held
                ),
            )
            for line, size, held in rank.by_line()
        ),
    )


def weights_text(plan: Plan) -> str:
    """The weights of every distinct rank: each class of tensors with shape, split, width and number.

    A refused plan has none; its sentence says why.
    """
    out = [plan.sentence, ""]
    for rank in plan.ranks:
        out += _rank(rank_weights(plan, rank))
    return "\n".join(out).rstrip() + "\n"


def _rank(w: RankWeights) -> list[str]:
    many, stage = f" ({w.alike})" if w.alike else "", f"{w.stage}, " if w.stage else ""
    name, number, shape, bits, split, size = HEADS
    out = [
        f"One rank{many}: {stage}{w.n_layers} layers, {w.bytes:,} bytes ({w.bytes / GIB:.4f} GiB), "
        f"{w.loaded_bytes:,} with the allocator's rounding",
        f"  {name:<44}{number:>7}  {shape:<24}{bits:>5}  {split:<24}{size:>18}",
    ]
    for line, total, rows in w.lines:
        out.append(f"  {line:<108}{total:>18,}")
        for r in rows:
            out.append(f"    {r.name:<42}{r.number:>7}  {r.shape:<24}{r.bits:>5}  {r.split:<24}{r.bytes:>18,}")
    return [*out, ""]
