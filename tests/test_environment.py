"""pyproject.toml is the one list of dependencies; environment.yml only points at it."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
CONDA = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]


def test_the_base_needs_numpy_and_click_only():
    assert {Requirement(line).name for line in PROJECT["dependencies"]} == {"numpy", "click"}


def test_the_extras_are_those_that_the_readme_and_dev_py_name():
    assert set(EXTRAS) == {"app", "report", "hub", "test"}


@pytest.mark.parametrize("line", [*PROJECT["dependencies"], *(line for extra in EXTRAS.values() for line in extra)])
def test_each_dependency_says_from_which_release_on(line):
    assert any(bound.operator == ">=" for bound in Requirement(line).specifier), line


def test_a_package_has_one_range_wherever_it_is_listed():
    ranges: dict[str, set[str]] = {}
    for line in [*PROJECT["dependencies"], *(line for extra in EXTRAS.values() for line in extra)]:
        ranges.setdefault(Requirement(line).name.lower(), set()).add(str(Requirement(line).specifier))
    assert {name: found for name, found in ranges.items() if len(found) > 1} == {}


def test_environment_yml_installs_this_checkout_with_extras_that_exist():
    (pip_lines,) = [entry["pip"] for entry in CONDA if isinstance(entry, dict)]
    (line,) = pip_lines
    match = re.fullmatch(r"-e \.\[([a-z,]+)\]", line)
    assert match, line
    assert set(match[1].split(",")) == {"app", "report"}
    assert set(match[1].split(",")) <= set(EXTRAS)


def test_environment_yml_brings_pip_and_a_python_that_capplan_supports():
    assert "pip" in CONDA
    (pin,) = [entry for entry in CONDA if isinstance(entry, str) and entry.startswith("python=")]
    assert pin.removeprefix("python=") in SpecifierSet(PROJECT["requires-python"])


def test_the_console_script_exists():
    assert PROJECT["scripts"] == {"capplan": "capplan.cli.main:main"}
    assert (ROOT / "capplan" / "cli" / "main.py").is_file()
