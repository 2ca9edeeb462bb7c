"""A plan as a document to send: the report notebook, run for one deployment and written as one HTML file."""

from __future__ import annotations

import json
import logging
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from capplan.hub import load_model
from capplan.plan import plan
from capplan.registry import Refused, closest
from capplan.serve import PACKAGE, notebooks_dir
from capplan.settings.deployment import Deployment, stated
from capplan.units import is_array
from capplan.views import html

NEEDS = ("papermill", "nbconvert", "nbformat", "ipykernel", "plotly")
CELL_SECONDS = 120
START_SECONDS = 60

LEFT_OUT = "notebook-only"
"""Cells with this tag explain the notebook to those who open it, and are no part of the document."""

TYPES: Mapping[str, type] = {"str": str, "int": int, "float": float, "bool": bool}


def write_report(
    model: str,
    deployment: Deployment,
    path: Path,
    *,
    title: str | None = None,
    ignored_flags: Sequence[str] = (),
) -> Path:
    """Write the report of a deployment as one self-contained HTML file, and return its path.

    model          registry name, Hugging Face id, folder, or path of a config.json
    ignored_flags  flags of a command line that move no memory, to be listed

    Raises Refused where the model or the deployment cannot be read, the extra is not installed, the
    notebook stops, or the file cannot be written.
    """
    missing = [name for name in NEEDS if find_spec(name) is None]
    if missing:
        raise Refused(f"a report needs {', '.join(missing)}, which this Python lacks; pip install 'capplan[report]'")
    if any(is_array(value) for value in stated(deployment).values()):
        raise Refused("a report is about one deployment, and a setting of this one is an array; take one of its values")
    found = (
        load_model(model, overrides=deployment.overrides, assume_generic=deployment.assume_generic) if model else None
    )
    answer = plan(found, deployment)
    if answer.rules.plans != "gpu":
        raise Refused(f"there is no report of {answer.engine.title} yet; capplan plan --json has every figure")
    notebook = _notebook()
    heading = title or f"{answer.model.short_name} on {answer.chips}"
    parameters = {
        "model": model,
        "settings": json.dumps(stated(deployment), default=lambda scalar: scalar.item()),
        "title": heading,
        "ignored_flags": json.dumps(list(ignored_flags)),
    }
    checked_parameters(notebook, parameters)
    with tempfile.TemporaryDirectory(prefix="capplan-report-") as folder:
        body = _body(_run(notebook, Path(folder) / "report.ipynb", parameters))
    page = html.report_page(body, foot=f"{_maker()} for {answer.engine.title}, {date.today().isoformat()}")
    try:
        path.write_text(html.document(page, title=heading), encoding="utf-8")
    except OSError as error:
        raise Refused(f"{path} cannot be written: {error.strerror}; name another file") from None
    return path


def _maker() -> str:
    """capplan with its version, where it is installed."""
    try:
        return f"capplan {version('capplan')}"
    except PackageNotFoundError:
        return "capplan"


def _notebook() -> Path:
    try:
        path = notebooks_dir() / "report.ipynb"
    except FileNotFoundError as error:
        raise Refused(str(error)) from None
    if not path.is_file():
        raise Refused(f"there is no notebook {path}; install capplan again")
    return path


def checked_parameters(notebook: Path, parameters: Mapping[str, Any]) -> None:
    """Raise Refused for a parameter that a notebook does not have, or a value of another type than it states.

    papermill itself passes unknown ones on with no more than a log line.
    """
    import papermill

    with _quiet():
        known = papermill.inspect_notebook(str(notebook))
    for name, value in parameters.items():
        if name not in known:
            raise Refused(f"{notebook.name} has no parameter {name!r}; {closest(name, list(known))}")
        wanted = known[name]["inferred_type_name"]
        if wanted not in TYPES:
            raise Refused(f"{notebook.name} states no type for its parameter {name!r}; there are {', '.join(TYPES)}")
        if type(value) is not TYPES[wanted]:
            raise Refused(f"{name} is {value!r}; {notebook.name} takes a value of type {wanted} there")


def _run(notebook: Path, output: Path, parameters: Mapping[str, Any]) -> Any:
    """The notebook, executed with the parameters."""
    import papermill
    from papermill.exceptions import PapermillException

    try:
        with _quiet(), _this_capplan():
            return papermill.execute_notebook(
                str(notebook),
                str(output),
                parameters=dict(parameters),
                progress_bar=False,
                log_output=False,
                execution_timeout=CELL_SECONDS,
                start_timeout=START_SECONDS,
                extra_arguments=["--IPKernelApp.log_level=ERROR"],
            )
    except (PapermillException, RuntimeError, TimeoutError) as error:
        raise Refused(f"the report stopped: {_last_line(error)}") from error
    except OSError as error:
        raise Refused(f"the report's kernel did not start: {error}; pip install 'capplan[report]'") from error


def _last_line(error: BaseException) -> str:
    """What an error says at its end; a cell's own error stands in fields of papermill's."""
    if hasattr(error, "evalue"):
        return f"{error.evalue}"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


def _body(notebook: Any) -> str:
    """The outputs and texts of a notebook as HTML, without its code."""
    from nbconvert import HTMLExporter
    from traitlets.config import Config

    config = Config()
    config.TagRemovePreprocessor.enabled = True
    config.TagRemovePreprocessor.remove_cell_tags = {LEFT_OUT, "parameters", "injected-parameters"}
    exporter = HTMLExporter(
        config=config,
        template_name="basic",
        exclude_input=True,
        exclude_input_prompt=True,
        exclude_output_prompt=True,
        exclude_anchor_links=True,
    )
    body: str = exporter.from_notebook_node(notebook)[0]
    return body


@contextmanager
def _this_capplan() -> Iterator[None]:
    """Let a kernel import this very capplan where it runs from a checkout that may not be installed."""
    before = os.environ.get("PYTHONPATH")
    if (PACKAGE.parent / "pyproject.toml").is_file():
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(PACKAGE.parent), before)))
    try:
        yield
    finally:
        if before is None:
            os.environ.pop("PYTHONPATH", None)
        else:
            os.environ["PYTHONPATH"] = before


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep papermill's and traitlets' log lines off the terminal."""
    loggers = [logging.getLogger(name) for name in ("papermill", "traitlets", "blib2to3")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
