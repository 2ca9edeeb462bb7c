"""Serve a notebook as a page: Voila on loopback, with a kernel already warm."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
import webbrowser
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import NamedTemporaryFile
from threading import Thread
from typing import IO

import click

HOST = "127.0.0.1"
USUAL_PORT = 8866
PAGES = ("planner", "neuron")
"""The pages of the workbook, the first of which is opened."""
PACKAGE = Path(__file__).resolve().parent


def notebooks_dir() -> Path:
    """The folder with the notebooks: inside the installed package, else beside it in a checkout."""
    for folder in (PACKAGE / "_notebooks", PACKAGE.parent / "notebooks"):
        if folder.is_dir():
            return folder
    raise FileNotFoundError(
        f"there are no notebooks in {PACKAGE / '_notebooks'} or {PACKAGE.parent / 'notebooks'}; install capplan again"
    )


def voila_command(port: int, *, notebook: str = "planner", base_url: str = "/") -> list[str]:
    """The command line that serves one notebook on a port of this machine."""
    folder = notebooks_dir()
    path = folder / f"{notebook}.ipynb"
    if not path.is_file():
        there = ", ".join(sorted(p.stem for p in folder.glob("*.ipynb")))
        raise FileNotFoundError(f"there is no notebook {notebook!r} in {folder}; there are: {there}")
    return [
        sys.executable,
        "-m",
        "voila",
        str(path),
        "--no-browser",
        f"--port={port}",
        f"--base_url={base_url}",
        "--template=capplan",
        "--VoilaConfiguration.allow_template_override=NO",
        "--VoilaConfiguration.allow_theme_override=NO",
        f"--Voila.ip={HOST}",
        # The page draws with plotly's own script; JupyterLab's extension would bring a second copy of it.
        "--VoilaConfiguration.extension_denylist=jupyterlab-plotly",
        # A page that closes says so with a POST, and Voila never gives it the cookie that the check asks for.
        # On loopback that POST is the only one served, and it names a kernel that only its page knows.
        "--Voila.tornado_settings={'disable_check_xsrf': True}",
        "--Voila.port_retries=0",
        "--preheat_kernel=True",
        "--pool_size=2",
        # A page that was closed without saying so keeps its kernel for this many seconds.
        "--MappingKernelManager.cull_idle_timeout=1800",
        "--MappingKernelManager.cull_interval=60",
    ]


def voila_env(pages: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment, in which Voila also finds the template `capplan` and this Python's kernel.

    pages  where each page that is served together is, by its notebook, so that they can link to each other
    """
    before = os.environ.get("JUPYTER_PATH")
    paths = [str(PACKAGE / "share" / "jupyter"), *([before] if before else [])]
    together = {"CAPPLAN_PAGES": json.dumps(dict(pages))} if pages else {}
    return {**os.environ, "JUPYTER_PATH": os.pathsep.join(paths), "JUPYTER_PREFER_ENV_PATH": "1", **together}


def page_query() -> str:
    """The query string of the address under which someone asked for this page; empty outside Voila.

    A warm kernel runs before anyone has asked: it waits here for its visitor.
    voila.utils.wait_for_request does the same, but its import takes seconds.
    """
    if os.environ.get("VOILA_PREHEAT") == "True":
        visitor: Future[str | bytes | None] = Future()

        def wait() -> None:
            try:
                visitor.set_result(asyncio.run(first_visitor()))
            except BaseException as failure:
                visitor.set_exception(failure)

        Thread(target=wait, daemon=True).start()
        # Voila tells a kernel only once, so a second call must not wait again.
        os.environ.update({**json.loads(visitor.result() or "{}"), "VOILA_PREHEAT": "False"})
    return os.environ.get("QUERY_STRING", "")


async def first_visitor() -> str | bytes | None:
    """What Voila tells this kernel once a page is asked for: the request's variables, as JSON."""
    from tornado.websocket import websocket_connect

    port, root = os.environ["VOILA_APP_PORT"], os.environ.get("VOILA_SERVER_URL", "/")
    line = await websocket_connect(f"ws://{HOST}:{port}{root}voila/query/{os.environ['VOILA_KERNEL_ID']}")
    try:
        return await line.read_message()
    finally:
        line.close()


def port_is_free(port: int) -> bool:
    """Whether nothing listens on a port of this machine."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def free_port(preferred: int = USUAL_PORT) -> int:
    """The preferred port, or another where that one is taken; with 0 any that is free."""
    if preferred and port_is_free(preferred):
        return preferred
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def wait_until_it_answers(child: subprocess.Popen[bytes], address: str, *, seconds: float = 60) -> None:
    """Return once Voila answers at its address; raise where it stops or stays silent."""
    # Any path that is not Voila's own would be answered by the page, and cost a warm kernel.
    question = urllib.request.Request(f"{address}voila/static/voila.js", method="HEAD")
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if child.poll() is not None:
            raise ChildProcessError(f"Voila stopped with exit code {child.returncode} before it answered at {address}")
        try:
            with direct.open(question, timeout=5):
                return
        except OSError:
            time.sleep(0.05)
    raise TimeoutError(f"Voila did not answer at {address} within {seconds:.0f} seconds")


@contextmanager
def serving(
    port: int,
    *,
    notebook: str = "planner",
    base_url: str = "/",
    log: IO[bytes] | None = None,
    pages: Mapping[str, str] | None = None,
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A running Voila: its address and its process, stopped with its kernels at the end."""
    command = voila_command(port, notebook=notebook, base_url=base_url)
    child = subprocess.Popen(command, env=voila_env(pages), stdout=log, stderr=subprocess.STDOUT if log else None)
    try:
        address = f"http://{HOST}:{port}{base_url}"
        wait_until_it_answers(child, address)
        yield address, child
    finally:
        child.terminate()
        try:
            child.wait(timeout=10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def serve(*, notebook: str | None = None, port: int | None = None, browser: bool = True) -> int:
    """Serve the pages of the workbook, or one notebook, until stopped, and return the exit code."""
    if find_spec("voila") is None:
        raise click.ClickException("the page needs Voila: pip install 'capplan[app]'")
    if port is None:
        port = free_port()
        if port != USUAL_PORT:
            click.echo(f"Port {USUAL_PORT} is taken; using {port}.")
    elif not port_is_free(port):
        raise click.ClickException(f"port {port} is taken; leave --port out and a free one is found")
    with NamedTemporaryFile(prefix="capplan-voila-", suffix=".log") as log:
        shown = PAGES if notebook is None else (notebook,)
        ports = [port, *(free_port((port + n) % 65_536) for n in range(1, len(shown)))]
        pages = {name: f"http://{HOST}:{at}/" for name, at in zip(shown, ports, strict=True)}
        click.echo(f"Starting Voila for {' and '.join(shown)}; its own messages go to {log.name}")
        try:
            with ExitStack() as running:
                for name, at in zip(shown, ports, strict=True):
                    address, child = running.enter_context(serving(at, notebook=name, log=log.file, pages=pages))
                    click.echo(f"capplan's {name} is at {address}")
                    if browser and name == shown[0]:
                        webbrowser.open(address)
                click.echo("Stop it with Ctrl-C.")
                return child.wait()
        except (FileNotFoundError, ChildProcessError, TimeoutError) as stopped:
            log.seek(0)
            said = log.read().decode(errors="replace").splitlines()[-20:]
            raise click.ClickException("\n".join([*said, str(stopped)])) from stopped
        except KeyboardInterrupt:
            click.echo("Stopped.")
            return 0


def stop(number: int, frame: object) -> None:
    """Take a request to end as if Ctrl-C was pressed, so that Voila and its kernels end too."""
    raise KeyboardInterrupt


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--port", type=click.IntRange(1, 65535), help=f"Port on {HOST}; {USUAL_PORT} or a free one if left out.")
@click.option("--notebook", help=f"One notebook to serve, without .ipynb; {' and '.join(PAGES)} if left out.")
@click.option("--no-browser", is_flag=True, help="Print the address and open nothing.")
def main(port: int | None, notebook: str | None, no_browser: bool) -> None:
    """Serve capplan's pages on this machine."""
    signal.signal(signal.SIGTERM, stop)
    sys.exit(serve(notebook=notebook, port=port, browser=not no_browser))


if __name__ == "__main__":
    main()
