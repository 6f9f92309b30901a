"""Access tokens that an administrator made: a name, a role, and the SHA-256 of the secret.

The secret itself is shown once, where it was made, and recorded nowhere. A token has 256 random
bits, so its digest tells nothing about it. The token of the setting `token`, and those that workers
get from the coordinator, are not recorded at all: the first is in the settings, the others are
computed (`coordinator/access/keyring`).

A token is removed from the state when it is revoked; an expired one is kept until then, so that its
holder learns that it has expired. The log has all of them.
"""

from strata.core.decision import Decision, applies, decides
from strata.core.events import Command, Event, Fact
from strata.core.limits import require_name, require_room
from strata.core.state import AccessToken, Cluster, Role
from strata.errors import AlreadyExists, InvalidArgument, NotAllowedNow, NotFound

MAX_TOKENS = 1_000
DIGEST_CHARACTERS = 64


class TokenMade(Fact, frozen=True, kw_only=True):
    """An access token was made; `digest` is the SHA-256 of its secret, which is not recorded.

    A token of the role `worker` may be bound to a task. `expires_ns` is the wall-clock time from
    which it is refused, 0 for never.
    """

    sentence = "token {token} was made, role {role}[, for {task}]"

    token: str
    role: Role
    digest: str
    task: str = ""
    expires_ns: int = 0


class TokenRevoked(Fact, frozen=True, kw_only=True):
    """An access token was revoked: it is refused from now on."""

    sentence = "token {token} was revoked"

    token: str
    digest: str


class MakeToken(Command, frozen=True):
    """Record a new access token by the digest of its secret."""

    token: str
    role: Role
    digest: str
    task: str = ""
    expires_ns: int = 0


class RevokeToken(Command, frozen=True):
    """Refuse an access token from now on."""

    token: str


@applies(TokenMade)
def _made(state: Cluster, fact: TokenMade, event: Event) -> None:
    state.tokens[fact.digest] = AccessToken(
        name=fact.token,
        role=fact.role,
        digest=fact.digest,
        made_ns=event.wall_ns,
        task=fact.task,
        expires_ns=fact.expires_ns,
    )


@applies(TokenRevoked)
def _revoked(state: Cluster, fact: TokenRevoked, event: Event) -> None:
    state.tokens.pop(fact.digest, None)


def named(state: Cluster, name: str) -> AccessToken | None:
    """The token of that name that is not revoked."""
    return next((token for token in state.tokens.values() if token.name == name), None)


@decides(MakeToken)
def make_token(d: Decision, c: MakeToken) -> AccessToken:
    """Record a token; its name must be free, and a task needs the role `worker`."""
    require_name("the name", c.token)
    if len(c.digest) != DIGEST_CHARACTERS or c.digest in d.state.tokens:
        raise InvalidArgument("the digest is not that of a new token", hint="make another token")
    if c.task and c.role != "worker":
        raise InvalidArgument(
            f"a token of the role {c.role} cannot be bound to a task",
            hint="omit the task, or choose the role worker",
        )
    if c.task and d.state.task(c.task).ended:
        raise NotAllowedNow(f"task {c.task!r} has ended", hint="continue it first")
    if c.expires_ns and c.expires_ns <= d.now.wall_ns:
        raise InvalidArgument("the token would have expired already", hint="choose a later time")
    if named(d.state, c.token) is not None:
        raise AlreadyExists(
            f"there is already a token {c.token!r}",
            hint=f"choose another name, or revoke it first: strata token revoke {c.token}",
        )
    require_room(d, "tokens", MAX_TOKENS, len(d.state.tokens), f"token {c.token!r}", c.cause)
    made = TokenMade(
        token=c.token, role=c.role, digest=c.digest, task=c.task, expires_ns=c.expires_ns
    )
    d.record(made, c.cause)
    return d.state.tokens[c.digest]


@decides(RevokeToken)
def revoke_token(d: Decision, c: RevokeToken) -> None:
    """Revoke a token by its name."""
    known = named(d.state, c.token)
    if known is None:
        raise NotFound(f"there is no token {c.token!r}", hint="strata token list shows them")
    d.record(TokenRevoked(token=known.name, digest=known.digest), c.cause)
