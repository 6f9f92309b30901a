"""Ends open sessions whose token was revoked or has expired, at their next message."""

from typing import Any

from strata.coordinator.access.keyring import Keyring
from strata.errors import Unauthenticated
from strata.wire.grpc.grpc_stream import GrpcStream


def is_held(stream: GrpcStream[Any, Any], keyring: Keyring | None) -> bool:
    """Whether the token that opened a stream is still valid; if not, the stream is ended."""
    if keyring is None or stream.identity is None:
        return True
    try:
        keyring.check_held(stream.identity)
    except Unauthenticated as error:
        stream.fail(error)
        return False
    return True
