"""Ask why something happened: a verdict, the chain of causes, the cost."""

from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from strata.cli._look import console, plain, print_json
from strata.cli._options import AsJson, Url
from strata.cli._past import Data, Past, RunName, past_of, time_in
from strata.cli._scene import node_style, print_trust, stamp, told, verdict_text
from strata.errors import InvalidArgument
from strata.timeline.answers import WhyAnswer

Question = Annotated[
    str,
    typer.Argument(metavar="[QUESTION|REF]", help="A question's name, or an event: @120, w/3/57."),
]
Params = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[NAME=VALUE]...",
        help="What the question needs, as worker=w3; without a name, the first it asks for.",
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
    """Ask why: one of sixteen questions, or of any event. Without one, lists the questions."""
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
    """NAME=VALUE pairs; a bare value is what the question asks for first, a time any moment."""
    given = {}
    for each in params:
        name, sign, value = each.partition("=")
        given[name if sign else first_param(past, question, each)] = value if sign else each
    if "time_ms" in given:
        given["time_ms"] = repr(time_in(past, given["time_ms"], given.get("task", "")))
    return given


def first_param(past: Past, question: str, value: str) -> str:
    """What a value without a name is for."""
    for known in past.questions():
        if known.name == question and known.params:
            return known.params[0].name
    raise InvalidArgument(f"{value!r} is not NAME=VALUE", hint="as in worker=train-1-w3")


def list_questions(past: Past, as_json: bool) -> None:
    """What can be asked, with what each needs."""
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
    """Whether the log can be trusted, then the verdict, the chain, what it cost."""
    print_trust(out, answer.trust)
    out.print()
    out.print(Text.assemble(verdict_text(answer.verdict), ("  ", ""), (told(answer), "bold")))
    if answer.chain:
        out.print()
        print_chain(out, answer)
    if answer.cost.seconds or answer.cost.workers:
        out.print()
        out.print(Text.assemble(("cost  ", "dim"), plain(answer.cost.text)), soft_wrap=True)
    for finding in answer.findings:
        out.print(Padding(Text(plain(finding), style="dim"), (0, 0, 0, 6)))


def print_chain(out: Console, answer: WhyAnswer) -> None:
    """The links, oldest first, with how long each came after the one before."""
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
