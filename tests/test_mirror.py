"""Every module has a test file of its own at the same place, or is named here with the file that tests it."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE, TESTS = ROOT / "capplan", ROOT / "tests"

ELSEWHERE = {
    "__init__": "test_import",
    "__main__": "test_import",
    "engines/__init__": "test_solve",
    "engines/base": "engines/vllm/test_rules",
    "engines/blis/case": "engines/blis/test_lines",
    "engines/blis/hold": "engines/blis/test_lines",
    "engines/blis/own": "engines/blis/test_lines",
    "engines/declared": "test_memory_laws",
    "engines/frame": "engines/vllm/test_hold",
    "engines/vllm/case": "engines/vllm/test_resolve",
    "engines/vllm/estimates": "test_ledger",
    "engines/vllm/formats": "engines/vllm/test_hold",
    "engines/vllm/lines": "test_ledger",
    "engines/vllm_neuron/lines": "plan/test_neuron",
    "engines/vllm_neuron/layout": "engines/vllm_neuron/test_budget",
    "engines/vllm_neuron/resolve": "plan/test_neuron",
    "engines/vllm_neuron/weights": "plan/test_neuron",
    "model/attention": "model/test_build",
    "model/building": "model/test_build",
    "model/config": "model/test_build",
    "model/facts": "test_registry",
    "model/feed_forward": "model/test_build",
    "model/graph": "model/test_build",
    "model/kinds": "model/test_build",
    "model/parts": "test_registry",
    "model/placed": "model/test_build",
    "model/ropes": "model/test_build",
    "model/states": "model/test_declared",
    "plan/__init__": "test_import",
    "plan/base": "test_solve",
    "plan/public": "plan/test_gpu",
    "plan/rank": "test_ledger",
    "plan/words": "plan/test_gpu",
    "serve": "notebooks/test_planner_page",
    "views/controls": "views/test_widgets",
    "views/elements": "views/test_html",
    "views/neuron_figures": "views/test_neuron_page",
    "views/neuron_html": "views/test_neuron_page",
    "views/neuron_state": "views/test_neuron_page",
    "views/neuron_text": "plan/test_neuron",
    "views/terms": "views/test_html",
    "views/text": "cli/test_main",
}
"""Modules that another file tests, both by their place without `.py`: a module that moves or gets its own file goes."""

WHOLE = {
    "engines/test_engine_answers",
    "model/test_generic",
    "notebooks/test_neuron_page",
    "notebooks/test_page_notebooks",
    "notebooks/test_planner_page",
    "notebooks/test_report_notebook",
    "test_environment",
    "test_import",
    "test_layers",
    "test_memory_laws",
    "test_mirror",
    "test_one_body",
    "test_wheel",
}
"""Test files of no one module: they hold the whole together, or look at what is no module."""


def place(path: Path, root: Path) -> str:
    return path.relative_to(root).with_suffix("").as_posix()


def is_index(path: Path) -> bool:
    """Whether a package's file only says what it is and hands on what its modules have."""
    handed_on = (ast.Import, ast.ImportFrom, ast.Assign, ast.Expr)
    return path.name == "__init__.py" and all(isinstance(node, handed_on) for node in ast.parse(path.read_text()).body)


MODULES = {place(path, PACKAGE): path for path in sorted(PACKAGE.rglob("*.py")) if not is_index(path)}
FILES = {place(path, TESTS): path for path in sorted(TESTS.rglob("test_*.py"))}


def own(module: str) -> str:
    """Where a module's own test file is: `engines/pool` has `engines/test_pool`."""
    folder, _, name = module.rpartition("/")
    return f"{folder}/test_{name}" if folder else f"test_{name}"


@pytest.mark.parametrize("module", MODULES)
def test_a_module_has_its_own_test_file_or_says_which_tests_it(module):
    if own(module) in FILES:
        assert module not in ELSEWHERE, "it has a file of its own: take its line out"
    else:
        assert module in ELSEWHERE, f"write tests/{own(module)}.py, or a line here"
        assert ELSEWHERE[module] in FILES, "the file that is said to test it is gone"


def test_no_line_speaks_of_a_module_that_is_gone():
    assert set(ELSEWHERE) <= set(MODULES)
    assert set(FILES) >= WHOLE


@pytest.mark.parametrize("file", FILES)
def test_a_test_file_belongs_to_a_module(file):
    assert file in WHOLE or file in ELSEWHERE.values() or file in {own(module) for module in MODULES}
