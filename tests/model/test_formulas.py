"""Formulas in registry files."""

import pytest

from capplan.model.formulas import formula
from capplan.registry import RegistryError


@pytest.mark.parametrize(
    ("text", "names", "value"),
    [
        ("2 * rows + 1", {"rows": 3}, 7),
        ("up(n, 128)", {"n": 129}, 256),
        ("up(n, 128)", {"n": 128}, 128),
        ("div(n, 16)", {"n": 17}, 2),
        ("n // 16", {"n": 31}, 1),
        ("n % 128", {"n": 192}, 64),
        ("gcd(g, i, h)", {"g": 128, "i": 96, "h": 2048}, 32),
        ("least(a, b) + most(a, b)", {"a": 3, "b": 5}, 8),
        ("-n + 4", {"n": 1}, 3),
        ("n if n > 64 else 64", {"n": 96}, 96),
        ("n if n > 64 else 64", {"n": 64}, 64),
        ("n % 64 == 0 and group in (64, 128)", {"n": 64, "group": 96}, 0),
        ("n % 64 == 0 and group in (64, 128)", {"n": 64, "group": 128}, 1),
        ("not n or n == 3", {"n": 3}, 1),
        ("not n or n == 3", {"n": 2}, 0),
    ],
)
def test_a_formula_comes_to_its_value(text, names, value):
    assert formula(text, known=names).value(names) == value


def test_a_formula_says_which_names_it_uses():
    assert formula("rows * up(columns, 64) + rows", known=("rows", "columns")).names == ("rows", "columns")


@pytest.mark.parametrize(
    "text",
    [
        "n / 2",
        "n ** 2",
        "1.5 * n",
        "open('x')",
        "n.real",
        "[n]",
        "n == 'a'",
        "n is 1",
        "lambda: n",
        "up(n, multiple=2)",
        "n +",
        "'n'",
    ],
)
def test_what_is_no_formula_is_refused(text):
    with pytest.raises(RegistryError, match=r"formula|may hold"):
        formula(text, known=("n",))


def test_a_name_that_nobody_gives_is_refused_with_the_closest_one():
    with pytest.raises(RegistryError, match="is '2 \\* rosw', where nobody gives 'rosw'; the closest is rows"):
        formula("2 * rosw", known=("rows", "columns"))
