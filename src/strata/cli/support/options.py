"""Options that several verbs share: `--url` is always the URL of the coordinator's
REST API, `--coordinator` always the HOST:PORT of its gRPC server.
"""

from typing import TYPE_CHECKING, Annotated

import typer

from strata.cli.support.texts.known_ids import task_ids

if TYPE_CHECKING:
    from strata.config import Settings


Url = Annotated[
    str | None,
    typer.Option(
        help="URL of the coordinator's REST API (several: separated by commas); "
        "default: from the settings.",
        show_default=False,
    ),
]
CoordinatorAddress = Annotated[
    str | None,
    typer.Option(
        "--coordinator",
        metavar="HOST:PORT",
        help="gRPC address of the coordinator, such as HOST:50051 (several: separated by commas); "
        "default: COORDINATOR_ADDR.",
        show_default=False,
    ),
]
Token = Annotated[
    str | None,
    typer.Option(
        help="Bearer token of the coordinator; default: STRATA_TOKEN.", show_default=False
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, one object per line.")]
Limit = Annotated[int, typer.Option(min=1, help="Maximum number of items to show.")]
Follow = Annotated[
    bool, typer.Option("--follow", "-f", help="Keep printing new items until Ctrl-C.")
]
OfTask = Annotated[
    str,
    typer.Option(
        "--task",
        help="Show only items of this task.",
        show_default=False,
        autocompletion=task_ids,
    ),
]


def coordinator_settings(
    verb: str, address: str | None, token: str | None, data_dir: str | None
) -> "Settings":
    """The settings of a verb that connects to a coordinator's gRPC server."""
    from strata.config import load_process
    from strata.errors import SettingError

    settings = load_process({"coordinator_addr": address, "token": token, "data_dir": data_dir})
    if not settings.coordinator_addr:
        raise SettingError(
            "the coordinator's address is not set", hint=f"strata {verb} --coordinator HOST:50051"
        )
    return settings
