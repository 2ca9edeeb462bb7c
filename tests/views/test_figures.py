"""The curves carry the plan's own numbers."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from capplan.hub import load_model
from capplan.plan import plan
from capplan.settings.deployment import Deployment
from capplan.units import GIB

figures = pytest.importorskip("capplan.views.figures")
pytest.importorskip("plotly")


def answer(model, **settings):
    return plan(load_model(model), Deployment(**settings))


def fits():
    return answer("Qwen/Qwen3-32B", tensor_parallel_size=4, max_model_len=32_768)


def windows():
    return answer("google/gemma-2-9b-it", chip="l4")


def named(figure, name):
    return next(trace for trace in figure.data if trace.name == name)


def dots(figure):
    return [trace for trace in figure.data if "markers" in trace.mode]


def test_lengths_are_about_200_and_run_from_1k_to_the_models_limit():
    shown = fits()
    found = figures.lengths(shown)
    assert 150 <= len(found) <= 210
    assert (found[0], found[-1]) == (1024, shown.model.max_positions)
    assert found.dtype == np.int64
    assert 32_768 in found and (np.diff(found) > 0).all()


def test_ends_of_blocks_come_with_the_token_after():
    found = figures.lengths(fits())
    ends = found[found % 16 == 0]
    assert np.isin(ends[:-1] + 1, found).all()


def test_a_request_takes_what_the_plan_says_at_every_length():
    shown = fits()
    line = named(figures.request_figure(shown), "bfloat16")
    tokens = np.array(line.x)
    assert (np.array(line.customdata) == shown.sequence_bytes(tokens)).all()
    assert np.array(line.y) == pytest.approx(shown.sequence_bytes(tokens) / GIB)
    (dot,) = dots(figures.request_figure(shown))
    assert (dot.x[0], dot.y[0]) == (32_768, shown.sequence_bytes(32_768) / GIB)
    assert "2.00 GiB" in dot.text[0]


def test_the_other_format_is_a_dashed_line():
    shown = fits()
    other = plan(shown.model, figures.other_format(shown))
    line = named(figures.request_figure(shown, other=other), "fp8")
    assert line.line.dash == "dash"
    assert (np.array(line.customdata) == other.sequence_bytes(np.array(line.x))).all()


def test_the_other_of_fp8_is_the_models_own():
    asked = figures.other_format(answer("Qwen/Qwen3-32B", tensor_parallel_size=4, kv_cache_dtype="fp8"))
    assert asked.kv_cache_dtype is None
    assert figures.other_format(fits()).kv_cache_dtype == "fp8"


def test_several_kinds_of_caches_have_a_line_each():
    shown = windows()
    figure = figures.request_figure(shown)
    tokens = np.array(named(figure, "windows").x)
    assert (np.array(named(figure, "windows").customdata) == shown.sequence_fixed_bytes(tokens)).all()
    grows = named(figure, "grows with the request")
    assert (np.array(grows.customdata) == shown.sequence_variable_bytes(tokens)).all()
    assert (np.array(named(figure, "bfloat16, all").customdata) == shown.sequence_bytes(tokens)).all()
    assert 4096 in tokens


def test_admission_is_marked_where_it_differs():
    shown = windows()
    hollow, filled = dots(figures.request_figure(shown))
    assert hollow.y[0] == shown.kv_request_blocks * shown.kv_block_bytes / GIB
    assert filled.y[0] == shown.sequence_bytes(8192) / GIB
    assert "at admission" in hollow.text[0]


def test_the_requests_that_fit_are_the_plans():
    shown = fits()
    figure = figures.fit_figure(shown)
    line = named(figure, "requests that fit")
    assert list(line.y) == list(shown.requests_that_fit(np.array(line.x)))
    (dot,) = dots(figure)
    assert (dot.x[0], dot.y[0]) == (32_768, shown.max_concurrency)
    assert f"{shown.max_concurrency:.2f}×" in dot.text[0]
    assert (figure.layout.xaxis.type, figure.layout.yaxis.type) == ("log", "log")


def test_limits_are_lines_with_words():
    shown = fits()
    figure = figures.fit_figure(shown)
    assert {shape.x0 for shape in figure.layout.shapes} == {0, shown.model.max_positions}
    words = {note.text for note in figure.layout.annotations}
    assert words == {f"max_num_seqs {shown.resolved.max_num_seqs:,}", f"limit {shown.model.max_positions:,}"}


def test_lengths_at_which_none_fits_are_not_on_a_log_axis():
    shown = answer("meta-llama/Meta-Llama-3.1-70B", tensor_parallel_size=2)
    figure = figures.fit_figure(shown)
    assert min(named(figure, "requests that fit").y) == 1
    low, _ = figure.layout.yaxis.range
    assert 10**low < shown.max_concurrency < 1


def test_a_cache_that_holds_nothing_says_so():
    figure = figures.fit_figure(answer("meta-llama/Meta-Llama-3.1-70B"))
    assert figure.layout.annotations[0].text == "The cache holds no request of 1,024 tokens."


def test_a_refused_plan_has_no_curves():
    shown = answer("Qwen/Qwen3-32B", tensor_parallel_size=5)
    for figure in (figures.request_figure(shown), figures.fit_figure(shown)):
        assert len(figure.data) == 0
        assert "refused" in figure.layout.annotations[0].text


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_figures_are_described_transparent_and_have_no_title(theme):
    for figure in (figures.request_figure(fits(), theme=theme), figures.fit_figure(fits(), theme=theme)):
        assert "32,768 tokens" in figure.layout.meta["description"]
        assert figure.layout.paper_bgcolor == "rgba(0,0,0,0)"
        assert figure.layout.template.layout.to_plotly_json() == {}
        assert figure.layout.title.text is None


def test_a_card_brings_the_library_only_when_told():
    figure = figures.fit_figure(fits())
    with_it = figures.figure_html(figure, title="How many requests fit")
    without = figures.figure_html(figure, title="How many requests fit", library=False)
    assert len(with_it) > 1_000_000 > len(without)
    assert 'role="img"' in without and "by the engine’s count" in without


def test_importing_the_figures_is_cheap():
    code = "import sys, capplan.views.figures; print(*[n for n in ('plotly', 'pandas', 'numpy') if n in sys.modules])"
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
