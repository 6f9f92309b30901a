"""Endpoints of the stacks of a task's workers."""

from litestar import get, post
from litestar.params import FromPath

from strata.coordinator.rest.action_responses import CollectStacksResponse
from strata.coordinator.rest.error_responses import READS_ONE, WRITES
from strata.coordinator.rest.ports import TheApi
from strata.coordinator.rest.routes.timeline_routes import Moment
from strata.coordinator.rest.views.past_state import ThePast
from strata.core.task_state import StackCollection
from strata.core.workers.stack_collection import RequestStacks
from strata.timeline.stack_answers import StacksAnswer


@post("/tasks/{task_id:str}/stacks", status_code=202, responses=WRITES)
async def collect_stacks(api: TheApi, task_id: FromPath[str]) -> CollectStacksResponse:
    """Collect the stacks of a task's workers now. While a collection is in progress, joins it."""
    command = RequestStacks(task=task_id, reason="asked for through the API")
    found = await api.engine.submit(command)
    assert isinstance(found, StackCollection)
    return CollectStacksResponse(
        collection=found.number, task_id=task_id, workers=found.workers, open=found.open
    )


@get("/tasks/{task_id:str}/stacks", responses=READS_ONE)
async def get_stacks(
    past: ThePast, task_id: FromPath[str], time_ms: Moment = None
) -> StacksAnswer | None:
    """The newest collection of stacks of a task, or the newest before a moment; null if none is
    recorded."""
    return await past.ask(lambda queries: queries.stacks(task_id, time_ms))


ENDPOINTS = [collect_stacks, get_stacks]
"""All endpoints of this module."""
