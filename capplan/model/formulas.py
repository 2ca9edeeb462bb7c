"""Sizes and conditions that registry files write as small formulas over names and whole numbers."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import gcd
from types import CodeType

from capplan.registry import RegistryError, closest

FUNCTIONS: Mapping[str, Callable[..., int]] = {
    "up": lambda n, multiple: -(n // -multiple) * multiple,
    "div": lambda n, parts: -(n // -parts),
    "least": min,
    "most": max,
    "gcd": gcd,
}
"""What a formula may call: n rounded up to a multiple, a quotient rounded up, least and most of some, their gcd."""

NODES = (
    ast.Expression,
    ast.BinOp,
    ast.UnaryOp,
    ast.USub,
    ast.Add,
    ast.Sub,
    ast.Mult,
    ast.FloorDiv,
    ast.Mod,
    ast.Constant,
    ast.Name,
    ast.Load,
    ast.Call,
    ast.IfExp,
    ast.Compare,
    ast.Eq,
    ast.NotEq,
    ast.Lt,
    ast.LtE,
    ast.Gt,
    ast.GtE,
    ast.In,
    ast.NotIn,
    ast.Tuple,
    ast.BoolOp,
    ast.And,
    ast.Or,
    ast.Not,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Formula:
    """A formula of a registry file, ready to be evaluated with the names that it uses."""

    text: str
    names: tuple[str, ...]
    code: CodeType

    def value(self, names: Mapping[str, int]) -> int:
        """What it comes to; names that it uses and that are missing are a KeyError."""
        found = {name: names[name] for name in self.names}
        return int(eval(self.code, {"__builtins__": {}, **FUNCTIONS}, found))


def formula(text: str, *, known: Collection[str], fails: Callable[[str], RegistryError] = RegistryError) -> Formula:
    """A formula out of its text.

    known  the names that it may use
    fails  makes the error out of what is wrong, for it to name the file and the row

    Raises RegistryError for a name that nobody gives, and for anything but names, whole numbers, + - * // %,
    comparisons, `a if condition else b`, `and`, `or`, `not`, `in (1, 2)` and the functions above.

    >>> formula("2 * up(inner, 128) if inner > 128 else inner", known=("inner",)).value({"inner": 192})
    512
    """
    found, says = _parsed(text.strip())
    if found is None:
        raise fails(f"is {text!r}, which {says}")
    for name in found.names:
        if name not in known:
            raise fails(f"is {text!r}, where nobody gives {name!r}; {closest(name, sorted(known))}")
    return found


@lru_cache(maxsize=4096)
def _parsed(text: str) -> tuple[Formula | None, str]:
    """A formula, or what is wrong with it."""
    try:
        tree = ast.parse(text, mode="eval")
    except SyntaxError:
        return None, "is no formula"
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    names = []
    for node in ast.walk(tree):
        wrong = not isinstance(node, NODES) or (isinstance(node, ast.Constant) and type(node.value) is not int)
        if isinstance(node, ast.Call):
            wrong = not isinstance(node.func, ast.Name) or node.func.id not in FUNCTIONS or bool(node.keywords)
        elif isinstance(node, ast.Name) and id(node) not in called:
            names.append(node.id)
        if wrong:
            return None, (
                "may hold names, whole numbers, + - * // %, comparisons, if, else, and, or, not, in "
                f"and {', '.join(FUNCTIONS)} only"
            )
    code = compile(tree, "<formula>", "eval")
    return Formula(text=text, names=tuple(dict.fromkeys(names)), code=code), ""
