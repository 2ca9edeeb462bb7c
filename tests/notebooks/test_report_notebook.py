"""The report notebook runs from the top, and is kept without outputs."""

import os
from pathlib import Path

import pytest

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK = ROOT / "notebooks" / "report.ipynb"


def read():
    return nbformat.read(NOTEBOOK, as_version=4)


@pytest.fixture(scope="module")
def run():
    client = nbclient.NotebookClient(read(), timeout=120, resources={"metadata": {"path": str(NOTEBOOK.parent)}})
    return client.execute(env={**os.environ, "PYTHONPATH": str(ROOT)})


def test_it_runs_and_every_cell_after_the_imports_shows_html(run):
    shown = [cell for cell in run.cells if cell.cell_type == "code"][1:]
    for cell in shown:
        assert [output.output_type for output in cell.outputs] == ["execute_result"], cell.source
        assert "text/html" in cell.outputs[0].data


def test_its_first_answer_is_the_default_questions(run):
    text = "".join(o.data["text/html"] for c in run.cells if c.cell_type == "code" for o in c.outputs)
    assert "Qwen3-32B" in text and "32,768" in text and "Plotly.newPlot" in text


def test_it_is_kept_without_outputs():
    notebook = read()
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.outputs == [] and cell.execution_count is None
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    assert notebook.metadata.language_info == {"name": "python"}


def test_every_parameter_has_a_type_a_default_and_a_word_of_help():
    papermill = pytest.importorskip("papermill")
    known = papermill.inspect_notebook(str(NOTEBOOK))
    assert set(known) == {"model", "settings", "title", "ignored_flags"}
    for parameter in known.values():
        assert parameter["inferred_type_name"] == "str" and parameter["default"] and parameter["help"]


def test_there_is_no_logic_in_it():
    for cell in read().cells:
        if cell.cell_type == "code":
            for word in ("def ", "for ", "while ", "if ", "lambda"):
                assert not any(line.lstrip().startswith(word) for line in cell.source.splitlines())


def test_each_code_cell_follows_a_text():
    kinds = [cell.cell_type for cell in read().cells]
    assert kinds == ["markdown", "code"] * (len(kinds) // 2)
