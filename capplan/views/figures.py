"""A plan as curves: what one request takes, and how many requests fit, over the length of a request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from capplan.plan import GpuPlan as Plan
from capplan.settings.deployment import Deployment
from capplan.units import GIB
from capplan.views.html import colours
from capplan.views.terms import BOUNDED

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import plotly.graph_objects as go

    Lengths = npt.NDArray[np.int64]

Theme = Literal["light", "dark"]

FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif'

CONFIG = {"displayModeBar": False, "responsive": True, "scrollZoom": False, "doubleClick": False}
"""What plotly is told beside the figure."""

SHORTEST, SAMPLES, HEIGHT = 1024, 200, 260


def lengths(plan: Plan) -> Lengths:
    """About 200 lengths up to the model's limit: ends of blocks, the token after each, and where something turns."""
    import numpy as np

    longest = _longest(plan)
    step = max(g.block_size for g in plan.kv_groups) * plan.resolved.decode_context_parallel_size
    spread = np.geomspace(_shortest(plan), longest, SAMPLES // 2)
    ends = np.unique(np.ceil(spread / step).astype(np.int64) * step)
    turns = [plan.resolved.max_model_len, *(g.window for g in plan.kv_groups if g.window is not None), longest]
    found = np.unique(np.concatenate([ends, ends + 1, np.array(turns, dtype=np.int64)]))
    return found[(found >= _shortest(plan)) & (found <= longest)]


def _longest(plan: Plan) -> int:
    return max(plan.model.max_positions, int(plan.resolved.max_model_len or 0))


def _shortest(plan: Plan) -> int:
    return min(SHORTEST, max(1, _longest(plan) // 8))


def request_figure(plan: Plan, *, other: Plan | None = None, theme: Theme = "light") -> go.Figure:
    """What one request takes on each rank, over its length; the total, and its parts where there are several kinds.

    other  the same model with another cache format, drawn as a dashed line
    """
    if plan.tightest is None:
        known = "The weights are unknown; what one request takes stands below." if plan.frame else ""
        return _empty(known or "The plan is refused: no request takes anything.", theme)
    import numpy as np
    import plotly.graph_objects as go

    tokens, ink = lengths(plan), colours(dark=theme == "dark")
    length = int(plan.resolved.max_model_len or 0)
    sizes, steady = np.asarray(plan.sequence_bytes(tokens)), int(plan.sequence_bytes(length))
    growing = int(plan.sequence_variable_bytes(length))
    admission = growing + int(plan.sequence_admission_bytes(length))
    figure = go.Figure(layout=_layout(plan, theme, "GiB on each rank, over the tokens of one request"))
    if other is not None and other.tightest is not None:
        figure.add_trace(_line(tokens, other.sequence_bytes(tokens), _format(other), ink["cache"], dash="dash"))
    total = _format(plan)
    if 0 < growing < steady:
        total = f"{total}, all"
        grows = plan.sequence_variable_bytes(tokens)
        figure.add_trace(_line(tokens, grows, "grows with the request", ink["muted"], width=1))
        windows = plan.sequence_fixed_bytes(tokens)
        figure.add_trace(_line(tokens, windows, _bounded(plan), ink["muted"], width=1, dash="dot"))
    figure.add_trace(_line(tokens, sizes, total, ink["cache"]))
    figure.update_layout(showlegend=len(figure.data) > 1)
    words = f"One request of {length:,} tokens takes {steady / GIB:.2f} GiB of cache on each rank"
    if admission != steady:
        words += f" in steady decode and {admission / GIB:.2f} GiB at admission"
        hover = f"{length:,} tokens<br>{admission:,} bytes at admission"
        figure.add_trace(_dot(length, admission / GIB, f"{admission / GIB:.2f} at admission", hover, ink, hollow=True))
    figure.add_trace(
        _dot(length, steady / GIB, f"{steady / GIB:.2f} GiB", f"{length:,} tokens<br>{steady:,} bytes", ink)
    )
    figure.update_yaxes(range=[0, 1.15 * max(admission, int(sizes.max())) / GIB], nticks=6)
    return _described(figure, f"{words}; the curve runs to {_longest(plan):,} tokens.")


def _bounded(plan: Plan) -> str:
    """What of a request stops growing, in words."""
    return " and ".join(dict.fromkeys(BOUNDED[g.kind] for g in plan.kv_groups if g.bounded))


def fit_figure(plan: Plan, *, theme: Theme = "light") -> go.Figure:
    """How many requests of one length fit at once, over that length; the engine's own figure as a dot."""
    if plan.tightest is None:
        return _empty("The plan is refused: no requests fit.", theme)
    import numpy as np
    import plotly.graph_objects as go

    tokens, ink = lengths(plan), colours(dark=theme == "dark")
    fit = np.asarray(plan.requests_that_fit(tokens))
    if not fit.any():
        return _empty(f"The cache holds no request of {int(tokens[0]):,} tokens.", theme)
    concurrency, length = float(plan.max_concurrency or 0), int(plan.resolved.max_model_len or 0)
    sequences = int(plan.resolved.max_num_seqs or 1)
    figure = go.Figure(layout=_layout(plan, theme, "requests at once, over the tokens of each"))
    figure.add_trace(
        go.Scatter(
            x=tokens[fit > 0],
            y=fit[fit > 0],
            mode="lines",
            name="requests that fit",
            line={"color": ink["cache"], "width": 2, "shape": "hv"},
            hovertemplate="%{x:,} tokens each<br>%{y:,} requests in steady decode<extra></extra>",
        )
    )
    _rule(figure, ink, y=sequences, text=f"max_num_seqs {sequences:,}")
    _rule(figure, ink, x=plan.model.max_positions, text=f"limit {plan.model.max_positions:,}")
    hover = f"{length:,} tokens each<br>{concurrency:.2f}× by the engine’s count"
    figure.add_trace(_dot(length, concurrency, f"{concurrency:.2f}×", hover, ink, below=True))
    low, high = np.log10(min(1, concurrency) / 2.5), np.log10(max(int(fit.max()), sequences, concurrency) * 1.8)
    powers = range(int(np.ceil(low)), int(np.floor(high)) + 1)
    figure.update_yaxes(
        type="log",
        range=[low, high],
        tickvals=[10.0**power for power in powers],
        ticktext=[f"{10**power:,}" if power >= 0 else f"{10.0**power:g}" for power in powers],
    )
    whole, most = int(plan.requests_that_fit(length)), int(fit[0])
    words = (
        f"{concurrency:.2f} requests of {length:,} tokens by the engine’s count, {whole:,} whole ones in steady decode"
    )
    return _described(figure, f"{words}; {most:,} of {int(tokens[0]):,} tokens.")


def figure_html(figure: go.Figure, *, title: str, note: str = "", library: bool = True) -> str:
    """A figure as a card that needs nothing else; `library` brings plotly itself along, once a document."""
    from capplan.views import html

    chart = figure.to_html(
        full_html=False, include_plotlyjs=library, config=CONFIG, default_height=f"{figure.layout.height}px"
    )
    return html.chart_card(chart, title=title, note=note, description=figure.layout.meta["description"])


def other_format(plan: Plan) -> Deployment:
    """The same deployment with fp8 caches where they have 16 bits, else with the model's own format."""
    return replace(plan.asked, kv_cache_dtype=None if _format(plan).startswith("fp8") else "fp8")


def _format(plan: Plan) -> str:
    """The number format of the cache, the model's own where the engine calls it auto."""
    named = plan.frame.kv_cache_dtype if plan.frame is not None else ""
    return str(plan.resolved.dtype) if named in ("", "auto") else named


def _line(tokens: Lengths, sizes: Any, name: str, colour: str, *, width: float = 2, dash: str = "solid") -> go.Scatter:
    import plotly.graph_objects as go

    return go.Scatter(
        x=tokens,
        y=sizes / GIB,
        customdata=sizes,
        mode="lines",
        name=name,
        line={"color": colour, "width": width, "dash": dash},
        hovertemplate=f"{name}<br>%{{x:,}} tokens<br>%{{customdata:,}} bytes<extra></extra>",
    )


def _dot(
    x: int, y: float, text: str, hover: str, ink: dict[str, str], *, hollow: bool = False, below: bool = False
) -> go.Scatter:
    import plotly.graph_objects as go

    return go.Scatter(
        x=[x],
        y=[y],
        mode="markers+text",
        text=[f"<b>{text}</b>"],
        textposition="bottom left" if below else "top left",
        textfont={"color": ink["ink"], "size": 12},
        cliponaxis=False,
        showlegend=False,
        marker={
            "color": "rgba(0,0,0,0)" if hollow else ink["accent"],
            "size": 9,
            "line": {"color": ink["accent"] if hollow else ink["card"], "width": 1.5},
        },
        hovertemplate=f"{hover}<extra></extra>",
    )


def _rule(figure: go.Figure, ink: dict[str, str], *, text: str, x: int | None = None, y: int | None = None) -> None:
    """A dotted line across the figure, with a word at its end; annotations on log axes stand at powers of ten."""
    from math import log10

    line = {"color": ink["muted"], "width": 1, "dash": "dot"}
    words = {"text": text, "showarrow": False, "font": {"color": ink["muted"], "size": 11}}
    if x is not None:
        figure.add_shape(type="line", x0=x, x1=x, y0=0, y1=1, yref="paper", line=line)
        figure.add_annotation(x=log10(x), y=1, yref="paper", xanchor="right", yanchor="top", xshift=-3, **words)
    if y is not None:
        figure.add_shape(type="line", y0=y, y1=y, x0=0, x1=1, xref="paper", line=line)
        figure.add_annotation(x=0, xref="paper", y=log10(y), xanchor="left", yanchor="bottom", **words)


def _ticks(shortest: int, longest: int) -> Iterable[int]:
    tick = 1
    while tick <= longest:
        if tick >= shortest:
            yield tick
        tick *= 2


def axis(ink: Mapping[str, str]) -> dict[str, Any]:
    """What every axis of the project's charts has."""
    return {
        "gridcolor": ink["grid"],
        "zeroline": False,
        "fixedrange": True,
        "tickfont": {"color": ink["muted"], "size": 11},
    }


def layout(ink: Mapping[str, str], title: str, left: int) -> dict[str, Any]:
    """What every chart of the project has beside its axes; left is the margin for their numbers, in pixels."""
    return {
        "template": "none",
        "height": HEIGHT,
        "margin": {"l": left, "r": 14, "t": 12, "b": 30},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": FONT, "size": 12, "color": ink["ink"]},
        "hoverlabel": {
            "bgcolor": ink["ink"],
            "bordercolor": ink["ink"],
            "font": {"color": ink["card"], "family": FONT, "size": 12},
        },
        "dragmode": False,
        "hovermode": "closest",
        "showlegend": False,
        "legend": {
            "x": 0.01,
            "y": 1,
            "xanchor": "left",
            "yanchor": "top",
            "bgcolor": "rgba(0,0,0,0)",
            "font": {"color": ink["muted"], "size": 11},
            "itemclick": False,
            "itemdoubleclick": False,
        },
        "meta": {"title": title},
    }


def _layout(plan: Plan, theme: Theme, title: str) -> dict[str, Any]:
    from math import log10

    ink = colours(dark=theme == "dark")
    shortest, longest = _shortest(plan), _longest(plan)
    ticks = list(_ticks(shortest, longest))
    return {
        **layout(ink, title, 44),
        "xaxis": {
            **axis(ink),
            "type": "log",
            "range": [log10(shortest), log10(longest * 1.02)],
            "tickvals": ticks,
            "ticktext": [f"{tick // 1024}k" if tick >= 1024 else str(tick) for tick in ticks],
            "showgrid": False,
        },
        "yaxis": {**axis(ink), "ticklabelstandoff": 4},
    }


def _described(figure: go.Figure, words: str) -> go.Figure:
    figure.update_layout(meta={**figure.layout.meta, "description": words})
    return figure


def _empty(words: str, theme: Theme) -> go.Figure:
    """A figure that says in words why it has no curve."""
    import plotly.graph_objects as go

    ink = colours(dark=theme == "dark")
    hidden = {"visible": False, "fixedrange": True}
    return go.Figure(
        layout={
            "template": "none",
            "height": HEIGHT // 2,
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "font": {"family": FONT, "size": 13, "color": ink["muted"]},
            "margin": {"l": 14, "r": 14, "t": 12, "b": 12},
            "dragmode": False,
            "xaxis": hidden,
            "yaxis": hidden,
            "meta": {"title": "", "description": words},
            "annotations": [
                {"text": words, "showarrow": False, "x": 0.5, "y": 0.5, "xref": "paper", "yref": "paper"},
            ],
        }
    )
