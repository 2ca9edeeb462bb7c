"""The command line: plan a deployment, list what the registry knows, write a report."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from capplan.engines import rules_of
from capplan.engines.release import load_engine
from capplan.hub import load_model
from capplan.model import Model
from capplan.model.facts import known_models
from capplan.plan import Plan, plan
from capplan.plan.public import refusal_dict
from capplan.registry import Refused, RegistryError, load_chip, names
from capplan.settings.command_line import help_lines, parse_flags
from capplan.settings.deployment import DEFAULT_ENGINE, Deployment, from_mapping
from capplan.views.explain import weights_text
from capplan.views.text import chips_text, models_text, plan_text

EXIT = {"fits": 0, "does-not-fit": 1, "refused": 2, "close": 3}
"""Exit codes: 2 is for bad input too."""

PASS_ON = {"ignore_unknown_options": True, "help_option_names": ["-h", "--help"]}


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="capplan", prog_name="capplan")
def main() -> None:
    """What does a model, deployed this way, occupy on a chip, and how many requests does it hold?"""


FLAGS_HELP = "\n".join(line or "\b" for line in ("", *help_lines()))
"""Every setting, in paragraphs whose lines click leaves alone."""


@main.command("plan", context_settings=PASS_ON, epilog=FLAGS_HELP)
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON.")
@click.option("--jsonl", is_flag=True, help="Read a JSON object a line from standard input, answer one a line.")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="MODEL [ENGINE FLAGS]")
def plan_command(words: tuple[str, ...], as_json: bool, jsonl: bool) -> None:
    """Plan MODEL with an engine's own flags; a whole `vllm serve` line may be pasted.

    MODEL is a registry name, a folder, or the path of a config.json.  Exit code 0 fits, 1 does not
    fit, 2 refused or bad input, 3 close.
    """
    if jsonl:
        if words:
            _stop(f"--jsonl takes its questions from standard input, and {' '.join(words)!r} is left over")
        for line in sys.stdin:
            if line.strip():
                click.echo(json.dumps(answer_line(line)))
        return
    try:
        answer = _asked(words)
    except (Refused, RegistryError) as error:
        if as_json:
            click.echo(json.dumps(refusal_dict(str(error)), indent=2))
            sys.exit(EXIT["refused"])
        _stop(str(error))
    if as_json:
        click.echo(json.dumps(answer.to_dict(), indent=2))
    else:
        click.echo(plan_text(answer, colour=_colours()), nl=False)
    sys.exit(EXIT[answer.verdict])


def _colours() -> bool:
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ


def _stop(sentence: str) -> None:
    click.echo(f"capplan: {sentence}", err=True)
    sys.exit(EXIT["refused"])


def question(words: Iterable[str]) -> tuple[str, Deployment, tuple[str, ...]]:
    """The model, the deployment and the flags without effect of a command line; on Neuron the model may be left out.

    Raises Refused where no model is named, or a flag or its value is unknown.
    """
    listed = list(words)
    engine = load_engine(_engine_of(listed))
    # The kernel has no command line of its own: what vLLM's takes is taken.
    flags = engine if engine.no_effect else load_engine(DEFAULT_ENGINE)
    parsed = parse_flags(listed, no_effect=flags.no_effect, switches=flags.switches, not_planned=flags.not_planned)
    if parsed.model is None and rules_of(engine.rules).needs_model:
        raise Refused(
            "no model is named; write capplan plan MODEL, with a registry name, a folder or the path of a config.json"
        )
    return parsed.model or "", Deployment(**parsed.settings), parsed.ignored


def _engine_of(words: list[str]) -> str:
    """The engine that a command line names, before its flags are read by that engine's lists."""
    for i, word in enumerate(words):
        if word.startswith("--engine="):
            return word.partition("=")[2]
        if word == "--engine" and i + 1 < len(words):
            return words[i + 1]
    return DEFAULT_ENGINE


def _asked(words: Iterable[str]) -> Plan:
    reference, deployment, ignored = question(words)
    found: Plan = plan(_model(reference, deployment) if reference else None, deployment)
    return replace(found, ignored_flags=ignored)


def _model(reference: str, deployment: Deployment) -> Model:
    """The model of a question, as its deployment wants it read."""
    return load_model(reference, overrides=deployment.overrides, assume_generic=deployment.assume_generic)


def answer_line(line: str) -> dict[str, Any]:
    """The answer to one line of questions; a line that cannot be read is answered with a refusal too."""
    try:
        asked = json.loads(line)
    except json.JSONDecodeError as error:
        return refusal_dict(f"the line is not JSON: {error.msg} at character {error.pos + 1}")
    except (ValueError, RecursionError):
        return refusal_dict("the line is JSON that is nested too deep or holds a number too long to read")
    if not isinstance(asked, Mapping):
        return refusal_dict(f"the line holds a {type(asked).__name__}; a question is a JSON object")
    try:
        values = {key: value for key, value in asked.items() if key != "model"}
        reference = asked.get("model")
        deployment = from_mapping(values)
        if not isinstance(reference, str) and rules_of(load_engine(deployment.engine).rules).needs_model:
            return refusal_dict('no model is named; the object needs "model"', "model")
        found: Plan = plan(_model(reference, deployment) if isinstance(reference, str) else None, deployment)
        return found.to_dict()
    except (Refused, RegistryError) as error:
        return refusal_dict(str(error))


@main.command("report", context_settings=PASS_ON, epilog=FLAGS_HELP)
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    default="capplan-report.html",
    show_default=True,
    help="The file to write.",
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="MODEL [ENGINE FLAGS]")
def report_command(words: tuple[str, ...], output: Path) -> None:
    """Write the answer for MODEL with an engine's own flags as one HTML file that needs nothing else.

    The words and the exit code are those of capplan plan.
    """
    try:
        from capplan.report import write_report

        answer = _asked(words)
        reference, deployment, ignored = question(words)
        written = write_report(reference, deployment, output, ignored_flags=ignored)
    except (Refused, RegistryError) as error:
        _stop(str(error))
    click.echo(f"wrote {written}")
    sys.exit(EXIT[answer.verdict])


@main.command("neuron", context_settings={"ignore_unknown_options": True}, add_help_option=False)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="COMMAND [INPUTS]")
def neuron_command(words: tuple[str, ...]) -> None:
    """Bare numbers of vLLM on Neuron: budget, blocks, headroom, explain."""
    from capplan.cli.neuron import neuron

    neuron.main(args=list(words), prog_name="capplan neuron")


@main.group("explain")
def explain_group() -> None:
    """Unfold a figure of a plan down to what it is made of."""


@explain_group.command("weights", context_settings=PASS_ON)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="MODEL [ENGINE FLAGS]")
def explain_weights(words: tuple[str, ...]) -> None:
    """The weights of each distinct rank, down to classes of tensors with shape, split and width."""
    try:
        answer = _asked(words)
    except (Refused, RegistryError) as error:
        _stop(str(error))
    click.echo(weights_text(answer), nl=False)
    sys.exit(EXIT["refused"] if answer.verdict == "refused" else 0)


@main.command("models")
def models_command() -> None:
    """List the models that the registry knows."""
    click.echo(models_text(known_models()), nl=False)


@main.command("chips")
def chips_command() -> None:
    """List the chips that the registry knows: what the driver reports of each, and the stacks of Neuron's."""
    from capplan.engines.vllm_neuron import load_neuron_chip
    from capplan.views.neuron_text import neuron_chips_text

    click.echo(chips_text(tuple(load_chip(name) for name in names("chips"))))
    click.echo(neuron_chips_text(tuple(load_neuron_chip(name) for name in names("neuron"))), nl=False)
