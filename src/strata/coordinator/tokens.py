"""What the members of a generation prove to each other: that they belong to it.

Workers fetch from one another without asking the coordinator, so each is told a token with its
standing. It is computed from a secret that only the coordinator's user can read, so nothing has to
be remembered, nothing is in the log, and a restart gives the same tokens.
"""

import hmac
import os
import secrets
from pathlib import Path

SECRET_BYTES = 32


class PeerTokens:
    """Tokens of generations, from the secret kept in `file`."""

    def __init__(self, file: Path) -> None:
        if not file.exists():
            fresh = file.with_suffix(".new")
            descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with open(descriptor, "wb") as new:
                new.write(secrets.token_bytes(SECRET_BYTES))
            fresh.replace(file)
        self._secret = file.read_bytes()

    def of(self, task: str, generation: int) -> str:
        """The token that the members of a generation share."""
        return hmac.new(self._secret, f"{generation}/{task}".encode(), "sha256").hexdigest()
