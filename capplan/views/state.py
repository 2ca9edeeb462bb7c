"""What the page is asked: one object that every control sets and every view watches; it is also the address."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from traitlets import Any as Anything
from traitlets import Dict, HasTraits, Instance, Unicode, observe

from capplan import solve
from capplan.engines import rules_of
from capplan.engines.base import Finding
from capplan.engines.release import load_engine
from capplan.hub import load_model
from capplan.plan import GpuPlan as Plan
from capplan.plan import plan
from capplan.registry import Refused, RegistryError, load_chip, names
from capplan.settings.address import read_query, write_query
from capplan.settings.deployment import FIELDS, from_mapping, setting
from capplan.solve import settle

INPUTS = ("model", *FIELDS)
"""Everything that can be said: the model, and every setting under its flag's name."""

FIRST = "model=Qwen/Qwen3-32B&chip=h100-sxm&tensor_parallel_size=4&max_model_len=32768"
"""The question that is answered already on a first visit."""


MOST_WORDS = 120

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
            answer, moves = settle(plan(model, asked), kept=frozenset(kept))
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
        return solve.supplied(self.plan, name)

    def legal_sizes(self, name: str) -> list[tuple[int, str | None]]:
        """The sizes to offer for a parallel setting, each with the engine's reason against it or None."""
        return solve.legal_sizes(self.plan, name)

    def against(self, name: str, value: Any) -> str | None:
        """The engine's reason against a value of a setting, None where it takes it."""
        return solve.against(self.plan, name, value)

    def changes(self) -> list[solve.Change]:
        """What would change the answer: first what makes it start, then what holds more, then what saves chips."""
        return solve.changes(self.plan)


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
    if name == "engine" and rules_of(load_engine(setting(name, value)).rules).plans != "gpu":
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
