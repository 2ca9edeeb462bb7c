"""Rotary tables: which a model has, for which positions, and how that lengthens what it may hold."""

from __future__ import annotations

from typing import Any

from capplan.model.config import KINDS, Config
from capplan.model.graph import Attention, Rope

ROPE_TYPES = ("default", "linear", "dynamic", "ntk", "llama3", "yarn", "longrope", "proportional")
"""Rotary embeddings whose cache capplan can size."""

WORDS = {"sliding": "sliding_attention", "chunked": "chunked_attention"}


def ropes(
    c: Config, max_positions: int, attention: tuple[Attention, ...], rotary_of: int | None
) -> tuple[tuple[Rope, ...], tuple[str, ...], int, int]:
    """The rotary tables, their types, the longest length, and the one taken unasked.

    rotary_of  elements of a head that a table is for, where it is not the whole head
    """
    f = c.family
    if f.rope == "none":
        c.read.update(("rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor"))
        return (), (), max_positions, max_positions
    stated = c.get("rope_parameters") or {}
    scaling = c.get("rope_scaling") or {}
    theta = c.get("rope_theta")
    partial = c.get("partial_rotary_factor")
    fixed = c.maybe(f.rope_dim) if f.rope_dim is not None else None
    for key, value in (("rope_parameters", stated), ("rope_scaling", scaling)):
        if not isinstance(value, dict):
            raise c.fail(key, f"is {value!r}; it must be a table or null")
    nested = any(key in stated for key in KINDS)
    found: dict[Rope, str] = {}
    scale = 1.0
    for a in attention:
        kind = WORDS.get(a.kind, "full_attention")
        keys = f.kinds.get(kind)
        if nested:
            own = stated.get(kind) or {}
            if not isinstance(own, dict):
                raise c.fail(f"rope_parameters.{kind}", f"is {own!r}; it must be a table")
            base = own.get("rope_theta", theta)
        elif f.local_rope_theta and kind == "sliding_attention":
            own, base = {}, c.get(f.local_rope_theta)
        else:
            own = stated or scaling
            base = own.get("rope_theta", theta)
            if keys is not None and keys.theta is not None:
                base = c.get(keys.theta)
        width = rotary_of or a.head_dim
        rope, factor = _rope(c, own, base, width, max_positions, partial, fixed)
        found[rope] = rope.rope_type
        scale = factor
    derived = int(max_positions * scale) if f.scaled_positions else max_positions
    default = derived
    if "longrope" in found.values():
        default = c.maybe("original_max_position_embeddings") or derived
    return tuple(found), tuple(dict.fromkeys(found.values())), derived, default


def _rope(
    c: Config, own: dict[str, Any], theta: Any, rotary_of: int, positions: int, partial: Any, fixed: int | None
) -> tuple[Rope, float]:
    """One rotary table, and the factor by which it lengthens what the model may hold."""
    kind = own.get("rope_type", own.get("type", "default"))
    if kind == "su" and "original_max_position_embeddings" not in own:
        raise c.fail("rope_scaling.original_max_position_embeddings", "is missing; su needs it")
    kind = "longrope" if kind == "su" else kind
    if kind == "mrope" and c.family.mrope:
        kind = "default"
    if kind not in ROPE_TYPES:
        raise c.fail("rope_scaling", f"has type {kind!r}; capplan knows {', '.join(ROPE_TYPES)}")
    if "mrope_section" in own and not c.family.mrope:
        raise c.fail("rope_scaling", "has mrope_section, a rotary table of several axes, which capplan cannot size yet")
    factor = own.get("factor", 1.0)
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor <= 1e6:
        raise c.fail("rope_scaling.factor", f"is {factor!r}; it must be a positive number")
    if kind in ("linear", "yarn") and "factor" not in own:
        raise c.fail("rope_scaling.factor", f"is missing; {kind} needs it")
    original = own.get("original_max_position_embeddings")
    if original is None and kind == "longrope":
        original = c.maybe("original_max_position_embeddings")
    if original is None and kind in ("yarn", "longrope"):
        original = positions
    if original is not None and (isinstance(original, bool) or not isinstance(original, int) or original < 1):
        raise c.fail(
            "rope_scaling.original_max_position_embeddings",
            f"is {original!r}; it must be a whole number, 1 or more",
        )
    share = own.get("partial_rotary_factor", partial if partial is not None else 1.0)
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
        raise c.fail("partial_rotary_factor", f"is {share!r}; it must be in (0, 1]")
    # A proportional table has a row element for each of the head's, turned or not.
    width = fixed or (rotary_of if kind == "proportional" else int(rotary_of * share))
    rope = Rope(
        rope_type=kind,
        positions=positions,
        rotary_dim=width,
        factor=float(factor),
        original_positions=original,
        theta=float(theta) if isinstance(theta, int | float) else None,
        bits=c.family.rope_bits,
    )
    return rope, float(factor) if kind in ("linear", "dynamic", "ntk") else 1.0
