"""Server-sent events that survive a restart of the coordinator, resumed by the last id.

When the connection ends (restart, network failure, no heartbeat for `SILENCE_S`), it is opened
again with the id of the last event, until that succeeds or is refused permanently. Meanwhile one
note is printed to stderr. Callers make another request first, so that a wrong address is an error
and not an endless wait.
"""

import http.client
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from msgspec import Struct

from strata.cli.support.rest_client import Api, Param
from strata.cli.support.terminal import note
from strata.errors import DeadlineExceeded, Overloaded, Unavailable

SILENCE_S = 45.0
"""Three heartbeat intervals of the stream."""

FIRST_WAIT_S = 0.1
LONGEST_WAIT_S = 3.0
PASSING = (DeadlineExceeded, Overloaded, Unavailable)

Wanted = TypeVar("Wanted")


class StreamEvent(Struct, frozen=True):
    """One event; the kind `opened` means that a connection was just made."""

    kind: str
    id: str
    data: bytes = b""


class EventStream:
    """The events of one endpoint; a new connection resumes after `last_id`."""

    def __init__(self, api: Api, path: str, params: dict[str, Param], last_id: str = "") -> None:
        self.api = api
        self.path = path
        self.params = params
        self.last_id = last_id

    def __iter__(self) -> Iterator[StreamEvent]:
        while True:
            response = retrying(self._open)
            yield StreamEvent("opened", self.last_id)
            try:
                with response:
                    for event in parse(response):
                        self.last_id = event.id or self.last_id
                        if event.data:
                            yield event
            except (OSError, http.client.HTTPException):
                pass  # the stream is opened again, as after a clean end
            time.sleep(FIRST_WAIT_S)

    def _open(self) -> http.client.HTTPResponse:
        return self.api.open(self.path, self.params, self.last_id, SILENCE_S)


def retrying(attempt: Callable[[], Wanted]) -> Wanted:
    """Call until the coordinator answers, with a note on stderr while it does not."""
    wait_s = FIRST_WAIT_S
    noted = False
    while True:
        try:
            result = attempt()
        except PASSING:
            if not noted:
                note("the coordinator does not answer; trying again until it does")
            noted = True
            time.sleep(wait_s)
            wait_s = min(wait_s * 2, LONGEST_WAIT_S)
        else:
            if noted:
                note("the coordinator answers again")
            return result


def parse(lines: Iterable[bytes]) -> Iterator[StreamEvent]:
    """Parse the lines of a stream; an event without data only updates the id."""
    kind, last_id, data = "message", "", b""
    for raw in lines:
        name, _, value = raw.rstrip(b"\r\n").partition(b":")
        value = value.removeprefix(b" ")
        if name == b"id":
            last_id = value.decode()
        elif name == b"event":
            kind = value.decode()
        elif name == b"data":
            data += value
        elif not name and not value and (last_id or data):
            yield StreamEvent(kind, last_id, data)
            kind, last_id, data = "message", "", b""
