"""A plan of vLLM on Neuron as curves: the cache over the cap, and over the headroom."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from capplan.engines.vllm_neuron import floor_gib
from capplan.plan.neuron import NeuronPlan
from capplan.solve import Curve
from capplan.units import GIB
from capplan.views.figures import Theme, _described, _dot, _empty, axis, layout
from capplan.views.html import colours

if TYPE_CHECKING:
    import plotly.graph_objects as go

NONE = "No budget is known, so there is no curve."


def cap_figure(p: NeuronPlan, *, theme: Theme = "light") -> go.Figure:
    """The default policy's cache over its cap, its two parts by what binds; where it stands, as a dot.

    With a reserve the dot is hollow: it is what leaving the reserve out would give.
    """
    curve = p.cap_curve
    if curve is None:
        return _empty(NONE, theme)
    import plotly.graph_objects as go

    ink = colours(dark=theme == "dark")
    figure = go.Figure(layout=_layout(ink))
    capped = curve.binding != "user_budget"
    _line(figure, curve, capped, "the cap binds", ink["cache"], "solid", ".3f")
    _line(figure, curve, curve.binding != "cap", "what the weights leave binds", ink["weights"], "dash", ".3f")
    _least(figure, curve, ink)
    words = "The default policy gives nothing a figure can show"
    if curve.default is not None and p.default_budget_bytes is not None:
        size = p.default_budget_bytes
        hollow = curve.now is None
        text = f"{size / GIB:.2f}{' without a reserve' if hollow else ' GiB'}"
        hover = f"cap {curve.default:g}<br>{size:,} bytes"
        figure.add_trace(
            _at(curve.default, size, text, hover, ink, hollow=hollow, left=curve.default > 0.6, below=True)
        )
        words = f"At a cap of {curve.default:g} the default policy gives the cache {size / GIB:.2f} GiB"
    if curve.turn is not None:
        words += f"; from a cap of {curve.turn:.4f} on what the weights leave binds"
    figure.update_xaxes(range=[0, 1.0], tickformat=".1f")
    return _scaled(figure, curve, f"{words}.")


def headroom_figure(p: NeuronPlan, *, theme: Theme = "light") -> go.Figure:
    """The cache over the headroom: where it stands, what keeps the default policy's cache, the largest that starts."""
    curve = p.headroom_curve
    if curve is None:
        return _empty(NONE, theme)
    import plotly.graph_objects as go

    ink = colours(dark=theme == "dark")
    figure = go.Figure(layout=_layout(ink))
    every = curve.values >= 0.0
    _line(figure, curve, every, "the headroom decides", ink["cache"], "solid", ".2f")
    _least(figure, curve, ink)
    words = []
    if curve.turn is not None:
        most = floor_gib(int(curve.turn * GIB))
        _mark(figure, ink, x=curve.turn, text=f"largest {most}", lower=True)
        words.append(f"the largest headroom is {most} GiB")
    if curve.default is not None and p.default_budget_bytes is not None:
        _mark(
            figure,
            ink,
            x=curve.default,
            text=f"{curve.default:.2f} keeps the default’s {p.default_budget_bytes / GIB:.2f}",
        )
        words.append(f"{curve.default:.2f} GiB keep what the default policy gives")
    if curve.now is not None and p.kv_budget_bytes is not None:
        size = int(p.kv_budget_bytes)
        hover = f"{curve.now:g} GiB kept back<br>{size:,} bytes"
        figure.add_trace(_at(curve.now, size, f"{size / GIB:.2f} GiB", hover, ink, left=False))
        words.insert(0, f"a headroom of {curve.now:g} GiB leaves the cache {size / GIB:.2f} GiB")
    elif curve.default is not None and p.kv_budget_bytes is not None:
        size = int(p.kv_budget_bytes)
        figure.add_trace(_at(curve.default, size, "", f"the default policy’s {size:,} bytes", ink, hollow=True))
    figure.update_xaxes(range=[0, float(curve.values[-1])], nticks=10)
    said = "; ".join(words) or "no headroom works"
    return _scaled(figure, curve, f"{said[:1].upper()}{said[1:]}.")


def _line(figure: go.Figure, curve: Curve, shown: Any, name: str, colour: str, dash: str, places: str) -> None:
    """One part of a curve; the points where both terms are alike belong to both."""
    import plotly.graph_objects as go

    if not shown.any():
        return
    sizes = curve.kv_budget_bytes[shown]
    figure.add_trace(
        go.Scatter(
            x=curve.values[shown],
            y=sizes / GIB,
            customdata=sizes,
            mode="lines",
            name=name,
            line={"color": colour, "width": 2.5, "dash": dash},
            hovertemplate=f"{curve.field} %{{x:{places}}}<br>%{{customdata:,}} bytes, {name}<extra></extra>",
        )
    )


def _least(figure: go.Figure, curve: Curve, ink: dict[str, str]) -> None:
    """The minimum as a dotted line."""
    if curve.minimum_bytes <= 0:
        return
    y = curve.minimum_bytes / GIB
    figure.add_shape(
        type="line",
        x0=0,
        x1=1,
        xref="paper",
        y0=y,
        y1=y,
        line={"color": ink["does-not-fit"], "width": 1, "dash": "dot"},
    )
    figure.add_annotation(
        x=1,
        xref="paper",
        xanchor="right",
        y=y,
        yanchor="bottom",
        text=f"minimum {y:.2f}",
        showarrow=False,
        font={"color": ink["does-not-fit"], "size": 11},
    )


def _mark(figure: go.Figure, ink: dict[str, str], *, x: float, text: str, lower: bool = False) -> None:
    figure.add_shape(
        type="line", x0=x, x1=x, y0=0, y1=1, yref="paper", line={"color": ink["muted"], "width": 1, "dash": "dot"}
    )
    figure.add_annotation(
        x=x,
        y=0.84 if lower else 1,
        yref="paper",
        yanchor="top",
        xanchor="left",
        xshift=3,
        text=text,
        showarrow=False,
        font={"color": ink["muted"], "size": 11},
        bgcolor=ink["card"],
    )


def _at(
    x: float,
    size: int,
    text: str,
    hover: str,
    ink: dict[str, str],
    *,
    hollow: bool = False,
    left: bool = False,
    below: bool = False,
) -> go.Scatter:
    dot = _dot(0, size / GIB, text, hover, ink, hollow=hollow)
    place = f"{'bottom' if below else 'top'} {'left' if left else 'right'}"
    dot.update(x=[x], textposition=place, text=[f"<b>{text}</b>" if text else ""])
    return dot


def _scaled(figure: go.Figure, curve: Curve, words: str) -> go.Figure:
    top = max(int(curve.kv_budget_bytes.max()), curve.minimum_bytes, 1)
    figure.update_yaxes(range=[0, 1.25 * top / GIB], nticks=6)
    figure.update_layout(showlegend=len([one for one in figure.data if one.mode == "lines"]) > 1)
    return _described(figure, words)


def _layout(ink: dict[str, str]) -> dict[str, Any]:
    return {
        **layout(ink, "", 40),
        "xaxis": {**axis(ink), "showgrid": False},
        "yaxis": {**axis(ink), "ticklabelstandoff": 4},
    }
