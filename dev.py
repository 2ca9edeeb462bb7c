"""Install, run and check capplan with nothing but Python: python3 dev.py app | test | lint | bench."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
PYTHON = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
STAMP = VENV / "capplan-installed.json"
NEWEST, OLDEST = 16, 11
PAGE = ("app", "report")
EVERYTHING = ("app", "report", "hub", "test")
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

USAGE = """usage: python3 dev.py COMMAND [arguments]

  app    install what the pages need, serve them and open the planner
         (--no-browser, --port N; --notebook planner or neuron for one alone)
  test   install everything, find or install a Chromium, run pytest
         (arguments go to pytest)
  lint   ruff check, ruff format --check, mypy, notebooks without outputs
  bench  run the benchmarks (arguments go to them)"""


def say(sentence: str) -> None:
    """One line about what happens now, ahead of what the step itself prints."""
    print(f"dev.py: {sentence}", flush=True)


def give_up(sentence: str) -> NoReturn:
    """Stop with a sentence and exit code 2."""
    say(sentence)
    sys.exit(2)


def succeeds(command: list[str]) -> bool:
    """Whether a command exists and ends well; its output is not shown."""
    try:
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True).returncode == 0
    except OSError:
        return False


def run(command: list[str], env: dict[str, str] | None = None) -> int:
    """Run a command in the checkout and return its exit code."""
    return subprocess.run(command, cwd=ROOT, env=env).returncode


def recent_enough(python: str) -> bool:
    """Whether an interpreter runs and is one that capplan supports."""
    return succeeds([python, "-c", f"import sys; sys.exit(sys.version_info < (3, {OLDEST}))"])


def base_python() -> str:
    """An interpreter to make the environment with: this one, or a newer one on PATH."""
    if sys.version_info >= (3, OLDEST):
        return sys.executable
    for minor in range(NEWEST, OLDEST - 1, -1):
        found = shutil.which(f"python3.{minor}")
        if found and recent_enough(found):
            return found
    this = ".".join(map(str, sys.version_info[:3]))
    give_up(f"capplan needs Python 3.{OLDEST} or newer; this is {this}, and no newer one is on PATH. Install one.")


def pip_install(what: str) -> bool:
    """Install into .venv with uv where there is one, else with pip."""
    uv = shutil.which("uv")
    if uv:
        say(f"installing {what} with uv")
        if run([uv, "pip", "install", "--quiet", "--python", str(PYTHON), "-e", what]) == 0:
            return True
        say("uv could not install it; trying pip")
    if not succeeds([str(PYTHON), "-m", "pip", "--version"]) and run([str(PYTHON), "-m", "ensurepip"]) != 0:
        return False
    say(f"installing {what} with pip; the first time this takes a minute or two")
    return run([str(PYTHON), "-m", "pip", "install", "-qq", "-e", what]) == 0


def make_venv() -> None:
    """Make .venv unless there is one that works."""
    if recent_enough(str(PYTHON)):
        return
    if VENV.exists():
        say("the environment in .venv does not run or is too old; making it again")
        shutil.rmtree(VENV)
    python = base_python()
    uv = shutil.which("uv")
    say(f"making an environment in .venv with {python}")
    if uv and succeeds([uv, "venv", "--python", python, str(VENV)]):
        return
    if run([python, "-m", "venv", "--clear", str(VENV)]) != 0:
        give_up("could not make .venv; Debian and Ubuntu keep that module apart: apt-get install python3-venv")


def install(extras: tuple[str, ...]) -> None:
    """Bring .venv to what pyproject.toml asks for; do nothing where that has not changed."""
    make_venv()
    asked = hashlib.sha256((ROOT / "pyproject.toml").read_bytes() + str(ROOT).encode()).hexdigest()
    try:
        stamp = json.loads(STAMP.read_text())
        there, same = set(stamp["extras"]), stamp["asked"] == asked
    except (OSError, ValueError, KeyError):
        there, same = set(), False
    if same and there.issuperset(extras):
        say("the environment in .venv is up to date")
        return
    wanted = sorted(there.union(extras))
    if not pip_install(f".[{','.join(wanted)}]"):
        give_up("the packages could not be installed; the messages above say why")
    STAMP.write_text(json.dumps({"asked": asked, "extras": wanted}))


def playwright_chromium() -> str | None:
    """The Chromium that playwright installed for itself, if there is one."""
    ask = "from playwright.sync_api import sync_playwright as s\nwith s() as p: print(p.chromium.executable_path)"
    answer = subprocess.run([str(PYTHON), "-c", ask], capture_output=True, text=True).stdout.strip()
    return answer if answer and Path(answer).is_file() else None


def chromium_here() -> str | None:
    """A Chromium that is already on this machine and runs."""
    named = os.environ.get("CAPPLAN_CHROMIUM")
    if named:
        if succeeds([named, "--version"]):
            return named
        say(f"CAPPLAN_CHROMIUM names {named}, which does not run; looking elsewhere")
    for name in BROWSERS:
        found = shutil.which(name)
        if found and succeeds([found, "--version"]):
            return found
    return playwright_chromium()


def debian_installs() -> bool:
    """Whether this is Debian and this user may install packages; Ubuntu's package is only a pointer to a snap."""
    try:
        system = Path("/etc/os-release").read_text()
    except OSError:
        return False
    may = hasattr(os, "geteuid") and os.geteuid() == 0 and shutil.which("apt-get") is not None
    return may and "ID=ubuntu" not in system.splitlines()


def chromium() -> str | None:
    """A Chromium for the browser tests, installed where there is none."""
    found = chromium_here()
    if found is None and debian_installs():
        say("there is no Chromium here; installing Debian's")
        env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        run(["apt-get", "update", "-qq"], env)
        run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", "chromium"], env)
        found = chromium_here()
    if found is None:
        say("there is no Chromium here; asking playwright for one")
        run([str(PYTHON), "-m", "playwright", "install", "chromium"])
        found = chromium_here()
    if found is None:
        say("no Chromium could be had, so the browser tests will fail; install one, or name one in CAPPLAN_CHROMIUM")
    else:
        say(f"browser: {found}")
    return found


def with_chromium(path: str | None) -> dict[str, str]:
    """The environment that tells the tests which browser to use."""
    env = {name: value for name, value in os.environ.items() if name != "CAPPLAN_CHROMIUM"}
    return {**env, "CAPPLAN_CHROMIUM": path} if path else env


def app(arguments: list[str]) -> int:
    """Serve the planner until Ctrl-C."""
    install(PAGE)
    say("starting the page")
    child = subprocess.Popen([str(PYTHON), "-m", "capplan.serve", *arguments], cwd=ROOT)
    # Ctrl-C reaches the page by itself; this process only waits for it to end well.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, frame: child.terminate())
    return child.wait()


def test(arguments: list[str]) -> int:
    """Run the tests; arguments go to pytest."""
    install(EVERYTHING)
    env = with_chromium(chromium())
    say("running pytest")
    return run([str(PYTHON), "-m", "pytest", *arguments], env)


def lint(arguments: list[str]) -> int:
    """Run every check, also after one has failed, and name those that did."""
    install(EVERYTHING)
    notebooks = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "notebooks").glob("*.ipynb"))
    checks = {
        "ruff check": ["ruff", "check", "."],
        "ruff format": ["ruff", "format", "--check", "."],
        "mypy": ["mypy"],
    }
    # Without a file name nbstripout would wait for a notebook on its standard input.
    if notebooks:
        checks["clean notebooks"] = ["nbstripout", "--verify", "--keep-id", *notebooks]
    failed = []
    for name, command in checks.items():
        say(name)
        if run([str(PYTHON), "-m", *command]) != 0:
            failed.append(name)
    say(f"failed: {', '.join(failed)}" if failed else "all checks passed")
    return 1 if failed else 0


def bench(arguments: list[str]) -> int:
    """Run the benchmarks; arguments go to them."""
    install(EVERYTHING)
    say("running the benchmarks")
    return run([str(PYTHON), "-m", "benchmarks", *arguments], with_chromium(chromium_here()))


def main() -> int:
    commands = {"app": app, "test": test, "lint": lint, "bench": bench}
    name, arguments = (sys.argv[1], sys.argv[2:]) if len(sys.argv) > 1 else ("", [])
    if name not in commands:
        print(USAGE)
        return 0 if name in ("-h", "--help", "help") else 2
    return commands[name](arguments)


if __name__ == "__main__":
    sys.exit(main())
