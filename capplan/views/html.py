"""A plan as HTML: verdict, memory bar, ledger, findings, groups, command; for the page, the report and a notebook."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from capplan.engines.base import Finding, Line
from capplan.plan import GpuPlan as Plan
from capplan.plan.base import RankWeights
from capplan.plan.rank import RankPlan
from capplan.registry import Datum, sources
from capplan.settings.command_line import command
from capplan.solve import remedies
from capplan.views.elements import (
    capital,
    card,
    counted,
    el,
    gib,
    nothing,
    pill,
    rank_words,
    signs,
    sized,
    sub,
    table,
    termed,
)
from capplan.views.explain import HEADS, rank_rows
from capplan.views.pool_html import groups_html
from capplan.views.tables import ledger_csv
from capplan.views.terms import LINE_WORDS, NEURON_TERMS, SIGNS, TERM, TERM_OF_LINE, TERMS

if TYPE_CHECKING:
    from capplan.plan.neuron import NeuronPlan

TOKENS = {
    "page": ("#f7f6f3", "#151615"),
    "card": ("#ffffff", "#1e1f1e"),
    "line": ("#e2dfd8", "#343533"),
    "grid": ("#ece9e2", "#2a2b29"),
    "ink": ("#1c1c1a", "#eceae4"),
    "muted": ("#68655f", "#a5a29a"),
    "accent": ("#2a5bd7", "#8fb0ff"),
    "fits": ("#15724a", "#6fd3a0"),
    "fits-on": ("#e6f4ec", "#16301f"),
    "close": ("#9a5b00", "#f0b354"),
    "close-on": ("#fbf1df", "#33270f"),
    "does-not-fit": ("#b3261e", "#ff8f85"),
    "does-not-fit-on": ("#fbe9e7", "#3a1c1a"),
    "refused": ("#7a4a48", "#d3a9a5"),
    "refused-on": ("#f3eae9", "#2e2423"),
}
"""Colours of everything that is no term, in light and dark; the style sheet knows them as `--cp-<name>`."""

INKS = ("#ffffff", "#1c1c1a", "#000000")
LEAST_CONTRAST = 4.5

LIGHT_PLACES = "[data-cp-theme=light] .cp,.cp[data-cp-theme=light],[data-jp-theme-light=true] .jp-NotebookPanel .cp"
DARK_PLACES = "[data-cp-theme=dark] .cp,.cp[data-cp-theme=dark],[data-jp-theme-light=false] .jp-NotebookPanel .cp"
"""Where a page says which theme it has; elsewhere the reader's system says it."""

LABEL_WIDTHS = ((7, "cp-short"), (10, "cp-middling"), (14, "cp-longer"), (99, "cp-longest"))
"""Classes of labels by their letters: the style sheet hides one whose segment is too narrow for it."""

MOST_BARS = 4

PAGE_STYLE = (
    f"body{{margin:0;background:{TOKENS['page'][0]}}}"
    f"@media (prefers-color-scheme:dark){{body{{background:{TOKENS['page'][1]}}}}}"
    "@page{margin:14mm 12mm}@media print{body{background:none}}"
)


# Colours


def contrast(a: str, b: str) -> float:
    """The contrast of two colours as WCAG defines it, from 1 to 21.

    >>> contrast("#ffffff", "#000000")
    21.0
    """
    low, high = sorted((_luminance(a), _luminance(b)))
    return round((high + 0.05) / (low + 0.05), 2)


def _luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def ink_on(colour: str) -> str:
    """The first ink that can be read on a colour."""
    return next(ink for ink in INKS if contrast(ink, colour) >= LEAST_CONTRAST)


def colours(*, dark: bool) -> dict[str, str]:
    """Every colour of one theme by its token."""
    found = {name: pair[dark] for name, pair in TOKENS.items()}
    for term in (*TERMS, *NEURON_TERMS):
        fill = term.dark if dark else term.light
        found |= {term.key: fill, f"{term.key}-ink": ink_on(fill)}
    return found


def _declarations(*, dark: bool) -> str:
    scheme = "dark" if dark else "light"
    return f"color-scheme:{scheme};" + "".join(f"--cp-{key}:{value};" for key, value in colours(dark=dark).items())


@lru_cache(maxsize=1)
def style() -> str:
    """The style sheet of every view, once a page."""
    light, dark = _declarations(dark=False), _declarations(dark=True)
    sheet = files("capplan.views").joinpath("style.css").read_text(encoding="utf-8")
    return (
        f"<style>.cp{{{light}}}\n@media (prefers-color-scheme:dark){{.cp{{{dark}}}}}\n{LIGHT_PLACES}{{{light}}}\n"
        f"{DARK_PLACES}{{{dark}}}\n{sheet}@media print{{.cp.cp.cp.cp{{{light}}}}}</style>"
    )


# The verdict


def verdict_html(plan: Plan, *, note: str = "") -> str:
    """The verdict bar: word and sign, what was asked, the sentence, and three figures.

    note  why this is the last good answer and not the one to what now stands in the controls
    """
    sign = SIGNS[plan.verdict]
    headline, length = signs(plan.question), plan.resolved.max_model_len
    for part in (plan.model.short_name, plan.chips, "" if length is None else f"{length:,}"):
        if part:
            headline = headline.replace(signs(part), f"<b>{signs(part)}</b>", 1)
    rest = plan.sentence.removeprefix(plan.question).partition(": ")[2]
    detail = signs(capital(rest, keep=plan.model.short_name)) + _load_sentence(plan)
    figures = [el("div", el("dt", escape(words)), el("dd", escape(figure))) for figure, words in _three_figures(plan)]
    return el(
        "section",
        el("div", el("span", escape(sign.mark), aria_hidden="true"), f" {escape(sign.word)}", css="cp-badge"),
        el(
            "div",
            el("p", headline, css="cp-headline"),
            el("p", detail, css="cp-detail"),
            el("p", f"<b>Not current:</b> {escape(note)}", css="cp-note") if note else "",
            css="cp-said",
        ),
        el("dl", *figures, css="cp-figures"),
        css=f"cp cp-verdict cp-v-{plan.verdict}{' cp-stale' if note else ''}",
        role="status",
        aria_live="polite",
    )


def _load_sentence(plan: Plan) -> str:
    """Whether the stated load is held, where one is stated."""
    if plan.holds_load is None:
        return ""
    word = "It holds" if plan.holds_load else "It does not hold"
    load = f"{counted(plan.asked.requests, 'request')} of {plan.resolved.tokens:,} tokens"
    return f" {word} the stated load, {load} at once."


def _three_figures(plan: Plan) -> list[tuple[str, str]]:
    chips = (f"{plan.asked.n_chips:,}", "chip" if plan.asked.n_chips == 1 else "chips")
    if plan.tightest is None:
        return [chips]
    if plan.estimated_max_model_len != plan.resolved.max_model_len:
        second = (f"{plan.estimated_max_model_len:,}", "longest that fits")
    else:
        second = (f"{plan.kv_cache_tokens:,}", "cache tokens")
    return [(f"{plan.max_concurrency:.2f}×", "full-length requests"), second, chips]


# The memory bar


def bar_html(plan: Plan) -> str:
    """The memory of the tightest rank to scale, in the ledger's order, and of the other distinct ranks below it."""
    rank = plan.tightest
    whose = f"{'The tightest' if len(plan.ranks) > 1 else 'One'} {termed('rank')}’s memory, GiB"
    if rank is None:
        flag = el("div", _label(f"device {gib(plan.device_bytes, 1)}", 100.0), css="cp-flags")
        why = "Nothing is placed: the engine refuses this before memory matters."
        if plan.lines:
            known = (f"{LINE_WORDS[line.name]} {gib(line.bytes, 1)}" for line in plan.lines if line.bytes)
            why = f"The weights are unknown, so nothing is placed. Known: {', '.join(known)}."
        empty = el("div", escape(why), css="cp-empty")
        return card(whose, el("div", flag, empty, css="cp-rank"))
    shown = plan.ranks[:MOST_BARS]
    scale = max(_extent(plan, each) for each in shown)
    bars = [_rank_bar(plan, rank, scale), _legend(plan, rank), *(_small_bar(plan, each, scale) for each in shown[1:])]
    more = [f"{rank_words(plan, each)}: {_fixed_and_cache(each)}" for each in plan.ranks[MOST_BARS:]]
    if more:
        bars.append(el("p", f"And {escape('; '.join(more))}.", css="cp-footnotes"))
    return card(whose + sub(escape(rank_words(plan, rank))), *bars)


def _segments(plan: Plan, rank: RankPlan) -> list[tuple[str, int, int]]:
    """The parts of the bar as term, start and size; the cache is there even where it is empty."""
    sizes: dict[str, int] = {}
    for line in rank.lines:
        term = TERM_OF_LINE[line.name]
        sizes[term] = sizes.get(term, 0) + int(line.bytes)
    sizes["cache"] = int(rank.kv_budget_bytes)
    found, at = [], 0
    for key in (term.key for term in TERMS):
        size = plan.device_bytes - max(at, int(rank.claimed_bytes)) if key == "outside" else sizes.get(key, 0)
        if size > 0 or key == "cache":
            found.append((key, at, size))
            at += size
    return found


def _overs(plan: Plan, rank: RankPlan) -> list[tuple[int, int, str]]:
    """What does not fit, as start, size and words."""
    found = []
    claimed = int(rank.claimed_bytes)
    if rank.short_bytes:
        found.append((claimed, int(rank.short_bytes), f"{gib(rank.short_bytes, 1)} over, before any request"))
    elif rank.lacking_bytes:
        found.append((claimed, int(rank.lacking_bytes), f"{gib(rank.lacking_bytes, 1)} over, for one request"))
    if not rank.context_fits:
        over = int(rank.over_device_bytes)
        found.append((plan.device_bytes, over, f"{gib(over, 1)} over the device"))
    return found


def _extent(plan: Plan, rank: RankPlan) -> int:
    """Where the bar of a rank ends at the latest, so that nothing is cut off."""
    ends = [start + size for start, size, _ in _overs(plan, rank)]
    return max(plan.device_bytes, int(rank.claimed_bytes), int(rank.fixed_high_bytes), *ends)


def _place(start: int, size: int, scale: int) -> str:
    return f"--cp-from:{100 * start / scale:.3f}%;--cp-size:{100 * size / scale:.3f}%"


def _label(text: str, percent: float, *, css: str = "", right: bool = False) -> str:
    """A label at a place of the bar, on the side with room for it; the style sheet keeps it inside."""
    side = "" if right or percent <= 50 else "cp-left"
    at = f"--cp-at:{percent:.3f}%;--cp-wide:{len(text)}ch"
    return el("span", escape(text), css=" ".join(filter(None, ("cp-label", side, css))), style=at)


def _track(plan: Plan, rank: RankPlan, scale: int, *, labels: bool) -> str:
    parts, overs = [], _overs(plan, rank)
    for key, start, size in _segments(plan, rank):
        if not size:
            continue
        name = "outside" if key == "outside" else TERM[key].name
        width = next(css for letters, css in LABEL_WIDTHS if len(name) <= letters)
        shown = labels and not (key == "outside" and overs)
        tip = f"{TERM[key].name}: {size:,} bytes, {gib(size)} GiB; {TERM[key].means}"
        label = el("span", escape(name), el("b", gib(size, 1)), css=width) if shown else ""
        parts.append(
            el("div", label, css=f"cp-seg cp-t-{key}", data_term=key, title=tip, style=_place(start, size, scale))
        )
    before = int(rank.pre_snapshot.bytes)
    if before:
        tip = f"held before the budget: {before:,} bytes, {gib(before)} GiB; with the claim it must fit the device"
        held = _place(int(rank.claimed_bytes), before, scale)
        css = "cp-held" if rank.context_fits else "cp-held cp-whole"
        parts.append(el("i", css=css, title=tip, style=held))
    for start, size, words in overs:
        tip = f"{words}: {size:,} bytes" + ("" if rank.context_fits else ", with what is held before the budget")
        parts.append(el("i", css="cp-over", title=tip, style=_place(start, size, scale)))
    end = " cp-end" if plan.device_bytes == scale else ""
    parts.append(el("i", css=f"cp-mark cp-device{end}", style=_place(plan.device_bytes, 0, scale)))
    if rank.requested_bytes is not None:
        parts.append(el("i", css="cp-mark cp-budget", style=_place(int(rank.requested_bytes), 0, scale)))
    return "".join(parts)


def _spoken(plan: Plan, rank: RankPlan) -> str:
    """The bar in words, for those who do not see it."""
    parts = [f"{TERM[key].name} {gib(size, 1)}" for key, _, size in _segments(plan, rank)]
    if rank.pre_snapshot.bytes:
        parts.append(f"beyond the claim {gib(rank.pre_snapshot.bytes, 1)} are held before the budget")
    parts += [words for _, _, words in _overs(plan, rank)]
    budget = "" if rank.requested_bytes is None else f"budget {gib(rank.requested_bytes, 1)}, "
    return f"Memory of one rank in GiB, {budget}device {gib(plan.device_bytes, 1)}: {'; '.join(parts)}"


def _rank_bar(plan: Plan, rank: RankPlan, scale: int) -> str:
    device, at = gib(plan.device_bytes, 1), 100 * plan.device_bytes / scale
    flags = [_label(f"device {device}", at, right=at < 85)]
    if rank.requested_bytes is not None:
        words = f"budget {gib(rank.requested_bytes, 1)} = {plan.resolved.gpu_memory_utilization:g} × {device}"
        flags.append(_label(words, 100 * int(rank.requested_bytes) / scale))
    feet, whisker = [], ""
    low, high = int(rank.fixed_low_bytes), int(rank.fixed_high_bytes)
    if low != high:
        words = f"fixed {gib(rank.fixed_bytes, 1)}, {gib(low, 1)} to {gib(high, 1)} by the estimates"
        whisker = el("i", css="cp-whisker", title=words, style=_place(low, high - low, scale))
        feet.append(_label(words, 100 * (high if 2 * high > scale else low) / scale, css="cp-band"))
    for start, size, words in _overs(plan, rank):
        feet.append(_label(words, 100 * (start + size if 2 * start > scale else start) / scale, css="cp-red"))
    return el(
        "div",
        *(el("div", flag, css="cp-flags") for flag in flags),
        el(
            "div",
            _track(plan, rank, scale, labels=True),
            whisker,
            css="cp-track",
            role="img",
            aria_label=_spoken(plan, rank),
        ),
        *(el("div", foot, css="cp-feet") for foot in feet),
        css="cp-rank" if len(flags) > 1 else "cp-rank cp-one-flag",
    )


def _small_bar(plan: Plan, rank: RankPlan, scale: int) -> str:
    overs = "".join(f"; {words}" for _, _, words in _overs(plan, rank))
    words = capital(f"{rank_words(plan, rank)}: {_fixed_and_cache(rank)}{overs}")
    track = _track(plan, rank, scale, labels=False)
    return el(
        "div",
        el("p", escape(words), css="cp-words"),
        el("div", track, css="cp-track", role="img", aria_label=_spoken(plan, rank)),
        css="cp-rank cp-small",
    )


def _fixed_and_cache(rank: RankPlan) -> str:
    return f"fixed {gib(rank.fixed_bytes, 1)}, cache {gib(rank.kv_budget_bytes, 1)}"


def _legend(plan: Plan, rank: RankPlan) -> str:
    items = [
        el("li", _swatch(key), f"{escape(TERM[key].name)} ", el("b", gib(size, 1)), title=TERM[key].means)
        for key, _, size in _segments(plan, rank)
    ]
    if rank.pre_snapshot.bytes:
        tip = "held before the engine looks at free memory; it and the claim must fit the device together"
        figure = el("b", gib(rank.pre_snapshot.bytes, 1))
        items.append(el("li", el("span", css="cp-swatch cp-held"), "held before the budget ", figure, title=tip))
    return el("ul", *items, css="cp-legend")


def _swatch(term: str) -> str:
    return el("span", css=f"cp-swatch cp-t-{term}" if term else "cp-swatch cp-blank")


# The ledger


def ledger_html(plan: Plan) -> str:
    """Every line of the tightest rank: bytes, how they are known, and unfolded its parts, its law and its data."""
    if plan.tightest is None:
        return _known_lines(plan) if plan.lines else nothing(plan, "Where the bytes go")
    words = rank_words(plan, plan.tightest) or "one rank"
    return card(f"Where the bytes go{sub(escape(words))}", _ledger(plan, plan.tightest, unfold=True), css="cp-long")


def _known_lines(plan: Plan) -> str:
    """The lines that are known where the weights are not."""
    lines = (*plan.lines, *plan.beside)
    rows = [_line_rows(plan, line, unfold=True) for line in lines if line.bytes or line.high]
    why = "The weights are unknown, and with them what is left for the cache; these lines do not rest on them."
    return card(
        "Where the bytes go" + sub("what is known"), el("p", escape(why), css="cp-quiet"), _rows(rows, unfold=True)
    )


def _ledger(plan: Plan, rank: RankPlan, *, unfold: bool) -> str:
    rows = [
        _line_rows(plan, line, unfold=unfold)
        for line in rank.lines
        if line.bytes or line.high or not plan.rows[line.name].hides
    ]
    band = f"{gib(rank.fixed_low_bytes)} to {gib(rank.fixed_high_bytes)} with every band at its end"
    certain = rank.fixed_low_bytes == rank.fixed_high_bytes
    rows.append(_sum_row("fixed", rank.fixed_bytes, "" if certain else band, unfold=unfold, css="cp-sum"))
    if rank.requested_bytes is not None:
        share, who = plan.resolved.gpu_memory_utilization, plan.rules.sizes_device
        words = f"{share:g} of the {gib(plan.device_bytes)} that {who}"
        rows.append(_sum_row("requested", rank.requested_bytes, words, unfold=unfold))
    rows.append(_sum_row("cache", rank.kv_budget_bytes, _cache_words(plan, rank), unfold=unfold, css="cp-strong"))
    rows.append(_line_rows(plan, rank.pre_snapshot, unfold=unfold))
    return _rows(rows, unfold=unfold)


def _rows(rows: Iterable[str], *, unfold: bool) -> str:
    head = el(
        "tr",
        el("th", "line", scope="col", css="cp-name"),
        el("th", "GiB", scope="col", css="cp-n cp-gib"),
        el("th", "bytes", scope="col", css="cp-n cp-bytes") if unfold else "",
        el("th", "how known", scope="col", css="cp-known"),
    )
    table = el("table", el("thead", head), el("tbody", *rows), css="cp-table")
    return el("div", table, css="cp-ledger")


def _cache_words(plan: Plan, rank: RankPlan) -> str:
    low, high = gib(rank.kv_budget_low_bytes), gib(rank.kv_budget_high_bytes)
    words = (
        f"{rank.kv_blocks:,} blocks of {sized(rank.kv_block_bytes)} · {plan.kv_request_blocks:,} a full-length request"
    )
    if rank.requested_bytes is None:
        return f"{words} · as given"
    return words if low == high else f"{words} · {low} to {high}"


def _row(key: str, name: str, size: Any, known: str, *, unfold: bool, css: str = "") -> str:
    whole = f"{int(size):,}"
    return el(
        "tr",
        el("th", name, scope="row", css="cp-name"),
        el("td", gib(size), css="cp-n cp-gib", title=f"{whole} bytes"),
        el("td", whole, css="cp-n cp-bytes") if unfold else "",
        el("td", known, css="cp-known"),
        data_line=key,
        css=css,
    )


def _sum_row(name: str, size: Any, known: str, *, unfold: bool, css: str = "") -> str:
    shown = el("span", _swatch(name if name in TERM else ""), name)
    return _row(name, shown, size, escape(known), unfold=unfold, css=css)


def _line_rows(plan: Plan, line: Line, *, unfold: bool) -> str:
    """The row of a line, and where it unfolds the hidden row behind it."""
    shown = _swatch(TERM_OF_LINE.get(line.name, "outside")) + escape(LINE_WORDS.get(line.name, line.name))
    band = "" if line.low == line.high else f"{gib(line.low)} to {gib(line.high)}; "
    beside = "; outside the budget, must fit beside it" if line.name == "pre_snapshot" else ""
    known = pill(line.kind) + escape(f"{band}{line.note}{beside}")
    if not unfold:
        return _row(line.name, el("span", shown), line.bytes, known, unfold=False)
    name = el("details", el("summary", shown))
    detail = el("tr", el("td", _line_detail(plan, line), colspan=4), css="cp-more")
    return _row(line.name, name, line.bytes, known, unfold=True) + detail


def _line_detail(plan: Plan, line: Line) -> str:
    parts = [
        el(
            "tr",
            el("th", escape(name), scope="row"),
            el("td", gib(size), css="cp-n"),
            el("td", f"{int(size):,}", css="cp-n"),
        )
        for name, size in line.parts
    ]
    heading = "the larger of" if line.name == "activations" else "made of"
    table = el("table", el("tbody", *parts), css="cp-table")
    read = "".join(_datum(datum) for datum in line.data)
    return el(
        "div",
        el("div", el("h3", f"{heading}, GiB and bytes"), table, css="cp-parts") if parts else "",
        el("div", el("h3", "law"), el("p", escape(_law_words(line.law))), css="cp-law"),
        el("div", el("h3", "read from the registry"), read, css="cp-read") if read else "",
        _tensors(plan) if line.name == "weights" else "",
        css="cp-detail-box",
    )


def _law_words(law: str) -> str:
    """A law's name as words.

    >>> _law_words("peak_bytes")
    'peak'
    """
    return re.sub(r"(\w)_bytes\b", r"\1", law).replace("_", " ")


def _datum(datum: Datum) -> str:
    source = sources().get(datum.source or "")
    origin = "; ".join(part for part in (source.title if source else datum.source, datum.where) if part)
    value = _value(datum, datum.value)
    if (datum.low, datum.high) != (datum.value, datum.value):
        value += f", {_value(datum, datum.low)} to {_value(datum, datum.high)}"
    named = f"{escape(datum.key.rsplit('.', 1)[-1])} = {escape(value)}"
    return el(
        "div",
        el("p", named, pill(datum.method), title=f"{datum.value}, low {datum.low}, high {datum.high}"),
        el("p", escape(origin)) if origin else "",
        el("p", escape(capital(datum.why)), css="cp-quiet") if datum.why else "",
        el("p", el("code", escape(f"registry/{datum.file}")), css="cp-quiet"),
        css="cp-datum",
    )


def sources_html(plan: Plan | NeuronPlan) -> str:
    """Every registry number in scope, by how it was obtained, folded under their count."""
    counts = dict(plan.evidence)
    total = counts.pop("numbers")
    how = ", ".join(f"{n} {word}" for word, n in counts.items())
    titles, rows = sources(), []
    for d in sorted(plan.sources, key=lambda d: (d.method, d.file)):
        known = titles.get(d.source or "")
        origin = "; ".join(part for part in (known.title if known else d.source, d.where) if part)
        rows.append(
            f"<li>{pill(d.method)}<div><code>{escape(d.key)}</code> = {escape(_value(d, d.value))}"
            f'<span class="cp-quiet" title="{escape(d.why or "")}"> · {escape(origin)}</span></div></li>'
        )
    said = el(
        "summary", f"{counted(total, 'number')} from the registry", el("span", f" · {escape(how)}", css="cp-quiet")
    )
    return el("details", said, el("ul", *rows, css="cp-rows"), css="cp-sources")


def _value(datum: Datum, value: Any) -> str:
    """A number of the registry, in the unit that its key names."""
    if isinstance(value, bool) or not isinstance(value, int):
        return str(value)
    return sized(value) if datum.key.endswith("_bytes") else f"{value:,}"


def _tensors(plan: Plan) -> str:
    """Every distinct rank's classes of tensors, each rank behind a summary of its own."""
    return "".join(_rank_tensors(plan, rank, w) for rank, w in zip(plan.ranks, plan.weights_by_rank, strict=True))


def _rank_tensors(plan: Plan, rank: RankPlan, weights: RankWeights) -> str:
    w = rank_rows(plan, weights, times=" × ")
    heads = zip(HEADS, ("", "cp-n", "", "cp-n", "", "cp-n"), strict=True)
    rows = []
    for line, size, held in w.lines:
        total = f'<td class="cp-n">{size:,}</td>'
        rows.append(f'<tr class="cp-class"><th scope="rowgroup" colspan="5">{escape(line)}</th>{total}</tr>')
        rows += [
            f'<tr><th scope="row"><code>{escape(r.name)}</code></th><td class="cp-n">{r.number}</td><td>{r.shape}</td>'
            f'<td class="cp-n">{r.bits}</td><td>{r.split}</td><td class="cp-n">{r.bytes:,}</td></tr>'
            for r in held
        ]
    which = f"{rank_words(plan, rank)}: " if len(plan.ranks) > 1 else ""
    said = f"{escape(capital(which))}{counted(w.n_classes, 'class', 'classes')} of tensors, {weights.bytes:,} bytes"
    body = el("div", table(heads, rows), css="cp-scroll")
    return el("details", el("summary", said), body, css="cp-full cp-deep")


# What the engine will do, and what would change the answer


def findings_html(plan: Plan | NeuronPlan) -> str:
    """What the engine refuses, assumes and overrides, each a sentence with its source; what moved no memory."""
    kinds = (("refuses", plan.refused), ("assumes", plan.assumed), ("overrides", plan.overridden))
    rows = []
    for word, found in kinds:
        rows += [el("li", pill(word), _finding(word, finding)) for finding in found]
        if not found:
            rows.append(el("li", pill(word, "cp-none"), el("div", "nothing", css="cp-quiet")))
    quiet = (
        ("Flags that move no memory", plan.ignored_flags),
        ("Keys of config.json that no law reads", plan.model.ignored if plan.model is not None else ()),
    )
    notes = [
        el("p", f"{title}: ", ", ".join(el("code", escape(word)) for word in words), ".")
        for title, words in quiet
        if words
    ]
    return card(
        "What the engine will do" + sub(", ".join(f"{word} {len(found)}" for word, found in kinds)),
        el("ul", *rows, css="cp-rows cp-columns"),
        el("div", *notes, css="cp-footnotes") if notes else "",
        sources_html(plan),
        css="cp-long",
    )


def _finding(word: str, finding: Finding) -> str:
    if word == "refuses":
        said = finding.why
    elif word == "overrides" and finding.asked is not None:
        said = f"{_shown(finding.asked)} becomes {finding.happens}: {finding.why}"
    else:
        said = f"{finding.happens}, {finding.why}"
    key, _, place = finding.source.partition(", ")
    source = f"{sources()[key].title}; {place}" if key in sources() else finding.source
    sentence = el("span", el("code", escape(finding.field)), f" {escape(said)}")
    return el("details", el("summary", sentence), el("p", escape(source), css="cp-source"), title=source)


def _shown(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def remedies_html(plan: Plan) -> str:
    """Changes that would make the plan start, as flags, each with what it brings."""
    title = "What would change the answer"
    if plan.tightest is None:
        why = plan.refused[0].why if plan.refused else ""
        return card(title, el("p", escape(capital(why, keep=plan.model.short_name)), ".", css="cp-quiet"))
    rows = [
        el(
            "li",
            el(
                "div",
                el("code", escape(_flags(change.settings))),
                " ",
                el("span", escape(_gain(change.settings, change.cost)), css="cp-quiet"),
            ),
        )
        for change in remedies(plan)
    ]
    if rows:
        return card(title, el("ul", *rows, css="cp-rows"))
    starts = plan.verdict == "fits"
    none = "Nothing has to: it starts as asked." if starts else "No shorter length and no more ranks alone."
    return card(title, el("p", none, css="cp-quiet"))


def _flags(change: Mapping[str, Any]) -> str:
    return " ".join(f"--{name.replace('_', '-')} {value}" for name, value in change.items())


def _gain(change: Mapping[str, Any], words: str) -> str:
    """What a change brings, without the setting's name, which stands before it as a flag.

    >>> _gain({"max_model_len": 4464}, "max_model_len 4,464 starts as it is")
    'starts as it is'
    """
    named = "|".join(re.escape(name) for name in change)
    return re.sub(rf"^(?:{named}) \S+ ", "", words)


# Five figures and the command


def answer_html(plan: Plan) -> str:
    """Five figures that, with the verdict's, are the answer on one page."""
    title = "The answer in figures"
    rank, length, tokens = plan.tightest, plan.resolved.max_model_len, plan.resolved.tokens
    if rank is None or length is None or tokens is None or plan.outside_bytes is None:
        return nothing(plan, title)
    low, high = gib(rank.kv_budget_low_bytes), gib(rank.kv_budget_high_bytes)
    band = "as given" if rank.requested_bytes is None else f"{low} to {high} by the estimates"
    beside = "left beside the engine’s claim" if plan.outside_bytes >= 0 else "more than the device has"
    before = f"{gib(rank.pre_snapshot.bytes)} is needed for what is held before it"
    items = (
        (f"{gib(plan.model_load_bytes)} GiB", "weights on each rank", "as “Model loading took” prints"),
        (f"{gib(rank.kv_budget_bytes)} GiB", "cache on each rank", band),
        (f"{plan.requests_that_fit(tokens):,}", f"requests of {tokens:,} tokens", "at once, in steady decode"),
        (f"{plan.estimated_max_model_len:,}", "tokens, the longest that starts", f"of {length:,} asked for"),
        (f"{gib(abs(plan.outside_bytes))} GiB", beside, before),
    )
    cells = [
        el("div", el("dt", escape(words)), el("dd", figure), el("dd", escape(more), css="cp-quiet"))
        for figure, words, more in items
    ]
    return card(title, el("dl", *cells, css="cp-five"))


def command_html(plan: Plan) -> str:
    """The engine's command line, and the plan to take away as JSON and CSV."""
    stem = re.sub(r"[^\w.-]+", "-", plan.model.short_name)
    whole = json.dumps(plan.to_dict(), indent=2)
    return card(
        "Take it with you",
        el("code", escape(command(plan.model.name, plan.asked)), css="cp-command"),
        el(
            "div",
            _download("JSON", f"capplan-{stem}.json", "application/json", whole, "the whole plan"),
            _download("CSV", f"capplan-{stem}.csv", "text/csv", ledger_csv(plan), "the ledger"),
            el("span", f"{escape(plan.engine.title)} on {signs(plan.chips)}", css="cp-quiet"),
            css="cp-links",
        ),
    )


def _download(word: str, name: str, mime: str, text: str, what: str) -> str:
    data = base64.b64encode(text.encode()).decode()
    link = f"data:{mime};charset=utf-8;base64,{data}"
    return el("a", word, download=name, href=link, title=what, aria_label=f"{word}, {what}")


# Whole documents


def chart_card(chart: str, *, title: str, note: str = "", description: str = "") -> str:
    """A card around the HTML of a figure, with what it shows in words for those who do not see it."""
    body = el("div", chart, role="img", aria_label=description)
    return card(escape(title) + sub(escape(note)), body, css="cp-chart")


def title_html(plan: Plan, title: str) -> str:
    """The heading of a document, and under it what the answer rests on."""
    under = (
        f"What {plan.model.short_name} occupies on {plan.chips} with {plan.engine.title}, by the rules of that release"
    )
    return el("header", el("h1", signs(title), css="cp-title"), el("p", signs(under), css="cp-under"), css="cp cp-bare")


def stack_html(*views: str) -> str:
    """Views below each other."""
    return el("div", *views, css="cp cp-bare cp-stack")


def pair_html(*views: str) -> str:
    """Views beside each other where there is room."""
    return el("div", *views, css="cp cp-bare cp-two")


def report_page(body: str, *, foot: str) -> str:
    """The body of a report, with a line at its foot."""
    return el("main", body, el("p", escape(foot), css="cp-under"), css="cp cp-page cp-report")


def plan_html(plan: Plan) -> str:
    """A plan as a notebook shows it: verdict, bar, and a ledger that does not unfold."""
    if plan.rules.plans == "neuron":
        from capplan.views import neuron_html

        shown: Any = plan
        return style() + el(
            "div", neuron_html.verdict_html(shown), neuron_html.stack_html(shown), css="cp cp-page cp-inline"
        )
    short = ""
    if plan.tightest is not None:
        short = card("Where the bytes go", _ledger(plan, plan.tightest, unfold=False))
    return style() + el("div", verdict_html(plan), bar_html(plan), short, css="cp cp-page cp-inline")


def page_html(plan: Plan, *, title: str) -> str:
    """All views of a plan as one document."""
    views = (verdict_html, bar_html, answer_html, remedies_html, ledger_html, groups_html, findings_html, command_html)
    heading = el("h1", escape(title), css="cp-title")
    return document(el("main", heading, *(view(plan) for view in views), css="cp cp-page"), title=title)


def document(body: str, *, title: str) -> str:
    """A self-contained HTML file around a body that brings nothing from outside."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="color-scheme" content="light dark"><title>{escape(title)}</title>'
        f'<link rel="icon" href="data:,">{style()}<style>{PAGE_STYLE}</style></head>\n<body>{body}</body></html>\n'
    )
