"""Options that the terminal verbs share."""

from typing import Annotated

import typer

Url = Annotated[
    str | None,
    typer.Option(
        help="Address of the coordinator's REST API; else from the settings.", show_default=False
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, one object per line.")]
Limit = Annotated[int, typer.Option(min=1, help="Most items to show.")]
Follow = Annotated[
    bool, typer.Option("--follow", "-f", help="Keep printing new items until Ctrl-C.")
]
OfTask = Annotated[str, typer.Option("--task", help="Only of this task.", show_default=False)]
