"""The audit of a task: whether each sample was applied exactly once per epoch."""

from litestar import get
from litestar.params import FromPath

from strata.coordinator.http.faults import READS_ONE
from strata.coordinator.http.past import ThePast
from strata.timeline.audit import Audit, audit


@get("/tasks/{task_id:str}/audit", responses=READS_ONE)
async def audit_task(past: ThePast, task_id: FromPath[str]) -> Audit:
    """Proves from facts and workers' records how often each sample was applied."""
    return await past.ask(lambda desk: audit(desk.timeline.reader, task_id))
