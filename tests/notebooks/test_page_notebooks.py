"""The notebook of each page runs from the top in a fresh kernel."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
PAGES = ("planner", "neuron")
LOGIC = ("def ", "for ", "while ", "if ", "class ")
WIDGET = "application/vnd.jupyter.widget-view+json"


@pytest.mark.parametrize("page", PAGES)
def test_a_notebook_runs_and_shows_its_page(monkeypatch, page):
    monkeypatch.delenv("QUERY_STRING", raising=False)
    notebook = nbformat.read(NOTEBOOKS / f"{page}.ipynb", as_version=4)
    NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert [output for output in outputs if output.output_type in ("error", "stream")] == []
    assert WIDGET in outputs[-1].data


@pytest.mark.parametrize("page", PAGES)
def test_a_notebook_has_no_outputs_and_no_logic(page):
    notebook = nbformat.read(NOTEBOOKS / f"{page}.ipynb", as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None
            assert not any(line.startswith(LOGIC) for line in cell.source.splitlines())
