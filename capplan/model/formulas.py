"""Sizes that registry files write as small formulas: names, whole numbers, + - * // and a few functions."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import gcd
from types import CodeType

from capplan.registry import RegistryError

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


@lru_cache(maxsize=4096)
def formula(text: str, file: str = "") -> Formula:
    """A formula out of its text.

    Raises RegistryError for anything but names, whole numbers, + - * // % and the functions above.

    >>> formula("2 * up(inner, 128)").value({"inner": 192})
    512
    """
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except SyntaxError:
        raise RegistryError(f"registry/{file}: {text!r} is no formula") from None
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    names = []
    for node in ast.walk(tree):
        wrong = not isinstance(node, NODES) or (isinstance(node, ast.Constant) and type(node.value) is not int)
        if isinstance(node, ast.Call):
            wrong = not isinstance(node.func, ast.Name) or node.func.id not in FUNCTIONS or bool(node.keywords)
        elif isinstance(node, ast.Name) and id(node) not in called:
            names.append(node.id)
        if wrong:
            raise RegistryError(
                f"registry/{file}: {text!r} may hold names, whole numbers, + - * // % and {', '.join(FUNCTIONS)} only"
            )
    return Formula(text=text, names=tuple(dict.fromkeys(names)), code=compile(tree, "<formula>", "eval"))
