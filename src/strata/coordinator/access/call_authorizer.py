"""Authorizes gRPC calls: who makes one, and whether that sender may call the method."""

from collections.abc import Callable
from typing import TypeAlias

from strata.coordinator.access.keyring import (
    Identity,
    Keyring,
    invalid_token,
    is_made,
    other_user,
    owner,
)
from strata.coordinator.access.required_roles import require_method
from strata.coordinator.wrong_tokens import WrongTokens
from strata.errors import Unauthenticated
from strata.wire.grpc.grpc_server import Caller
from strata.wire.http2.hpack import RequestHead

SCHEME = "Bearer "
Authorize: TypeAlias = Callable[[RequestHead, Caller], Identity]


def authorizer(keyring: Keyring, wrong_tokens: WrongTokens) -> Authorize:
    """The check of every call to a method that is not public; it returns who calls.

    It counts the wrong tokens of each network.
    """

    def authorize(head: RequestHead, caller: Caller) -> Identity:
        try:
            identity = _identity(keyring, head, caller)
        except Unauthenticated as error:
            if not head.metadata.get("authorization"):
                raise
            raise wrong_tokens.answer(caller.network, error) from error
        require_method(identity, head.path)
        return identity

    return authorize


def _identity(keyring: Keyring, head: RequestHead, caller: Caller) -> Identity:
    sent = head.metadata.get("authorization", "")
    header = sent if isinstance(sent, str) else sent.decode("utf-8", "replace")
    given = header.removeprefix(SCHEME) if header.startswith(SCHEME) else ""
    known = keyring.identify(given) if given else None
    if known is not None:
        return known
    if keyring.admin or is_made(given):
        raise invalid_token()
    if not caller.of_own_user:
        raise other_user()
    return owner("of this machine")
