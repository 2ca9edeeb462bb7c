"""A deployment out of an engine's command line, and the command line of a deployment."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from capplan.registry import Refused, closest
from capplan.settings import environment
from capplan.settings.deployment import SETTINGS, Deployment, setting, spelled, stated
from capplan.settings.table import ON_NEURON, Setting, truth

SHORT = {short: name for name, row in SETTINGS.items() for short in row.short}
"""Short forms of flags, and the settings that they name."""


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
        if colon and name.replace("-", "_") in SETTINGS:
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
        elif _is_switch(key):
            follows = bool(rest) and rest[0].lower() in ("true", "false")
            said = truth(name, value) if equals else truth(name, rest.pop(0)) if follows else True
            settings[key] = said != negated
        elif key in SETTINGS and not negated:
            settings[key] = setting(key, value if equals else _value(name, rest))
        elif key.replace("_", "-") in no_effect:
            if not equals and key.replace("_", "-") not in switches and rest and not rest[0].startswith("-"):
                value = rest.pop(0)
            ignored.append(f"{name} {value}".strip())
        elif key.replace("_", "-") in not_planned:
            raise Refused(f"{name} may move memory, and capplan has no law for it yet; leave it out to plan without it")
        else:
            known = [row.dashed for row in SETTINGS.values()] + [f"--{flag}" for flag in no_effect]
            raise Refused(f"there is no flag {name}; {closest(name, known)}")
    return Parsed(settings=settings, model=model, ignored=tuple(ignored))


def _flag_key(name: str) -> tuple[str, bool]:
    """The setting that a flag names, and whether it says no to it."""
    if name in SHORT:
        return SHORT[name], False
    key = spelled(name.lstrip("-"))
    if key.startswith("no_") and _is_switch(key[3:]):
        return key[3:], True
    return key, False


def _is_switch(name: str) -> bool:
    return name in SETTINGS and SETTINGS[name].kind == "flag"


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
        row = SETTINGS[name]
        if not row.flag:
            continue
        if row.kind == "flag":
            words.append(row.dashed if value else f"--no-{row.dashed.removeprefix('--')}")
        else:
            words.extend((row.dashed, str(value)))
    return shlex.join(words)


def help_lines() -> list[str]:
    """Every setting as lines for `--help`: its flag, its short form, what it takes, and what it is."""
    rows = SETTINGS.values()
    own = [row for row in rows if not row.flag and row.read_by != ON_NEURON]
    neuron = [row for row in rows if row.read_by == ON_NEURON]
    variables = [row for row in neuron if row.variable is not None]
    width = max(len(_form(row)) for row in rows)
    return [
        "capplan's own:",
        *(_help_line(row, width) for row in own),
        "",
        "The engine's flags, with dashes or underscores; 4K is 4096, 4k is 4000; --no-... denies a switch:",
        *(_help_line(row, width) for row in rows if row.flag),
        "",
        "With --engine vllm-neuron also:",
        *(_help_line(row, width) for row in neuron),
        "",
        "and its variables, as NAME=VALUE:",
        *(f"  {row.variable.name:{width}}  as {row.dashed}" for row in variables if row.variable is not None),
    ]


def _form(row: Setting) -> str:
    """How a setting is written: its flags, and a word for the value."""
    value = row.unit.upper() or {"count": "N", "share": "SHARE", "text": "NAME", "json": "JSON"}.get(row.kind, "")
    return f"{', '.join((row.dashed, *row.short))} {value}".strip()


def _help_line(row: Setting, width: int) -> str:
    words = f": {' or '.join(row.words)}" if row.words else ""
    return f"  {_form(row):{width}}  {row.help}{words}"
