"""Options that the terminal verbs share."""

from typing import Annotated

import typer

Url = Annotated[
    str | None,
    typer.Option(help="Where the coordinator is; else the settings say so.", show_default=False),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")]
Limit = Annotated[int, typer.Option(min=1, help="How many at most.")]
Follow = Annotated[
    bool, typer.Option("--follow", "-f", help="Go on with what comes, until Ctrl-C.")
]
OfTask = Annotated[str, typer.Option("--task", help="Only of this task.", show_default=False)]
