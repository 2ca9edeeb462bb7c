"""Matrices of a format as they lie on a rank after loading."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from capplan.engines.release import Engine, Laid, Layout, capability_matches
from capplan.model import ONLINE, Format, Model, Tensor
from capplan.registry import Chip


@dataclass(frozen=True, kw_only=True, slots=True)
class Lying:
    """One tensor of a matrix as it lies: its part's name, line, shape, bits and how many there are."""

    part: str
    line: str
    shape: tuple[int, ...]
    bits: int
    copies: int


def form_of(tensor: Tensor, model: Model, quantization: str | None) -> Format | None:
    """The format of a tensor: its checkpoint's, or the one that the engine makes while it loads."""
    if tensor.form is not None or model.quantization is not None or not tensor.quantized or tensor.line == "head":
        return tensor.form
    return ONLINE.get(quantization or "")


def place_of(tensor: Tensor) -> str:
    """What a layout must be of to serve a tensor."""
    if not tensor.n_experts:
        return "linear"
    part = "down" if tensor.name.removesuffix("_bias").endswith(".down") else "up"
    return f"experts-{part}-bias" if tensor.columns is None else f"experts-{part}"


def layout_of(form: str, of: str, sizes: Mapping[str, int], engine: Engine, chip: Chip) -> Layout | None:
    """The first layout that serves a format on a chip for these sizes."""
    for row in engine.layouts:
        if form not in row.formats or (
            row.of != of and not (row.of == "experts" and of in ("experts-up", "experts-down"))
        ):
            continue
        if capability_matches(row.capabilities, chip.capability) and (row.when is None or row.when.value(sizes)):
            return row
    return None


def lying(layout: Layout, sizes: Mapping[str, int], act_bits: int, line: str) -> list[Lying]:
    """Every tensor of a matrix in a layout."""

    def one(laid: Laid, part: str, where: str) -> Lying:
        return Lying(
            part=part,
            line=where,
            shape=tuple(extent.value(sizes) for extent in laid.shape),
            bits=act_bits if laid.bits is None else laid.bits,
            copies=laid.copies,
        )

    return [one(layout.weight, "", line), *(one(laid, laid.name, laid.line) for laid in layout.more)]
