"""Explain a word, a setting, a kind of event or an exit code."""

from typing import Annotated

import msgspec
import typer
from rich.text import Text

from strata.cli.support.options import AsJson
from strata.cli.support.tables import console, plain, print_json
from strata.cli.support.texts.explanations import Explanation, explanations, find

Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[WORD]",
        help="Word such as generation, checkpoint_every, WorkerLost or 94; none: list the words.",
        show_default=False,
    ),
]


def explain(word: Words = None, as_json: AsJson = False) -> None:
    """Explain a word, a setting, a kind of event or an exit code.

    The texts are those of the glossary, the settings and the events in the documentation.
    """
    known = explanations()
    found = find(" ".join(word), known) if word else known
    if as_json:
        print_json([msgspec.json.encode(each) for each in found])
    elif word:
        for each in found:
            show(each)
    else:
        words = ", ".join(each.word for each in known if each.kind == "word")
        console().print(f"{words}\n\nsettings, kinds of events and exit codes are explained too")


def show(each: Explanation) -> None:
    """Print one explanation, its paragraphs wrapped to the terminal."""
    out = console()
    out.print(Text.assemble((plain(each.word), "bold"), (f"  {each.kind}", "dim")))
    for paragraph in each.text.split("\n\n"):
        lines = [plain(line) for line in paragraph.split("\n")]
        listed = any(line.lstrip().startswith(("-", "|", "In ")) for line in lines)
        out.print(Text(("\n" if listed else " ").join(lines)))
