"""The role that an endpoint needs, checked before it runs; and streams of revoked tokens."""

import asyncio
from typing import Any

from litestar.connection import ASGIConnection
from litestar.enums import ScopeType
from litestar.handlers import BaseRouteHandler
from litestar.types import HTTPReceiveMessage, Message, Receive, Send, WebSocketReceiveMessage

from strata.coordinator.access.keyring import Identity, Keyring
from strata.coordinator.access.required_roles import require_role, rest_roles
from strata.errors import Unauthenticated

IDENTITY = "strata.identity"
"""The key in a request's scope of who sends it; None for a path that is open to all."""

LOOK_S = 1.0
"""How often the token of an open stream is checked."""


def check_role(connection: ASGIConnection[Any, Any, Any, Any], _: BaseRouteHandler) -> None:
    """Refuse a sender whose role may not use this endpoint."""
    identity = identity_of(connection)
    if identity is None:
        return
    scope = connection.scope
    assert scope["type"] == ScopeType.HTTP, "the API has no WebSockets"
    method, template = scope["method"], scope["path_template"]
    require_role(identity, rest_roles(method, template), f"{method} {connection.url.path}")


def identity_of(connection: ASGIConnection[Any, Any, Any, Any]) -> Identity | None:
    """Who sends a request; an error if nothing has checked that."""
    identity = connection.scope[IDENTITY]  # type: ignore[literal-required]
    assert identity is None or isinstance(identity, Identity)
    return identity


class HeldStream:
    """A stream whose client counts as gone when its token is revoked or expires."""

    def __init__(self, keyring: Keyring | None, identity: Identity | None) -> None:
        self._keyring = keyring
        self._identity = identity
        self._open = False

    def receiving(self, receive: Receive) -> Receive:
        """Messages of the client, until it is gone."""

        async def wrapped() -> HTTPReceiveMessage | WebSocketReceiveMessage:
            waiting = asyncio.ensure_future(receive())
            try:
                while not (await asyncio.wait({waiting}, timeout=LOOK_S))[0]:
                    if self._keyring is not None:
                        self._keyring.check_held(self._identity)
            except Unauthenticated:
                return {"type": "http.disconnect"}
            finally:
                if not waiting.done():
                    waiting.cancel()
            return waiting.result()

        return wrapped

    def sending(self, send: Send) -> Send:
        """Messages to the client."""

        async def wrapped(message: Message) -> None:
            self._open = message["type"] == "http.response.start" or bool(message.get("more_body"))
            await send(message)

        return wrapped

    async def finish(self, send: Send) -> None:
        """End the response, if the client was taken for gone before its end."""
        if self._open:
            await send({"type": "http.response.body", "body": b"", "more_body": False})
