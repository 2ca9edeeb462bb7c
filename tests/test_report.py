"""The report is one file with the plan's own numbers, and says clearly why it stopped."""

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

pytest.importorskip("papermill")

from capplan.cli.main import EXIT, main
from capplan.hub import load_model
from capplan.plan import plan
from capplan.registry import Refused
from capplan.report import checked_parameters, write_report
from capplan.settings.deployment import Deployment
from capplan.units import GIB

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOK = ROOT / "notebooks" / "report.ipynb"
ASKED = Deployment(tensor_parallel_size=4, max_model_len=32_768)


class Read(HTMLParser):
    """A document's elements and its text without scripts and styles."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.words, self.inside, self.scripts = [], [], "", []
        self.feed(text)
        self.text = " ".join("".join(self.words).split())

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self.words.append(" ")
        self.inside = tag if tag in ("script", "style") else self.inside

    def handle_endtag(self, tag):
        self.inside = "" if tag == self.inside else self.inside

    def handle_data(self, data):
        {"script": self.scripts, "style": []}.get(self.inside, self.words).append(data)


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "answer.html"
    written = write_report("Qwen/Qwen3-32B", ASKED, path, title="For <the> review", ignored_flags=["--port 8000"])
    assert written == path
    return Read(path.read_text(encoding="utf-8"))


def test_the_numbers_are_the_plans(report):
    shown = plan(load_model("Qwen/Qwen3-32B"), ASKED)
    assert f"{shown.kv_cache_tokens:,} " in report.text
    assert f"{shown.max_concurrency:.2f}×" in report.text
    assert f"{shown.kv_blocks:,} blocks" in report.text
    for line in shown.lines:
        if line.bytes:
            assert f"{line.bytes:,}" in report.text
    assert f"{shown.kv_budget_bytes / GIB:.2f} GiB" in report.text
    assert "vllm serve Qwen/Qwen3-32B --tensor-parallel-size 4 --max-model-len 32768" in report.text


def test_the_answer_comes_first(report):
    parts = [
        "For <the> review",
        "Fits",
        "One rank",
        "The answer in figures",
        "vllm serve",
        "Over the length",
        "The ledger",
    ]
    parts += ["The cache", "What the engine makes", "Alternatives", "for vLLM 0.33.0, 20"]
    places = [report.text.index(part) for part in parts]
    assert places == sorted(places)


def test_both_curves_are_there_and_the_library_once(report):
    assert sum(script.count("Plotly.newPlot(") for script in report.scripts if len(script) < 500_000) == 2
    assert len([script for script in report.scripts if len(script) > 1_000_000]) == 1


def test_nothing_comes_from_outside(report):
    for tag, attrs in report.elements:
        if tag in ("script", "link", "img", "iframe", "a"):
            for key in ("src", "href"):
                assert attrs.get(key, "data:").startswith("data:"), (tag, attrs)


def test_there_is_no_code_and_no_word_about_the_notebook(report):
    assert "import " not in report.text and "papermill" not in report.text
    assert not [attrs for _, attrs in report.elements if "input" in (attrs.get("class") or "").split()]


def test_flags_without_effect_are_listed(report):
    assert "Flags that move no memory: --port 8000" in report.text


def test_an_unknown_parameter_is_refused():
    with pytest.raises(Refused, match=r"report.ipynb has no parameter 'modell'; the closest is model"):
        checked_parameters(NOTEBOOK, {"modell": "x"})


def test_a_parameter_of_the_wrong_type_is_refused():
    with pytest.raises(Refused, match=r"settings is 5; report.ipynb takes a value of type str there"):
        checked_parameters(NOTEBOOK, {"settings": 5})


def test_what_cannot_be_planned_is_refused_before_a_kernel_starts(tmp_path):
    with pytest.raises(Refused, match="there is no model 'Qwen/Qwen3-33B'"):
        write_report("Qwen/Qwen3-33B", ASKED, tmp_path / "x.html")
    with pytest.raises(Refused, match="a report is about one deployment"):
        write_report("Qwen/Qwen3-32B", Deployment(max_model_len=np.array([1, 2])), tmp_path / "x.html")
    assert list(tmp_path.iterdir()) == []


def test_the_command_writes_where_it_is_told_and_exits_as_plan_does(tmp_path):
    path = tmp_path / "refused.html"
    done = CliRunner().invoke(main, ["report", "Qwen/Qwen3-32B", "-tp", "5", "--output", str(path)])
    assert done.exit_code == EXIT["refused"]
    assert done.output == f"wrote {path}\n"
    assert "64 heads, which 5 ranks cannot share equally" in Read(path.read_text(encoding="utf-8")).text


def test_a_model_of_a_folder_is_found_from_where_the_command_runs(tmp_path, monkeypatch):
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151_936,
        "max_position_embeddings": 40_960,
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": True,
        "rope_theta": 1_000_000,
        "attention_bias": False,
    }
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text(json.dumps(config))
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, ["report", "./mine", "--chip", "l4", "--output", "out.html"])
    assert (done.exit_code, done.output) == (0, "wrote out.html\n")
    assert "mine on L4 24 GB" in Read((tmp_path / "out.html").read_text(encoding="utf-8")).text


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["Qwen/Qwen3-32B", "--output", "/nowhere/x.html"], "cannot be written: No such file or directory"),
        (["-tp", "4"], "no model is named"),
        (["Qwen/Qwen3-32B", "--tensor-paralel-size", "4"], "the closest"),
    ],
)
def test_a_command_that_cannot_answer_says_why_in_one_line(words, says):
    done = CliRunner().invoke(main, ["report", *words])
    assert done.exit_code == 2
    assert says in done.output and done.output.count("\n") == 1


def test_without_the_extra_the_command_names_it():
    code = (
        "import sys; sys.modules['papermill'] = None; sys.modules['plotly'] = None\n"
        "from capplan.cli.main import main; main(['report', 'Qwen/Qwen3-8B'])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert re.fullmatch(
        r"capplan: a report needs papermill, plotly, .*; pip install 'capplan\[report\]'\n", done.stderr
    )
