"""A command line that plans one configuration starts without what only arrays, pages and figures need."""

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]
LATER = ["IPython", "huggingface_hub", "ipywidgets", "numpy", "pandas", "papermill", "plotly", "voila"]


def loaded(code: str) -> list[str]:
    """Which of the heavy packages a fresh interpreter has loaded after some code."""
    tail = f"\nimport json, sys\nprint(json.dumps([name for name in {LATER} if name in sys.modules]), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code + tail], cwd=ROOT, capture_output=True, text=True, check=True)
    return json.loads(done.stderr.splitlines()[-1])


def commands(*lines: str) -> str:
    """Code that runs command lines and goes on after their exit."""
    return "from capplan.cli.main import main\n" + "\n".join(
        f"try: main({line.split()!r})\nexcept SystemExit as end: assert end.code in (0, None), end.code"
        for line in lines
    )


def test_capplan_imports_none_of_them():
    assert loaded("import capplan") == []
    assert loaded("import capplan\nfrom capplan import *\ncapplan.plan") == []


@pytest.mark.parametrize(
    "lines",
    [
        ("plan Qwen/Qwen3-32B -tp 4", "plan --json google/gemma-2-9b-it"),
        ("plan deepseek-ai/DeepSeek-V3 -tp 8 --chip b200", "plan mistralai/Mixtral-8x7B-v0.1 -tp 4"),
        ("models", "chips"),
    ],
)
def test_the_command_line_loads_none_of_them(lines):
    assert loaded(commands(*lines)) == []


def test_arrays_bring_numpy():
    asked = "Deployment(max_num_seqs=numpy.array([1, 2]))"
    code = f"import numpy\nfrom capplan import *\nplan(load_model('Qwen/Qwen3-32B'), {asked})"
    assert loaded(code) == ["numpy"]


def test_the_public_names_are_there():
    import capplan

    assert sorted(capplan.__all__) == sorted(name for name in capplan.__all__ if getattr(capplan, name) is not None)
    with pytest.raises(AttributeError, match="'capplan' has no attribute 'plam'"):
        _ = capplan.plam


def test_the_module_of_plans_is_a_module_and_is_called_as_its_function():
    import capplan
    import capplan.plan as plans

    assert capplan.plan is plans is sys.modules["capplan.plan"]
    assert isinstance(plans, ModuleType)
    asked = capplan.load_model("Qwen/Qwen3-32B"), capplan.Deployment(tensor_parallel_size=4)
    assert capplan.plan(*asked).kv_blocks == plans.plan(*asked).kv_blocks


def test_the_package_is_the_command_line_too():
    answer = subprocess.run(
        [sys.executable, "-m", "capplan", "chips"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "h100-sxm" in answer.stdout
