"""Environment variables that vLLM on Neuron reads, and the settings that they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from capplan.registry import Refused, closest


@dataclass(frozen=True, kw_only=True, slots=True)
class Variable:
    """One variable: its setting's name, the kind of its text (gib, share, count, switch, word), what it accepts."""

    name: str
    field: str
    kind: str
    accepts: str
    code: str = "INVALID_ENV"

    @property
    def label(self) -> str:
        """Both of its names, for a message."""
        return f"{self.name} ({self.field})"


VARIABLES = (
    Variable(
        name="VLLM_NEURON_RESERVED_HEADROOM_GIB",
        field="reserved_headroom_gib",
        kind="gib",
        accepts="a finite number of GiB, 0 or more and without a unit, such as 4 or 1.5; "
        "left unset, the default policy applies",
    ),
    Variable(
        name="VLLM_NEURON_KV_GMU_BUDGET_CAP_FRACTION",
        field="kv_gmu_budget_cap_fraction",
        kind="share",
        accepts="a fraction above 0 and at most 1, such as 0.3; left unset, it is 0.3",
    ),
    Variable(
        name="VLLM_NEURON_MIN_KV_BUDGET_GIB",
        field="min_kv_budget_gib",
        kind="gib",
        accepts="a finite number of GiB without a unit, such as 1.0; 0 and less switch the check off, "
        "left unset, it is 1.0",
    ),
    Variable(
        name="VLLM_NEURON_CPU_COMPILE",
        field="cpu_compile",
        kind="switch",
        accepts="0 for off or another whole number for on; words are not read",
    ),
    Variable(
        name="VLLM_NEURON_CPU_MODE",
        field="cpu_mode",
        kind="switch",
        accepts="0 for off or another whole number for on; words are not read",
    ),
    Variable(
        name="NEURON_PLATFORM_TARGET_OVERRIDE",
        field="platform_target_override",
        kind="word",
        accepts="a target such as trn2",
        code="UNKNOWN_PLATFORM",
    ),
    Variable(
        name="NEURON_LOGICAL_NC_CONFIG",
        field="logical_nc_config",
        kind="count",
        accepts="the physical cores of one logical core: 1, or 2 on trn2 and trn3",
        code="INVALID_LNC",
    ),
)
"""Every variable that the budget reads."""

BY_NAME = {variable.name: variable for variable in VARIABLES}
BY_FIELD = {variable.field: variable for variable in VARIABLES}

HEADROOM, CAP, MINIMUM, COMPILE, HOST, TARGET, DEGREE = VARIABLES


def wrong(variable: Variable, raw: Any) -> Refused:
    """The refusal of a value: the variable, the text as it stands, what is accepted."""
    return Refused(f"{variable.label} is {raw!r}; it must be {variable.accepts}", variable.code)


def read(name: str, text: Any) -> Any:
    """What a variable's text says, read as the engine reads it.

    Blanks around a number are harmless; an empty text is a mistake: what shall not count is left unset.

    Raises Refused with the variable, the raw text and what is accepted.

    >>> read("VLLM_NEURON_RESERVED_HEADROOM_GIB", " 0.0 "), read("VLLM_NEURON_CPU_MODE", "0")
    (0.0, False)
    """
    variable = BY_NAME[name]
    if not isinstance(text, str):
        raise Refused(f"{variable.label} is {text!r}; a variable's value is a text, such as '1'", variable.code)
    try:
        if variable.kind in ("gib", "share"):
            return float(text)
        if variable.kind in ("count", "switch"):
            number = int(text)
            return number != 0 if variable.kind == "switch" else number
    except ValueError:
        raise wrong(variable, text) from None
    return text.strip()


def settings(variables: Mapping[str, str]) -> dict[str, Any]:
    """Settings out of a process's environment; a variable that is not there is not said.

    Beside a reserve the cap is not even read: a text that is no number is then as good as none.

    Raises Refused for a text that the engine could not read.

    >>> settings({"VLLM_NEURON_RESERVED_HEADROOM_GIB": "4", "PATH": "/bin"})
    {'reserved_headroom_gib': 4.0}
    """
    found = {}
    for name, text in variables.items():
        if name not in BY_NAME:
            continue
        try:
            found[BY_NAME[name].field] = read(name, text)
        except Refused:
            if name != CAP.name or HEADROOM.name not in variables:
                raise
    return found


def unread(variables: Mapping[str, str]) -> tuple[str, ...]:
    """A sentence for each variable that looks like one of these and is none: a slip in its name, most often."""
    return tuple(
        f"{name} is not read here; {closest(name, list(BY_NAME))}"
        for name in variables
        if name not in BY_NAME and name.startswith(("VLLM_NEURON_", "NEURON_LOGICAL", "NEURON_PLATFORM"))
    )


def lines(values: Mapping[str, Any]) -> tuple[str, ...]:
    """The variables that say some settings, as lines for a shell.

    >>> lines({"reserved_headroom_gib": 4.0, "cpu_compile": True})
    ('export VLLM_NEURON_RESERVED_HEADROOM_GIB=4', 'export VLLM_NEURON_CPU_COMPILE=1')
    """
    said = []
    for variable in VARIABLES:
        value = values.get(variable.field)
        if value is None or (variable.kind == "switch" and not value):
            continue
        if variable.kind == "switch":
            value = 1
        text = repr(float(value)).removesuffix(".0") if variable.kind in ("gib", "share") else str(value)
        said.append(f"export {variable.name}={text}")
    return tuple(said)
