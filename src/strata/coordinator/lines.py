"""Lines of workers on their way into the log: each is kept once, though it may be sent again.

A sender (a worker's SDK, or the agent that reads a worker's pipes) numbers its lines, and sends
those again that it was not told about before its connection broke. Here is known up to which number
each sender's were taken. That is memory, not a fact: after the coordinator itself was killed, what
it had taken and not yet acknowledged, which is at most some seconds, is kept twice rather than not
at all.
"""

from collections import OrderedDict

from strata.coordinator.logs import Line, LogStore
from strata.errors import InvalidArgument, LimitExceeded
from strata.wire.v1 import coordinator_pb2 as pb

MAX_LINES = 10_000
MAX_SENDERS = 50_000
MAX_SENDER_CHARACTERS = 64
MAX_NUMBER = 2**62


class LineIntake:
    """Takes lines into the log."""

    def __init__(self, logs: LogStore) -> None:
        self.logs = logs
        self._taken: OrderedDict[str, int] = OrderedDict()

    def take(self, sent: pb.LogLines, task: str, worker: str) -> int:
        """Keeps what is new; up to which number the sender's lines are here, 0 without numbers."""
        _check(sent)
        known = self._taken.get(sent.sender, 0) if sent.first else 0
        lines = sent.lines[max(known + 1 - sent.first, 0) :] if sent.first else sent.lines
        self.logs.extend(
            Line(line.level, line.message, "worker", task, worker, line.stream, line.timestamp_ms)
            for line in lines
        )
        last = sent.first + len(sent.lines) - 1 + bool(sent.dropped)
        if sent.dropped and (last > known or not sent.first):
            text = f"{sent.dropped} lines were dropped: it wrote too fast"
            self.logs.append(Line("warn", text, "worker", task, worker))
        if not sent.first:
            return 0
        self._remember(sent.sender, max(known, last))
        return max(known, last)

    def _remember(self, sender: str, number: int) -> None:
        self._taken[sender] = number
        self._taken.move_to_end(sender)
        if len(self._taken) > MAX_SENDERS:
            self._taken.popitem(last=False)


def _check(sent: pb.LogLines) -> None:
    if len(sent.lines) > MAX_LINES:
        raise LimitExceeded(
            f"{len(sent.lines)} log lines at once", hint=f"send {MAX_LINES} or fewer"
        )
    if not 0 <= sent.first <= MAX_NUMBER or len(sent.sender) > MAX_SENDER_CHARACTERS:
        raise InvalidArgument(
            f"lines from number {sent.first} of sender {sent.sender[:40]!r} cannot be told apart",
            hint=f"count from 1, and draw a sender of at most {MAX_SENDER_CHARACTERS} characters",
        )
