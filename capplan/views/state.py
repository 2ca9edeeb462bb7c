"""What the page is asked: one object that every control sets and every view watches; it is also the address."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from traitlets import Any as Anything
from traitlets import Dict, HasTraits, Instance, Unicode, observe

from capplan.engines.base import Finding
from capplan.engines.release import load_engine
from capplan.hub import load_model
from capplan.model import Model
from capplan.plan import VERDICTS, Plan, plan
from capplan.plan.gpu import PLANS, remedies
from capplan.registry import Refused, RegistryError, load_chip, names
from capplan.settings.address import read_query, write_query
from capplan.settings.deployment import FIELDS, Deployment, from_mapping, setting

INPUTS = ("model", *FIELDS)
"""Everything that can be said: the model, and every setting under its flag's name."""

FIRST = "model=Qwen/Qwen3-32B&chip=h100-sxm&tensor_parallel_size=4&max_model_len=32768"
"""The question that is answered already on a first visit."""


MOST_WORDS = 120

SIZES = {
    "tensor_parallel_size": (1, 2, 4, 6, 8, 16),
    "pipeline_parallel_size": (1, 2, 4),
    "data_parallel_size": (1, 2, 4, 8),
    "decode_context_parallel_size": (1, 2, 4, 8),
}
"""Sizes to offer, by setting; a tensor parallel size that a model takes besides these, up to a node, is offered too."""

NODE = 8

MOST_RANKS = 64

STARTS = ("fits", "close")

MOST_CHANGES = 5

WORTH = 1.02
"""A change that holds less than two hundredths more is not worth a line."""

Inputs = type("Inputs", (HasTraits,), {name: Anything() for name in FIELDS})
"""One trait for each field of `Deployment`, under its name."""


class Asking(Inputs):  # type: ignore[valid-type, misc]
    """A question whose traits change together: whoever watches one finds the others changed too."""

    _busy = False

    def _show(self, **traits: Any) -> None:
        self._busy = True
        try:
            with self.hold_trait_notifications():
                for name, value in traits.items():
                    setattr(self, name, value)
        finally:
            self._busy = False


class PlannerState(Asking):
    """A question and its answer.

    Every input is a trait named as the setting; None means not said.  Assign to one, or `say` several at
    once.  `plan` is the answer, which may be a refusal; `shown` the last answer that has figures.  `note`
    says why the last change could not be taken, and the answer is then the one before; `news` says what
    else moved with it, or what an address said that had to be left out; `problems` has a sentence for
    each input whose last value could not be read.

    >>> state = PlannerState("model=Qwen/Qwen3-8B&chip=l4")
    >>> state.max_model_len = "16K"
    >>> state.plan.resolved.max_model_len, state.to_query()
    (16384, 'model=Qwen/Qwen3-8B&chip=l4&max_model_len=16384')
    """

    model = Unicode()
    plan: Plan = Instance(Plan, allow_none=True)  # type: ignore[assignment]
    shown: Plan | None = Instance(Plan, allow_none=True)  # type: ignore[assignment]
    note = Unicode()
    news = Unicode()
    problems = Dict()

    def __init__(self, query: str = "") -> None:
        super().__init__()
        self.from_query(query)

    # The address

    def to_query(self) -> str:
        """What was said, as the query of an address."""
        return write_query(self.model, {name: getattr(self, name) for name in FIELDS})

    def from_query(self, query: str) -> list[str]:
        """Ask what an address asks and nothing else; returns a sentence for each part that had to be left out."""
        model, said, faults = read_query(query.strip() or FIRST)
        first, _, _ = read_query(FIRST)
        if model is None and not faults:
            faults.append("no model is named")
        found: dict[str, Any] = dict.fromkeys(FIELDS) | {"model": first}
        for name, value in {"model": model or first, **said}.items():
            try:
                found[name] = _read(name, value, generic=said.get("assume_generic"))
            except Exception as error:
                faults.append(_reason(error))
        if not self._take(found, kept=INPUTS):
            faults.append(self.note)
            if not self._take(dict.fromkeys(FIELDS) | {"model": first}, kept=INPUTS):
                raise RegistryError(self.note)
        if faults:
            stands_in = f" {first} stands in for the model." if found["model"] == first != model else ""
            self._show(news=f"Left out of the address: {_sentences(faults)}{stands_in}")
        self._show(problems={})
        return faults

    # What is asked

    def say(self, **settings: Any) -> None:
        """Take settings as a person states them, all at once; None and empty text mean not said.

        A value that cannot be read changes nothing and leaves its sentence in `problems`.
        """
        found: dict[str, Any] = {}
        problems = {name: why for name, why in self.problems.items() if name not in settings}
        for name, value in settings.items():
            try:
                found[name] = _read(name, value, generic=settings.get("assume_generic", self.assume_generic))
            except Exception as error:
                problems[name] = _reason(error)
        bad = [problems[name] for name in settings if name in problems]
        if bad:
            self._show(problems=problems, note=_sentences(bad), news="")
        elif self._take(found, kept=found):
            self._show(problems=problems)
        else:
            self._show(problems={**problems, **dict.fromkeys(found, self.note)})

    @observe(*INPUTS)
    def _assigned(self, change: Mapping[str, Any]) -> None:
        if self._busy:
            return
        name, new, old = change["name"], change["new"], change["old"]
        self._show(**{name: old})
        self.say(**{name: new})

    def _take(self, found: Mapping[str, Any], *, kept: Iterable[str]) -> bool:
        """Answer with these inputs in place; where that fails, say why and leave everything as it was."""
        inputs = {name: getattr(self, name) for name in INPUTS} | dict(found)
        try:
            asked = from_mapping({name: inputs[name] for name in FIELDS if inputs[name] is not None})
            model = load_model(inputs["model"], overrides=asked.overrides, assume_generic=asked.assume_generic)
            answer, moves = settle(model, asked, kept=frozenset(kept))
        except Exception as error:
            self._show(note=_sentences([_reason(error)]), news="")
            return False
        for move in moves:
            inputs[move.field] = _unsaid(move.field, move.after)
        said = [move.says for move in moves]
        if answer.tightest is not None:
            self._show(shown=answer)
        elif self.shown is not None:
            which = "charts" if answer.frame else "figures"
            said.append(f"The {which} below are still those of {self.shown.sentence.partition(':')[0]}.")
        self._show(**inputs, plan=answer, note="", news=" ".join(said))
        return True

    # What could be asked

    def supplied(self, name: str) -> Finding | None:
        """What the engine supplies for a setting while it is not said."""
        answer = self.plan
        if name in FIELDS and getattr(self, name) is not None:
            answer = plan(answer.model, _set(answer.asked, name, FIELDS[name].default))
        return next((finding for finding in answer.assumed if finding.field == name), None)

    def legal_sizes(self, name: str) -> list[tuple[int, str | None]]:
        """The sizes to offer for a parallel setting, each with the engine's reason against it or None."""
        now = getattr(self.plan.asked, name)
        offered = {*SIZES[name], now}
        if name == "tensor_parallel_size":
            offered |= {size for size in range(1, NODE + 1) if self.against(name, size) is None}
        return [(size, self.against(name, size)) for size in sorted(offered)]

    def against(self, name: str, value: Any) -> str | None:
        """The engine's reason against a value of a setting, None where it takes it."""
        asked = _set(self.plan.asked, name, value)
        if name == "tensor_parallel_size":
            # What divides ranks follows the ranks, so it is no reason against their number.
            asked = replace(asked, decode_context_parallel_size=1)
        return _against(self.plan.model, asked, name)

    def changes(self) -> list[Change]:
        """What would change the answer: first what makes it start, then what holds more, then what saves chips."""
        return list(changes(self.plan))


def legal_tensor_sizes(state: PlannerState) -> list[tuple[int, str | None]]:
    """The tensor parallel sizes to offer, each with the engine's reason against it or None."""
    return state.legal_sizes("tensor_parallel_size")


def _read(name: str, value: Any, *, generic: Any = None) -> Any:
    """An input out of what a person says; raises Refused with what would do.

    generic  what is said of assume_generic, under which a model of an unknown architecture is read too
    """
    if value is None or (isinstance(value, str) and not value.strip()):
        if name == "model":
            raise Refused("no model is named; give a registry name, a folder or the path of a config.json")
        return None
    if name == "model":
        text = str(value).strip()
        found = load_model(text, assume_generic=bool(setting("assume_generic", generic)))
        return found.name if found.name in names("models") and not Path(text).expanduser().exists() else text
    if name == "chip":
        return load_chip(setting(name, value)).name
    if name == "engine" and load_engine(setting(name, value)).rules in PLANS:
        raise Refused(f"engine {value} is planned on a page of its own, --notebook neuron; this plans GPUs")
    return _unsaid(name, setting(name, value))


def _unsaid(name: str, value: Any) -> Any:
    """None for a count or flag that says no more than `Deployment` does by itself."""
    default = FIELDS[name].default
    return None if isinstance(default, int) and value == default else value


def _reason(error: Exception) -> str:
    """What to say of an error: a refusal's own words, else its kind; a page must outlive whatever is typed."""
    if isinstance(error, Refused | RegistryError):
        return str(error)
    text = f"{type(error).__name__}: {error}"
    return f"capplan could not work this out ({text if len(text) < MOST_WORDS else text[:MOST_WORDS] + '…'})"


def _sentences(texts: Iterable[str]) -> str:
    return " ".join(text if text.endswith((".", "!", "?")) else f"{text}." for text in texts)


def _set(asked: Deployment, name: str, value: Any) -> Deployment:
    settings: dict[str, Any] = {name: value}
    return replace(asked, **settings)


# Legal values


def _plain(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


# What would change the answer


@dataclass(frozen=True, kw_only=True, slots=True)
class Move:
    """A setting that a change made illegal, and where it went."""

    field: str
    before: Any
    after: Any
    why: str

    @property
    def says(self) -> str:
        went = "is left out" if self.after is None else f"moved from {_plain(self.before)} to {_plain(self.after)}"
        return f"{self.field} {went}: {self.why.partition(';')[0]}."


def settle(model: Model, asked: Deployment, *, kept: frozenset[str]) -> tuple[Plan, list[Move]]:
    """The answer, after moving what a change made illegal to the nearest legal value.

    kept  the settings that were just said: these are not moved, and a refusal of one stands

    >>> phi = load_model("microsoft/phi-4")
    >>> answer, moves = settle(phi, Deployment(tensor_parallel_size=8), kept=frozenset({"model"}))
    >>> answer.asked.tensor_parallel_size, [move.field for move in moves]
    (2, ['tensor_parallel_size'])
    """
    answer, moves = plan(model, asked), []
    for _ in FIELDS:
        move = next((move for finding in answer.refused for move in _moves(answer, finding, kept)), None)
        if move is None:
            break
        moves.append(move)
        answer = plan(model, _set(answer.asked, move.field, move.after))
    return answer, moves


def _moves(answer: Plan, finding: Finding, kept: frozenset[str]) -> Iterator[Move]:
    """Ways out of one refusal that leave what was just said alone."""
    asked, name = answer.asked, finding.field
    if name not in FIELDS:
        return
    pairs = {name: _nearest(answer, name)}
    if name == "max_num_batched_tokens":
        pairs = {name: answer.resolved.max_num_seqs, "max_num_seqs": answer.resolved.max_num_batched_tokens}
    for field, after in pairs.items():
        before = getattr(asked, field)
        if field not in kept and before != FIELDS[field].default and after != before and (after is None or after > 0):
            yield Move(field=field, before=before, after=after, why=finding.why)


def _nearest(answer: Plan, name: str) -> Any:
    """The legal value nearest to the one asked; None, not said, where values have no order."""
    asked, model = answer.asked, answer.model
    if name == "max_model_len":
        return model.max_positions
    if name not in SIZES:
        return FIELDS[name].default
    now = getattr(asked, name)
    sizes = sorted(range(1, MOST_RANKS + 1), key=lambda size: (abs(size - now), size))
    return next((size for size in sizes if _against(model, _set(asked, name, size), name) is None), now)


def _against(model: Model, asked: Deployment, name: str) -> str | None:
    return next((finding.why for finding in plan(model, asked).refused if finding.field == name), None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """Settings that would change an answer, the answer that they give, and what it costs or saves."""

    settings: Mapping[str, Any]
    plan: Plan
    cost: str
    better: bool


def changes(now: Plan) -> Iterator[Change]:
    """Other answers: the ones that start with the most certainty first, then by how many requests they hold."""
    found: dict[tuple[tuple[str, Any], ...], Change] = {}
    repairs = [{move.field: move.after} for finding in now.refused for move in _moves(now, finding, frozenset())]
    starts = [*repairs, *(settings for settings, _ in remedies(now))]
    for settings, cost in (*((settings, "") for settings in starts), *_tries(now)):
        key = tuple(sorted(settings.items()))
        then = plan(now.model, replace(now.asked, **settings))
        if key in found or then.max_concurrency is None or then.verdict not in STARTS:
            continue
        holds = now.max_concurrency is None or then.max_concurrency > now.max_concurrency * WORTH
        better = _rank(then) < _rank(now) or (_rank(then) == _rank(now) and bool(holds))
        chips = then.asked.n_chips - now.asked.n_chips
        if better or chips < 0:
            found[key] = Change(settings=settings, plan=then, cost=_chips(chips) or cost, better=better)

    def order(one: Change) -> tuple[bool, int, float]:
        return not one.better, _rank(one.plan), -float(one.plan.max_concurrency or 0)

    yield from sorted(found.values(), key=order)[:MOST_CHANGES]


def _rank(answer: Plan) -> int:
    return VERDICTS.index(answer.verdict)


def _tries(now: Plan) -> Iterator[tuple[Mapping[str, Any], str]]:
    asked = now.asked
    if asked.kv_cache_dtype in (None, "auto"):
        yield {"kv_cache_dtype": "fp8"}, "half the cache of a token"
    fewer = [size for size in range(asked.tensor_parallel_size - 1, 0, -1)]
    legal = (size for size in fewer if plan(now.model, replace(asked, tensor_parallel_size=size)).verdict in STARTS)
    if (size := next(legal, None)) is not None:
        yield {"tensor_parallel_size": size}, ""
    if now.model.experts is not None and not asked.enable_expert_parallel and asked.tensor_parallel_size > 1:
        yield {"enable_expert_parallel": True}, "whole experts on each rank"
    if not asked.enforce_eager:
        yield {"enforce_eager": True}, "no graphs, slower steps"
    if (now.resolved.max_num_seqs or 0) > 256:
        yield {"max_num_seqs": 256}, "a smaller sampler pass"


def _chips(more: int) -> str:
    if not more:
        return ""
    unit = "chip" if abs(more) == 1 else "chips"
    return f"{more} more {unit}" if more > 0 else f"saves {-more} {unit}"
