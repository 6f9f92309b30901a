"""Requests for stacks, to the agents and workers that have not reported yet, and their reports.

A request is sent when a collection begins, and again to an agent or a worker that connects while
its report is missing, so that a broken connection or a restart of the coordinator loses none.
"""

import msgspec

from strata.core.state import Cluster
from strata.core.task_state import Task
from strata.core.workers.stack_collection import ITSELF, ReportStacks
from strata.core.workers.stack_reports import StackReport
from strata.errors import UNDECODABLE, InvalidArgument
from strata.wire.v1 import coordinator_pb2 as pb

MAX_MESSAGE_BYTES = 1 << 20

_decode = msgspec.json.Decoder(StackReport).decode


def requests_to_agent(state: Cluster, agent: str, limit_s: float) -> list[pb.CollectStacks]:
    """The requests that an agent has not answered."""
    found = []
    for task in state.tasks.values():
        collection = task.stack_collection
        if collection is not None and collection.open:
            asked = [w for w, reporters in collection.waiting.items() if agent in reporters]
            if asked:
                found.append(_request(task, asked, limit_s))
    return found


def request_to_worker(state: Cluster, worker_id: str, limit_s: float) -> pb.CollectStacks | None:
    """The request that a worker has not answered, if there is one."""
    worker = state.workers.get(worker_id)
    task = state.tasks.get(worker.task) if worker is not None else None
    collection = task.stack_collection if task is not None else None
    if task is None or collection is None or not collection.open:
        return None
    asked = ITSELF in collection.waiting.get(worker_id, ())
    return _request(task, [worker_id], limit_s) if asked else None


def _request(task: Task, workers: list[str], limit_s: float) -> pb.CollectStacks:
    assert task.stack_collection is not None
    return pb.CollectStacks(
        task_id=task.id,
        collection=task.stack_collection.number,
        worker_ids=workers,
        limit_ms=int((limit_s or 5.0) * 1000),
        max_bytes=task.stack_collection.max_bytes,
    )


def report_command(stacks: pb.Stacks, agent: str, worker: str) -> ReportStacks:
    """The command of a report; raises `InvalidArgument` if it cannot be read."""
    if len(stacks.report) > MAX_MESSAGE_BYTES:
        raise InvalidArgument(
            f"a report of stacks has {len(stacks.report)} bytes",
            hint=f"send at most {MAX_MESSAGE_BYTES}",
        )
    try:
        report = _decode(stacks.report)
    except UNDECODABLE as error:
        raise InvalidArgument(
            f"a report of stacks cannot be read: {error}", hint="send a StackReport as JSON"
        ) from error
    return ReportStacks(
        task=stacks.task_id,
        worker=worker or stacks.worker_id,
        collection=stacks.collection,
        report=report,
        agent=agent,
    )
