"""The inverse questions of a budget, each answer checked by the formula before it is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil, nextafter
from typing import Any

from capplan.engines.vllm_neuron.budget import Budget
from capplan.policies import vllm_neuron as policy
from capplan.settings.environment import CAP, HEADROOM, MINIMUM
from capplan.units import GIB, ceil_div, ratio, show_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What would work, or why nothing does.

    name             the question
    field            the setting to change
    value            its value to the last digit, None where none works
    typed            the value as a person types it; it works too
    kv_budget_bytes  what the cache gets with it
    says             the answer as a sentence
    """

    name: str
    field: str
    value: float | int | None
    typed: str
    kv_budget_bytes: int | None
    says: str


OFF = "the minimum is off, so any utilization and any cap pass"
"""What to say where nothing is asked of a budget."""


def floor_gib(n: int) -> str:
    """Bytes in GiB with two digits, never more than there are.

    >>> floor_gib(10_733_123_272)
    '9.99'
    """
    hundredths = n * 100 // GIB
    return f"{'-' if hundredths < 0 else ''}{abs(hundredths) // 100}.{abs(hundredths) % 100:02d}"


def exact_gib(n: int) -> str:
    """Bytes in GiB, to the byte: the engine reads the text back as just as many bytes.

    >>> exact_gib(15_032_385_536), exact_gib(1_825_361_100)
    ('14', '1.699999999254942')
    """
    return plain(ratio(n, GIB))


def plain(number: Any) -> str:
    """A number as a person would type it, to its last digit.

    >>> plain(4.0), plain(0.3), plain(14.000000000931323)
    ('4', '0.3', '14.000000000931323')
    """
    return repr(float(number)).removesuffix(".0")


def show(n: int) -> str:
    """Bytes for a person and for a calculator."""
    return f"{show_bytes(n)} ({n:,} bytes)"


def capped(b: Budget, utilization: float, fraction: float) -> int:
    """The default policy's budget at another utilization and another cap."""
    total = policy.total_budget_bytes(share=b.share_bytes, gpu_memory_utilization=utilization)
    user = policy.user_budget_bytes(total_budget=total, weights_bytes=b.weights_bytes)
    cap = policy.heuristic_cap_bytes(total_budget=total, kv_gmu_budget_cap_fraction=fraction)
    return int(policy.capped_budget_bytes(user_budget=user, heuristic_cap=cap))


def reserved(b: Budget, headroom_bytes: int) -> int:
    """The reserve policy's budget with another reserve."""
    found = policy.reserved_budget_bytes(
        share=b.share_bytes, weights_bytes=b.weights_bytes, headroom_bytes=headroom_bytes
    )
    return int(found)


def _least(guess: float, passes: Callable[[float], bool]) -> float | None:
    """The smallest fraction up to 1 that passes, from a guess a few steps of a double beside it."""
    if not passes(1.0):
        return None
    found = min(guess, 1.0)
    while not passes(found):
        found = nextafter(found, 1.0)
    while passes(nextafter(found, 0.0)):
        found = nextafter(found, 0.0)
    return found


def _typed(value: float, passes: Callable[[float], bool]) -> str:
    """A fraction rounded up to four digits, which passes as well, or all its digits."""
    short = ratio(ceil(value * 10_000), 10_000)
    return f"{short:g}" if short <= 1 and passes(float(f"{short:g}")) else repr(value)


def _settings(b: Budget) -> tuple[float, float]:
    """Utilization and cap of a budget by the default policy."""
    if b.kv_gmu_budget_cap_fraction is None:
        raise ValueError("a reserve has no cap")
    return float(b.gpu_memory_utilization), float(b.kv_gmu_budget_cap_fraction)


def smallest_utilization(b: Budget, wanted: int | None = None) -> Answer:
    """The smallest gpu_memory_utilization with which the default policy gives some bytes, the minimum unasked."""
    target = int(b.minimum_bytes) if wanted is None else wanted
    _, fraction = _settings(b)
    share, held = int(b.share_bytes), int(b.weights_bytes)

    def passes(utilization: float) -> bool:
        return capped(b, utilization, fraction) >= target

    def none(why: str) -> Answer:
        return Answer(
            name="smallest_utilization",
            field="gpu_memory_utilization",
            value=None,
            typed="",
            kv_budget_bytes=None,
            says=f"no gpu_memory_utilization up to 1 reaches {show_bytes(target)}: {why}",
        )

    if target <= 0:
        return replace(none(""), says=OFF)
    if not passes(1.0):
        if share - held < target:
            return none(f"the share is {show_bytes(share)} and the weights take {show_bytes(held)}")
        cap = capped(b, 1.0, fraction)
        return none(f"{CAP.name} {plain(fraction)} allows at most {show_bytes(cap)} even then")
    # The total that is needed first, in bytes, then the smallest double that reaches it.
    top, bottom = fraction.as_integer_ratio()
    total = int(ceil_div(target * bottom, top))
    while policy.heuristic_cap_bytes(total_budget=total, kv_gmu_budget_cap_fraction=fraction) < target:
        total += 1
    while total and policy.heuristic_cap_bytes(total_budget=total - 1, kv_gmu_budget_cap_fraction=fraction) >= target:
        total -= 1
    need = max(held + target if b.user_budget_bytes is not None else target, total, 1)
    value = _least(float(ratio(need, share)), passes)
    if value is None:
        return none("the share is too small")
    return Answer(
        name="smallest_utilization",
        field="gpu_memory_utilization",
        value=value,
        typed=_typed(value, passes),
        kv_budget_bytes=capped(b, value, fraction),
        says=f"gpu_memory_utilization {_typed(value, passes)} or more reaches {show_bytes(target)}",
    )


def smallest_cap(b: Budget, wanted: int | None = None) -> Answer:
    """The smallest cap with which the default policy gives some bytes, the minimum unasked.

    Below what the weights leave it is also the cap that makes the cache just so large.
    """
    target = int(b.minimum_bytes) if wanted is None else wanted
    utilization, _ = _settings(b)
    total = int(policy.total_budget_bytes(share=b.share_bytes, gpu_memory_utilization=utilization))
    left = int(policy.user_budget_bytes(total_budget=total, weights_bytes=b.weights_bytes))

    def passes(fraction: float) -> bool:
        return capped(b, utilization, fraction) >= target

    value = _least(float(ratio(target, total)), passes) if total and target > 0 else None
    if value is None:
        why = f"at gpu_memory_utilization {plain(utilization)} the weights leave {show_bytes(left)}, whatever the cap"
        return Answer(
            name="smallest_cap",
            field=CAP.field,
            value=None,
            typed="",
            kv_budget_bytes=None,
            says=f"no {CAP.name} up to 1 reaches {show_bytes(target)}: {why}" if target > 0 else OFF,
        )
    return Answer(
        name="smallest_cap",
        field=CAP.field,
        value=value,
        typed=_typed(value, passes),
        kv_budget_bytes=capped(b, utilization, value),
        says=f"{CAP.name} {_typed(value, passes)} or more reaches {show_bytes(target)}",
    )


def cap_for_bytes(b: Budget, wanted: int) -> Answer:
    """The cap that makes the cache just so many bytes; it works only below what the weights leave."""
    utilization, _ = _settings(b)
    found = smallest_cap(b, wanted)
    if found.value is None or found.kv_budget_bytes != wanted:
        return Answer(
            name="cap_for_bytes", field=CAP.field, value=None, typed="", kv_budget_bytes=None, says=found.says
        )
    value = float(found.value)
    return Answer(
        name="cap_for_bytes",
        field=CAP.field,
        value=value,
        typed=repr(value),
        kv_budget_bytes=capped(b, utilization, value),
        says=f"{CAP.name} {value!r} makes the cache {show(wanted)}",
    )


def cap_for_tokens(b: Budget, tokens: int, *, block_size: int, block_bytes: int, contexts: int = 1) -> Answer:
    """The smallest cap whose pool holds some tokens of one request beside the null block."""
    blocks = int(ceil_div(ceil_div(tokens, contexts), block_size)) + 1
    found = smallest_cap(b, blocks * block_bytes)
    end = f"{tokens:,} tokens need {blocks:,} blocks with the null block, {show(blocks * block_bytes)}"
    return Answer(
        name="cap_for_tokens",
        field=CAP.field,
        value=found.value,
        typed=found.typed,
        kv_budget_bytes=found.kv_budget_bytes,
        says=f"{end}; {found.says}" if found.value is None else f"{end}; {CAP.name} {found.typed} or more holds them",
    )


def headroom_of_default(b: Budget) -> Answer:
    """The reserve that keeps the cache as large as the default policy makes it: less of it gives more cache."""
    today = int(b.kv_budget_bytes)
    value = int(b.share_bytes) - int(b.weights_bytes) - today
    if value < 0 or reserved(b, value) != today:
        return Answer(
            name="headroom_of_default",
            field=HEADROOM.field,
            value=None,
            typed="",
            kv_budget_bytes=None,
            says=f"no reserve keeps the cache at {show(today)}: the weights alone exceed the share by {show(-value)}",
        )
    short = "" if today >= b.minimum_bytes else f", which stays below {MINIMUM.name}"
    return Answer(
        name="headroom_of_default",
        field=HEADROOM.field,
        value=value,
        typed=exact_gib(value),
        kv_budget_bytes=reserved(b, value),
        says=f"{HEADROOM.name} {exact_gib(value)} keeps the cache at {show(today)}{short}; less gives more",
    )


def largest_headroom(b: Budget) -> Answer:
    """The largest reserve that the minimum allows."""
    value = int(b.maximum_headroom_bytes) if b.maximum_headroom_bytes is not None else -1
    held = f"weights of {show_bytes(b.weights_bytes)} and " if b.route != "cpu" else ""
    least = f"the {show_bytes(b.minimum_bytes)} of {MINIMUM.name}"
    if value < 0 or reserved(b, value) < b.minimum_bytes:
        return Answer(
            name="largest_headroom",
            field=HEADROOM.field,
            value=None,
            typed="",
            kv_budget_bytes=None,
            says=f"no reserve works, not even 0: {held}{least} exceed the share of {show_bytes(b.share_bytes)} "
            f"by {show(-value)}; choose {'more ranks, smaller weights' if held else 'fewer workers'} "
            f"or a lower {MINIMUM.name}",
        )
    words = (
        f"only an explicit {HEADROOM.name} 0 works"
        if value == 0
        else f"{HEADROOM.name} may be at most {floor_gib(value)} GiB ({value:,} bytes)"
    )
    end = " and leaves the cache nothing" if not b.minimum_bytes else ""
    return Answer(
        name="largest_headroom",
        field=HEADROOM.field,
        value=value,
        typed=floor_gib(value),
        kv_budget_bytes=reserved(b, value),
        says=words + end,
    )


def both_settings(b: Budget) -> str | None:
    """Utilization and cap that reach the minimum together where neither does alone; None where nothing does."""
    target = int(b.minimum_bytes)
    if capped(b, 1.0, 1.0) < target:
        return None
    low = max(int(b.weights_bytes) + target, 1) if b.user_budget_bytes is not None else max(target, 1)

    def reaches(utilization: float) -> bool:
        return capped(b, utilization, 1.0) >= target

    utilization = _least(float(ratio(low, int(b.share_bytes))), reaches)
    if utilization is None:
        return None
    share = float(_typed(utilization, reaches))
    total = int(policy.total_budget_bytes(share=b.share_bytes, gpu_memory_utilization=share))

    def holds(fraction: float) -> bool:
        return capped(b, share, fraction) >= target

    fraction = _least(float(ratio(target, total)), holds)
    if fraction is None:
        return None
    return f"gpu_memory_utilization {share:g} together with {CAP.name} {_typed(fraction, holds)} reaches it"


# What a refusal says

ENGINE_SAYS = "Computed KV cache budget is below minimum threshold"
"""How the engine's own refusal begins."""


def refusal(b: Budget) -> str:
    """Why a budget below the minimum is refused: what was set, what there is, which term binds, what would pass."""
    least = f"{MINIMUM.name} {plain(b.min_kv_budget_gib)} asks for {show(int(b.minimum_bytes))}"
    words = _reserve_refusal(b, least) if b.policy == "headroom" else _default_refusal(b, least)
    return f"{ENGINE_SAYS}: {words}"


def _weights(b: Budget) -> str:
    return f"the weights take {show_bytes(b.weights_bytes)}"


def _less(b: Budget) -> str:
    """What helps beside the knobs: a lower minimum only where something is left at all."""
    ways = [f"a lower {MINIMUM.name}"] if int(b.kv_budget_bytes) else []
    ways += ["more ranks, each with less of the weights"] if b.route != "cpu" else ["fewer workers on this host"]
    return " or ".join(ways)


def _reserve_refusal(b: Budget, least: str) -> str:
    headroom, share, cache = int(b.headroom_bytes or 0), int(b.share_bytes), int(b.kv_budget_bytes)
    there = f"{HEADROOM.name} {plain(b.reserved_headroom_gib)} keeps back {show_bytes(headroom)} of the share of "
    there += show_bytes(share)
    if headroom >= share:
        there += ", all of it, whatever the model"
    elif headroom + int(b.weights_bytes) >= share:
        there += f" and {_weights(b)}, which together is all of it"
    elif b.route != "cpu":
        there += f" and {_weights(b)}"
    there += f", so the cache gets {show(cache)}, while {least}"
    largest = largest_headroom(b)
    if largest.value is None:
        return f"{there}; {largest.says}"
    if largest.value == 0:
        return f"{there}; {largest.says}, or {_less(b)}"
    down = f"lower {HEADROOM.name} to at most {largest.typed} ({largest.value:,} bytes)"
    if headroom >= share:
        return f"{there}; {down}: nothing else helps while the reserve takes the whole share"
    return f"{there}; {down}, or choose {_less(b)}"


BINDING = {
    "user_budget": "what the weights leave binds",
    "cap": "the cap binds",
    "both": "what the weights leave and the cap bind alike",
    "headroom": "the reserve decides",
}
"""Which term decides, in words."""


def _default_refusal(b: Budget, least: str) -> str:
    utilization, fraction = _settings(b)
    there = f"gpu_memory_utilization {plain(utilization)} of the share of {show_bytes(b.share_bytes)} is "
    there += show_bytes(int(b.total_budget_bytes or 0))
    if b.user_budget_bytes is not None:
        there += f", of which {_weights(b)} and leave {show_bytes(b.user_budget_bytes)}"
    there += f"; {CAP.name} {plain(fraction)} allows {show_bytes(int(b.heuristic_cap_bytes or 0))}"
    there += f"; {BINDING[b.binding]}, the cache gets {show(int(b.kv_budget_bytes))}, and {least}"
    one, other = smallest_utilization(b), smallest_cap(b)
    ways = [found.says for found in (one, other)]
    if one.value is None and other.value is None:
        together = both_settings(b)
        ways = (
            [*ways, together]
            if together is not None
            else [f"no gpu_memory_utilization and no {CAP.name} reaches it, not even 1 and 1"]
        )
    return f"{there}; {'; '.join(ways)}; or choose {_less(b)}"
