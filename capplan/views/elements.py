"""HTML elements, and numbers in words, for every view."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape
from typing import Any

from capplan.plan import GpuPlan as Plan
from capplan.plan.rank import RankPlan
from capplan.units import GIB, KIB, MIB
from capplan.views.terms import GLOSSARY


def el(tag: str, *inner: str, css: str = "", **attributes: Any) -> str:
    """One element around HTML; attributes are escaped, and left out where they are empty."""
    named = {"class": css, **{name.replace("_", "-"): value for name, value in attributes.items()}}
    said = "".join(f' {name}="{escape(str(value))}"' for name, value in named.items() if value != "")
    return f"<{tag}{said}>{''.join(inner)}</{tag}>"


def card(title: str, *body: str, css: str = "") -> str:
    """A titled part of a page."""
    return el("section", el("h2", title), *body, css=f"cp cp-card {css}".rstrip())


def sub(text: str) -> str:
    """What stands beside a title, muted."""
    return " " + el("span", f"· {text}", css="cp-sub") if text else ""


def nothing(plan: Plan, title: str) -> str:
    """A part that has nothing to show, with the reason."""
    why = plan.refused[0].why if plan.refused else "the plan has no ranks"
    return card(title, el("p", f"Nothing to show: {escape(why)}.", css="cp-quiet"))


def termed(word: str, shown: str = "") -> str:
    """A term of art with its definition on hover."""
    return el("abbr", escape(shown or word), title=GLOSSARY[word])


def pill(word: str, css: str = "") -> str:
    """One word that says of which kind something is."""
    return el("span", escape(word), css=f"cp-pill {css or f'cp-k-{word}'}")


def gib(n: Any, places: int = 2) -> str:
    """Bytes in GiB, as a bare figure."""
    return f"{int(n) / GIB:,.{places}f}"


def sized(n: Any) -> str:
    """Bytes in the largest unit that keeps them short.

    >>> sized(1 << 20), sized(1_124_352), sized(18 << 10), sized(80)
    ('1 MiB', '1.07 MiB', '18 KiB', '80 bytes')
    """
    for unit, word in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if n >= unit:
            return f"{n // unit:,} {word}" if n % unit == 0 else f"{n / unit:,.2f} {word}"
    return f"{n:,} bytes"


def counted(n: Any, one: str, many: str = "") -> str:
    """A number with its noun."""
    return f"{n:,} {one if n == 1 else many or one + 's'}"


def capital(text: str, *, keep: str = "") -> str:
    """A text that begins a sentence; a name that it may begin with keeps its own letters."""
    return text if keep and text.startswith(keep) else text[:1].upper() + text[1:]


def signs(text: str) -> str:
    """Escaped text in which a count of chips reads `4 × H100`."""
    return re.sub(r"(?<=\d) x (?=\S)", " × ", escape(text))


def rank_words(plan: Plan, rank: RankPlan) -> str:
    """Which rank it is, and how many are like it."""
    stages, place = plan.asked.pipeline_parallel_size, f"{rank.stage + 1} of {plan.asked.pipeline_parallel_size}"
    several = rank.count * stages > plan.asked.n_chips
    words = [f"stages like {place}" if several else f"stage {place}"] if stages > 1 else []
    if rank.count > 1:
        words.append(f"{rank.count} ranks alike")
    elif len(plan.ranks) > 1:
        words.append("one rank")
    return ", ".join(words)


def table(heads: Iterable[tuple[str, str]], rows: Iterable[str], css: str = "cp-table") -> str:
    """A table of rows under headings, each with its class."""
    head = el("tr", *(el("th", text, scope="col", css=place) for text, place in heads))
    return el("table", el("thead", head), el("tbody", *rows), css=css)
