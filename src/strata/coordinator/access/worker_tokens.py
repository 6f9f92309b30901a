"""Tokens of the workers of a task, computed from the coordinator's secret.

An agent receives the token of a task with the task, and starts its workers with it instead of its
own. Nothing is stored: a restarted coordinator, and another one with the same secret, compute the
same tokens. A token names its task, so that it is checked by computing it again.
"""

import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode

PREFIX = "strata-task."


class WorkerTokens:
    """Tokens of tasks, computed from a secret."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def of(self, task: str) -> str:
        """The token for the workers of a task."""
        proof = hmac.digest(self._secret, task.encode(), "sha256").hex()
        return f"{PREFIX}{urlsafe_b64encode(task.encode()).decode()}.{proof}"

    def task_of(self, given: str) -> str | None:
        """The task that a token is for; None if it is no token of this cluster."""
        named, _, _ = given.removeprefix(PREFIX).rpartition(".")
        try:
            task = urlsafe_b64decode(named.encode("ascii", "replace")).decode()
        except ValueError:
            return None
        right = hmac.compare_digest(given.encode("utf-8", "replace"), self.of(task).encode())
        return task if right else None
