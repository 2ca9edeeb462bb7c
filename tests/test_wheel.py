"""The wheel holds all it needs: it plans in an empty environment, offline, from any folder."""

import os
import subprocess
import sys
import sysconfig
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
BASE = ("numpy", "click")
TEMPLATE = "capplan/share/jupyter/voila/templates/capplan/index.html.j2"
OFFLINE = """
import sys

def refuse(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo"):
        raise OSError("this environment is offline")

sys.addaudithook(refuse)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(build, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = folder.glob("capplan-*.whl")
    return built


def show_base_only(site_packages: Path) -> None:
    """Make the base dependencies visible in an environment, and no other package of this one."""
    for name in BASE:
        tops = {file.parts[0] for file in distribution(name).files or () if file.parts[0] != ".."}
        for top in tops - {"__pycache__"}:
            (site_packages / top).symlink_to(distribution(name).locate_file(top))


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-index", "--no-deps"]
    done = subprocess.run([*pip, str(wheel)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    site_packages = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder), "platbase": str(folder)}))
    show_base_only(site_packages)
    (site_packages / "sitecustomize.py").write_text(OFFLINE)
    return folder


def run(environment: Path, folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a program of the environment in a folder, with a home of its own and none of capplan's variables."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("CAPPLAN_", "PYTHON", "HF_", "COV"))}
    env = {**kept, "HOME": str(folder), "PATH": f"{environment / 'bin'}{os.pathsep}{os.defpath}"}
    program = [str(environment / "bin" / command[0]), *command[1:]]
    return subprocess.run(program, cwd=folder, env=env, capture_output=True, text=True)


def test_the_wheel_holds_registry_notebooks_and_template_and_nothing_of_the_checkout(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    registry = [path.relative_to(ROOT / "registry").as_posix() for path in (ROOT / "registry").rglob("*.toml")]
    notebooks = [path.name for path in (ROOT / "notebooks").glob("*.ipynb")]
    assert registry and notebooks
    assert {f"capplan/_registry/{name}" for name in registry} <= set(names)
    assert {f"capplan/_notebooks/{name}" for name in notebooks} <= set(names)
    assert TEMPLATE in names
    assert {name.split("/")[0].partition("-")[0] for name in names} == {"capplan"}


def test_the_environment_sees_the_base_only_and_no_network(environment, tmp_path):
    found = "import importlib.util as u; print(*[n for n in ('numpy', 'click', 'plotly', 'pytest') if u.find_spec(n)])"
    assert run(environment, tmp_path, "python", "-c", found).stdout.split() == ["numpy", "click"]
    where = run(environment, tmp_path, "python", "-c", "import capplan; print(capplan.__file__)")
    assert str(environment) in where.stdout, where.stdout + where.stderr
    asked = run(environment, tmp_path, "python", "-c", "import socket; socket.create_connection(('localhost', 9))")
    assert "this environment is offline" in asked.stderr


def test_the_installed_capplan_plans_offline_from_another_folder(environment, tmp_path):
    asked = ["plan", "Qwen/Qwen3-32B", "--chip", "h100-sxm", "-tp", "4", "--max-model-len", "32768"]
    answer = run(environment, tmp_path, "capplan", *asked)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "fits" in answer.stdout.lower()
