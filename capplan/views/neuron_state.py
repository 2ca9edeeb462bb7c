"""What the Neuron page is asked: one object that every control sets and every view watches; it is also the address."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from traitlets import Dict, Instance, Unicode, observe

from capplan import solve
from capplan.engines.vllm_neuron import Diagnosis, explain, load_instance, load_neuron_chip, target_aliases
from capplan.hub import load_model
from capplan.plan import plan
from capplan.plan.neuron import NeuronPlan
from capplan.registry import Refused, names
from capplan.settings.address import read_query, write_query
from capplan.settings.deployment import FIELDS, from_mapping, setting
from capplan.settings.environment import HEADROOM
from capplan.views.state import Asking, _reason, _sentences, _unsaid

ENGINE = "vllm-neuron"

FIRST = (
    "chip=trn3&tensor_parallel_size=8&max_model_len=131072&reserved_headroom_gib=4"
    "&weights_bytes=16106127360&bytes_per_block=294912"
)
"""The question of a first visit: GPT-OSS 120B on Trainium3 with the reserve that was tested for it."""

POLICY = "policy"
"""The one control that sets no field of its own: whether a reserve is stated."""

OF_MODEL = ("weights_bytes", "bytes_per_block", "draft_model")
"""Settings that belong to one model, and are wrong beside another."""

INPUTS = ("model", *FIELDS)


class NeuronState(Asking):
    """A question about vLLM on Neuron and its answer, as `PlannerState` is one about GPUs.

    Every input is a trait named as the setting; None means not said, and an empty model that weights and
    blocks are stated.  `plan` is the answer, `shown` the last that has a budget, `error` an error text that
    was pasted, `diagnosis` what it means for this deployment.  `note`, `news` and `problems` are as there.

    >>> state = NeuronState("chip=trn2&weights_bytes=8589934592&bytes_per_block=294912")
    >>> state.policy, state.plan.kv_budget_bytes
    ('default', 6957847019)
    >>> state.say(reserved_headroom_gib="4")
    >>> state.policy, state.plan.kv_budget_bytes
    ('headroom', 12884901888)
    """

    model = Unicode()
    plan: NeuronPlan = Instance(NeuronPlan, allow_none=True)  # type: ignore[assignment]
    shown: NeuronPlan | None = Instance(NeuronPlan, allow_none=True)  # type: ignore[assignment]
    error = Unicode()
    note = Unicode()
    news = Unicode()
    problems = Dict()

    def __init__(self, query: str = "") -> None:
        super().__init__()
        self._reserve: float | None = None
        self.from_query(query)

    @property
    def policy(self) -> str:
        """default or headroom."""
        return "default" if self.reserved_headroom_gib is None else "headroom"

    @property
    def diagnosis(self) -> Diagnosis | None:
        """What the pasted error text means for this deployment; None while there is none."""
        return explain(self.error, self.plan.policy, self.plan.budget) if self.error else None

    # The address

    def to_query(self) -> str:
        """What was said, as the query of an address."""
        return write_query(self.model, {name: getattr(self, name) for name in FIELDS})

    def from_query(self, query: str) -> list[str]:
        """Ask what an address asks and nothing else; returns a sentence for each part that had to be left out."""
        _, first, _ = read_query(FIRST)
        model, said, faults = read_query(query.strip() or FIRST)
        engine = said.pop("engine", ENGINE)
        if engine != ENGINE:
            faults.append(f"engine is {engine!r}; this page plans {ENGINE}, and the planner page the others")
        found: dict[str, Any] = dict.fromkeys(INPUTS)
        for name, value in {"model": model, **(said if model or said else first)}.items():
            try:
                found[name] = _read(name, value)
            except Exception as error:
                faults.append(_reason(error))
        if not any(found[name] for name in ("chip", "instance", "platform_target_override")):
            found["chip"] = first["chip"]
        if not self._take(found):
            faults.append(self.note)
            self._take(dict.fromkeys(INPUTS) | first)
        left = f"Left out of the address: {_sentences(faults)}" if faults else ""
        self._show(problems={}, note="", news=left)
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
                if name == POLICY:
                    found[HEADROOM.field] = self._reserve_of(value)
                    problems.pop(HEADROOM.field, None)
                else:
                    found[name] = _read(name, value)
            except Exception as error:
                problems[name] = _reason(error)
        bad = [problems[name] for name in settings if name in problems]
        if bad:
            self._show(problems=problems, note=_sentences(bad), news="")
        elif self._take(found):
            self._show(problems=problems)
        else:
            self._show(problems={**problems, **dict.fromkeys(found, self.note)})

    def _reserve_of(self, policy: str) -> float | None:
        """The reserve of a policy: none, or the one stated last, else the one that keeps the cache as it is."""
        if policy not in ("default", "headroom"):
            raise Refused(f"policy is {policy!r}; there are default and headroom")
        if policy == "default":
            return None
        if self.reserved_headroom_gib is not None or self._reserve is not None:
            return self._reserve if self.reserved_headroom_gib is None else self.reserved_headroom_gib
        keeps = self.plan.answer("headroom_of_default")
        return float(keeps.typed) if keeps is not None and keeps.value is not None else 0.0

    @observe(*INPUTS)
    def _assigned(self, change: Mapping[str, Any]) -> None:
        if self._busy:
            return
        name, new, old = change["name"], change["new"], change["old"]
        self._show(**{name: old})
        self.say(**{name: new})

    def _take(self, found: Mapping[str, Any]) -> bool:
        """Answer with these inputs in place; where that fails, say why and leave everything as it was."""
        before = {name: getattr(self, name) for name in INPUTS}
        inputs = before | dict(found) | {"engine": ENGINE}
        said = _moved(inputs, before, found) if self.plan is not None and len(found) < len(INPUTS) else []
        try:
            asked = from_mapping({name: inputs[name] for name in FIELDS if inputs[name] is not None})
            model = load_model(inputs["model"], overrides=asked.overrides) if inputs["model"] else None
            answer = plan(model, asked)
        except Exception as error:
            self._show(note=_sentences([_reason(error)]), news="")
            return False
        if answer.budget is not None or self.shown is None:
            self._show(shown=answer)
        else:
            said.append("The figures below are still those of the answer before.")
        if inputs[HEADROOM.field] is not None:
            self._reserve = inputs[HEADROOM.field]
        self._show(**{**inputs, "model": inputs["model"] or ""}, plan=answer, note="", news=" ".join(said))
        return True

    # What could be asked

    def supplied(self, name: str) -> str:
        """What the engine takes for a setting while it is not said; empty where it takes nothing."""
        found = solve.supplied(self.plan, name)
        return "" if found is None else found.happens

    def against(self, name: str, value: Any) -> str | None:
        """The engine's reason against a value of a setting, None where it takes it."""
        return solve.against(self.plan, name, value)


def _read(name: str, value: Any) -> Any:
    """An input out of what a person says; raises Refused with what would do."""
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    if name == "model":
        text = str(value).strip()
        return load_model(text).name if text in names("models") else _loaded(text)
    found = setting(name, value)
    if name == "instance":
        return load_instance(found).name
    if name == "chip":
        return load_neuron_chip(found).name
    if name == "platform_target_override" and found not in target_aliases():
        raise Refused(
            f"{name} is {found!r}, a target that is not known; there are {', '.join(sorted(target_aliases()))}"
        )
    return _unsaid(name, found)


def _loaded(text: str) -> str:
    """A path or another spelling of a name, once a model is found there."""
    found = load_model(text)
    return found.name if found.name.lower() == text.lower() else text


def _moved(inputs: dict[str, Any], before: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """Settle in place what a change leaves wrong, and say each: chip, instance, degree, another model's bytes."""
    said: list[str] = []

    def leave_out(name: str, why: str) -> None:
        if inputs[name] is not None and name not in found:
            inputs[name] = None
            said.append(f"{name} is left out: {why}.")

    if found.get("instance") is not None:
        platform = load_instance(inputs["instance"]).platform
        if inputs["chip"] not in (None, platform) and "chip" not in found:
            said.append(f"chip moved from {inputs['chip']} to {platform}: {inputs['instance']} has that one.")
        if "chip" not in found:
            inputs["chip"] = platform
    chip, instance = inputs["chip"], inputs["instance"]
    if found.get("chip") is not None and instance is not None and load_instance(instance).platform != chip:
        leave_out("instance", f"it has no {chip} chips")
    if chip != before["chip"] and chip is not None:
        degrees = load_neuron_chip(chip).degrees
        if inputs["logical_nc_config"] is not None and inputs["logical_nc_config"] not in degrees:
            leave_out("logical_nc_config", f"{chip} takes {' or '.join(map(str, degrees))}")
        for name in ("runtime_bytes_used", "runtime_bytes_free"):
            leave_out(name, "it was reported by another chip")
    if found.get("model") and found["model"] != before["model"]:
        for name in OF_MODEL:
            leave_out(name, "it was stated for something else, and the model gives its own")
        longest = load_model(found["model"]).max_positions
        if inputs["max_model_len"] is not None and inputs["max_model_len"] > longest:
            leave_out("max_model_len", f"the model is made for {longest:,} tokens")
    return said
