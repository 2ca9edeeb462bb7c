"""Plans: what was asked, the ledger of every distinct rank, the pool of the tightest, the verdict, and what to say.

The module is called as the function `plan` in it, so that `capplan.plan(model, asked)` answers, and
`import capplan.plan` imports.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import lru_cache, partial
from importlib import import_module
from types import ModuleType
from typing import Any

from capplan.engines import rules_of
from capplan.engines.base import Finding, Resolved, Rules
from capplan.engines.release import Engine, load_engine
from capplan.ledger import VERDICTS
from capplan.model import Model
from capplan.plan.base import Plan, Question
from capplan.plan.gpu import GpuPlan
from capplan.registry import Refused
from capplan.settings.deployment import Deployment, checked, unread
from capplan.units import at_least, is_array

__all__ = ["VERDICTS", "GpuPlan", "Plan", "plan"]

KINDS = {"gpu": "capplan.plan.gpu", "neuron": "capplan.plan.neuron"}
"""Where each kind of plan is made, by the word of an engine's rules."""

NO_MODEL = "no model is named; give a registry name, a folder or the path of a config.json"


def plan(model: Model | None, asked: Deployment) -> Any:
    """What a model, deployed this way, occupies, and whether it fits: a `GpuPlan`, or a `NeuronPlan` on Neuron.

    model  a graph, from `load_model`; None on Neuron where `weights_bytes` is stated
    asked  the deployment; its numeric fields may be int64 arrays (utilization float64) of one length,
           and the plan's byte and block fields, verdict and masks are arrays then

    Raises Refused for an unknown chip or engine, a setting of the wrong kind or that the engine does not read.
    """
    q, r = _resolved(model, asked)
    return _at_longest(_make(q, r))


def _question(model: Model | None, asked: Deployment) -> Question:
    asked, engine = checked(asked), load_engine(asked.engine)
    rules = rules_of(engine.rules)
    _supported(model, asked, engine, rules)
    return Question(
        model=model,
        asked=asked,
        engine=engine,
        rules=rules,
        place=rules.place(asked),
        again=partial(_once, plan, _plan_once, model),
        resolve_again=partial(_resolve_again, model),
    )


def _resolve(model: Model | None, asked: Deployment) -> tuple[Question, Resolved]:
    q = _question(model, asked)
    return q, q.rules.resolve(model, q.asked, q.place, q.engine)


_plan_once = lru_cache(maxsize=512)(plan)
_resolve_once = lru_cache(maxsize=1024)(_resolve)


def _once(make: Any, kept: Any, model: Model | None, asked: Deployment) -> Any:
    """What is made of a deployment, kept for the next time; of arrays, which have no hash, it is made anew."""
    try:
        hash(asked)
    except TypeError:
        return make(model, asked)
    return kept(model, asked)


def _resolved(model: Model | None, asked: Deployment) -> tuple[Question, Resolved]:
    found: tuple[Question, Resolved] = _once(_resolve, _resolve_once, model, asked)
    return found


def _resolve_again(model: Model | None, asked: Deployment) -> Resolved:
    return _resolved(model, asked)[1]


def _make(q: Question, r: Resolved) -> Any:
    return import_module(KINDS[q.rules.plans]).make(q, r)


def _supported(model: Model | None, asked: Deployment, engine: Engine, rules: Rules) -> None:
    """Raise Refused for what no plan of the engine can be made of."""
    if model is None:
        if rules.needs_model:
            raise Refused(NO_MODEL)
        return
    if model.guess is not None and not asked.assume_generic:
        raise Refused(f"{model.name}: {model.guess.says}; say so in the deployment too, with assume_generic=True")
    if model.guess is not None and not rules.needs_model:
        raise Refused(
            f"{model.name}: {model.guess.says}, which {engine.title} is not planned with; choose an engine on GPUs"
        )
    if not rules.ignores_unread:
        foreign = next(iter(unread(asked, engine.rules)), None)
        if foreign is not None:
            raise Refused(
                f"{foreign} was set, which {engine.title} does not read; leave it out, or choose engine vllm-neuron"
            )
    if (asked.hf_overrides or "") != model.overrides:
        raise Refused("hf_overrides change the model: load it with the same ones, load_model(..., overrides=...)")


def _at_longest(found: Any) -> Any:
    """A plan as it is, or where max_model_len is -1, the plan of the longest length that it holds."""
    length = found.asked.max_model_len
    if is_array(length) or length != -1 or found.estimated_max_model_len is None:
        return found
    longest = at_least(found.estimated_max_model_len, 1)
    finding = Finding(
        field="max_model_len",
        asked=-1,
        happens="the longest length that fits" if is_array(longest) else f"{longest:,}",
        why="-1 lets the engine take the longest length that passes its start check",
        source="vllm, v1/core/kv_cache_planning.py, _auto_fit_max_model_len",
    )
    fitted = found.at(max_model_len=longest)
    return replace(fitted, asked=found.asked, overridden=(finding, *fitted.overridden))


class _Callable(ModuleType):
    """A module that is called as the function of its own name."""

    def __call__(self, model: Model | None, asked: Deployment) -> Any:
        return plan(model, asked)


sys.modules[__name__].__class__ = _Callable
