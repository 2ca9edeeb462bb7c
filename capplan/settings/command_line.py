"""A deployment out of an engine's command line, and the command line of a deployment."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from capplan.registry import Refused, closest
from capplan.settings import environment
from capplan.settings.deployment import (
    FIELDS,
    FLAGS,
    NO_FLAG,
    SHORT_FLAGS,
    SYNONYMS,
    Deployment,
    setting,
    stated,
    truth,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Parsed:
    """What a command line says: the settings, the model if it names one, and the flags that move no memory."""

    settings: Mapping[str, Any]
    model: str | None
    ignored: tuple[str, ...]


def parse_flags(
    words: Sequence[str],
    *,
    no_effect: Sequence[str] = (),
    switches: Sequence[str] = (),
    not_planned: Sequence[str] = (),
) -> Parsed:
    """Settings out of an engine's command line, with dashes or underscores, `=` or a space, long or short forms.

    words        the command line, `vllm serve` and variables such as VLLM_NEURON_CPU_MODE=1 at its head or not
    no_effect    the engine's flags that move no memory: taken, and listed as ignored
    switches     those of them that take no value
    not_planned  the engine's flags that may move memory and that capplan has no law for: refused by name

    Raises Refused for a flag that neither knows, with the closest ones.

    >>> parse_flags(["Qwen/Qwen3-32B", "-tp", "4", "--max_model_len=32768"]).settings
    {'tensor_parallel_size': 4, 'max_model_len': 32768}
    """
    settings: dict[str, Any] = {}
    ignored: list[str] = []
    model = None
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word in ("export", "vllm", "serve") and model is None:
            continue
        variable, stated, text = word.partition("=")
        if stated and variable in environment.BY_NAME:
            settings[environment.BY_NAME[variable].field] = environment.read(variable, text)
            continue
        name, colon, text = word.partition(":")
        if colon and name.replace("-", "_") in FIELDS:
            settings[name.replace("-", "_")] = setting(name.replace("-", "_"), text.strip() or _value(word, rest))
            continue
        if not word.startswith("-"):
            if model is not None:
                raise Refused(f"{word!r} is left over: the model is {model} already, and a flag begins with --")
            model = word
            continue
        name, equals, value = word.partition("=")
        key, negated = _flag_key(name)
        if key == "model":
            model = value if equals else _value(name, rest)
        elif key in FLAGS:
            follows = bool(rest) and rest[0].lower() in ("true", "false")
            said = truth(name, value) if equals else truth(name, rest.pop(0)) if follows else True
            settings[key] = said != negated
        elif key in FIELDS and not negated:
            settings[key] = setting(key, value if equals else _value(name, rest))
        elif key.replace("_", "-") in no_effect:
            if not equals and key.replace("_", "-") not in switches and rest and not rest[0].startswith("-"):
                value = rest.pop(0)
            ignored.append(f"{name} {value}".strip())
        elif key.replace("_", "-") in not_planned:
            raise Refused(f"{name} may move memory, and capplan has no law for it yet; leave it out to plan without it")
        else:
            known = [f"--{field.replace('_', '-')}" for field in FIELDS] + [f"--{flag}" for flag in no_effect]
            raise Refused(f"there is no flag {name}; {closest(name, known)}")
    return Parsed(settings=settings, model=model, ignored=tuple(ignored))


def _flag_key(name: str) -> tuple[str, bool]:
    """The setting that a flag names, and whether it says no to it."""
    if name in SHORT_FLAGS:
        return SHORT_FLAGS[name], False
    key = name.lstrip("-").replace("-", "_")
    key = SYNONYMS.get(key, key)
    if key.startswith("no_") and key[3:] in FLAGS:
        return key[3:], True
    return key, False


def _value(name: str, rest: list[str]) -> str:
    if not rest:
        raise Refused(f"{name} stands at the end without a value")
    return rest.pop(0)


def command(model: str, deployment: Deployment) -> str:
    """The engine's command line for a deployment, only with what was said.

    >>> command("Qwen/Qwen3-32B", Deployment(tensor_parallel_size=4, max_model_len=32_768))
    'vllm serve Qwen/Qwen3-32B --tensor-parallel-size 4 --max-model-len 32768'
    """
    words = ["vllm", "serve", model]
    for name, value in stated(deployment).items():
        if name in NO_FLAG:
            continue
        flag = f"--{name.replace('_', '-')}"
        if name in FLAGS:
            words.append(flag if value else f"--no-{name.replace('_', '-')}")
        else:
            words.extend((flag, str(value)))
    return shlex.join(words)
