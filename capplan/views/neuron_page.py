"""The Neuron page: its controls, the views that follow its state, the whole laid out."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable
from functools import lru_cache
from html import escape
from typing import Any

from ipywidgets import Box, Widget
from traitlets import HasTraits

from capplan.engines.vllm_neuron import Answer, load_instance, load_neuron_chip, target_aliases
from capplan.model.facts import known_models
from capplan.plan.neuron import NeuronPlan
from capplan.plan.public import NEURON_FIGURES as FIGURES
from capplan.registry import names
from capplan.settings.command_line import command
from capplan.settings.environment import BY_FIELD
from capplan.units import GIB
from capplan.views.controls import Control, Form, flag, follow, length_steps, model_facts, part
from capplan.views.elements import capital
from capplan.views.html import findings_html, style
from capplan.views.neuron_html import (
    applies,
    beside_html,
    budget_html,
    detail,
    diagnosis_html,
    log_html,
    parity_html,
    says_html,
    stack_html,
    verdict_html,
)
from capplan.views.neuron_state import FIRST, POLICY, NeuronState
from capplan.views.pages import pages_html
from capplan.views.widgets import Address, Chart, Rows, Take, View, _box, _named, examples

LONGEST = 131_072
"""The longest length to offer where no model says its own."""

CONTROLS = {
    "instance": Control(label="Instance", kind="select", means="how many chips there are, and of which kind"),
    "chip": Control(label="Chip", kind="select"),
    "logical_nc_config": Control(
        label="LNC", kind="choice", means="physical cores of one logical core; at 1 two logical cores share a stack"
    ),
    "instance_chips": Control(
        label="Chips", kind="text", means="chips of an instance that is not listed", empty="as the instance has"
    ),
    "runtime_bytes_used": Control(
        label="Runtime, used", kind="text", means="bytes that the runtime reports as used", empty="not stated"
    ),
    "runtime_bytes_free": Control(
        label="Runtime, free", kind="text", means="bytes that the runtime reports as free", empty="the static table"
    ),
    "model": Control(label="Model", kind="search"),
    "weights_bytes": Control(
        label="Weight bytes", kind="text", means="parameters and buffers on one rank, a draft model's too"
    ),
    "tensor_parallel_size": Control(label="Tensor", kind="choice", means="ranks that share every layer"),
    "draft_model": Control(label="Draft model", kind="text", means="a model that speculates", empty="none"),
    POLICY: Control(label="Policy", kind="choice", means="utilization and a cap, or a headroom that is kept back"),
    "reserved_headroom_gib": Control(
        label="Headroom, GiB", kind="range", means="kept back on every logical core; 0 is a headroom too"
    ),
    "gpu_memory_utilization": Control(
        label="Utilization",
        kind="range",
        means="the share of a logical core's memory to plan with",
    ),
    "kv_gmu_budget_cap_fraction": Control(
        label="Cap", kind="range", means="the part of the total budget that the cache may have at most"
    ),
    "min_kv_budget_gib": Control(
        label="Minimum, GiB", kind="text", means="below this the engine refuses to start; 0 switches the check off"
    ),
    "max_model_len": Control(
        label="Longest", kind="range", means="tokens of the longest request, prompt and answer together"
    ),
    "block_size": Control(label="Block, tokens", kind="text", means="tokens of one block"),
    "bytes_per_block": Control(
        label="Bytes per block", kind="text", means="bytes of one block of all layers, on one rank"
    ),
    "kv_cache_dtype": Control(label="Cache format", kind="text", means="the format of keys and values", empty="auto"),
    "num_gpu_blocks_override": Control(
        label="Blocks as given", kind="text", means="blocks in place of those that the budget gives", empty="computed"
    ),
    "cpu_compile": Control(label="Compile without a device", kind="check", means="memory comes from the static table"),
    "platform_target_override": Control(label="Target", kind="select", means="the chip to compile for"),
    "cpu_mode": Control(label="Compute on the host", kind="check", means="memory is the host's, shared by its workers"),
    "host_available_bytes": Control(
        label="Host memory left", kind="text", means="bytes that the host has left after loading", empty="not stated"
    ),
    "local_workers": Control(label="Workers", kind="text", means="workers that share the host"),
    "error": Control(
        label="Paste an error", kind="text", means="text of a failed run: what it means is said for this deployment"
    ),
}
"""The inputs that have a control, as they are shown."""

GROUPS: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    (
        "",
        ("instance", "chip", "logical_nc_config"),
        ("instance_chips", "runtime_bytes_used", "runtime_bytes_free"),
    ),
    (
        "Policy",
        (
            POLICY,
            "reserved_headroom_gib",
            "gpu_memory_utilization",
            "kv_gmu_budget_cap_fraction",
            "min_kv_budget_gib",
        ),
        (),
    ),
    ("Weights", ("model", "weights_bytes", "tensor_parallel_size"), ("draft_model",)),
    (
        "Cache",
        ("max_model_len", "block_size", "bytes_per_block"),
        ("kv_cache_dtype", "num_gpu_blocks_override"),
    ),
    ("Route", ("cpu_compile", "platform_target_override"), ("cpu_mode", "host_available_bytes", "local_workers")),
    ("A run that failed", ("error",), ()),
)
"""Cards of controls: title, controls, and those in its fold."""


# Controls


def controls(state: NeuronState) -> Form:
    """The controls of the page."""
    inputs = [name for _, first, more in GROUPS for name in (*first, *more)]
    form = Form(groups=[[title, list(first), list(more)] for title, first, more in GROUPS], lists=_lists())

    def said(_: Widget, message: dict[str, Any], __: list[bytes]) -> None:
        values = message.get("say")
        if isinstance(values, dict):
            known = {name: value for name, value in values.items() if name in inputs}
            if "error" in known:
                state.error = str(known.pop("error") or "").strip()
            if known:
                state.say(**known)
            form.answered += 1

    form.on_msg(said)
    traits = ("plan", "problems", "error")
    _follow(state, traits, form, fields=lambda: {name: describe(state, name) for name in inputs})
    return form


_follow: Callable[..., None] = follow


@lru_cache(maxsize=1)
def _lists() -> dict[str, list[list[str]]]:
    """What may be chosen, where that never changes."""
    targets = sorted(target_aliases().items())
    return {
        "model": [[model.name, model_facts(model)] for model in known_models()],
        "chip": [[name, load_neuron_chip(name).title] for name in names("neuron")],
        "instance": [["", "any, of the chip below"], *([name, _instance_words(name)] for name in names("instances"))],
        "platform_target_override": [
            ["", "not set"],
            *([alias, alias if alias == chip else f"{alias}, that is {chip}"] for alias, chip in targets),
        ],
    }


def _instance_words(name: str) -> str:
    found = load_instance(name)
    sure = "" if found.certainty == "published" else f", {found.certainty}"
    return f"{found.title}, {found.chips.value} {found.platform}{sure}"


def describe(state: NeuronState, name: str) -> dict[str, Any]:
    """One control as the browser shows it: its value and text, what it may be, the default and the way back to it."""
    control, now = CONTROLS[name], getattr(state, name)
    supplied = "" if name in (POLICY, "model", "error", "chip", "instance") else state.supplied(name)
    shown = state.error if name == "error" else _figure(now) if now not in (None, "") else ""
    found: dict[str, Any] = {
        "kind": control.kind,
        "label": control.label,
        "flag": _variable(name),
        "means": control.means,
        "text": shown,
        "placeholder": control.empty or supplied,
        "problem": state.problems.get(name, ""),
        "help": "",
        "back": "",
    }
    if now not in (None, "", False) and control.kind in ("text", "range") and name != "error":
        found["back"] = f"default {supplied}" if supplied else "not set"
    return found | DESCRIBE.get(name, _describe_plain)(state, name)


def _variable(name: str) -> str:
    """The flag or the variable that a control sets; nothing for what only capplan has."""
    if name in BY_FIELD:
        return BY_FIELD[name].name
    engine_flags = ("tensor_parallel_size", "gpu_memory_utilization", "max_model_len", "block_size", "kv_cache_dtype")
    return flag(name) if name in (*engine_flags, "num_gpu_blocks_override") else ""


def _figure(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else repr(value).removesuffix(".0")


def _describe_plain(state: NeuronState, name: str) -> dict[str, Any]:
    return {"now": bool(getattr(state, name))} if CONTROLS[name].kind == "check" else {}


def _describe_instance(state: NeuronState, name: str) -> dict[str, Any]:
    return {"now": state.instance or ""}


def _describe_chip(state: NeuronState, name: str) -> dict[str, Any]:
    chip = state.plan.chip
    if chip is None:
        return {"now": state.chip or ""}
    stacks = f"{chip.hbm_stacks_per_chip.value} stacks of {chip.hbm_stack_bytes.value / GIB:.0f} GiB"
    return {"now": chip.name, "help": f"{stacks}, {chip.physical_cores_per_chip.value} cores each"}


def _describe_degree(state: NeuronState, name: str) -> dict[str, Any]:
    chip = state.plan.chip
    degrees = chip.degrees if chip is not None else (1, 2)
    effective = state.plan.resolved.logical_nc_config
    options = [[str(n), str(n), None if n in degrees else f"{chip.title if chip else ''} takes no {n}"] for n in (1, 2)]
    said = state.logical_nc_config
    default = state.supplied(name)
    return {
        "now": str(effective or ""),
        "options": options,
        "back": f"default {default}" if said is not None else "",
        "help": f"the default on {chip.title}" if said is None and chip is not None else "",
    }


def _describe_model(state: NeuronState, name: str) -> dict[str, Any]:
    model = state.plan.model
    words = model_facts(model) if model is not None else "none; weights and blocks are as stated"
    return {"text": state.model, "help": words, "back": "none" if state.model else ""}


def _describe_weights(state: NeuronState, name: str) -> dict[str, Any]:
    p = state.plan
    if p.weights_bytes is None:
        return {"placeholder": "not stated"}
    size = f"{p.weights_bytes / GIB:.2f} GiB on one rank"
    if state.weights_bytes is not None:
        return {"help": size, "back": "of the model" if state.model else ""}
    return {"placeholder": f"{p.weights_bytes:,}, of the model", "help": size}


def _describe_block_bytes(state: NeuronState, name: str) -> dict[str, Any]:
    p = state.plan
    if state.bytes_per_block is not None:
        return {"back": "of the model" if state.model else ""}
    return {"placeholder": f"{p.kv_block_bytes:,}, of the model" if p.kv_block_bytes is not None else "not stated"}


def _describe_ranks(state: NeuronState, name: str) -> dict[str, Any]:
    p = state.plan
    sizes = {p.asked.tensor_parallel_size, 1, 2, 4, 8, 16, 32, 64}
    if p.chip is not None:
        most = (
            None
            if p.instance is None
            else p.chip.logical_cores(int(p.resolved.logical_nc_config or 1), chips=p.instance.chips.value)
        )
        sizes = {p.asked.tensor_parallel_size, *p.chip.rank_sizes(int(p.resolved.logical_nc_config or 1), most=most)}
    against = [(size, state.against(name, size)) for size in sorted(sizes)]
    why = next((words for _, words in against if words), "")
    return {
        "now": str(p.asked.tensor_parallel_size),
        "options": [[str(size), str(size), words] for size, words in against],
        "help": why.partition(";")[0],
    }


def _describe_policy(state: NeuronState, name: str) -> dict[str, Any]:
    return {
        "now": state.policy,
        "options": [["default", "default", None], ["headroom", "headroom", None]],
        "help": "utilization and a cap" if state.policy == "default" else "utilization and cap are not read",
        "back": "",
    }


def _describe_headroom(state: NeuronState, name: str) -> dict[str, Any]:
    p, now = state.shown or state.plan, state.reserved_headroom_gib
    share = int(p.share_bytes or GIB)
    keeps = p.answer("headroom_of_default")
    stands = now if now is not None else keeps.value / GIB if keeps is not None and keeps.value is not None else 0.0
    return {
        "now": stands,
        "shown": f"{stands:.2f} GiB" if now is not None else f"not set; {stands:.2f} GiB would change nothing",
        "options": [half / 2 for half in range(2 * share // GIB + 1)],
        "placeholder": "unset",
        "help": "" if now is not None else "unset; a value here switches the policy",
        "back": "not set" if now is not None else "",
    }


def _describe_fraction(state: NeuronState, name: str) -> dict[str, Any]:
    value, default = getattr(state, name), state.plan.engine.defaults[name].value
    stands = default if value is None else value
    return {
        "now": stands,
        "shown": f"{stands:g}",
        "options": [hundredth / 100 for hundredth in range(1, 101)],
        "placeholder": f"{default:g}",
        "help": "not read with a headroom" if state.policy == "headroom" else "",
        "back": f"default {default:g}" if value is not None else "",
    }


def _describe_length(state: NeuronState, name: str) -> dict[str, Any]:
    p = state.plan
    longest = p.model.max_positions if p.model is not None else max(LONGEST, int(state.max_model_len or 0))
    effective = p.resolved.max_model_len
    return {
        "now": effective or longest,
        "shown": f"{effective:,} tokens" if effective else "not set",
        "options": list(length_steps(longest)),
        "placeholder": f"{effective:,}" if effective else "unset",
    }


def _describe_target(state: NeuronState, name: str) -> dict[str, Any]:
    return {"now": state.platform_target_override or ""}


DESCRIBE: dict[str, Callable[[NeuronState, str], dict[str, Any]]] = {
    "instance": _describe_instance,
    "chip": _describe_chip,
    "logical_nc_config": _describe_degree,
    "model": _describe_model,
    "weights_bytes": _describe_weights,
    "bytes_per_block": _describe_block_bytes,
    "tensor_parallel_size": _describe_ranks,
    POLICY: _describe_policy,
    "reserved_headroom_gib": _describe_headroom,
    "gpu_memory_utilization": _describe_fraction,
    "kv_gmu_budget_cap_fraction": _describe_fraction,
    "max_model_len": _describe_length,
    "platform_target_override": _describe_target,
}


# Views


def verdict(state: NeuronState) -> View:
    """The verdict bar; where the last input could not be taken, the last good answer, marked as such."""
    return _view(state, ("plan", "note"), lambda: verdict_html(state.plan, note=state.note))


def news(state: NeuronState) -> View:
    """What moved with the last change, or had to be left out of an address; nothing where there is nothing to say."""

    def say() -> str:
        return f'<div class="cp cpp-news" role="status">{f"<p>{escape(state.news)}</p>" if state.news else ""}</div>'

    return _view(state, ("news",), say)


def sentence(state: NeuronState) -> View:
    """What there is, by how much, and what would work, in words; where the verdict bar is too narrow for it."""

    def words() -> str:
        return f'<p class="cp cpp-sentence">{escape(capital(detail(state.plan)))}</p>'

    return _view(state, ("plan",), words)


def following(state: NeuronState, draw: Callable[[NeuronPlan], str]) -> View:
    """One of the views of `capplan.views.neuron_html`, of the last answer that has figures."""
    return _view(state, ("plan",), lambda: draw(state.shown or state.plan))


def _view(state: HasTraits, traits: tuple[str, ...], value: Callable[[], str]) -> View:
    view = View()
    _follow(state, traits, view, value=value)
    return view


def _chart(state: NeuronState, title: str, subtitle: str, draw: Callable[[NeuronPlan, Any], Any]) -> Chart:
    chart = Chart(title=title, subtitle=subtitle)

    def figure() -> str:
        return draw(state.shown or state.plan, chart.theme).to_json() if chart.theme else ""

    def send(_: Widget, message: dict[str, Any], __: list[bytes]) -> None:
        if message.get("want") == "plotly.js":
            from plotly.offline import get_plotlyjs

            chart.send({"part": "plotly.js"}, buffers=[get_plotlyjs().encode()])

    chart.on_msg(send)
    _follow(state, ("plan",), chart, figure=figure)
    chart.observe(lambda change: setattr(chart, "figure", figure()), "theme")
    return chart


def cap_chart(state: NeuronState) -> Chart:
    """The default policy's cache over its cap."""
    return _chart(state, "Over the cap", "GiB of cache by the default policy", _cap_figure)


def headroom_chart(state: NeuronState) -> Chart:
    """The cache over the headroom."""
    return _chart(state, "Over the headroom", "GiB of cache, by GiB kept back", _headroom_figure)


def _cap_figure(p: NeuronPlan, theme: Any) -> Any:
    from capplan.views.neuron_figures import cap_figure

    return cap_figure(p, theme=theme)


def _headroom_figure(p: NeuronPlan, theme: Any) -> Any:
    from capplan.views.neuron_figures import headroom_figure

    return headroom_figure(p, theme=theme)


WHAT = {
    "smallest_utilization": "the smallest utilization that starts",
    "smallest_cap": "the smallest cap that starts",
    "headroom_of_default": "the headroom that keeps the default policy’s cache; less gives more",
    "largest_headroom": "the largest headroom that starts",
    "fewest_ranks": "the fewest ranks that start",
}
"""What each answer is, in words."""


def answer_rows(state: NeuronState) -> Rows:
    """The inverse answers: break-even and largest headroom, smallest utilization and cap, fewest ranks."""
    rows = Rows(title="How far it can go", empty="No setting makes it start, or none has to be asked.")
    offered: list[Answer] = []

    def make() -> list[dict[str, Any]]:
        offered[:] = [answer for answer in state.plan.answers if applies(state.plan, answer)]
        return [_answer_row(answer) for answer in offered]

    def press(_: Widget, message: dict[str, Any], __: list[bytes]) -> None:
        place = message.get("press")
        if isinstance(place, int) and 0 <= place < len(offered):
            state.say(**{offered[place].field: offered[place].typed})

    rows.on_msg(press)
    _follow(state, ("plan",), rows, rows=make)
    return rows


def _answer_row(answer: Answer) -> dict[str, Any]:
    known = BY_FIELD.get(answer.field)
    name = flag(answer.field) if known is None else known.name.removeprefix("VLLM_NEURON_")
    cache = "" if answer.kv_budget_bytes is None else f"{answer.kv_budget_bytes / GIB:.2f} GiB"
    joint = " " if known is None else "="
    return {
        "code": f"{name}{joint}{answer.typed}",
        "words": WHAT[answer.name],
        "gives": cache,
        "sign": "fits",
        "button": "Apply",
        "label": f"Apply {name}{joint}{answer.typed}",
    }


TRIES = (
    ("a headroom of 4 GiB is tested: GPT-OSS 120B", FIRST),
    ("the cap binds", "model=Qwen/Qwen3-32B&chip=trn2&tensor_parallel_size=8"),
    (
        "two logical cores share a stack",
        "model=Qwen/Qwen3-32B&chip=trn2&tensor_parallel_size=16&logical_nc_config=1&reserved_headroom_gib=4",
    ),
    ("the headroom is too large", f"{FIRST}&".replace("headroom_gib=4&", "headroom_gib=22&").rstrip("&")),
    (
        "compiling without a device gives other blocks",
        "model=Qwen/Qwen3-32B&chip=trn2&tensor_parallel_size=8&runtime_bytes_used=3145728&runtime_bytes_free=25763512320",
    ),
)
"""Questions worth a look, by what they show."""


def take(state: NeuronState) -> Take:
    """The environment lines and the command to copy; the plan as JSON, its figures as CSV."""
    card = Take()

    def lines() -> str:
        return "\n".join([*state.plan.environment_lines, command(state.model or "MODEL", state.plan.asked)])

    def send(_: Widget, message: dict[str, Any], __: list[bytes]) -> None:
        if message.get("file") == "json":
            text = json.dumps(state.plan.to_dict(), indent=2)
            card.send({"name": "capplan-neuron.json", "type": "application/json", "text": text})
        elif message.get("file") == "csv":
            card.send({"name": "capplan-neuron.csv", "type": "text/csv", "text": figures_csv(state.plan)})

    card.on_msg(send)
    _follow(state, ("plan",), card, command=lines, query=state.to_query)
    return card


def figures_csv(p: NeuronPlan) -> str:
    """The figures under their public names, a line each."""
    out = io.StringIO()
    rows = csv.writer(out, lineterminator="\n")
    rows.writerow(("name", "value"))
    rows.writerows((name, getattr(p, name)) for name in FIGURES if getattr(p, name) is not None)
    return out.getvalue()


# The page


def warm_up() -> None:
    """Do what takes long the first time, on a kernel that Voila keeps warm and before its visitor comes."""
    if os.environ.get("VOILA_PREHEAT") != "True":
        return
    state = NeuronState()
    for draw in (verdict_html, stack_html, budget_html, parity_html, log_html, beside_html):
        draw(state.plan)
    findings_html(state.plan)
    for name in CONTROLS:
        describe(state, name)
    _lists()
    _cap_figure(state.plan, "light").to_json()
    _headroom_figure(state.plan, "light").to_json()


def neuron_page(state: NeuronState) -> Box:
    """The whole page: the verdict, the controls, and every view of the answer."""
    # In the order in which a change shall be seen: what is made first follows first.
    top = _box("cpp-top", verdict(state), news(state))
    says = _view(state, ("plan",), lambda: says_html(state.plan))
    picture = _box("cpp-picture", following(state, stack_html), says)
    diagnosis = _view(state, ("plan", "error"), lambda: diagnosis_html(state.diagnosis))
    inputs = _named("cpp-controls", controls(state))
    charts = cap_chart(state), headroom_chart(state)
    second = _box("cpp-pair", take(state), following(state, log_html))
    budget = following(state, budget_html)
    findings = _view(state, ("plan",), lambda: findings_html(state.plan))
    last = following(state, beside_html), findings
    rest = _box("cpp-rest", *charts, answer_rows(state), second, following(state, parity_html), budget, *last)
    picture.children = (*picture.children, diagnosis)
    words = _named("cpp-said", sentence(state))
    tries = _box("cpp-examples", examples(state, TRIES), View(value=pages_html("neuron")))
    body = _box("cpp-body", words, picture, inputs, tries, rest)
    address = Address()
    _follow(state, ("plan",), address, query=state.to_query)

    def mark(change: object = None) -> None:
        (body.add_class if state.shown is not None and state.shown is not state.plan else body.remove_class)("cpp-old")

    state.observe(mark, "plan")
    mark()
    sheet = View(value=f"{style()}<style>{part('page.css')}</style>")
    return _named("cp", _named("cpp-neuron", _box("cpp-page", sheet, top, body, address)))
