"""Record images, texts and histograms within the limit of the task.

The coordinator grants room in pieces, so that all workers of a task together stay within
`max_media_bytes`. The next piece is requested ahead, and training waits for one only briefly: what
is logged while the coordinator cannot be reached, or after the limit, is left out, and each one
left out is recorded with the reason.
"""

import logging
from collections.abc import Mapping

from strata.core.limits import require_name
from strata.core.workers.worker_facts import MediaSkipped
from strata.errors import StrataError
from strata.sdk.record.logged_media import Media, Moment
from strata.sdk.record.recorder import Recorder
from strata.sdk.session.requests import SessionRequest
from strata.sdk.session.worker_session import WorkerSession
from strata.wire.v1 import coordinator_pb2 as pb

log = logging.getLogger(__name__)

PIECE_BYTES = 2**20
WAIT_S = 2.0
FULL = "the task has logged as many bytes of images, texts and histograms as max_media_bytes allows"
LATE = "the coordinator has not granted room for it yet"


class MediaLog:
    """The images, texts and histograms of one worker. For the training thread."""

    def __init__(self, session: WorkerSession, recorder: Recorder) -> None:
        self._session = session
        self._recorder = recorder
        self._incarnation = -1
        self._begin(0)

    def _begin(self, incarnation: int) -> None:
        self._incarnation = incarnation
        self._granted_bytes = self._used_bytes = self._asked_bytes = 0
        self._request: SessionRequest | None = None
        self._closed = self._warned = ""
        self._late = False

    def record(self, media: Mapping[str, Media], moment: Moment) -> None:
        """Record these, or why they are left out; raises if a name cannot be used."""
        for name in media:
            require_name("the name of a logged value", name)
        if media and self._session.identity.incarnation != self._incarnation:
            self._begin(self._session.identity.incarnation)
        for name, each in media.items():
            reason = self._no_room(each.size_bytes)
            if not reason:
                self._used_bytes += each.size_bytes
                self._recorder.emit(each.fact(name, moment))
                continue
            self._recorder.emit(
                MediaSkipped(
                    name=name,
                    media=each.kind,
                    step=moment.step,
                    size_bytes=each.size_bytes,
                    reason=reason,
                )
            )
            if reason != self._warned:
                self._warned = reason
                log.warning(
                    "the %s %.80r of step %d is left out: %s", each.kind, name, moment.step, reason
                )

    def _no_room(self, size_bytes: int) -> str:
        """Why something of this size cannot be recorded; empty if it can."""
        self._take_answer()
        try:
            if self._left_bytes < size_bytes and not self._closed:
                self._ask(self._used_bytes + size_bytes)
                self._wait()
            elif self._left_bytes - size_bytes < PIECE_BYTES // 2 and not self._closed:
                self._ask(self._used_bytes + size_bytes)
        except StrataError as error:
            return error.message if self._left_bytes < size_bytes else ""
        if self._left_bytes >= size_bytes:
            return ""
        return self._closed or LATE

    @property
    def _left_bytes(self) -> int:
        return self._granted_bytes - self._used_bytes

    def _ask(self, used_bytes: int) -> None:
        if self._request is None:
            self._asked_bytes = used_bytes + PIECE_BYTES
            asked = pb.AskForMediaRoom(total_bytes=self._asked_bytes)
            self._request = self._session.ask("ask_for_media_room", asked)

    def _wait(self) -> None:
        """Wait for the answer; not again while the coordinator stays away."""
        request = self._request
        if request is not None and not self._late:
            self._late = not self._session.wait_for(lambda: request.done, WAIT_S)
        self._take_answer()

    def _take_answer(self) -> None:
        request = self._request
        if request is None or not request.done:
            return
        self._request, self._late = None, False
        self._session.forget(request)
        if request.answer is not None:
            self._granted_bytes = request.answer.media_room.granted_bytes
            if self._granted_bytes < self._asked_bytes:
                self._closed = FULL
        elif request.error is not None:
            self._closed = f"the coordinator grants no room for it: {request.error.message}"
