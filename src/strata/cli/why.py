"""Explain why something happened, with causes and cost."""

from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from strata.cli.support.options import AsJson, Url
from strata.cli.support.past_source import Data, Past, RunName, past_of, time_in
from strata.cli.support.tables import console, plain, print_json
from strata.cli.support.timeline_output import (
    node_style,
    print_trust,
    stamp,
    verdict_text,
    without_verdict,
)
from strata.errors import InvalidArgument
from strata.timeline.answers import WhyAnswer

Question = Annotated[
    str,
    typer.Argument(
        metavar="[QUESTION|REF]", help="Name of a question, or an event: @120 or worker-1/3/57."
    ),
]
Params = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[NAME=VALUE]...",
        help="Parameters, such as worker=w3; a bare value is the first parameter.",
    ),
]


def why(
    question: Question = "",
    params: Params = None,
    data: Data = "",
    run: RunName = "",
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Explain why something happened: answers a question, or explains an event.

    Without an argument, lists the questions.
    """
    past = past_of(data, run, url)
    if not question:
        list_questions(past, as_json)
        return
    is_ref = question.startswith("@") or question.count("/") >= 2
    given = parse(past, question, params or [])
    answer = past.why("" if is_ref else question, question if is_ref else "", given)
    if as_json:
        print_json([msgspec.json.encode(answer)])
    else:
        print_answer(console(), answer)


def parse(past: Past, question: str, params: list[str]) -> dict[str, str]:
    """Parse NAME=VALUE pairs; a bare value is the first parameter, `time_ms` may be any moment."""
    given = {}
    for each in params:
        name, sign, value = each.partition("=")
        given[name if sign else first_param(past, question, each)] = value if sign else each
    if "time_ms" in given:
        given["time_ms"] = repr(time_in(past, given["time_ms"], given.get("task", "")))
    return given


def first_param(past: Past, question: str, value: str) -> str:
    """The name of a question's first parameter."""
    for known in past.questions():
        if known.name == question and known.params:
            return known.params[0].name
    raise InvalidArgument(f"{value!r} is not NAME=VALUE", hint="for example worker=train-1-w3")


def list_questions(past: Past, as_json: bool) -> None:
    """Print the questions with their parameters."""
    questions = past.questions()
    if as_json:
        print_json([msgspec.json.encode(question) for question in questions])
        return
    out = console()
    for question in questions:
        needs = " ".join(
            f"{param.name}=…" if param.required else f"[{param.name}=…]"
            for param in question.params
        )
        out.print(
            Text.assemble(
                (f"{question.name:<12}", "bold cyan"), f"{question.text}  ", (needs, "dim")
            ),
            soft_wrap=True,
        )


def print_answer(out: Console, answer: WhyAnswer) -> None:
    """Print the log check, the verdict, the chain of causes and the cost."""
    print_trust(out, answer.trust)
    out.print()
    out.print(
        Text.assemble(verdict_text(answer.verdict), ("  ", ""), (without_verdict(answer), "bold"))
    )
    if answer.chain:
        out.print()
        print_chain(out, answer)
    if answer.cost.seconds or answer.cost.workers:
        out.print()
        out.print(Text.assemble(("cost  ", "dim"), plain(answer.cost.text)), soft_wrap=True)
    for finding in answer.findings:
        out.print(Padding(Text(plain(finding), style="dim"), (0, 0, 0, 6)))


def print_chain(out: Console, answer: WhyAnswer) -> None:
    """Print the chain, oldest event first, with the time since the event before."""
    width = max(len(link.node) for link in answer.chain)
    before_ms = answer.chain[0].at_ms
    for number, link in enumerate(answer.chain):
        joint = "┌" if number == 0 else "└" if number == len(answer.chain) - 1 else "├"
        joint = "─" if len(answer.chain) == 1 else joint
        later = f"+{(link.at_ms - before_ms) / 1000:.3f} s" if number else ""
        before_ms = link.at_ms
        out.print(
            Text.assemble(
                (f"{joint} ", "dim"),
                (f"{stamp(link.at_ms)} ", "dim"),
                (f"{later:>11}  ", "dim"),
                (f"{plain(link.node):<{width}}  ", node_style(link.node)),
                plain(link.text),
                (f"  {link.ref}", "dim"),
            ),
            soft_wrap=True,
        )
