"""Watch tasks, workers, GPUs and checkpoints in the terminal."""

import sys

from strata import extras
from strata.cli.support.options import Url
from strata.cli.support.rest_client import reach
from strata.errors import InvalidArgument


def top(url: Url = None) -> None:
    """Show the cluster in the terminal, updated live.

    Keys: 1 to 6 or Tab choose a table, s and r sort it, / filters it, Enter opens a task or worker,
    q quits.
    """
    extras.check("textual")
    from strata.cli.support.top.top_app import run_top

    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise InvalidArgument(
            "strata top needs a terminal", hint="use strata status, tasks or workers --json"
        )
    api = reach(url)
    api.get("/api/status")  # a wrong address or token is an error at once
    run_top(api)
