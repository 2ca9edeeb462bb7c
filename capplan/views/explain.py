"""What a rank holds, down to classes of tensors: rows once, for the command line and the page."""

from __future__ import annotations

from dataclasses import dataclass

from capplan.plan.base import Plan, RankWeights
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
class RankRows:
    """The weights of one distinct rank in words: which it is, and each sub-line with its classes of tensors."""

    stage: str
    alike: str
    lines: tuple[tuple[str, int, tuple[TensorRow, ...]], ...]

    @property
    def n_classes(self) -> int:
        """How many classes of tensors there are."""
        return sum(len(rows) for _, _, rows in self.lines)


def rank_rows(plan: Plan, w: RankWeights, *, times: str = " x ") -> RankRows:
    """The weights of one rank down to classes of tensors.

    times  what stands between the extents of a shape
    """
    return RankRows(
        stage=f"stage {w.stage}" if plan.asked.pipeline_parallel_size > 1 else "",
        alike=f"like {w.count} of {plan.asked.n_chips}" if plan.asked.n_chips > 1 else "",
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
            for line, size, held in w.lines
        ),
    )


def weights_text(plan: Plan) -> str:
    """The weights of every distinct rank: each class of tensors with shape, split, width and number.

    A refused plan has none; its sentence says why.  Nor has a plan whose weights were stated.
    """
    out = [plan.sentence, ""]
    for weights in plan.weights_by_rank:
        out += _rank(weights, rank_rows(plan, weights))
    stated = plan.ledger.get("weights")
    if stated is not None and not plan.weights_by_rank:
        out.append(f"{stated.bytes:,} bytes of weights were stated, so no tensors are known.")
    return "\n".join(out).rstrip() + "\n"


def _rank(w: RankWeights, shown: RankRows) -> list[str]:
    many, stage = f" ({shown.alike})" if shown.alike else "", f"{shown.stage}, " if shown.stage else ""
    rounded = "" if w.loaded_bytes is None else f", {w.loaded_bytes:,} with the allocator's rounding"
    name, number, shape, bits, split, size = HEADS
    out = [
        f"One rank{many}: {stage}{w.n_layers} layers, {w.bytes:,} bytes ({w.bytes / GIB:.4f} GiB){rounded}",
        f"  {name:<44}{number:>7}  {shape:<24}{bits:>5}  {split:<24}{size:>18}",
    ]
    for line, total, rows in shown.lines:
        out.append(f"  {line:<108}{total:>18,}")
        for r in rows:
            out.append(f"    {r.name:<42}{r.number:>7}  {r.shape:<24}{r.bits:>5}  {r.split:<24}{r.bytes:>18,}")
    return [*out, ""]
