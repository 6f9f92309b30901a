"""Recognizes tokens: the administrator's, those that were made, and those of workers.

- The setting `token` is the administrator's. Without it, on loopback, the user that started the
  coordinator is the administrator (`wire/peer_user`).
- A made token is found by its SHA-256 in the state (`core/access/access_tokens`), so that a restart
  and a coordinator that takes over know it. The digest of 256 random bits can be looked up: how
  long that takes tells nothing about the secret.
- The token of a task's workers is computed (`worker_tokens`). It is valid until the task ends; then
  its workers may only send what they have recorded, and leave.

Secrets are compared in constant time. Whether a made token has expired is decided by the wall
clock, at each call.
"""

import hmac
import secrets
import time
from collections.abc import Callable
from datetime import UTC, datetime
from hashlib import sha256

from msgspec import Struct

from strata.coordinator.access.worker_tokens import PREFIX as WORKER_PREFIX
from strata.coordinator.access.worker_tokens import WorkerTokens
from strata.core.state import AccessToken, Cluster, Role
from strata.errors import Unauthenticated

PREFIX = "strata_"
SECRET_BYTES = 32
HINT = "set STRATA_TOKEN to the coordinator's token, or to one that `strata token make` printed"


class Identity(Struct, frozen=True, kw_only=True):
    """Who sends a request: its name, its role, and the task that its token is bound to.

    `digest` is that of a made token, `by_token` is false for the user that started the coordinator.
    """

    name: str
    role: Role
    task: str = ""
    digest: str = ""
    by_token: bool = True
    ended: bool = False
    """Whether the task of a worker's token has ended."""


ADMIN = Identity(name="admin token", role="admin")


def new_token() -> str:
    """A new random token."""
    return PREFIX + secrets.token_urlsafe(SECRET_BYTES)


def digest_of(token: str) -> str:
    """The SHA-256 of a token."""
    return sha256(token.encode("utf-8", "replace")).hexdigest()


def same(given: str, wanted: str) -> bool:
    """Compare secrets in constant time."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), wanted.encode())


def is_made(given: str) -> bool:
    """Whether a text looks like a token that a coordinator made."""
    return given.startswith((PREFIX, WORKER_PREFIX))


def owner(user: str) -> Identity:
    """A user of this machine who may do everything, where no token is set."""
    return Identity(name=f"user {user}", role="admin", by_token=False)


def invalid_token() -> Unauthenticated:
    """The error for a missing, wrong or revoked token."""
    return Unauthenticated("a valid token is needed", hint=HINT)


def other_user() -> Unauthenticated:
    """The error for another user of this machine."""
    return Unauthenticated(
        "this coordinator has no token and answers only the user that started it",
        hint="set STRATA_TOKEN for the coordinator and its clients, or run this as that user",
    )


class Keyring:
    """The tokens that a coordinator accepts. `admin` is empty if the setting is; `workers` makes
    the tokens of tasks' workers, None where no worker connects."""

    def __init__(
        self,
        state: Callable[[], Cluster],
        admin: str,
        workers: WorkerTokens | None = None,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self.admin = admin
        self._state = state
        self.workers = workers
        self._wall_ns = wall_ns
        self._cookie_key = (admin or secrets.token_hex(SECRET_BYTES)).encode()

    def identify(self, given: str) -> Identity | None:
        """Whose token this is; None if it is unknown. Raises `Unauthenticated` if it expired."""
        if self.admin and same(given, self.admin):
            return ADMIN
        if given.startswith(PREFIX):
            return self._holder(digest_of(given))
        if given.startswith(WORKER_PREFIX) and self.workers is not None:
            return self._worker(self.workers.task_of(given))
        return None

    def _holder(self, digest: str) -> Identity | None:
        token = self._state().tokens.get(digest)
        if token is None or not same(digest, token.digest):
            return None
        if token.expires_ns and token.expires_ns <= self._wall_ns():
            raise expired(token)
        return Identity(
            name=f"token {token.name}",
            role=token.role,
            task=token.task,
            digest=digest,
            ended=bool(token.task) and self._has_ended(token.task),
        )

    def _worker(self, task: str | None) -> Identity | None:
        if task is None or task not in self._state().tasks:
            return None
        return Identity(
            name=f"worker token of {task}", role="worker", task=task, ended=self._has_ended(task)
        )

    def _has_ended(self, task: str) -> bool:
        known = self._state().tasks.get(task)
        return known is None or known.ended

    def check_held(self, identity: object) -> None:
        """Raise `Unauthenticated` if the token behind an open session was revoked or expired."""
        if not isinstance(identity, Identity) or not identity.digest:
            return
        if self._holder(identity.digest) is None:
            raise Unauthenticated(f"{identity.name} was revoked", hint="use another token")

    def cookie_name(self) -> str:
        """The name of the cookie, specific to the key: all ports of a host share cookies."""
        return f"strata_{self._cookie('')[:8]}"

    def cookie_for(self, identity: Identity) -> str:
        """The cookie of a login: derived from the token, without revealing it."""
        proof = self._cookie(identity.digest)
        return f"{identity.digest}.{proof}" if identity.digest else proof

    def identify_cookie(self, cookie: str) -> Identity | None:
        """Who logged in with this cookie; None if it is unknown."""
        digest, _, proof = cookie.rpartition(".")
        if not (digest or self.admin) or not same(proof, self._cookie(digest)):
            return None
        return self._holder(digest) if digest else ADMIN

    def _cookie(self, digest: str) -> str:
        about = b"strata session" + (f"/{digest}".encode() if digest else b"")
        return hmac.digest(self._cookie_key, about, "sha256").hex()


def expired(token: AccessToken) -> Unauthenticated:
    """The error for a token that has expired."""
    when = datetime.fromtimestamp(token.expires_ns / 1e9, UTC)
    return Unauthenticated(
        f"token {token.name!r} expired at {when:%Y-%m-%d %H:%M:%S} UTC",
        hint="ask an administrator for another one: strata token make",
    )
