"""A plan of vLLM on Neuron as HTML: verdict, one stack, the budget's steps, refusals, parity, log lines."""

from __future__ import annotations

from html import escape

from capplan.engines.vllm_neuron import Answer, Diagnosis, explain, floor_gib, plain
from capplan.plan.neuron import NeuronPlan
from capplan.settings.environment import CAP, HEADROOM, MINIMUM
from capplan.units import Count
from capplan.views.elements import capital, card, counted, el, gib, pill, signs, sized, sub, termed
from capplan.views.html import LABEL_WIDTHS, _place, _swatch
from capplan.views.terms import SIGNS, TERM

TERM_OF_PIECE = {
    "weights": "weights",
    "cache": "cache",
    "headroom": "headroom",
    "left by the cap": "left_by_cap",
    "outside the utilization": "outside_utilization",
    "remainder": "remainder",
}
"""The term under which each piece of a stack is drawn."""

BINDS = {"user_budget": ("user_budget_bytes",), "cap": ("heuristic_cap_bytes",), "headroom": ("headroom_bytes",)}
"""The step that decides, by the word for it; with `both` each of the default policy's."""

ROUTES = {"device": "device route", "cpu_compile": "compiled without a device", "cpu": "host route"}

BESIDE = {
    "program_code": "code of the programs",
    "dma_rings": "rings of the DMA engines",
    "collectives": "collectives",
    "profiling": "profiling",
    "runtime": "the runtime itself",
}


# The verdict


def verdict_html(p: NeuronPlan, *, note: str = "") -> str:
    """The verdict bar: word and sign, what was asked, the sentence, and three figures.

    note  why this is the last good answer and not the one to what now stands in the controls
    """
    sign = SIGNS[p.verdict]
    headline, length = signs(capital(p.question)), p.resolved.max_model_len
    name = p.model.short_name if p.model is not None else "The stated weights"
    for part in (name, p.place, "" if length is None else f"{length:,}"):
        if part:
            headline = headline.replace(signs(part), f"<b>{signs(part)}</b>", 1)
    figures = [el("div", el("dt", escape(words)), el("dd", escape(figure))) for figure, words in _three_figures(p)]
    return el(
        "section",
        el("div", el("span", escape(sign.mark), aria_hidden="true"), f" {escape(sign.word)}", css="cp-badge"),
        el(
            "div",
            el("p", headline, css="cp-headline"),
            el("p", signs(capital(detail(p))), css="cp-detail", title=p.sentence if p.says else ""),
            el("p", f"<b>Not current:</b> {escape(note)}", css="cp-note") if note else "",
            css="cp-said",
        ),
        el("dl", *figures, css="cp-figures"),
        css=f"cp cp-verdict cp-v-{p.verdict}{' cp-stale' if note else ''}",
        role="status",
        aria_live="polite",
    )


def detail(p: NeuronPlan) -> str:
    """What there is and what would work, short: a refusal's own text stands in full below."""
    if p.budget is None or p.budget.starts or p.verdict == "refused":
        return p.sentence.removeprefix(p.question).partition(": ")[2]
    b = p.budget
    order = ("largest_headroom",) if b.policy == "headroom" else ("smallest_cap", "smallest_utilization")
    found = [answer for name in order if (answer := p.answer(name)) is not None]
    ways = [answer.says for answer in found if answer.value is not None] or [answer.says for answer in found[:1]]
    there = f"it does not start: the cache gets {gib(b.kv_budget_bytes)} GiB, below the minimum of"
    return f"{there} {gib(b.minimum_bytes)} GiB; {'; or '.join(ways)}."


def _three_figures(p: NeuronPlan) -> list[tuple[str, str]]:
    if p.kv_budget_bytes is None:
        return []
    found = [(f"{gib(p.kv_budget_bytes)} GiB", "cache of one core" if p.route != "cpu" else "cache of a worker")]
    if p.kv_blocks is not None:
        found.append((f"{p.kv_blocks:,}", "blocks"))
    if p.requests_held is not None:
        found.append((f"{p.requests_held:,}", "full-length requests"))
    return found


# One stack


def stack_html(p: NeuronPlan) -> str:
    """One stack of memory to scale, with every logical core that shares it."""
    title, stack = f"One {termed('stack')} of memory, GiB", p.hbm_stack_bytes
    if stack is None or not p.stack:
        why = "The host computes: there is no stack of memory." if p.route == "cpu" else "No budget is known."
        return card(title, el("p", escape(why), css="cp-quiet"))
    cores, share = p.logical_cores_per_hbm_stack or 1, int(p.share_bytes or 0)
    parts, flags, spoken, at = [], [], [], 0
    scale = int(stack)
    for piece in p.stack:
        if piece.bytes:
            parts.append(_segment(piece.name, at, piece.bytes, scale))
        spoken.append(f"{f'core {piece.core}: ' if cores > 1 else ''}{piece.name} {gib(piece.bytes, 1)}")
        at += piece.bytes
    for core in range(cores):
        words = f"logical core {core}: {gib(share, 1)}" if cores > 1 else f"one logical core has all {gib(share, 1)}"
        flags.append(el("span", escape(words), style=_place(core * share, share, scale)))
        if core:
            parts.append(el("i", css="cp-core", style=_place(core * share, 0, scale)))
    track = el(
        "div",
        "".join(parts),
        css="cp-track",
        role="img",
        aria_label=f"One stack of {gib(stack, 1)} GiB: {'; '.join(spoken)}",
    )
    bar = el(
        "div",
        el("div", *flags, css="cp-cores"),
        track,
        *(el("p", escape(capital(words)), css="cp-short-of") for words in _overs(p)),
        css="cp-rank",
    )
    seen: dict[str, int] = {}
    for piece in p.stack:
        seen.setdefault(piece.name, piece.bytes)
    items = [
        el(
            "li",
            _swatch(TERM_OF_PIECE[name]),
            f"{escape(name)} ",
            el("b", gib(size, 1)),
            title=TERM[TERM_OF_PIECE[name]].means,
        )
        for name, size in seen.items()
    ]
    where = f"{p.chip.title}, " if p.chip is not None else ""
    whose = f"{where}{gib(stack)}, {ROUTES[p.route]}"
    each = el("p", "Each logical core holds the same; the list is of one.", css="cp-footnotes") if cores > 1 else ""
    return card(title + sub(escape(whose)), bar, el("ul", *items, css="cp-legend"), each)


def _segment(name: str, start: int, size: int, scale: int) -> str:
    term = TERM_OF_PIECE[name]
    width = next(css for letters, css in LABEL_WIDTHS if len(name) <= letters)
    return el(
        "div",
        el("span", escape(name), el("b", gib(size, 1)), css=width),
        css=f"cp-seg cp-t-{term}",
        data_piece=term,
        title=f"{name}: {size:,} bytes, {gib(size)} GiB; {TERM[term].means}",
        style=_place(start, size, scale),
    )


def _overs(p: NeuronPlan) -> list[str]:
    """What does not fit, in words."""
    least, most = int(p.minimum_bytes or 0), p.maximum_headroom_bytes
    if most is not None and most < 0:
        return ["weights and minimum exceed the share of a logical core"]
    if p.policy == "headroom" and p.headroom_bytes is not None and most is not None and p.headroom_bytes > most:
        return [f"a headroom of {gib(p.headroom_bytes)} is asked; the largest that starts is {floor_gib(int(most))}"]
    if p.budget is not None and not p.budget.starts:
        return [f"cache below the minimum of {gib(least)}"]
    return []


# The budget, step by step


def applies(p: NeuronPlan, answer: Answer) -> bool:
    """Whether an answer can be asked as it is; more ranks cannot, where weights were stated for these ones."""
    if answer.name == "fewest_ranks":
        ranks = p.asked.tensor_parallel_size
        return answer.value is not None and answer.value != ranks and p.asked.weights_bytes is None
    return answer.value is not None


def budget_html(p: NeuronPlan) -> str:
    """Every step of the budget with its bytes, the term that binds marked, then the pool."""
    title = "How the budget comes about" + sub(f"{p.policy} policy, {ROUTES[p.route]}")
    b = p.budget
    if b is None:
        why = p.refused[0].why if p.refused else "nothing is known"
        return card(title, el("p", f"Nothing to show: {escape(why)}.", css="cp-quiet"))
    binding = ("user_budget_bytes", "heuristic_cap_bytes") if b.binding == "both" else BINDS[b.binding]
    cores = p.logical_cores_per_hbm_stack
    shared = _shared_words(cores)
    u = plain(b.gpu_memory_utilization)
    steps: list[tuple[str, str, Count | None, str]] = [
        ("hbm_stack_bytes", "stack", b.hbm_stack_bytes, ""),
        ("share_bytes", "share", b.share_bytes, shared),
        ("total_budget_bytes", "total budget", b.total_budget_bytes, f"gpu_memory_utilization {u} of the share"),
        ("weights_bytes", "weights", b.weights_bytes, p.weights.note if p.weights else ""),
        ("user_budget_bytes", "left by the weights", b.user_budget_bytes, "the total budget less the weights"),
        ("heuristic_cap_bytes", "allowed by the cap", b.heuristic_cap_bytes, _cap_words(p)),
        ("headroom_bytes", "headroom", b.headroom_bytes, f"{HEADROOM.name} {plain(b.reserved_headroom_gib or 0)}"),
        ("kv_budget_bytes", "cache", b.kv_budget_bytes, _cache_words(p)),
        ("minimum_bytes", "minimum", b.minimum_bytes, _minimum_words(p)),
    ]
    rows = []
    for key, name, size, words in steps:
        if size is None:
            continue
        binds, css = key in binding, "cp-strong cp-sum" if key == "kv_budget_bytes" else ""
        term = {"weights_bytes": "weights", "kv_budget_bytes": "cache", "headroom_bytes": "headroom"}.get(key, "")
        rows.append(
            el(
                "tr",
                el("th", _swatch(term), escape(name), scope="row"),
                el("td", gib(size), css="cp-n", title=f"{size:,} bytes"),
                el("td", f"{size:,}", css="cp-n cp-bytes"),
                el("td", pill("binds", "cp-k-binds") if binds else "", escape(words)),
                data_step=key,
                css=f"{css} cp-binds" if binds else css,
            )
        )
    heads = (("step", ""), ("GiB", "cp-n"), ("bytes", "cp-n cp-bytes"), ("how", ""))
    head = el("tr", *(el("th", text, scope="col", css=css) for text, css in heads))
    table = el("table", el("thead", head), el("tbody", *rows), css="cp-table cp-steps")
    none = [answer.says for answer in p.answers if not applies(p, answer)]
    foot = el("div", *(el("p", escape(f"{says}.")) for says in none), css="cp-footnotes") if none else ""
    return card(title, table, _pool(p), foot, css="cp-long")


def _shared_words(cores: int | None) -> str:
    if cores is None:
        return "the host by its workers"
    return "one logical core has all of the stack" if cores == 1 else f"the stack by its {cores} logical cores"


def _cap_words(p: NeuronPlan) -> str:
    fraction = p.budget.kv_gmu_budget_cap_fraction if p.budget is not None else None
    return "" if fraction is None else f"{CAP.name} {plain(fraction)} of the total budget"


def _cache_words(p: NeuronPlan) -> str:
    if p.policy == "headroom":
        return "the share less weights and headroom"
    return "the smaller of the two" if p.user_budget_bytes is not None else "what the cap allows"


def _minimum_words(p: NeuronPlan) -> str:
    if p.budget is None or not p.minimum_bytes:
        return "the check is off"
    return f"{MINIMUM.name} {plain(p.budget.min_kv_budget_gib)}, {'kept' if p.budget.starts else 'not kept'}"


def _pool(p: NeuronPlan) -> str:
    if p.kv_blocks is None or p.kv_block_bytes is None:
        return ""
    items = [
        (
            f"{p.kv_blocks:,}",
            f"blocks of {p.block_size} tokens and {sized(p.kv_block_bytes)}, the null block among them",
        )
    ]
    if p.page is not None:
        heads = counted(p.page.kv_heads_per_rank, "head")
        copies = f", {p.page.kv_head_copies} copies of each" if p.page.kv_head_copies > 1 else ""
        items.append((heads, f"of the cache on a rank{copies}"))
    if p.kv_request_blocks is not None and p.kv_cache_tokens is not None:
        items += [
            (f"{p.kv_request_blocks:,}", f"blocks for a request of {p.resolved.max_model_len:,} tokens"),
            (f"{p.requests_held:,}", "full-length requests beside the null block"),
            (f"{p.requests_admitted:,}", "admitted by the scheduler"),
            (f"{p.kv_cache_tokens:,}", "tokens, as the engine prints them"),
        ]
    defined = [(figure, escape(words).replace("null block", termed("null block"), 1)) for figure, words in items]
    cells = [el("div", el("dd", escape(figure)), el("dt", words)) for figure, words in defined]
    return el("dl", *cells, css="cp-pair")


# What the engine says


def says_html(p: NeuronPlan) -> str:
    """The engine's own text where it refuses, and what to do; nothing where it starts."""
    if not p.says:
        return ""
    body = [el("code", escape(p.says), css="cp-command cp-says")]
    if p.budget is not None and not p.budget.starts:
        body.append(_steps(explain(p.says, p.policy, p.budget)))
    return card("What the engine says" + sub("its own text" if p.budget is not None else ""), *body, css="cp-lines")


def diagnosis_html(d: Diagnosis | None) -> str:
    """What a pasted error means and what to do, in order; nothing where none was pasted."""
    if d is None:
        return ""
    kind = d.failure_class.replace("_", " ")
    knob = f"{d.direction} {d.primary_knob}" if d.primary_knob else "no setting of memory helps"
    return card(
        "What the error means" + sub(escape(f"{kind}: {knob}")),
        el("code", escape(d.message), css="cp-command cp-says"),
        *(el("p", escape(capital(f"{note}."))) for note in d.notes),
        _steps(d),
        css="cp-lines",
    )


def _steps(d: Diagnosis) -> str:
    return el("ol", *(el("li", escape(step)) for step in d.procedure), css="cp-order") if d.procedure else ""


# Parity, log, what a reserve has to hold


def parity_html(p: NeuronPlan) -> str:
    """The device and compiling without one, side by side, and why they differ where they do."""
    title, parity = "Compiled without a device, run on one", p.parity()
    if parity is None:
        words = "There is no device to compare with." if p.route == "cpu" else "Both routes need a budget first."
        return card(title, el("p", words, css="cp-quiet"))
    sides = (
        ("on the device", parity.device, parity.device_blocks),
        ("compiled without one", parity.compiled, parity.compiled_blocks),
    )
    cells = [
        el(
            "div",
            el("dd", f"{blocks:,} blocks" if blocks is not None else f"{gib(b.kv_budget_bytes)} GiB"),
            el("dt", escape(f"{words}, {int(b.kv_budget_bytes):,} bytes")),
        )
        for words, b, blocks in sides
    ]
    word = "the same" if parity.holds else "not the same"
    said = el("p", escape(capital(f"{parity.sentence}.")), css="cp-quiet" if parity.holds else "cp-warn")
    return card(title + sub(word), el("dl", *cells, css="cp-routes"), said)


def log_html(p: NeuronPlan) -> str:
    """Figures to look for in each worker's log while it starts."""
    lines = el("code", escape("\n".join(p.log_lines)), css="cp-command")
    return card("Expect in each worker’s log", lines if p.log_lines else el("p", "Nothing: it does not get so far."))


def beside_html(p: NeuronPlan) -> str:
    """What neither policy sees and a reserve has to hold, as people reported it."""
    rows = []
    for line in p.beside:
        band = sized(line.bytes) if line.low == line.high else f"up to {sized(line.high)}"
        if line.low and line.low != line.high:
            band = f"{sized(line.low)} to {sized(line.high)}"
        rows.append(
            el(
                "tr",
                el("th", escape(BESIDE.get(line.name, line.name.replace("_", " "))), scope="row"),
                el("td", band, css="cp-n", title=f"{line.bytes:,} bytes"),
                el("td", pill(line.kind), escape(line.note)),
            )
        )
    table = el("table", el("tbody", *rows), css="cp-table cp-steps")
    title = "What the rest has to hold" + sub("as people reported it, for each rank; nothing of it is counted above")
    return card(title, table, css="cp-long")
