"""Make, list and revoke access tokens."""

import re
from typing import Annotated, Literal
from urllib.parse import quote

import msgspec
import typer
from rich.text import Text

from strata.cli.support.options import AsJson, Limit, Url
from strata.cli.support.rest_client import Api, reach
from strata.cli.support.tables import (
    Column,
    Look,
    ago,
    console,
    duration,
    plain,
    print_json,
    print_list,
)
from strata.cli.support.texts.known_ids import task_ids
from strata.coordinator.rest.token_responses import MadeTokenResponse, TokenResponse
from strata.core.state import Role
from strata.errors import InvalidArgument

UNITS_S = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}

Action = Annotated[
    Literal["list", "make", "revoke"],
    typer.Argument(help="Action; `make` and `revoke` need a name.", show_default=False),
]
Name = Annotated[
    str, typer.Argument(metavar="[NAME]", help="Name of the token.", show_default=False)
]
WithRole = Annotated[
    Role | None,
    typer.Option("--role", help="What its holder may do; `make` needs it.", show_default=False),
]
ForTask = Annotated[
    str,
    typer.Option(
        "--task",
        help="Task to which a token of the role worker is bound.",
        show_default=False,
        autocompletion=task_ids,
    ),
]
Expires = Annotated[
    str,
    typer.Option(
        metavar="TIME",
        help="Time until it expires, such as 12h or 30d; default: it does not expire.",
        show_default=False,
    ),
]


def expiry(item: TokenResponse, now_ms: int) -> str:
    """When a token expires."""
    if item.expires_at is None:
        return "never"
    return "expired" if item.expired else f"in {duration((item.expires_at - now_ms) / 1000)}"


LOOK = Look(
    "tokens",
    TokenResponse,
    [
        Column("token", lambda item, _: item.name, shrinks=True),
        Column("role", lambda item, _: item.role),
        Column("task", lambda item, _: item.task_id or "–", shrinks=True),
        Column("made", lambda item, now_ms: ago(item.made_at, now_ms)),
        Column("expires", expiry),
    ],
    empty="no tokens were made",
    next_command="strata token make NAME --role read",
)


def token(
    action: Action = "list",
    name: Name = "",
    role: WithRole = None,
    task: ForTask = "",
    expires: Expires = "",
    limit: Limit = 100,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Make, list and revoke access tokens.

    A new token is printed once and stored nowhere; the coordinator keeps its SHA-256. Needs the
    coordinator's own token, or one of the role admin.
    """
    if action != "make" and (role or task or expires):
        raise typer.BadParameter(f"`strata token {action}` takes no --role, --task or --expires")
    if bool(name) == (action == "list"):
        needs = "takes no name" if name else "needs a name"
        raise typer.BadParameter(f"`strata token {action}` {needs}")
    if action == "make":
        if role is None:
            raise typer.BadParameter("choose what its holder may do: --role read")
        make(name, role, task, seconds(expires), url, as_json)
    elif action == "revoke":
        revoke(reach(url), name, as_json)
    else:
        print_list(reach(url), LOOK, limit, as_json)


def make(
    name: str, role: Role, task: str, expires_s: float, url: str | None, as_json: bool
) -> None:
    """Make a token and print it."""
    body = {"name": name, "role": role, "task_id": task, "expires_in_s": expires_s}
    answer = reach(url).post("/api/tokens", body)
    if as_json:
        print_json([answer])
        return
    made = msgspec.json.decode(answer, type=MadeTokenResponse)
    bound = f" for {plain(made.token.task_id)}" if made.token.task_id else ""
    until = f", expires in {duration(expires_s)}" if expires_s else ""
    out = console()
    line = f"token {plain(made.token.name)}: role {role}{bound}{until}; it is shown only now"
    out.print(Text.assemble(("✓ ", "green"), line), soft_wrap=True)
    out.print(Text(plain(made.secret)), soft_wrap=True)


def revoke(api: Api, name: str, as_json: bool) -> None:
    """Revoke a token."""
    answer = api.post(f"/api/tokens/{quote(name, safe='')}/revoke", {})
    if as_json:
        print_json([answer])
    else:
        typer.echo(f"token {plain(name)} is revoked")


def seconds(text: str) -> float:
    """A duration such as 30d; 0 for an empty text."""
    if not text:
        return 0
    found = re.fullmatch(r"(\d{1,9})([smhd])", text)
    if found is None or not int(found[1]):
        raise InvalidArgument(f"--expires {text!r} is no duration", hint="use 45m, 12h or 30d")
    return int(found[1]) * UNITS_S[found[2]]
