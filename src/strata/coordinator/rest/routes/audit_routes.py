"""Endpoints of a task's audit: the workers' records compared with the order of the samples.

The coordinator opens no dataset: contents are compared by the client, which has the data.
"""

from typing import Annotated

from litestar import get
from litestar.params import FromPath, QueryParameter

from strata.coordinator.rest.error_responses import READS_ONE
from strata.coordinator.rest.views.past_state import ThePast
from strata.timeline.audit.audit_results import Audit
from strata.timeline.audit.batch_contents import ContentPage, recorded_contents
from strata.timeline.audit.sample_audit import audit
from strata.timeline.audit.sample_history import (
    BatchTrainers,
    StepStory,
    Trained,
    expected_trainers,
    step_story,
    trainings_of,
)

LAST = 2**53 - 1
Of = Annotated[str, QueryParameter(max_length=400, description="Dataset, if the task has several.")]
Sample = Annotated[
    int, QueryParameter(ge=0, le=LAST, description="Index of the sample in the dataset.")
]
Step = Annotated[int, QueryParameter(ge=0, le=LAST)]
Batch = Annotated[str, QueryParameter(max_length=400, description="DATASET/STEP.")]
First = Annotated[int, QueryParameter(ge=0, le=LAST, description="First step of the page.")]


@get("/tasks/{task_id:str}/audit", responses=READS_ONE)
async def audit_task(past: ThePast, task_id: FromPath[str]) -> Audit:
    """Compare the workers' records of applied steps with the order of the samples.

    The verdict is `proven`, `unproven` (a record is missing or damaged, or shards were leased) or
    `broken` (a sample is missing or was applied twice, or a record contradicts the order).
    """
    return await past.ask(lambda queries: audit(queries.timeline.reader, task_id))


@get("/tasks/{task_id:str}/audit/sample", responses=READS_ONE)
async def audit_sample(
    past: ThePast, task_id: FromPath[str], sample: Sample, dataset: Of = ""
) -> list[Trained]:
    """The steps and workers that trained a sample; the newest if there are too many."""
    return await past.ask(
        lambda queries: trainings_of(queries.timeline.reader, task_id, sample, dataset)
    )


@get("/tasks/{task_id:str}/audit/step", responses=READS_ONE)
async def audit_step(
    past: ThePast, task_id: FromPath[str], step: Step, dataset: Of = ""
) -> StepStory:
    """The samples that each worker trained in a committed step."""
    return await past.ask(
        lambda queries: step_story(queries.timeline.reader, task_id, step, dataset)
    )


@get("/tasks/{task_id:str}/audit/contents", responses=READS_ONE)
async def audit_contents(
    past: ThePast, task_id: FromPath[str], first_step: First = 0
) -> ContentPage:
    """Eight-byte digests of the samples that workers read, a page of steps at a time."""
    return await past.ask(
        lambda queries: recorded_contents(queries.timeline.reader, task_id, first_step)
    )


@get("/tasks/{task_id:str}/audit/batch", responses=READS_ONE)
async def audit_batch(past: ThePast, task_id: FromPath[str], batch: Batch) -> BatchTrainers:
    """The workers assigned to a batch and whether they trained it."""
    return await past.ask(
        lambda queries: expected_trainers(queries.timeline.reader, task_id, batch)
    )


ENDPOINTS = [audit_task, audit_sample, audit_step, audit_contents, audit_batch]
