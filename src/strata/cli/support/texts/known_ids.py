"""Ids that shell completion offers: tasks, workers and hosts of the coordinator.

A coordinator that does not answer at once offers none: completion must not delay or print errors.
"""

from contextlib import suppress
from http.client import HTTPException

import msgspec
import typer
from msgspec import Struct

from strata.errors import UNDECODABLE, StrataError

ANSWER_S = 1.0
MOST = 200


class Named(Struct):
    """Any object of the REST API with an id."""

    id: str


def task_ids(context: typer.Context, incomplete: str) -> list[str]:
    """Ids of tasks that begin like this, the newest first."""
    return _ids("/api/tasks", context, incomplete)


def worker_ids(context: typer.Context, incomplete: str) -> list[str]:
    """Ids of workers that begin like this."""
    return _ids("/api/workers", context, incomplete)


def host_ids(context: typer.Context, incomplete: str) -> list[str]:
    """Ids of hosts that begin like this."""
    return _ids("/api/hosts", context, incomplete)


def _ids(path: str, context: typer.Context, incomplete: str) -> list[str]:
    # Imported here: the verbs that offer ids are also loaded for their help.
    from strata.cli.support.rest_client import Api, url_of
    from strata.config import load_process
    from strata.wire.client_certificates import client_certificates

    with suppress(StrataError, OSError, HTTPException, *UNDECODABLE):
        settings = load_process({})
        url = context.params.get("url") or url_of(settings)
        api = Api(url, settings.token, client_certificates(settings))
        with api.open(path, {"limit": MOST}, timeout_s=ANSWER_S) as response:
            found = msgspec.json.decode(response.read(), type=list[Named])
        return [each.id for each in found if each.id.startswith(incomplete)]
    return []
