"""The pool as HTML: what shares a block, what is left of it, and what a request holds of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from capplan.engines.pool import RECURRENT, Group
from capplan.plan import GpuPlan as Plan
from capplan.plan.gpu import PoolBlock
from capplan.units import GIB
from capplan.views.elements import capital, card, counted, el, gib, nothing, sized, sub, table, termed
from capplan.views.terms import BOUNDED

SPECS = {
    "FullAttentionSpec": "full attention",
    "SlidingWindowSpec": "sliding window",
    "MLAAttentionSpec": "latent attention",
}
"""The engine's classes of caches in words."""

KINDS = {
    "full": "full attention",
    "latent": "latent attention",
    "sliding": "sliding window",
    "chunked": "local chunk",
    "recurrent": "recurrent state",
    "ring": "ring of fixed size",
}
"""Kinds of caches in words, where the class does not say more."""

NAMES = {"attention": "keys and values"}
"""Names of pages that need other words."""

SHORTENED = 5
"""From so many numbers in equal steps on, the middle is left out."""

LETTERS = 46
"""So many letters of a name have room in a whole block at the narrowest."""

MOST_ALIKE = 3
"""Of so many groups that are alike the layers are listed; of more on hover."""


def groups_html(plan: Plan) -> str:
    """The groups of the cache as blocks of the pool, what a request holds, and why its two figures differ."""
    title = f"How the {termed('KV cache', 'cache')} is handed out"
    if plan.frame is None:
        return nothing(plan, title)
    blocks = plan.pool_blocks()
    pool = f"blocks of {sized(plan.kv_block_bytes)}"
    if plan.kv_blocks is not None:
        pool = f"{plan.kv_blocks:,} {pool}"
    pool += f", one of them the {termed('null block')}"
    rows = el("div", _table(blocks), css="cp-scroll")
    parts = blocks[0].parts()
    if len(blocks) == 1 and len(parts) == 1:
        pages = f"each of its {counted(len(parts[0].layers), 'layer')} has a page of {sized(parts[0].page_bytes)}"
        body = rows + el("p", f"One group: {pages} in every {termed('block')}.", css="cp-reason")
    else:
        shown = el("ul", *(_picture(numbers, alike) for numbers, alike in _alike(blocks)), css="cp-blocks")
        body = _key(blocks, plan) + shown + el("details", el("summary", "As a table"), rows, css="cp-as-table")
    return card(title + sub(pool), body, _held_by_one(plan, blocks))


# The picture of a block


def _kind(g: Group) -> str:
    """What a group's caches are, in words."""
    word = SPECS.get(g.spec) or KINDS[g.kind]
    return f"{word} of {g.window:,}" if g.window is not None else word


def _holds(block: PoolBlock, many: int) -> str:
    """How many blocks one full-length request holds of a group."""
    held = f"{counted(block.steady, 'block')}{' of each' if many > 1 else ''} a request"
    if block.steady == block.admission:
        return held
    return f"{held} in steady decode, {block.admission:,} at admission"


def _picture(numbers: Sequence[int], alike: Sequence[PoolBlock]) -> str:
    """One block as groups that are alike fill it: a bar to scale with its pages, and the same in words."""
    b, many = alike[0], len(alike)
    bars, words, heard = [], [], []
    parts = b.parts()
    for i, part in enumerate(parts):
        name = escape(NAMES.get(part.name, part.name))
        said = f"{counted(len(part.layers), 'page')} of {sized(part.page_bytes)}"
        tip = f"{name}, layers {_runs(part.layers)}: {said}, {part.bytes:,} bytes"
        bars.append(_share(part.bytes - part.padding_bytes, b.block_bytes, f"cp-page{i % 4}", tip, name))
        swatch = f'<i class="cp-swatch cp-page{i % 4}"></i>{name}: ' if len(parts) > 1 else ""
        words.append(f"<span>{swatch}{said}</span>")
        heard.append(f"{name} {said}")
        if part.padding_bytes:
            tip = f"padding of these pages: {part.padding_bytes:,} bytes"
            bars.append(_share(part.padding_bytes, b.block_bytes, "cp-lost", tip))
    if b.wasted_bytes:
        bars.append(_share(b.wasted_bytes, b.block_bytes, "cp-lost", f"unused: {b.wasted_bytes:,} bytes"))
    losses = ((b.padding_bytes, "padding inside the pages"), (b.wasted_bytes, "unused"))
    lost = [f"{sized(size)} {word}" for size, word in losses if size]
    which = f"{'group' if many == 1 else f'{many} groups alike,'} {_runs(numbers)}"
    spoken = "; ".join((*heard, *lost))
    layers = [_runs(each.group.layers) for each in alike]
    shown = "; ".join(layers[:MOST_ALIKE])
    if many > MOST_ALIKE:
        shown = f'<abbr title="layers {"; ".join(layers)}">{shown}; and {many - MOST_ALIKE} more</abbr>'
    return (
        f"<li><p><b>{escape(capital(_kind(b.group)))}</b> "
        f'<span class="cp-quiet">{which} · {_holds(b, many)}</span></p>'
        f'<div class="cp-block" role="img" aria-label="One block of {which}: {spoken}">{"".join(bars)}</div>'
        f'<p class="cp-quiet">{", ".join(words)} · layers {shown}'
        f"{''.join(f' · <b>{each}</b>' for each in lost)}</p></li>"
    )


def _share(size: int, whole: int, css: str, tip: str, name: str = "") -> str:
    """A part of a block to scale, with its name, which shows where there is room."""
    shown = name if size * LETTERS >= (len(name) + 2) * whole else ""
    return f'<i class="{css}" style="flex:{100 * size / whole:.3f} 0 0" title="{tip}">{shown}</i>'


def _key(blocks: Sequence[PoolBlock], plan: Plan) -> str:
    """How to read the bars, and why there is a block to each group where no pool is shared."""
    said = f"A bar is one {termed('block')} as a group fills it"
    if any(b.wasted_bytes or b.padding_bytes for b in blocks):
        said += '; <i class="cp-lost cp-swatch"></i>hatched holds nothing'
    if plan.frame is not None and not plan.frame.shared:
        why = plan.frame.why_not_shared or "nothing brings their pages to one size"
        said += f". These caches share no pool, and each group has blocks of its own: {escape(why)}"
    return el("p", said, ".", css="cp-quiet cp-key")


# The table


def _table(blocks: Sequence[PoolBlock]) -> str:
    wasted = any(b.wasted_bytes for b in blocks)
    heads = (
        (termed("group"), ""),
        ("layers", "cp-n"),
        ("kind", ""),
        ("tokens a block", "cp-n"),
        ("page", "cp-n"),
        (f"of a {termed('block')}", "cp-n"),
        *((("unused", "cp-n"),) if wasted else ()),
    )
    rows = []
    for numbers, alike in _alike(blocks):
        g, left = alike[0].group, alike[0].wasted_bytes
        rows.append(
            el(
                "tr",
                el("th", _runs(numbers), scope="row"),
                el(
                    "td",
                    f"{len(g.layers)}{' each' if len(alike) > 1 else ''}",
                    css="cp-n",
                    title="layers " + "; ".join(_runs(each.group.layers) for each in alike),
                ),
                el("td", escape(_kind(g)), title=g.spec),
                el("td", f"{g.block_size:,}", css="cp-n"),
                el("td", sized(g.page_bytes), css="cp-n", title=f"{g.page_bytes:,} bytes"),
                el("td", sized(g.block_bytes), css="cp-n", title=f"{g.block_bytes:,} bytes"),
                el("td", sized(left) if left else "–", css="cp-n", title=f"{left:,} bytes") if wasted else "",
            )
        )
    return table(heads, rows, "cp-table cp-groups")


def _alike(blocks: Sequence[PoolBlock]) -> list[tuple[list[int], list[PoolBlock]]]:
    """Groups that differ only in which layers they have, together, with their numbers."""
    found: dict[tuple[Any, ...], tuple[list[int], list[PoolBlock]]] = {}
    for i, b in enumerate(blocks):
        g = b.group
        kinds = tuple((part.name, len(part.layers), part.page_bytes, part.padding_bytes) for part in b.parts())
        key = (len(g.layers), g.spec, g.kind, g.block_size, g.page_bytes, g.window, kinds)
        numbers, members = found.setdefault(key, ([], []))
        numbers.append(i)
        members.append(b)
    return list(found.values())


def _runs(numbers: Iterable[int]) -> str:
    """Whole numbers with runs joined, and what goes on in equal steps from five on shortened.

    >>> _runs((0, 1, 2, 5, 7, 8))
    '0–2, 5, 7–8'
    >>> _runs((1, 8, 15, 22, 30)), _runs((3, 7, 11, 15, 19))
    ('1, 8, 15, 22, 30', '3, 7, …, 19')
    """
    runs: list[range] = []
    for number in numbers:
        if runs and number == runs[-1].stop:
            runs[-1] = range(runs[-1].start, number + 1)
        else:
            runs.append(range(number, number + 1))
    found, at = [], 0
    while at < len(runs):
        end = at + 1
        step = runs[end].start - runs[at].start if end < len(runs) else 0
        while end < len(runs) and runs[end].start - runs[end - 1].start == step and len(runs[end]) == 1:
            end += 1
        if end - at >= SHORTENED and len(runs[at]) == 1:
            found += [f"{runs[at].start}, {runs[at + 1].start}, …, {runs[end - 1].start}"]
            at = end
        else:
            found.append(f"{runs[at].start}–{runs[at].stop - 1}" if len(runs[at]) > 1 else str(runs[at].start))
            at += 1
    return ", ".join(found)


def _held_by_one(plan: Plan, blocks: Sequence[PoolBlock]) -> str:
    """What one full-length request holds; the two ways of counting it where bounded caches are among its own."""
    length = plan.resolved.max_model_len
    if length is None or plan.kv_request_blocks is None:
        return ""
    bounded = [b for b in blocks if b.group.bounded]
    if not bounded:
        steady, held = plan.sequence_bytes(length), counted(plan.kv_request_blocks, "block")
        items = [(f"{gib(steady)} GiB", f"{steady:,} bytes", f"one request of {length:,} tokens, {held}")]
        if plan.kv_blocks is not None:
            items += [
                (f"{plan.max_concurrency:.2f}×", "", "of them by the engine’s count"),
                (f"{plan.requests_that_fit(length):,}", "", "whole ones, beside the null block"),
            ]
        return _pairs(items)
    kinds = dict.fromkeys(b.group.kind for b in bounded)
    growing, steady = plan.sequence_variable_bytes(length), plan.sequence_bytes(length)
    rows = [
        ("grows with the request", growing, growing),
        (
            " and ".join(BOUNDED[kind] for kind in kinds),
            plan.sequence_admission_bytes(length),
            plan.sequence_fixed_bytes(length),
        ),
        ("together", plan.request_bytes, steady),
    ]
    body = [_both(name, *(f'<span title="{n:,} bytes">{_short(n)}</span>' for n in pair)) for name, *pair in rows]
    if plan.kv_blocks is not None:
        body.append(
            _both("such requests at once", f"{plan.max_concurrency:.2f}×", f"{plan.requests_that_fit(length):,}")
        )
    heads = ((f"one request of {length:,} tokens", ""), ("at admission", "cp-n"), ("in steady decode", "cp-n"))
    reasons = [_reason(plan, kind, [b for b in bounded if b.group.kind == kind]) for kind in kinds]
    reasons.append("What grows with the request takes the same at both.")
    return table(heads, body, "cp-table cp-both") + el("p", escape(" ".join(reasons)), css="cp-reason")


def _short(n: Any) -> str:
    """Bytes in GiB as elsewhere, and in a smaller unit where two places would show little."""
    return f"{gib(n)} GiB" if 10 * n >= GIB or not n else sized(n)


def _both(name: str, admission: str, steady: str) -> str:
    cells = (el("td", figure, css="cp-n") for figure in (admission, steady))
    return el("tr", el("th", escape(name), scope="row"), *cells)


def _reason(plan: Plan, kind: str, blocks: Sequence[PoolBlock]) -> str:
    """Why bounded caches of a kind take at admission what they do, beside steady decode."""
    of = " or ".join(f"{n:,}" for n in dict.fromkeys(b.group.window for b in blocks) if n is not None)
    pages = " or ".join(f"{n:,}" for n in dict.fromkeys(b.group.pages for b in blocks) if n is not None)
    if pages:
        what = "each layer’s state" if kind == RECURRENT else "each ring"
        return f"A request holds {pages} {'page' if pages == '1' else 'pages'} of {what} at any length, at both alike."
    word = "window" if kind == "sliding" else "chunk"
    if all(b.steady == b.admission for b in blocks):
        return f"No request is longer than a {word} of {of} tokens, so it takes the same at both."
    keeps = f"a window holds its last {of} tokens" if kind == "sliding" else f"a chunk holds at most {of} tokens"
    return (
        f"In steady decode {keeps}. At admission the engine counts beside them up to "
        f"{plan.in_flight_tokens:,} tokens of steps in flight; its own figure rests on that."
    )


def _pairs(items: Iterable[tuple[str, str, str]]) -> str:
    cells = [el("div", el("dd", figure, title=tip), el("dt", escape(words))) for figure, tip, words in items]
    return el("dl", *cells, css="cp-pair")
