"""Encoded standings, and the peer tokens in them.

The part of a standing that all workers of a task share is encoded once per position. A standing
depends only on the state, so its encoding is valid until the next fact. After a change all members
of a task receive it at the same position; after a restart of the coordinator, so do the workers
that reconnect in the same turn.

Workers connect to each other without the coordinator, so each receives a token with its standing,
by which the members of a generation authenticate to each other. The token is computed from a secret
that only the coordinator's user can read: no token is stored or logged, and a restart computes the
same tokens.
"""

import hmac
import secrets
from pathlib import Path

from strata.coordinator.access.worker_tokens import WorkerTokens
from strata.core.state import Cluster
from strata.core.tasks.standing import task_standing
from strata.errors import Corrupt, Unavailable
from strata.files import write_whole
from strata.wire.grpc.grpc_call import frame
from strata.wire.messages.standing_encoder import StandingEncoder

SECRET_BYTES = 32
MAX_CERTIFICATES = 1_000


class PeerTokens:
    """Tokens of generations, and certificates of tasks if they are `encrypted`, from a secret."""

    def __init__(self, secret: bytes, *, encrypted: bool = False) -> None:
        self._secret = secret
        self._encrypted = encrypted
        self._certificates: dict[str, str] = {}

    def of(self, task: str, generation: int) -> str:
        """The token that the members of a generation share."""
        return hmac.new(self._secret, f"{generation}/{task}".encode(), "sha256").hexdigest()

    def certificate(self, task: str) -> str:
        """The certificate that the workers of a task share; empty without TLS."""
        if not self._encrypted:
            return ""
        if task not in self._certificates:
            # Imported here: only a coordinator with TLS needs the library.
            from strata.coordinator.sessions.peer_certificates import peer_certificate

            if len(self._certificates) >= MAX_CERTIFICATES:
                self._certificates.clear()
            self._certificates[task] = peer_certificate(self._secret, task)
        return self._certificates[task]

    def for_workers(self) -> WorkerTokens:
        """The tokens of tasks' workers, from the same secret."""
        return WorkerTokens(hmac.digest(self._secret, b"worker tokens", "sha256"))


def new_secret() -> bytes:
    """A secret for peer tokens."""
    return secrets.token_bytes(SECRET_BYTES)


def secret_in(file: Path) -> bytes:
    """The secret in a file, which is created if it is missing.

    A secret that a power failure left empty, incomplete or zeroed is refused.
    """
    try:
        if not file.exists():
            write_whole(file, new_secret())
        secret = file.read_bytes()
    except OSError as error:
        raise Unavailable(
            f"the secret for peer tokens in {file} cannot be used: {error.strerror}",
            hint="make the file readable and its folder writable for the coordinator's user",
        ) from error
    if len(secret) == SECRET_BYTES and any(secret):
        return secret
    found = f"{len(secret)} bytes" if any(secret) or not secret else f"{len(secret)} zero bytes"
    raise Corrupt(
        f"the secret for peer tokens in {file} is damaged: it has {found}, not {SECRET_BYTES} "
        "random bytes",
        hint="delete the file and restart the coordinator: it creates a new secret",
    )


class StandingMessages:
    """Cache of encoded standings."""

    def __init__(self, tokens: PeerTokens) -> None:
        self._tokens = tokens
        self._state: Cluster | None = None
        self._position = -1
        self._encoders: dict[str, StandingEncoder] = {}

    def framed(self, state: Cluster, worker_id: str, stored_seq: int) -> bytes:
        """The standing of a registered worker, for `Stream.send_raw`."""
        worker = state.workers[worker_id]
        return frame(self._encoder(state, worker.task).message(worker, stored_seq))

    def _encoder(self, state: Cluster, task_id: str) -> StandingEncoder:
        # After a failed turn a position is used again, but with another state object.
        if state is not self._state or state.position != self._position:
            self._encoders.clear()
            self._state, self._position = state, state.position
        encoder = self._encoders.get(task_id)
        if encoder is None:
            task = state.tasks[task_id]
            token = self._tokens.of(task_id, task.generation)
            certificate = self._tokens.certificate(task_id)
            encoder = StandingEncoder(task, task_standing(task), token, certificate)
            self._encoders[task_id] = encoder
        return encoder
