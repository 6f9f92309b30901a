"""The record of a slow disk: its worker, operation and progress."""

from strata.core.workers.worker_facts import CODEC
from strata.store.event_batches import unpack
from strata.store.event_store import Window
from tests.sdk.harness import until
from tests.sdk.test_saving import listed

WRITING = ("CheckpointWriteStarted", "CheckpointWriteProgress", "CheckpointWriteCompleted")


def writes(hub, worker):
    """A worker's recorded writes, in order."""
    batches = hub.store.batches(Window(node=worker))
    events = [event for batch in batches for event in unpack(CODEC, batch)]
    return [event for event in events if type(event.body).__name__ in WRITING]


def phases(hub, worker):
    return [type(event.body).__name__ for event in writes(hub, worker)]


def test_stalling_disk_is_visible_in_the_write_of_its_worker(hub, trainees, tmp_path):
    given = {"world_size": 2, "steps": 10, "checkpoint_every": 10, "size": 5_000_000}
    quick = trainees(hub.address, "keep", worker_id="a", **given)
    gate = tmp_path / "gate"
    slow = trainees(hub.address, "keep_on_a_stalling_disk", worker_id="b", gate=str(gate), **given)
    until(lambda: WRITING[-1] in phases(hub, "a"), what="the end of a's write")
    until(lambda: WRITING[1] in phases(hub, "b"), what="progress of b's write")
    (saved,) = until(lambda: half_written(hub), what="a's part, and some of b's")
    assert saved["status"] == "in_progress"
    assert saved["size_written"] < saved["size_total"]
    assert WRITING[-1] not in phases(hub, "b")
    gate.touch()
    assert [quick.ends(), slow.ends()] == [0, 0]
    (saved,) = listed(hub)
    assert (saved["status"], saved["size_written"]) == ("completed", saved["size_total"])
    begun, *progress, ended = writes(hub, "b")
    assert {event.op for event in [*progress, ended]} == {begun.op}
    assert progress[0].body.done_bytes < begun.body.size_bytes
    assert progress[-1].body.done_bytes == begun.body.size_bytes
    took_ns = {worker: duration_ns(writes(hub, worker)) for worker in "ab"}
    assert took_ns["b"] > took_ns["a"]


def half_written(hub):
    """The checkpoint once one part is complete and the other partly written."""
    return [c for c in listed(hub) if c["parts"] == 1 and c["size_written"] > c["size"]]


def duration_ns(events):
    return events[-1].mono_ns - events[0].mono_ns
