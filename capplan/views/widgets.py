"""A planner's state as a live page: views that follow it, what can be applied or taken away, the whole laid out."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from functools import partial
from html import escape
from typing import Any

import anywidget
from ipywidgets import Box, Widget
from traitlets import List, Unicode

from capplan.plan import GpuPlan as Plan
from capplan.settings.command_line import command
from capplan.solve import Change
from capplan.views.controls import CONTROLS, LISTS, controls, describe, flag, follow, part
from capplan.views.html import bar_html, findings_html, groups_html, ledger_html, style, verdict_html
from capplan.views.pages import pages_html
from capplan.views.state import PlannerState
from capplan.views.tables import ledger_csv

# What the browser draws


class View(anywidget.AnyWidget):
    """HTML, changed in place."""

    _esm = part("view.js")
    value = Unicode().tag(sync=True)


class Rows(anywidget.AnyWidget):
    """A card of lines with a button each."""

    _esm = part("rows.js")
    title = Unicode().tag(sync=True)
    empty = Unicode().tag(sync=True)
    rows: List = List().tag(sync=True)


class Tries(anywidget.AnyWidget):
    """A line of questions to press."""

    _esm = part("tries.js")
    tries: List = List().tag(sync=True)


class Take(anywidget.AnyWidget):
    """A card with the command, to copy, and files to save."""

    _esm = part("take.js")
    command = Unicode().tag(sync=True)
    query = Unicode().tag(sync=True)


class Address(anywidget.AnyWidget):
    """The query of the page's address."""

    _esm = part("address.js")
    query = Unicode().tag(sync=True)


class Chart(anywidget.AnyWidget):
    """A plotly figure, drawn once the browser has said in which theme."""

    _esm = part("chart.js")
    title = Unicode().tag(sync=True)
    subtitle = Unicode().tag(sync=True)
    figure = Unicode().tag(sync=True)
    theme = Unicode().tag(sync=True)


# Views


def verdict(state: PlannerState) -> View:
    """The verdict bar; where the last input could not be taken, the last good answer, marked as such."""
    view = View()
    follow(state, ("plan", "note"), view, value=lambda: verdict_html(state.plan, note=state.note))
    return view


def news(state: PlannerState) -> View:
    """What moved with the last change, or had to be left out of an address; nothing where there is nothing to say."""

    def say() -> str:
        return f'<div class="cp cpp-news" role="status">{f"<p>{escape(state.news)}</p>" if state.news else ""}</div>'

    view = View()
    follow(state, ("news",), view, value=say)
    return view


def sentence(state: PlannerState) -> View:
    """What there is, by how much, and what would work, in words; where the verdict bar is too narrow for it."""

    def words() -> str:
        return f'<p class="cp cpp-sentence">{escape(state.plan.sentence.partition(": ")[2])}</p>'

    view = View()
    follow(state, ("plan",), view, value=words)
    return view


def following(state: PlannerState, draw: Callable[[Plan], str]) -> View:
    """One of the views of `capplan.views.html`, of the last answer that has any figures."""
    view = View()
    follow(state, ("plan",), view, value=lambda: draw(state.plan if state.plan.frame else state.shown or state.plan))
    return view


memory_bar = partial(following, draw=bar_html)
ledger = partial(following, draw=ledger_html)
groups = partial(following, draw=groups_html)


def findings(state: PlannerState) -> View:
    """What the engine refuses, assumes and overrides."""
    view = View()
    follow(state, ("plan",), view, value=lambda: findings_html(state.plan))
    return view


def _chart(state: PlannerState, title: str, subtitle: str, draw: Callable[[Plan, str], Any]) -> Chart:
    chart = Chart(title=title, subtitle=subtitle)

    def figure() -> str:
        if not chart.theme:
            return ""
        made: str = draw(state.shown or state.plan, chart.theme).to_json()
        return made

    def send(_: Widget, message: dict[str, Any], __: list[bytes]) -> None:
        if message.get("want") == "plotly.js":
            from plotly.offline import get_plotlyjs

            chart.send({"part": "plotly.js"}, buffers=[get_plotlyjs().encode()])

    chart.on_msg(send)
    follow(state, ("plan",), chart, figure=figure)
    chart.observe(lambda change: setattr(chart, "figure", figure()), "theme")
    return chart


def request_chart(state: PlannerState) -> Chart:
    """What one request takes by its length, in the cache's format and in the other one."""
    return _chart(state, "What one request takes", "GiB on each rank, by tokens", _request_figure)


def _request_figure(shown: Plan, theme: Any) -> Any:
    from capplan.views.figures import other_format, request_figure

    return request_figure(shown, other=shown.again(other_format(shown)), theme=theme)


def fit_chart(state: PlannerState) -> Chart:
    """How many requests fit by their length."""
    return _chart(state, "How many fit", "by tokens each", _fit_figure)


def _fit_figure(shown: Plan, theme: Any) -> Any:
    from capplan.views.figures import fit_figure

    return fit_figure(shown, theme=theme)


def change_rows(state: PlannerState) -> Rows:
    """What would change the answer, each with a button that asks it."""
    rows = Rows(title="What would change the answer", empty="No single setting that capplan tries would hold more.")
    offered: list[Change] = []

    def make() -> list[dict[str, Any]]:
        offered[:] = state.changes()
        return [_change_row(change, state.plan) for change in offered]

    def press(_: Widget, message: dict[str, Any], __: list[bytes]) -> None:
        place = message.get("press")
        if isinstance(place, int) and 0 <= place < len(offered):
            state.say(**offered[place].settings)

    rows.on_msg(press)
    follow(state, ("plan",), rows, rows=make)
    return rows


STARTS = {"fits": "starts, ", "close": "may start, "}


def _change_row(change: Change, now: Plan) -> dict[str, Any]:
    then = change.plan
    flags = " ".join(_flag_words(name, value) for name, value in change.settings.items())
    starts = STARTS[then.verdict] if then.verdict != now.verdict else ""
    return {
        "code": flags,
        "words": change.cost,
        "gives": f"{starts}{then.max_concurrency:.2f}×",
        "sign": then.verdict if change.better else "",
        "button": "Apply",
        "label": f"Apply {flags}",
    }


def _flag_words(name: str, value: Any) -> str:
    return flag(name) if value is True else f"{flag(name)} {value}"


TRIES = (
    ("the cache does not fit", "model=meta-llama/Meta-Llama-3.1-70B&chip=h100-sxm&tensor_parallel_size=2"),
    ("the weights do not fit", "model=meta-llama/Meta-Llama-3.1-70B&chip=h100-sxm"),
    ("more ranks hardly help", "model=Qwen/Qwen3-30B-A3B&chip=h100-sxm&tensor_parallel_size=8"),
)
"""Questions worth a look, by what they show."""


def examples(state: Any, tries: Sequence[tuple[str, str]] = TRIES) -> Tries:
    """Questions worth a look; pressing one asks it in place of what was asked.

    tries  each question's words, and the query that asks it
    """
    line = Tries(tries=[words for words, _ in tries])

    def press(_: Widget, message: dict[str, Any], __: list[bytes]) -> None:
        place = message.get("press")
        if isinstance(place, int) and 0 <= place < len(tries):
            state.from_query(tries[place][1])

    line.on_msg(press)
    return line


def take(state: PlannerState) -> Take:
    """The command, the link and the plan, to take away."""
    card = Take()

    def send(_: Widget, message: dict[str, Any], __: list[bytes]) -> None:
        name = f"capplan-{''.join(c if c.isalnum() or c in '-._' else '-' for c in state.plan.model.short_name)}"
        if message.get("file") == "json":
            text = json.dumps(state.plan.to_dict(), indent=2)
            card.send({"name": f"{name}.json", "type": "application/json", "text": text})
        elif message.get("file") == "csv":
            card.send({"name": f"{name}.csv", "type": "text/csv", "text": ledger_csv(state.plan)})

    card.on_msg(send)
    follow(state, ("plan",), card, command=lambda: command(state.model, state.plan.asked), query=state.to_query)
    return card


# The page


def warm_up() -> None:
    """Do what takes long the first time, on a kernel that Voila keeps warm and before its visitor comes."""
    if os.environ.get("VOILA_PREHEAT") != "True":
        return
    state = PlannerState()
    for draw in (verdict_html, bar_html, ledger_html, findings_html, groups_html):
        draw(state.plan)
    for name in CONTROLS:
        describe(state, name)
    for make in LISTS.values():
        make()
    state.changes()
    _request_figure(state.plan, "light").to_json()
    _fit_figure(state.plan, "light").to_json()


def planner(state: PlannerState) -> Box:
    """The whole page: the verdict, the controls, and every view of the answer."""
    # In the order in which a change shall be seen: what is made first follows first.
    top = _box("cpp-top", verdict(state), news(state))
    picture = _named("cpp-picture", memory_bar(state))
    inputs = _named("cpp-controls", controls(state))
    charts = request_chart(state), fit_chart(state)
    pair = _box("cpp-pair", change_rows(state), take(state), _named("cpp-groups", groups(state)))
    rest = _box("cpp-rest", *charts, pair, findings(state), _named("cpp-ledger", ledger(state)))
    words = _named("cpp-said", sentence(state))
    tries = _box("cpp-examples", examples(state), View(value=pages_html("planner")))
    body = _box("cpp-body", words, picture, inputs, tries, rest)
    address = Address()
    follow(state, ("plan",), address, query=state.to_query)

    def mark(change: object = None) -> None:
        (body.add_class if state.shown is not None and state.shown is not state.plan else body.remove_class)("cpp-old")

    state.observe(mark, "plan")
    mark()
    sheet = View(value=f"{style()}<style>{part('page.css')}</style>")
    return _named("cp", _box("cpp-page", sheet, top, body, address))


def _box(name: str, *children: Widget) -> Box:
    return _named(name, Box(children=children))


def _named(name: str, widget: Any) -> Any:
    widget.add_class(name)
    return widget
