"""Imports point one way."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "capplan"

LAYERS = [
    {"units"},
    {"registry"},
    {"model", "hub"},
    {"settings"},
    {"engines"},
    {"ledger"},
    {"solve"},
    {"plan"},
    {"views"},
    {"report", "serve", "cli"},
]
RANK = {part: rank for rank, layer in enumerate(LAYERS) for part in layer}

# Beside the ranks: a law reads laws and units, a policy reads units, and any later part may read both.
FORMULAS = {"laws": {"laws", "units"}, "policies": {"policies", "units"}}

# The roof: the public names and `python -m capplan`. It may import anything, and nothing may import it.
ROOF = {"__init__", "__main__"}

BELOW_VIEWS = {"numpy"}
OUTSIDE = {"hub": {"numpy", "huggingface_hub"}, "cli": {"numpy", "click"}, "serve": {"click", "tornado"}}
FREE = {"views", "report"}


def name_of(path: Path) -> str:
    """capplan/laws/weights.py -> capplan.laws.weights; a package has the name of its folder."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def part_of(module: str) -> str:
    """capplan.laws.weights -> laws; capplan itself is the roof."""
    return module.split(".")[1] if "." in module else "__init__"


MODULES = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def imports(source: str, module: str, *, is_package: bool, modules: frozenset[str]) -> set[str]:
    """Every module that a source imports, at the top or inside a function, in full names."""
    package = module if is_package else module.rpartition(".")[0]
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                kept = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*kept, *([node.module] if node.module else [])])
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                found.add(inner if inner in modules else base)
    return found


def faults(source: str, module: str, *, is_package: bool = False, modules: frozenset[str] | None = None) -> list[str]:
    """What a source imports and should not."""
    part = part_of(module)
    if part in ROOF:
        return []
    if part not in RANK and part not in FORMULAS:
        return [f"{module} has no place: add {part!r} to LAYERS"]
    wrong = []
    for target in sorted(imports(source, module, is_package=is_package, modules=modules or frozenset(MODULES))):
        if target.split(".")[0] != "capplan":
            outside = OUTSIDE.get(part, BELOW_VIEWS)
            name = target.split(".")[0]
            if part not in FREE and name not in sys.stdlib_module_names and name not in outside:
                wrong.append(f"{module} imports {name}, which is not installed with it")
            continue
        other = part_of(target)
        if other == part:
            continue
        if part in FORMULAS:
            right = other in FORMULAS[part]
        elif other in FORMULAS:
            right = RANK[part] > RANK["units"]
        else:
            right = other in RANK and RANK[other] <= RANK[part]
        if not right:
            wrong.append(f"{module} imports {target}, which lies to its right")
    return wrong


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_only_from_its_left(module):
    path = MODULES[module]
    assert faults(path.read_text(), module, is_package=path.name == "__init__.py") == []


def test_the_modules_are_found():
    assert {"capplan.units", "capplan.plan", "capplan.cli", "capplan.serve"} <= set(MODULES)
    assert any(part_of(module) == "laws" for module in MODULES)


def test_every_layer_has_a_module():
    assert set(RANK) | set(FORMULAS) <= {part_of(module) for module in MODULES}


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("capplan.units", "from capplan.registry import read"),
        ("capplan.laws.weights", "from capplan.model import Model"),
        ("capplan.laws.weights", "from capplan.policies.vllm_gpu import kv_budget_bytes"),
        ("capplan.policies.vllm_gpu", "from capplan.laws.weights import matrix_bytes"),
        ("capplan.registry", "def f():\n    from capplan.plan import plan"),
        ("capplan.settings.deployment", "from capplan import engines"),
        ("capplan.engines.vllm", "from ..views import figures"),
        ("capplan.plan", "import capplan.views.figures"),
        ("capplan.plan", "import plotly.graph_objects as go"),
        ("capplan.plan", "import capplan"),
        ("capplan.views.tables", "from capplan import plan_everything"),
        ("capplan.views.widgets", "from capplan.cli.main import main"),
        ("capplan.novelty", "import os"),
    ],
)
def test_an_import_that_points_the_wrong_way_is_found(module, source):
    modules = frozenset({"capplan.engines", "capplan.views", "capplan.views.figures", "capplan.plan"})
    assert faults(source, module, modules=modules) != []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("capplan.laws.kv_cache", "from capplan.laws.weights import matrix_bytes\nfrom capplan.units import Count"),
        ("capplan.plan", "from capplan.laws import kv_cache\nfrom capplan.policies import vllm_gpu\nimport numpy"),
        ("capplan.engines.vllm", "from . import Rule\nfrom ..units import Count"),
        ("capplan.hub", "from huggingface_hub import hf_hub_download\nfrom capplan.model import Model"),
        ("capplan.views.tables", "import pandas\nfrom capplan.views.figures import memory_bar"),
    ],
)
def test_an_import_that_points_the_right_way_passes(module, source):
    modules = frozenset({"capplan.laws.kv_cache", "capplan.policies.vllm_gpu"})
    assert faults(source, module, modules=modules) == []


def test_importing_capplan_brings_only_what_the_base_installs():
    optional = ["IPython", "anywidget", "huggingface_hub", "ipywidgets", "pandas", "papermill", "plotly", "voila"]
    code = f"import sys, capplan; print(*[name for name in {optional} if name in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert answer.stdout.split() == []
