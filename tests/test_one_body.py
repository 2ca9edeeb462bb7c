"""Each law has one body: many is one repeated, in the permitted operations."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

PACKAGE = Path(__file__).resolve().parents[1] / "capplan"
FILES = sorted(path for part in ("laws", "policies") for path in (PACKAGE / part).rglob("*.py"))
SOURCES = [path for path in FILES if path.name != "__init__.py"]
INDEXES = [path for path in FILES if path.name == "__init__.py"]

OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv)
NODES = (
    ast.Assign,
    ast.BinOp,
    ast.Call,
    ast.Constant,
    ast.Load,
    ast.Name,
    ast.Return,
    ast.Store,
    ast.USub,
    ast.UnaryOp,
    ast.keyword,
    *OPERATORS,
)


def public_functions(tree: ast.Module) -> list[ast.FunctionDef]:
    return [node for node in tree.body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")]


def countable(tree: ast.Module) -> set[str]:
    """The functions of units.py that return a Count or a Share: those that a law may call."""
    return {f.name for f in public_functions(tree) if f.returns and ast.unparse(f.returns) in ("Count", "Share")}


UNITS = {("capplan.units", name) for name in countable(ast.parse((PACKAGE / "units.py").read_text()))}


def names_by_import(tree: ast.Module) -> tuple[set[str], set[str]]:
    """The functions that a law's module may call, and the constants that it may read, by their names in it."""
    functions, constants = set(), set()
    for node in tree.body:
        if not isinstance(node, ast.ImportFrom):
            continue
        base = node.module or ""
        for alias in node.names:
            name = alias.asname or alias.name
            if base == "capplan.units" and alias.name.isupper():
                constants.add(name)
            elif base.startswith(("capplan.laws.", "capplan.policies.")) or (base, alias.name) in UNITS:
                functions.add(name)
    return functions, constants


def wrong_nodes(function: ast.FunctionDef, functions: set[str], constants: set[str]) -> list[str]:
    """What a body holds beside + - * // and calls of laws and of the functions of units."""
    arguments = function.args
    known = {a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)} | constants
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    known |= {n.id for part in body for n in ast.walk(part) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    called = {id(node.func) for part in body for node in ast.walk(part) if isinstance(node, ast.Call)}
    wrong = []
    for part in body:
        for node in ast.walk(part):
            text = ast.unparse(node) or type(node).__name__
            if not isinstance(node, NODES):
                wrong.append(f"{type(node).__name__}: {text}")
            elif isinstance(node, ast.Constant) and type(node.value) is not int:
                wrong.append(f"a constant that is no whole number: {text}")
            elif isinstance(node, ast.Call) and not (isinstance(node.func, ast.Name) and node.func.id in functions):
                wrong.append(f"a call of what is neither a law nor a function of units: {text}")
            elif isinstance(node, ast.Name) and id(node) not in called and node.id not in known:
                wrong.append(f"a name from elsewhere: {text}")
    return wrong


def faults(source: str) -> list[str]:
    """Everything in a module of laws or policies that is not in the permitted form."""
    tree = ast.parse(source)
    functions, constants = names_by_import(tree)
    functions |= {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    wrong = []
    for node in ast.walk(tree):
        if isinstance(node, (ast.ClassDef, ast.AsyncFunctionDef, ast.Lambda)):
            wrong.append(f"line {node.lineno}: {type(node).__name__} is no law")
        if not isinstance(node, ast.FunctionDef):
            continue
        wrong += [f"{node.name}: {what}" for what in wrong_nodes(node, functions, constants)]
        positional = [*node.args.posonlyargs, *node.args.args]
        if positional or node.args.vararg or node.args.kwarg:
            wrong.append(f"{node.name}: parameters are keyword-only and named")
        if any(default is not None for default in (*node.args.defaults, *node.args.kw_defaults)):
            wrong.append(f"{node.name}: a parameter has a default")
        if not node.name.startswith("_") and "Source:" not in (ast.get_docstring(node) or ""):
            wrong.append(f"{node.name}: the docstring has no Source:")
    return wrong


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_law_is_written_in_the_permitted_operations(path):
    assert faults(path.read_text()) == []


@pytest.mark.parametrize("path", INDEXES, ids=lambda path: path.parent.name)
def test_an_index_holds_no_law(path):
    assert countable(ast.parse(path.read_text())) == set()


HEAD = """from capplan.units import Count, Share, GIB, at_least, ceil_div, choose, ratio
from capplan.laws.a import law_a

"""
GOOD = '''def law(*, n: Count, t: Count) -> Count:
    """Bytes.

    Source: a place.
    """
    h = at_least(-n // t, 1)
    return law_a(n=h) * GIB + ceil_div(2 * h * n, 8)
'''


def test_a_law_in_the_permitted_operations_passes():
    assert faults(HEAD + GOOD) == []


@pytest.mark.parametrize(
    "line",
    [
        "return n / t",
        "return n % t",
        "return n ** 2",
        "return max(n, t)",
        "return min(n, t)",
        "return int(n)",
        "return round(n)",
        "return sum([n, t])",
        "return n if n > t else t",
        "return n > t",
        "return n and t",
        "return not n",
        "return 1.5 * n",
        "return choose(n, t, 1)",
        "return [n, t]",
        "return (n, t)",
        "return n.sum()",
        "return law_b(n=n)",
        "return elsewhere",
        "return sum(i for i in n)",
        "return [i for i in n]",
        "if n: return t",
        "for i in n: t = t + i",
        "while n: n = n - 1",
        "n += 1",
        "assert n",
        "import math",
        "f = lambda: n",
        "raise ValueError",
        "return n[0]",
        "return n << 1",
        "return (m := n)",
    ],
)
def test_a_body_outside_the_permitted_operations_is_found(line):
    assert faults(HEAD + GOOD.replace("    h = at_least", f"    {line}\n    h = at_least")) != []


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("Source: a place.", "From a place."),
        ("(*, n: Count", "(n: Count"),
        ("t: Count)", "t: Count = 1)"),
        ("t: Count)", "t: Count, **more: Count)"),
    ],
)
def test_a_signature_or_docstring_out_of_form_is_found(before, after):
    assert before in GOOD
    assert faults(HEAD + GOOD.replace(before, after)) != []


def test_a_helper_and_a_class_do_not_hide_what_a_law_may_not_do():
    assert faults(HEAD + GOOD + "\n\ndef _helper(*, n: Count) -> Count:\n    return max(n, 1)\n") != []
    assert faults(HEAD + GOOD + "\n\nclass Law:\n    pass\n") != []


@dataclass(frozen=True, kw_only=True)
class Law:
    """A function and how its parameters and its answer are annotated in the source."""

    call: Callable[..., Any]
    parameters: dict[str, str]
    returns: str


def laws() -> dict[str, Law]:
    """Every public function of the laws and policies, found by itself."""
    found = {}
    for path in SOURCES:
        name = ".".join(path.with_suffix("").relative_to(PACKAGE.parent).parts)
        for node in public_functions(ast.parse(path.read_text())):
            parameters = {a.arg: ast.unparse(a.annotation) if a.annotation else "" for a in node.args.kwonlyargs}
            returns = ast.unparse(node.returns) if node.returns else ""
            call = getattr(importlib.import_module(name), node.name)
            found[f"{name}.{node.name}"] = Law(call=call, parameters=parameters, returns=returns)
    return found


LAWS = laws()
MANY = 5
PLAIN = {"int": st.integers(1, 64), "bool": st.booleans(), "float": st.floats(0.01, 1.0)}
SHARES = st.floats(0.0, 1.0, exclude_min=True, allow_subnormal=False)


def check_many_is_one_repeated(law: Law, data: st.DataObject) -> None:
    """Compare one call with arrays in some of the counts with as many calls with ints."""
    counts = [name for name, kind in law.parameters.items() if kind == "Count"]
    # The product of all counts, squared, stays inside int64: a sweep refuses what does not.
    largest = 2 ** min(12, 30 // max(1, len(counts)))
    numbers = st.integers(1, max(8, largest))
    some = st.sets(st.sampled_from(counts)) if counts else st.just(set())
    swept = data.draw(st.just(set(counts)) | some, label="swept")
    one: dict[str, Any] = {}
    many: dict[str, Any] = {}
    for name, kind in law.parameters.items():
        if name in swept:
            one[name] = data.draw(st.lists(numbers, min_size=MANY, max_size=MANY), label=name)
            many[name] = np.array(one[name], dtype=np.int64)
            continue
        values = numbers if kind == "Count" else SHARES if kind == "Share" else PLAIN.get(kind)
        assert values is not None, f"{name}: {kind} is neither Count, Share, int, bool nor float"
        many[name] = data.draw(values, label=name)
        one[name] = [many[name]] * MANY
    singles = [law.call(**{name: one[name][i] for name in one}) for i in range(MANY)]
    answer = law.call(**many)
    assert np.broadcast_to(answer, MANY).tolist() == singles
    if law.returns == "Count":
        assert all(type(single) is int for single in singles), "ints in, ints out"
        assert np.asarray(answer).dtype == np.int64
    for name in swept:
        assert many[name].tolist() == one[name], f"{name} was changed in place"


def test_there_are_laws_and_policies():
    assert any(name.startswith("capplan.laws.") for name in LAWS)
    assert any(name.startswith("capplan.policies.") for name in LAWS)


@pytest.mark.parametrize("name", LAWS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_many_is_one_repeated(name, data):
    check_many_is_one_repeated(LAWS[name], data)


@pytest.mark.parametrize(
    "call",
    [
        lambda *, n, t: n // int(np.max(t)),
        lambda *, n, t: n / t,
        lambda *, n, t: n * 1.0,
    ],
    ids=["the-largest-for-all", "true-division", "a-float"],
)
def test_a_law_with_two_answers_is_found(call):
    law = Law(call=call, parameters={"n": "Count", "t": "Count"}, returns="Count")

    @settings(max_examples=60, deadline=None, database=None)
    @given(data=st.data())
    def check(data):
        check_many_is_one_repeated(law, data)

    with pytest.raises(AssertionError):
        check()
