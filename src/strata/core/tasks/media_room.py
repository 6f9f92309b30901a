"""Room for images, texts and histograms: a task may log `max_media_bytes` of them.

A worker asks for room before it records one. It names the total that it wants to have been granted
since it registered, so a repeated request grants nothing twice. Room that a lost worker had not
used is not given back.
"""

from strata.core.decision import Decision, applies, decides
from strata.core.events import Event, Fact
from strata.core.limits import LimitHit
from strata.core.state import Cluster
from strata.core.workers.fencing import WorkerCommand


class MediaRoomGranted(Fact, frozen=True, kw_only=True):
    """A worker may log this many more bytes of images, texts and histograms."""

    sentence = "{worker} may log {size_bytes} more of images, texts and histograms"

    task: str
    worker: str
    size_bytes: int


class AskForMediaRoom(WorkerCommand, frozen=True):
    total_bytes: int


@applies(MediaRoomGranted)
def _granted(state: Cluster, fact: MediaRoomGranted, event: Event) -> None:
    state.tasks[fact.task].media_bytes += fact.size_bytes
    state.workers[fact.worker].media_bytes += fact.size_bytes


@decides(AskForMediaRoom)
def ask_for_media_room(d: Decision, c: AskForMediaRoom) -> int:
    """Return the bytes granted to the worker since it registered; less than asked for at the limit.

    The limit is recorded with the grant that reaches it.
    """
    worker = d.state.workers[c.worker]
    task = d.state.tasks[worker.task]
    limit = d.state.rules.max_media_bytes
    room = max(limit - task.media_bytes, 0)
    wanted = max(c.total_bytes - worker.media_bytes, 0)
    granted = min(wanted, room)
    if granted:
        d.record(MediaRoomGranted(task=task.id, worker=worker.id, size_bytes=granted), c.cause)
    if granted and wanted >= room:
        reason = f"task {task.id} logs no more images, texts and histograms"
        d.record(LimitHit(limit="max_media_bytes", value=limit, reason=reason), c.cause)
    return worker.media_bytes
