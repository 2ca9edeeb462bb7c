"""The command line of vLLM on Neuron: a budget, blocks, a reserve or an error text, in bare numbers."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import click

from capplan.engines import vllm_neuron
from capplan.engines.release import Engine, load_engine
from capplan.policies import vllm_neuron as policy
from capplan.registry import Refused, RegistryError, closest
from capplan.settings import environment
from capplan.settings.deployment import SETTINGS, Deployment, setting
from capplan.settings.table import whole
from capplan.units import GIB, ratio
from capplan.views.neuron_text import diagnosis_text, figures_text

ENGINE = "vllm-neuron"

SYNONYMS = {"chip": "platform", "weights_bytes": "model_weight_bytes", "bytes_per_block_all_layers": "bytes_per_block"}
"""Names that the plan has for the same thing."""

FIELD_OF = {"platform": "chip", "model_weight_bytes": "weights_bytes"}
"""Inputs whose setting has another name."""

WORKER = (
    "platform",
    "runtime_bytes_used",
    "runtime_bytes_free",
    "model_weight_bytes",
    "gpu_memory_utilization",
    "host_available_bytes",
    "local_workers",
    "env",
    *environment.BY_FIELD,
)
"""What a budget is computed from: the worker's figures, and its variables as texts or as settings."""

CACHE = (
    "available_bytes",
    "block_size",
    "total_num_kv_heads",
    "tensor_parallel_size",
    "head_dim",
    "num_layers",
    "kv_element_bytes",
    "kv_cache_dtype",
    "max_model_len",
    "bytes_per_block",
    "decode_context_parallel_size",
    "num_gpu_blocks_override",
)
"""What blocks are counted from."""

RESERVE = (
    "hbm_stack_bytes",
    "logical_cores_per_hbm_stack",
    "platform",
    "logical_nc_config",
    "share_bytes",
    "host_available_bytes",
    "local_workers",
    "model_weight_bytes",
    "minimum_bytes",
    "min_kv_budget_gib",
)
"""What the largest reserve is computed from."""

WORDS = ("platform", "kv_cache_dtype", "platform_target_override", "message", "policy")
SWITCHES = ("cpu_compile", "cpu_mode")


@dataclass(frozen=True, kw_only=True, slots=True)
class Verb:
    """One question: the names of its inputs, how it is answered, how an answer is written for people."""

    names: tuple[str, ...]
    answer: Callable[[Mapping[str, Any]], dict[str, Any]]
    text: Callable[[Mapping[str, Any]], str]


# Inputs


def _inputs(asked: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """The inputs that were said, each read; null is not said."""
    found: dict[str, Any] = {}
    for raw_name, raw in asked.items():
        name = SYNONYMS.get(raw_name.replace("-", "_"), raw_name.replace("-", "_"))
        if name not in names:
            raise Refused(f"there is no input {raw_name!r} here; {closest(name, list(names))}")
        if raw is None:
            continue
        if name == "env":
            if not isinstance(raw, Mapping):
                raise Refused(f"env is {raw!r}; it must map the names of variables to their texts")
            found[name] = dict(raw)
        elif name in WORDS:
            if not isinstance(raw, str):
                raise Refused(f"{name} is {raw!r}; it must be a text")
            found[name] = raw
        elif FIELD_OF.get(name, name) in SETTINGS:
            found[name] = setting(FIELD_OF.get(name, name), raw)
        else:
            found[name] = whole(name, raw)
    return found


def _need(found: Mapping[str, Any], name: str, *, least: int = 1) -> int:
    """A whole number that must be there, and not below a bound."""
    if name not in found:
        raise Refused(f"{name} is missing; it must be a whole number, {least} or more")
    value = int(found[name])
    if value < least:
        raise Refused(f"{name} is {value}; it must be {least} or more")
    return value


def _deployment(found: Mapping[str, Any]) -> Deployment:
    said = {
        FIELD_OF.get(name, name): value for name, value in found.items() if name not in ("env", "message", "policy")
    }
    return Deployment(engine=ENGINE, **{**said, **environment.settings(found.get("env", {}))})


def _engine() -> Engine:
    return load_engine(ENGINE)


# Answers


def budget_answer(asked: Mapping[str, Any]) -> dict[str, Any]:
    """The budget of one worker; the inputs have the names of a budget's figures, `env` holds raw texts."""
    found = _inputs(asked, WORKER)
    d, engine = _deployment(found), _engine()
    if not d.cpu_compile and not d.cpu_mode and "platform" not in found:
        raise Refused(
            f"platform is missing: which chip the worker runs on; there are {', '.join(_chips())}", "MISSING_PLATFORM"
        )
    if d.weights_bytes is None and not d.cpu_mode:
        raise Refused("model_weight_bytes is missing: parameters and buffers on this rank, a draft model's too")
    weights: Any = d.weights_bytes or 0
    b = vllm_neuron.worker_budget(d, engine, weights_bytes=weights)
    figures = {
        "hbm_stack_bytes": b.hbm_stack_bytes,
        "logical_cores_per_hbm_stack": b.logical_cores_per_hbm_stack,
        "share_bytes": b.share_bytes,
        "minimum_bytes": b.minimum_bytes,
        "total_budget_bytes": b.total_budget_bytes,
        "user_budget_bytes": b.user_budget_bytes,
        "heuristic_cap_bytes": b.heuristic_cap_bytes,
        "binding": b.binding if b.user_budget_bytes is not None else None,
        "headroom_bytes": b.headroom_bytes,
        "maximum_headroom_bytes": b.maximum_headroom_bytes if b.policy == "headroom" else None,
        "computed_available_bytes": b.kv_budget_bytes,
    }
    steps = {name: value for name, value in figures.items() if value is not None}
    head: dict[str, Any] = {"route": b.route, "policy": b.policy}
    if b.starts:
        head["available_bytes"] = b.kv_budget_bytes
    else:
        head |= {"error": vllm_neuron.refusal(b), "code": "BUDGET_BELOW_MINIMUM"}
    c = vllm_neuron.case(d, engine, weights_bytes=weights)
    warned = [f"{f.field}: {f.happens}, {f.why}" for f in vllm_neuron.side_effects(d, c, engine)]
    if b.starts and not b.kv_budget_bytes:
        warned.append('the cache gets nothing: vLLM itself then says "No available memory for the cache blocks"')
    other = vllm_neuron.other_reading(c, b)
    if other is not None:
        head["alternative_reading"] = {"note": other.note, "available_bytes": other.available_bytes}
    return {
        **head,
        "intermediate": steps,
        "overridden": [f"{f.field}: {f.happens}, {f.why}" for f in vllm_neuron.ignored(d, c, engine)],
        "warnings": [*warned, *environment.unread(found.get("env", {}))],
    }


def _chips() -> tuple[str, ...]:
    return tuple(sorted(set(vllm_neuron.target_aliases().values())))


def blocks_answer(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Blocks of one rank, and the requests of full length that they hold."""
    found = _inputs(asked, CACHE)
    found.setdefault("block_size", _engine().defaults["block_size"].value)
    found.setdefault("tensor_parallel_size", 1)
    found.setdefault("decode_context_parallel_size", 1)
    available = _need(found, "available_bytes", least=0)
    size, ranks = _need(found, "block_size"), _need(found, "tensor_parallel_size")
    page = (
        None
        if "bytes_per_block" in found
        else vllm_neuron.page(_geometry(found), block_size=size, tensor_parallel_size=ranks)
    )
    block = _need(found, "bytes_per_block") if page is None else page.block_bytes
    override = _need(found, "num_gpu_blocks_override") if "num_gpu_blocks_override" in found else None
    need = vllm_neuron.request_blocks(
        max_model_len=_need(found, "max_model_len"),
        block_size=size,
        contexts=_need(found, "decode_context_parallel_size"),
    )
    pool = vllm_neuron.pool(budget_bytes=available, block_bytes=block, request_blocks=need, override=override)
    return {
        "kv_heads_per_rank": page.kv_heads_per_rank if page else None,
        "kv_replication_factor": page.kv_head_copies if page else None,
        "page_bytes_per_layer": page.page_bytes if page else None,
        "bytes_per_block_all_layers": block,
        "num_blocks": pool.kv_blocks,
        "allocatable_blocks": pool.allocatable_blocks,
        "blocks_per_max_len_request": pool.request_blocks,
        "scheduler_max_concurrency": pool.requests_admitted,
        "max_len_requests_guaranteed": pool.requests_held,
        **({"computed_blocks": available // block} if override is not None else {}),
    }


def _geometry(found: Mapping[str, Any]) -> vllm_neuron.Geometry:
    form = found.get("kv_cache_dtype")
    if form is not None and form not in vllm_neuron.ELEMENT_BITS:
        raise Refused(f"kv_cache_dtype is {form!r}; there are {', '.join(vllm_neuron.ELEMENT_BITS)}")
    bits = vllm_neuron.ELEMENT_BITS[form] if form is not None else 8 * _need(found, "kv_element_bytes")
    return vllm_neuron.Geometry(
        n_layers=_need(found, "num_layers"),
        n_kv_heads=_need(found, "total_num_kv_heads"),
        head_dim=_need(found, "head_dim"),
        kv_bits=bits,
    )


def headroom_answer(asked: Mapping[str, Any]) -> dict[str, Any]:
    """The largest reserve that leaves the minimum, in bytes, and in GiB rounded down."""
    found = _inputs(asked, RESERVE)
    minimum = _need(found, "minimum_bytes", least=0) if "minimum_bytes" in found else _minimum(found)
    share, weights = _share(found)
    largest = int(policy.maximum_headroom_bytes(share=share, weights_bytes=weights, minimum=minimum))
    if largest < 0:
        says = (
            "no reserve works, not even 0: weights and minimum exceed the share; "
            "choose more ranks, smaller weights or a lower minimum"
        )
    elif largest == 0:
        says = "only an explicit 0 works"
    else:
        says = f"{environment.HEADROOM.name} may be at most {vllm_neuron.floor_gib(largest)} GiB ({largest:,} bytes)"
    return {
        "maximum_headroom_bytes": largest,
        "feasible": largest >= 0,
        "display_gib_floor_2dp": ratio(largest * 100 // GIB, 100) if largest >= 0 else None,
        "share_bytes": share,
        "says": says,
    }


def _minimum(found: Mapping[str, Any]) -> int:
    default = _engine().defaults["min_kv_budget_gib"].value
    return int(policy.minimum_bytes(min_kv_budget_gib=found.get("min_kv_budget_gib", default)))


def _share(found: Mapping[str, Any]) -> tuple[int, int]:
    """The share of one rank, however it is stated, and the weights that it has to hold."""
    if "host_available_bytes" in found:
        workers = found.get("local_workers", 1)
        share = policy.worker_share_bytes(
            host_available_bytes=_need(found, "host_available_bytes"), local_workers=workers
        )
        return int(share), 0
    weights = _need(found, "model_weight_bytes", least=0)
    if "share_bytes" in found:
        return _need(found, "share_bytes"), weights
    if "platform" in found and "hbm_stack_bytes" not in found:
        d = Deployment(engine=ENGINE, chip=found["platform"], logical_nc_config=found.get("logical_nc_config"))
        return int(vllm_neuron.worker_budget(d, _engine(), weights_bytes=weights).share_bytes), weights
    share = policy.share_bytes(
        hbm_stack_bytes=_need(found, "hbm_stack_bytes"),
        logical_cores_per_hbm_stack=_need(found, "logical_cores_per_hbm_stack"),
    )
    return int(share), weights


def explain_answer(asked: Mapping[str, Any]) -> dict[str, Any]:
    """What an error text means; with the inputs of a budget, in the numbers of that deployment."""
    found = _inputs(asked, ("message", "policy", *WORKER))
    if "message" not in found or not found["message"].strip():
        raise Refused("message is missing: the error's text, or a piece of the log that holds it")
    told = {name: value for name, value in found.items() if name not in ("message", "policy")}
    d = _deployment(told)
    reserve = "headroom" if d.reserved_headroom_gib is not None else "default"
    chosen = found.get("policy", reserve)
    if chosen not in vllm_neuron.POLICIES:
        raise Refused(f"policy is {chosen!r}; there are {' and '.join(vllm_neuron.POLICIES)}")
    known = d.weights_bytes is not None or d.host_available_bytes is not None
    b = vllm_neuron.worker_budget(d, _engine(), weights_bytes=d.weights_bytes or 0) if known else None
    if b is not None and b.policy != chosen:
        raise Refused(f"policy is {chosen!r}, and the settings make it {b.policy}; leave one of them out")
    diagnosis = vllm_neuron.explain(found["message"], chosen, b)
    return {
        "failure_class": diagnosis.failure_class,
        "primary_knob": diagnosis.primary_knob,
        "direction": diagnosis.direction,
        "step_gib": diagnosis.step_gib,
        "notes": list(diagnosis.notes),
        "procedure": list(diagnosis.procedure),
        "policy": diagnosis.policy,
        "message": diagnosis.message,
    }


# Texts


def _budget_text(answer: Mapping[str, Any]) -> str:
    rows = [f"  {'One rank':<28}{'GiB':>10}{'bytes':>20}", *figures_text(answer.get("intermediate", {}))]
    rows += [f"  route {answer['route']}, policy {answer['policy']}"]
    rows += [f"  {line}" for key in ("overridden", "warnings") for line in answer[key]]
    return "\n".join([answer.get("error") or f"{answer['available_bytes']:,} bytes for the cache", *rows]) + "\n"


def _plain_text(answer: Mapping[str, Any]) -> str:
    plain = {key: value for key, value in answer.items() if key != "says" and not isinstance(value, bool)}
    return "\n".join([*([answer["says"]] if "says" in answer else []), *figures_text(plain)]) + "\n"


def _explained_text(answer: Mapping[str, Any]) -> str:
    known: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in answer.items()}
    return diagnosis_text(vllm_neuron.Diagnosis(**known))


VERBS = {
    "budget": Verb(names=WORKER, answer=budget_answer, text=_budget_text),
    "blocks": Verb(names=CACHE, answer=blocks_answer, text=_plain_text),
    "headroom": Verb(names=RESERVE, answer=headroom_answer, text=_plain_text),
    "explain": Verb(names=("message", "policy", *WORKER), answer=explain_answer, text=_explained_text),
}
"""The questions by their words on the command line."""


def answer_line(verb: str, line: str) -> dict[str, Any]:
    """The answer to one JSON object; what cannot be answered has `error` with its text."""
    try:
        asked = json.loads(line)
    except json.JSONDecodeError as error:
        return {"error": f"the line is not JSON: {error.msg} at character {error.pos + 1}"}
    if not isinstance(asked, Mapping):
        return {"error": f"the line holds a {type(asked).__name__}; a question is a JSON object"}
    try:
        return VERBS[verb].answer(asked)
    except (Refused, RegistryError) as error:
        return _refused(error)


def _refused(error: Exception) -> dict[str, Any]:
    code = getattr(error, "code", "")
    return {"error": str(error), **({"code": code} if code else {})}


# Commands

PASS_ON = {"ignore_unknown_options": True, "help_option_names": ["-h", "--help"]}
REFUSED, SHORT = 2, 1


@click.group("neuron", context_settings={"help_option_names": ["-h", "--help"]})
def neuron() -> None:
    """Bare numbers of vLLM on Neuron: a budget, its blocks, the largest reserve, an error's meaning."""


def _asked(words: tuple[str, ...], verb: str) -> dict[str, Any]:
    """The inputs that a command line says: flags, variables as NAME=VALUE, and the error text for explain."""
    found: dict[str, Any] = {}
    variables: dict[str, str] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if word in ("export", "--env"):
            continue
        if equals and name.replace("_", "").isalnum() and name.isupper() and "env" in VERBS[verb].names:
            variables[name] = value
        elif word.startswith("--"):
            key = name.lstrip("-").replace("-", "_")
            if (
                not equals
                and key in SETTINGS
                and SETTINGS[key].kind == "flag"
                and (not rest or rest[0].startswith("-"))
            ):
                found[key] = True
            elif not equals and not rest:
                raise Refused(f"{name} stands at the end without a value")
            else:
                found[key] = value if equals else rest.pop(0)
        elif "message" in VERBS[verb].names and "message" not in found:
            found["message"] = word
        else:
            raise Refused(f"{word!r} is left over; inputs are written as --name value")
    return {**found, "env": variables} if variables else found


def _add(verb: str, summary: str, flags: tuple[str, ...]) -> None:
    """One command of the group."""
    lines = ["\b", "Inputs:", *(_input_line(name) for name in flags if name != "env")]
    if "env" in flags:
        lines += [f"  {'NAME=VALUE':30}  a variable of the worker's environment, as often as needed"]

    def run(words: tuple[str, ...], as_json: bool, jsonl: bool) -> None:
        if jsonl:
            if words:
                _stop(f"--jsonl takes its questions from standard input, and {' '.join(words)!r} is left over")
            for line in sys.stdin:
                if line.strip():
                    click.echo(json.dumps(answer_line(verb, line)))
            return
        try:
            answer = VERBS[verb].answer(_asked(words, verb))
        except (Refused, RegistryError) as error:
            if as_json:
                click.echo(json.dumps(_refused(error), indent=2))
                sys.exit(REFUSED)
            _stop(str(error))
        click.echo(json.dumps(answer, indent=2) if as_json else VERBS[verb].text(answer), nl=as_json)
        sys.exit(SHORT if "error" in answer or answer.get("feasible") is False else 0)

    command = click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[INPUTS]")(run)
    command = click.option("--jsonl", is_flag=True, help="Read a JSON object a line from standard input.")(command)
    command = click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")(command)
    neuron.command(verb, help=summary, context_settings=PASS_ON, epilog="\n".join(lines))(command)


def _input_line(name: str) -> str:
    """An input as its setting is written, or by its name alone."""
    known = SETTINGS.get(FIELD_OF.get(name, name))
    return f"  --{name.replace('_', '-'):30}{known.help}" if known else f"  --{name.replace('_', '-')}"


def _stop(sentence: str) -> None:
    click.echo(f"capplan: {sentence}", err=True)
    sys.exit(REFUSED)


_add(
    "budget",
    "The bytes that one worker may give its cache. Exit code 0 starts, 1 is below the minimum, 2 bad input.",
    WORKER,
)
_add("blocks", "The blocks of a cache, its null block, and the requests of full length that it holds.", CACHE)
_add("headroom", "The largest reserve that leaves the minimum, rounded down.", RESERVE)
_add(
    "explain",
    "What an error text means and what to change; with the inputs of a budget, in its numbers.",
    ("policy", *WORKER),
)
