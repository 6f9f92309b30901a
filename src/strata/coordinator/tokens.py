"""Tokens by which the members of a generation prove to each other that they belong to it.

Workers fetch from one another without asking the coordinator, so each is told a token with its
standing. It is computed from a secret that only the coordinator's user can read, so nothing has to
be remembered, nothing is in the log, and a restart gives the same tokens.
"""

import hmac
import secrets
from pathlib import Path

from strata.errors import Corrupt, Unavailable
from strata.files import write_whole

SECRET_BYTES = 32


class PeerTokens:
    """Tokens of generations, from the secret kept in `file`."""

    def __init__(self, file: Path) -> None:
        try:
            if not file.exists():
                write_whole(file, secrets.token_bytes(SECRET_BYTES))
            self._secret = file.read_bytes()
        except OSError as error:
            raise Unavailable(
                f"the secret for peer tokens in {file} cannot be used: {error.strerror}",
                hint="make the file readable and its folder writable for the coordinator's user",
            ) from error
        _check(file, self._secret)

    def of(self, task: str, generation: int) -> str:
        """The token that the members of a generation share."""
        return hmac.new(self._secret, f"{generation}/{task}".encode(), "sha256").hexdigest()


def _check(file: Path, secret: bytes) -> None:
    """Refuse a secret that a power cut left empty, torn or filled with zeros."""
    if len(secret) == SECRET_BYTES and any(secret):
        return
    found = f"{len(secret)} bytes" if any(secret) or not secret else f"{len(secret)} zero bytes"
    raise Corrupt(
        f"the secret for peer tokens in {file} is damaged: it has {found}, not {SECRET_BYTES} "
        "random ones",
        hint="delete the file and start the coordinator again: it makes a new secret",
    )
