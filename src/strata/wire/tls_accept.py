"""TLS connections that have their place among all connections before their handshake.

A server that is given a TLS context by asyncio hands a connection over when its handshake is done;
until then it cannot be counted or closed, and clients that never finish theirs could use up every
open file. So sockets are accepted without TLS, counted, and secured afterwards.
"""

import asyncio
import logging
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from strata.wire.grpc_connection import Connection

if TYPE_CHECKING:
    from strata.wire.grpc_server import GrpcServer

logger = logging.getLogger(__name__)

HANDSHAKE_TIMEOUT_S = 10.0


class TlsAccept(asyncio.Protocol):
    """An accepted socket, until its handshake has begun."""

    def __init__(self, server: "GrpcServer", context: ssl.SSLContext) -> None:
        self._context = context
        self._connection = Connection(server)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if self._connection.accept(transport, handshaking=True):
            plain = cast(asyncio.Transport, transport)
            secure(plain, self._connection, self._context, self._connection.secured)


def secure(
    plain: asyncio.Transport,
    protocol: asyncio.BaseProtocol,
    context: ssl.SSLContext,
    done: Callable[[asyncio.Transport | None], None],
) -> None:
    """Begin a server's handshake now, and call `done` with the transport, or None if it failed.

    `start_tls` must take the socket over before anything is read from it. A task would begin later,
    when the client's first bytes may have been read and lost; so the coroutine is driven here.
    """
    upgrade = asyncio.get_running_loop().start_tls(
        plain, protocol, context, server_side=True, ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S
    )

    def step(_: object = None) -> None:
        try:
            waiting = upgrade.send(None)
        except StopIteration as ended:
            done(ended.value)
        except (OSError, asyncio.CancelledError) as error:
            logger.debug("a TLS handshake failed: %s", error)
            done(None)
        else:
            waiting._asyncio_future_blocking = False
            waiting.add_done_callback(step)

    step()
