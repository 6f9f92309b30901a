"""A live stream that outlives the coordinator: server-sent events, resumed by the last id.

When the connection ends (a restart, a broken network, silence for longer than heartbeats allow) it
is opened again with the id of the last event that came, until it is there or refuses for good.
Meanwhile stderr says so, once. Whoever opens a stream has asked the coordinator something before,
so that a wrong address is an error and not a long wait.
"""

import http.client
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from msgspec import Struct

from strata.cli._api import Api, Param
from strata.cli._terminal import note
from strata.errors import DeadlineExceeded, Overloaded, Unavailable

SILENCE_S = 45.0
"""Three heartbeats of the coordinator."""

FIRST_WAIT_S = 0.1
LONGEST_WAIT_S = 3.0
PASSING = (DeadlineExceeded, Overloaded, Unavailable)

Wanted = TypeVar("Wanted")


class Event(Struct, frozen=True):
    """One event; `opened` stands for a connection that was just made."""

    kind: str
    id: str
    data: bytes = b""


class Stream:
    """Events of one endpoint; `last_id` is where a new connection goes on."""

    def __init__(self, api: Api, path: str, params: dict[str, Param], last_id: str = "") -> None:
        self.api = api
        self.path = path
        self.params = params
        self.last_id = last_id

    def __iter__(self) -> Iterator[Event]:
        while True:
            response = patiently(self._open)
            yield Event("opened", self.last_id)
            try:
                with response:
                    for event in parse(response):
                        self.last_id = event.id or self.last_id
                        if event.data:
                            yield event
            except (OSError, http.client.HTTPException):
                pass  # the same as an end without an error: it is opened again
            time.sleep(FIRST_WAIT_S)

    def _open(self) -> http.client.HTTPResponse:
        return self.api.open(self.path, self.params, self.last_id, SILENCE_S)


def patiently(attempt: Callable[[], Wanted]) -> Wanted:
    """What the attempt gives once the coordinator is there; stderr tells who waits for it."""
    wait_s = FIRST_WAIT_S
    told = False
    while True:
        try:
            result = attempt()
        except PASSING:
            if not told:
                note("the coordinator does not answer; trying again until it does")
            told = True
            time.sleep(wait_s)
            wait_s = min(wait_s * 2, LONGEST_WAIT_S)
        else:
            if told:
                note("the coordinator answers again")
            return result


def parse(lines: Iterable[bytes]) -> Iterator[Event]:
    """Events in the lines of a stream; one without data only moves the id on."""
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
            yield Event(kind, last_id, data)
            kind, last_id, data = "message", "", b""
