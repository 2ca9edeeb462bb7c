"""A plan as HTML: verdict, memory bar, ledger, findings, groups, command; for the page, the report and a notebook."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from capplan.deployment import command
from capplan.engines import Finding, vllm
from capplan.ledger import Line, RankPlan
from capplan.plan import Plan, remedies
from capplan.registry import Datum, sources
from capplan.units import GIB, KIB, MIB
from capplan.views.tables import ledger_csv
from capplan.views.terms import GLOSSARY, LINE_WORDS, NEURON_TERMS, SIGNS, TERM, TERM_OF_LINE, TERMS

if TYPE_CHECKING:
    from capplan.neuron import NeuronPlan

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

SPECS = {
    "FullAttentionSpec": "full attention",
    "SlidingWindowSpec": "sliding window",
    "MLAAttentionSpec": "latent attention",
}
"""The engine's classes of caches in words."""

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


# Elements and words


def _el(tag: str, *inner: str, css: str = "", **attributes: Any) -> str:
    """One element around HTML; attributes are escaped, and left out where they are empty."""
    named = {"class": css, **{name.replace("_", "-"): value for name, value in attributes.items()}}
    said = "".join(f' {name}="{escape(str(value))}"' for name, value in named.items() if value != "")
    return f"<{tag}{said}>{''.join(inner)}</{tag}>"


def _card(title: str, *body: str, css: str = "") -> str:
    return _el("section", _el("h2", title), *body, css=f"cp cp-card {css}".rstrip())


def _sub(text: str) -> str:
    return " " + _el("span", f"· {text}", css="cp-sub") if text else ""


def _nothing(plan: Plan, title: str) -> str:
    why = plan.refused[0].why if plan.refused else "the plan has no ranks"
    return _card(title, _el("p", f"Nothing to show: {escape(why)}.", css="cp-quiet"))


def _term(word: str, shown: str = "") -> str:
    return _el("abbr", escape(shown or word), title=GLOSSARY[word])


def _pill(word: str, css: str = "") -> str:
    return _el("span", escape(word), css=f"cp-pill {css or f'cp-k-{word}'}")


def _gib(n: Any, places: int = 2) -> str:
    return f"{int(n) / GIB:,.{places}f}"


def _size(n: Any) -> str:
    """Bytes in the largest unit that keeps them short.

    >>> _size(1 << 20), _size(1_124_352), _size(18 << 10), _size(80)
    ('1 MiB', '1.07 MiB', '18 KiB', '80 bytes')
    """
    for unit, word in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if n >= unit:
            return f"{n // unit:,} {word}" if n % unit == 0 else f"{n / unit:,.2f} {word}"
    return f"{n:,} bytes"


def _count(n: Any, one: str, many: str = "") -> str:
    return f"{n:,} {one if n == 1 else many or one + 's'}"


def _capital(text: str, *, keep: str = "") -> str:
    """A text that begins a sentence; a name that it may begin with keeps its own letters."""
    return text if keep and text.startswith(keep) else text[:1].upper() + text[1:]


def _signs(text: str) -> str:
    """Escaped text in which a count of chips reads `4 × H100`."""
    return re.sub(r"(?<=\d) x (?=\S)", " × ", escape(text))


def _rank_words(plan: Plan, rank: RankPlan) -> str:
    stages, place = plan.asked.pipeline_parallel_size, f"{rank.stage + 1} of {plan.asked.pipeline_parallel_size}"
    several = rank.count * stages > plan.asked.n_chips
    words = [f"stages like {place}" if several else f"stage {place}"] if stages > 1 else []
    if rank.count > 1:
        words.append(f"{rank.count} ranks alike")
    elif len(plan.ranks) > 1:
        words.append("one rank")
    return ", ".join(words)


# The verdict


def verdict_html(plan: Plan, *, note: str = "") -> str:
    """The verdict bar: word and sign, what was asked, the sentence, and three figures.

    note  why this is the last good answer and not the one to what now stands in the controls
    """
    sign = SIGNS[plan.verdict]
    headline, length = _signs(plan.question), plan.resolved.max_model_len
    for part in (plan.model.short_name, plan.chips, "" if length is None else f"{length:,}"):
        if part:
            headline = headline.replace(_signs(part), f"<b>{_signs(part)}</b>", 1)
    rest = plan.sentence.removeprefix(plan.question).partition(": ")[2]
    detail = _signs(_capital(rest, keep=plan.model.short_name)) + _load_sentence(plan)
    figures = [
        _el("div", _el("dt", escape(words)), _el("dd", escape(figure))) for figure, words in _three_figures(plan)
    ]
    return _el(
        "section",
        _el("div", _el("span", escape(sign.mark), aria_hidden="true"), f" {escape(sign.word)}", css="cp-badge"),
        _el(
            "div",
            _el("p", headline, css="cp-headline"),
            _el("p", detail, css="cp-detail"),
            _el("p", f"<b>Not current:</b> {escape(note)}", css="cp-note") if note else "",
            css="cp-said",
        ),
        _el("dl", *figures, css="cp-figures"),
        css=f"cp cp-verdict cp-v-{plan.verdict}{' cp-stale' if note else ''}",
        role="status",
        aria_live="polite",
    )


def _load_sentence(plan: Plan) -> str:
    """Whether the stated load is held, where one is stated."""
    if plan.holds_load is None:
        return ""
    word = "It holds" if plan.holds_load else "It does not hold"
    load = f"{_count(plan.asked.requests, 'request')} of {plan.resolved.tokens:,} tokens"
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
    whose = f"{'The tightest' if len(plan.ranks) > 1 else 'One'} {_term('rank')}’s memory, GiB"
    if rank is None:
        flag = _el("div", _label(f"device {_gib(plan.device_bytes, 1)}", 100.0), css="cp-flags")
        empty = _el("div", "Nothing is placed: the engine refuses this before memory matters.", css="cp-empty")
        return _card(whose, _el("div", flag, empty, css="cp-rank"))
    shown = plan.ranks[:MOST_BARS]
    scale = max(_extent(plan, each) for each in shown)
    bars = [_rank_bar(plan, rank, scale), _legend(plan, rank), *(_small_bar(plan, each, scale) for each in shown[1:])]
    more = [f"{_rank_words(plan, each)}: {_fixed_and_cache(each)}" for each in plan.ranks[MOST_BARS:]]
    if more:
        bars.append(_el("p", f"And {escape('; '.join(more))}.", css="cp-footnotes"))
    return _card(whose + _sub(escape(_rank_words(plan, rank))), *bars)


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
        found.append((claimed, int(rank.short_bytes), f"{_gib(rank.short_bytes, 1)} over, before any request"))
    elif rank.lacking_bytes:
        found.append((claimed, int(rank.lacking_bytes), f"{_gib(rank.lacking_bytes, 1)} over, for one request"))
    if not rank.context_fits:
        over = int(rank.over_device_bytes)
        found.append((plan.device_bytes, over, f"{_gib(over, 1)} over the device"))
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
    return _el("span", escape(text), css=" ".join(filter(None, ("cp-label", side, css))), style=at)


def _track(plan: Plan, rank: RankPlan, scale: int, *, labels: bool) -> str:
    parts, overs = [], _overs(plan, rank)
    for key, start, size in _segments(plan, rank):
        if not size:
            continue
        name = "outside" if key == "outside" else TERM[key].name
        width = next(css for letters, css in LABEL_WIDTHS if len(name) <= letters)
        shown = labels and not (key == "outside" and overs)
        tip = f"{TERM[key].name}: {size:,} bytes, {_gib(size)} GiB; {TERM[key].means}"
        label = _el("span", escape(name), _el("b", _gib(size, 1)), css=width) if shown else ""
        parts.append(
            _el("div", label, css=f"cp-seg cp-t-{key}", data_term=key, title=tip, style=_place(start, size, scale))
        )
    if not rank.context_fits:
        held = _place(int(rank.claimed_bytes), int(rank.pre_snapshot.bytes), scale)
        parts.append(_el("i", css="cp-held", style=held))
    for start, size, words in overs:
        tip = f"{words}: {size:,} bytes" + ("" if rank.context_fits else ", with what is held before the budget")
        parts.append(_el("i", css="cp-over", title=tip, style=_place(start, size, scale)))
    end = " cp-end" if plan.device_bytes == scale else ""
    parts.append(_el("i", css=f"cp-mark cp-device{end}", style=_place(plan.device_bytes, 0, scale)))
    if rank.requested_bytes is not None:
        parts.append(_el("i", css="cp-mark cp-budget", style=_place(int(rank.requested_bytes), 0, scale)))
    return "".join(parts)


def _spoken(plan: Plan, rank: RankPlan) -> str:
    """The bar in words, for those who do not see it."""
    parts = [f"{TERM[key].name} {_gib(size, 1)}" for key, _, size in _segments(plan, rank)]
    parts += [words for _, _, words in _overs(plan, rank)]
    budget = "" if rank.requested_bytes is None else f"budget {_gib(rank.requested_bytes, 1)}, "
    return f"Memory of one rank in GiB, {budget}device {_gib(plan.device_bytes, 1)}: {'; '.join(parts)}"


def _rank_bar(plan: Plan, rank: RankPlan, scale: int) -> str:
    device, at = _gib(plan.device_bytes, 1), 100 * plan.device_bytes / scale
    flags = [_label(f"device {device}", at, right=at < 85)]
    if rank.requested_bytes is not None:
        words = f"budget {_gib(rank.requested_bytes, 1)} = {plan.resolved.gpu_memory_utilization:g} × {device}"
        flags.append(_label(words, 100 * int(rank.requested_bytes) / scale))
    feet, whisker = [], ""
    low, high = int(rank.fixed_low_bytes), int(rank.fixed_high_bytes)
    if low != high:
        words = f"fixed {_gib(rank.fixed_bytes, 1)}, {_gib(low, 1)} to {_gib(high, 1)} by the estimates"
        whisker = _el("i", css="cp-whisker", title=words, style=_place(low, high - low, scale))
        feet.append(_label(words, 100 * (high if 2 * high > scale else low) / scale, css="cp-band"))
    for start, size, words in _overs(plan, rank):
        feet.append(_label(words, 100 * (start + size if 2 * start > scale else start) / scale, css="cp-red"))
    return _el(
        "div",
        *(_el("div", flag, css="cp-flags") for flag in flags),
        _el(
            "div",
            _track(plan, rank, scale, labels=True),
            whisker,
            css="cp-track",
            role="img",
            aria_label=_spoken(plan, rank),
        ),
        *(_el("div", foot, css="cp-feet") for foot in feet),
        css="cp-rank" if len(flags) > 1 else "cp-rank cp-one-flag",
    )


def _small_bar(plan: Plan, rank: RankPlan, scale: int) -> str:
    overs = "".join(f"; {words}" for _, _, words in _overs(plan, rank))
    words = _capital(f"{_rank_words(plan, rank)}: {_fixed_and_cache(rank)}{overs}")
    track = _track(plan, rank, scale, labels=False)
    return _el(
        "div",
        _el("p", escape(words), css="cp-words"),
        _el("div", track, css="cp-track", role="img", aria_label=_spoken(plan, rank)),
        css="cp-rank cp-small",
    )


def _fixed_and_cache(rank: RankPlan) -> str:
    return f"fixed {_gib(rank.fixed_bytes, 1)}, cache {_gib(rank.kv_budget_bytes, 1)}"


def _legend(plan: Plan, rank: RankPlan) -> str:
    items = [
        _el("li", _swatch(key), f"{escape(TERM[key].name)} ", _el("b", _gib(size, 1)), title=TERM[key].means)
        for key, _, size in _segments(plan, rank)
    ]
    return _el("ul", *items, css="cp-legend")


def _swatch(term: str) -> str:
    return _el("span", css=f"cp-swatch cp-t-{term}" if term else "cp-swatch cp-blank")


# The ledger


def ledger_html(plan: Plan) -> str:
    """Every line of the tightest rank: bytes, how they are known, and unfolded its parts, its law and its data."""
    if plan.tightest is None:
        return _nothing(plan, "Where the bytes go")
    words = _rank_words(plan, plan.tightest) or "one rank"
    return _card(f"Where the bytes go{_sub(escape(words))}", _ledger(plan, plan.tightest, unfold=True), css="cp-long")


def _ledger(plan: Plan, rank: RankPlan, *, unfold: bool) -> str:
    rows = [
        _line_rows(rank, line, unfold=unfold)
        for line in rank.lines
        if line.bytes or line.high or line.name not in ("eplb", "communication")
    ]
    band = f"{_gib(rank.fixed_low_bytes)} to {_gib(rank.fixed_high_bytes)} with every band at its end"
    certain = rank.fixed_low_bytes == rank.fixed_high_bytes
    rows.append(_sum_row("fixed", rank.fixed_bytes, "" if certain else band, unfold=unfold, css="cp-sum"))
    if rank.requested_bytes is not None:
        words = f"{plan.resolved.gpu_memory_utilization:g} of the {_gib(plan.device_bytes)} that the driver reports"
        rows.append(_sum_row("requested", rank.requested_bytes, words, unfold=unfold))
    rows.append(_sum_row("cache", rank.kv_budget_bytes, _cache_words(plan, rank), unfold=unfold, css="cp-strong"))
    rows.append(_line_rows(rank, rank.pre_snapshot, unfold=unfold))
    head = _el(
        "tr",
        _el("th", "line", scope="col", css="cp-name"),
        _el("th", "GiB", scope="col", css="cp-n cp-gib"),
        _el("th", "bytes", scope="col", css="cp-n cp-bytes") if unfold else "",
        _el("th", "how known", scope="col", css="cp-known"),
    )
    table = _el("table", _el("thead", head), _el("tbody", *rows), css="cp-table")
    return _el("div", table, css="cp-ledger")


def _cache_words(plan: Plan, rank: RankPlan) -> str:
    low, high = _gib(rank.kv_budget_low_bytes), _gib(rank.kv_budget_high_bytes)
    words = (
        f"{rank.kv_blocks:,} blocks of {_size(rank.kv_block_bytes)} · {plan.kv_request_blocks:,} a full-length request"
    )
    if rank.requested_bytes is None:
        return f"{words} · as given"
    return words if low == high else f"{words} · {low} to {high}"


def _row(key: str, name: str, size: Any, known: str, *, unfold: bool, css: str = "") -> str:
    whole = f"{int(size):,}"
    return _el(
        "tr",
        _el("th", name, scope="row", css="cp-name"),
        _el("td", _gib(size), css="cp-n cp-gib", title=f"{whole} bytes"),
        _el("td", whole, css="cp-n cp-bytes") if unfold else "",
        _el("td", known, css="cp-known"),
        data_line=key,
        css=css,
    )


def _sum_row(name: str, size: Any, known: str, *, unfold: bool, css: str = "") -> str:
    shown = _el("span", _swatch(name if name in TERM else ""), name)
    return _row(name, shown, size, escape(known), unfold=unfold, css=css)


def _line_rows(rank: RankPlan, line: Line, *, unfold: bool) -> str:
    """The row of a line, and where it unfolds the hidden row behind it."""
    shown = _swatch(TERM_OF_LINE.get(line.name, "outside")) + escape(LINE_WORDS.get(line.name, line.name))
    band = "" if line.low == line.high else f"{_gib(line.low)} to {_gib(line.high)}; "
    beside = "; outside the budget, must fit beside it" if line.name == "pre_snapshot" else ""
    known = _pill(line.kind) + escape(f"{band}{line.note}{beside}")
    if not unfold:
        return _row(line.name, _el("span", shown), line.bytes, known, unfold=False)
    name = _el("details", _el("summary", shown))
    detail = _el("tr", _el("td", _line_detail(rank, line), colspan=4), css="cp-more")
    return _row(line.name, name, line.bytes, known, unfold=True) + detail


def _line_detail(rank: RankPlan, line: Line) -> str:
    parts = [
        _el(
            "tr",
            _el("th", escape(name), scope="row"),
            _el("td", _gib(size), css="cp-n"),
            _el("td", f"{int(size):,}", css="cp-n"),
        )
        for name, size in line.parts
    ]
    heading = "the larger of" if line.name == "activations" else "made of"
    table = _el("table", _el("tbody", *parts), css="cp-table")
    read = "".join(_datum(datum) for datum in line.data)
    return _el(
        "div",
        _el("div", _el("h3", f"{heading}, GiB and bytes"), table, css="cp-parts") if parts else "",
        _el("div", _el("h3", "law"), _el("p", escape(_law_words(line.law))), css="cp-law"),
        _el("div", _el("h3", "read from the registry"), read, css="cp-read") if read else "",
        _tensors(rank) if line.name == "weights" else "",
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
    return _el(
        "div",
        _el("p", named, _pill(datum.method), title=f"{datum.value}, low {datum.low}, high {datum.high}"),
        _el("p", escape(origin)) if origin else "",
        _el("p", escape(_capital(datum.why)), css="cp-quiet") if datum.why else "",
        _el("p", _el("code", escape(f"registry/{datum.file}")), css="cp-quiet"),
        css="cp-datum",
    )


def _value(datum: Datum, value: Any) -> str:
    """A number of the registry, in the unit that its key names."""
    if isinstance(value, bool) or not isinstance(value, int):
        return str(value)
    return _size(value) if datum.key.endswith("_bytes") else f"{value:,}"


def _tensors(rank: RankPlan) -> str:
    rows = [
        _el(
            "tr",
            _el("th", _el("code", escape(held.name)), scope="row"),
            _el("td", f"{held.count:,}", css="cp-n"),
            _el("td", " × ".join(f"{extent:,}" for extent in held.shape)),
            _el("td", f"{held.bits}", css="cp-n"),
            _el("td", f"{held.bytes:,}", css="cp-n"),
        )
        for held in rank.held
    ]
    heads = (("tensor on this rank", ""), ("how many", "cp-n"), ("shape", ""), ("bits", "cp-n"), ("bytes", "cp-n"))
    table = _table(heads, rows)
    said = _el("summary", _count(len(rank.held), "class", "classes"), " of tensors")
    return _el("details", said, _el("div", table, css="cp-scroll"), css="cp-full cp-deep")


def _table(heads: Iterable[tuple[str, str]], rows: Iterable[str], css: str = "cp-table") -> str:
    head = _el("tr", *(_el("th", text, scope="col", css=place) for text, place in heads))
    return _el("table", _el("thead", head), _el("tbody", *rows), css=css)


# What the engine will do, and what would change the answer


def findings_html(plan: Plan | NeuronPlan) -> str:
    """What the engine refuses, assumes and overrides, each a sentence with its source; what moved no memory."""
    kinds = (("refuses", plan.refused), ("assumes", plan.assumed), ("overrides", plan.overridden))
    rows = []
    for word, found in kinds:
        rows += [_el("li", _pill(word), _finding(word, finding)) for finding in found]
        if not found:
            rows.append(_el("li", _pill(word, "cp-none"), _el("div", "nothing", css="cp-quiet")))
    quiet = (
        ("Flags that move no memory", plan.ignored_flags),
        ("Keys of config.json that no law reads", plan.model.ignored if plan.model is not None else ()),
    )
    notes = [
        _el("p", f"{title}: ", ", ".join(_el("code", escape(word)) for word in words), ".")
        for title, words in quiet
        if words
    ]
    return _card(
        "What the engine will do" + _sub(", ".join(f"{word} {len(found)}" for word, found in kinds)),
        _el("ul", *rows, css="cp-rows cp-columns"),
        _el("div", *notes, css="cp-footnotes") if notes else "",
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
    sentence = _el("span", _el("code", escape(finding.field)), f" {escape(said)}")
    return _el("details", _el("summary", sentence), _el("p", escape(source), css="cp-source"), title=source)


def _shown(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def remedies_html(plan: Plan) -> str:
    """Changes that would make the plan start, as flags, each with what it brings."""
    title = "What would change the answer"
    if plan.tightest is None:
        why = plan.refused[0].why if plan.refused else ""
        return _card(title, _el("p", escape(_capital(why, keep=plan.model.short_name)), ".", css="cp-quiet"))
    rows = [
        _el(
            "li",
            _el(
                "div",
                _el("code", escape(_flags(change))),
                " ",
                _el("span", escape(_gain(change, words)), css="cp-quiet"),
            ),
        )
        for change, words in remedies(plan)
    ]
    if rows:
        return _card(title, _el("ul", *rows, css="cp-rows"))
    starts = plan.verdict == "fits"
    none = "Nothing has to: it starts as asked." if starts else "No shorter length and no more ranks alone."
    return _card(title, _el("p", none, css="cp-quiet"))


def _flags(change: Mapping[str, Any]) -> str:
    return " ".join(f"--{name.replace('_', '-')} {value}" for name, value in change.items())


def _gain(change: Mapping[str, Any], words: str) -> str:
    """What a change brings, without the setting's name, which stands before it as a flag.

    >>> _gain({"max_model_len": 4464}, "max_model_len 4,464 starts as it is")
    'starts as it is'
    """
    named = "|".join(re.escape(name) for name in change)
    return re.sub(rf"^(?:{named}) \S+ ", "", words)


# Groups of the cache


def groups_html(plan: Plan) -> str:
    """The groups of the cache, what a request holds of them, and why admission and steady decode differ."""
    title = f"How the {_term('KV cache', 'cache')} is handed out"
    if plan.tightest is None:
        return _nothing(plan, title)
    block = int(plan.tightest.kv_block_bytes)
    wasted = any(g.block_bytes < block for g in plan.kv_groups)
    heads = [
        (_term("group"), ""),
        ("layers", "cp-n"),
        ("kind", ""),
        ("tokens a block", "cp-n"),
        ("page", "cp-n"),
        (f"of a {_term('block')}", "cp-n"),
        *([("unused", "cp-n")] if wasted else []),
    ]
    rows = []
    for numbers, groups in _alike(plan.kv_groups):
        g = groups[0]
        kind = SPECS.get(g.spec, g.spec) + ("" if g.window is None else f" of {g.window:,}")
        left = plan.unused_bytes(g)
        rows.append(
            _el(
                "tr",
                _el("th", _runs(numbers), scope="row"),
                _el(
                    "td",
                    f"{len(g.layers)}{' each' if len(groups) > 1 else ''}",
                    css="cp-n",
                    title="layers " + "; ".join(_runs(each.layers) for each in groups),
                ),
                _el("td", escape(kind), title=g.spec),
                _el("td", f"{g.block_size:,}", css="cp-n"),
                _el("td", _size(g.page_bytes), css="cp-n", title=f"{g.page_bytes:,} bytes"),
                _el("td", _size(g.block_bytes), css="cp-n", title=f"{g.block_bytes:,} bytes"),
                _el("td", _size(left) if left else "–", css="cp-n", title=f"{left:,} bytes") if wasted else "",
            )
        )
    pool = f"{plan.kv_blocks:,} blocks of {_size(block)}, one of them the {_term('null block')}"
    table = _el("div", _table(heads, rows, "cp-table cp-groups"), css="cp-scroll")
    return _card(title + _sub(pool), table, _held_by_one(plan))


def _alike(groups: Sequence[vllm.Group]) -> list[tuple[list[int], list[vllm.Group]]]:
    """Groups that differ only in which layers they have, together, with their numbers."""
    found: dict[tuple[Any, ...], tuple[list[int], list[vllm.Group]]] = {}
    for i, g in enumerate(groups):
        key = (len(g.layers), g.spec, g.block_size, g.page_bytes, g.window)
        numbers, members = found.setdefault(key, ([], []))
        numbers.append(i)
        members.append(g)
    return list(found.values())


def _runs(numbers: Iterable[int]) -> str:
    """Whole numbers with runs joined.

    >>> _runs((0, 1, 2, 5, 7, 8))
    '0–2, 5, 7–8'
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(f"{first}–{last}" if first != last else str(first) for first, last in runs)


def _held_by_one(plan: Plan) -> str:
    """What one full-length request holds; the two ways of counting it where windows make them differ."""
    length = plan.resolved.max_model_len
    if length is None or plan.kv_request_blocks is None:
        return ""
    steady, fit = plan.sequence_bytes(length), plan.requests_that_fit(length)
    windows = list(dict.fromkeys(g.window for g in plan.kv_groups if g.window is not None))
    if not windows:
        blocks = _count(plan.kv_request_blocks, "block")
        items = [
            (f"{_gib(steady)} GiB", f"{steady:,} bytes", f"one request of {length:,} tokens, {blocks}"),
            (f"{plan.max_concurrency:.2f}×", "", "of them by the engine’s count"),
            (f"{fit:,}", "", "whole ones, beside the null block"),
        ]
        return _pairs(items, "")
    growing = plan.sequence_variable_bytes(length)
    admission, fixed = plan.sequence_admission_bytes(length), plan.sequence_fixed_bytes(length)
    items = [
        (f"{_gib(growing)} GiB", f"{growing:,} bytes", f"grows with the request, at {length:,} tokens"),
        (f"{_gib(admission)} GiB", f"{admission:,} bytes", "windows at admission"),
        (f"{_gib(fixed)} GiB", f"{fixed:,} bytes", "windows in steady decode"),
        (f"{plan.max_concurrency:.2f}×", "", "full-length requests by admission"),
        (f"{fit:,}", "", "of them in steady decode"),
    ]
    if admission == fixed:
        return _pairs(items, "")
    last = ", ".join(f"{window:,}" for window in windows)
    reason = (
        f"In steady decode a window holds its last {last} tokens. At admission the engine counts beside them up to "
        f"{plan.in_flight_tokens:,} tokens of steps in flight; its own figure rests on that."
    )
    return _pairs(items, reason)


def _pairs(items: Iterable[tuple[str, str, str]], reason: str) -> str:
    cells = [_el("div", _el("dd", figure, title=tip), _el("dt", escape(words))) for figure, tip, words in items]
    return _el("dl", *cells, css="cp-pair") + (_el("p", escape(reason), css="cp-reason") if reason else "")


# Five figures and the command


def answer_html(plan: Plan) -> str:
    """Five figures that, with the verdict's, are the answer on one page."""
    title = "The answer in figures"
    rank, length, tokens = plan.tightest, plan.resolved.max_model_len, plan.resolved.tokens
    if rank is None or length is None or tokens is None or plan.outside_bytes is None:
        return _nothing(plan, title)
    low, high = _gib(rank.kv_budget_low_bytes), _gib(rank.kv_budget_high_bytes)
    band = "as given" if rank.requested_bytes is None else f"{low} to {high} by the estimates"
    beside = "left beside the engine’s claim" if plan.outside_bytes >= 0 else "more than the device has"
    before = f"{_gib(rank.pre_snapshot.bytes)} is needed for what is held before it"
    items = (
        (f"{_gib(plan.model_load_bytes)} GiB", "weights on each rank", "as “Model loading took” prints"),
        (f"{_gib(rank.kv_budget_bytes)} GiB", "cache on each rank", band),
        (f"{plan.requests_that_fit(tokens):,}", f"requests of {tokens:,} tokens", "at once, in steady decode"),
        (f"{plan.estimated_max_model_len:,}", "tokens, the longest that starts", f"of {length:,} asked for"),
        (f"{_gib(abs(plan.outside_bytes))} GiB", beside, before),
    )
    cells = [
        _el("div", _el("dt", escape(words)), _el("dd", figure), _el("dd", escape(more), css="cp-quiet"))
        for figure, words, more in items
    ]
    return _card(title, _el("dl", *cells, css="cp-five"))


def command_html(plan: Plan) -> str:
    """The engine's command line, and the plan to take away as JSON and CSV."""
    stem = re.sub(r"[^\w.-]+", "-", plan.model.short_name)
    whole = json.dumps(plan.to_dict(), indent=2)
    return _card(
        "Take it with you",
        _el("code", escape(command(plan.model.name, plan.asked)), css="cp-command"),
        _el(
            "div",
            _download("JSON", f"capplan-{stem}.json", "application/json", whole, "the whole plan"),
            _download("CSV", f"capplan-{stem}.csv", "text/csv", ledger_csv(plan), "the ledger"),
            _el("span", f"{escape(plan.engine.title)} on {_signs(plan.chips)}", css="cp-quiet"),
            css="cp-links",
        ),
    )


def _download(word: str, name: str, mime: str, text: str, what: str) -> str:
    data = base64.b64encode(text.encode()).decode()
    link = f"data:{mime};charset=utf-8;base64,{data}"
    return _el("a", word, download=name, href=link, title=what, aria_label=f"{word}, {what}")


# Whole documents


def chart_card(chart: str, *, title: str, note: str = "", description: str = "") -> str:
    """A card around the HTML of a figure, with what it shows in words for those who do not see it."""
    body = _el("div", chart, role="img", aria_label=description)
    return _card(escape(title) + _sub(escape(note)), body, css="cp-chart")


def title_html(plan: Plan, title: str) -> str:
    """The heading of a document, and under it what the answer rests on."""
    under = (
        f"What {plan.model.short_name} occupies on {plan.chips} with {plan.engine.title}, by the rules of that release"
    )
    return _el(
        "header", _el("h1", _signs(title), css="cp-title"), _el("p", _signs(under), css="cp-under"), css="cp cp-bare"
    )


def stack_html(*views: str) -> str:
    """Views below each other."""
    return _el("div", *views, css="cp cp-bare cp-stack")


def pair_html(*views: str) -> str:
    """Views beside each other where there is room."""
    return _el("div", *views, css="cp cp-bare cp-two")


def report_page(body: str, *, foot: str) -> str:
    """The body of a report, with a line at its foot."""
    return _el("main", body, _el("p", escape(foot), css="cp-under"), css="cp cp-page cp-report")


def plan_html(plan: Plan) -> str:
    """A plan as a notebook shows it: verdict, bar, and a ledger that does not unfold."""
    short = ""
    if plan.tightest is not None:
        short = _card("Where the bytes go", _ledger(plan, plan.tightest, unfold=False))
    return style() + _el("div", verdict_html(plan), bar_html(plan), short, css="cp cp-page cp-inline")


def page_html(plan: Plan, *, title: str) -> str:
    """All views of a plan as one document."""
    views = (verdict_html, bar_html, answer_html, remedies_html, ledger_html, groups_html, findings_html, command_html)
    heading = _el("h1", escape(title), css="cp-title")
    return document(_el("main", heading, *(view(plan) for view in views), css="cp cp-page"), title=title)


def document(body: str, *, title: str) -> str:
    """A self-contained HTML file around a body that brings nothing from outside."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="color-scheme" content="light dark"><title>{escape(title)}</title>'
        f'<link rel="icon" href="data:,">{style()}<style>{PAGE_STYLE}</style></head>\n<body>{body}</body></html>\n'
    )
