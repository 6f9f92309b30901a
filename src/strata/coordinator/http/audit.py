"""The audit of a task: what the workers recorded that they applied, compared with the order.

Nothing here opens a dataset: contents are compared by whoever asks, where the data is.
"""

from typing import Annotated

from litestar import get
from litestar.params import FromPath, QueryParameter

from strata.coordinator.http.faults import READS_ONE
from strata.coordinator.http.past import ThePast
from strata.timeline.audit import audit
from strata.timeline.audit_results import Audit
from strata.timeline.contents import ContentPage, recorded_contents
from strata.timeline.samples import StepStory, Trained, step_story, trainings_of
from strata.timeline.trainers import BatchTrainers, expected_trainers

LAST = 2**53 - 1
Of = Annotated[str, QueryParameter(max_length=400, description="A dataset, if there are several.")]
Sample = Annotated[int, QueryParameter(ge=0, le=LAST, description="Its number in the dataset.")]
Step = Annotated[int, QueryParameter(ge=0, le=LAST)]
Batch = Annotated[str, QueryParameter(max_length=400, description="As DATASET/STEP.")]
First = Annotated[int, QueryParameter(ge=0, le=LAST, description="The first step of the page.")]


@get("/tasks/{task_id:str}/audit", responses=READS_ONE)
async def audit_task(past: ThePast, task_id: FromPath[str]) -> Audit:
    """Compare the workers' records of applied steps with the order of the samples.

    The verdict is `proven`, `unproven` (a record is missing or damaged, or shards were leased) or
    `broken` (a sample is missing or was applied twice, or a record contradicts the order).
    """
    return await past.ask(lambda desk: audit(desk.timeline.reader, task_id))


@get("/tasks/{task_id:str}/audit/sample", responses=READS_ONE)
async def audit_sample(
    past: ThePast, task_id: FromPath[str], sample: Sample, dataset: Of = ""
) -> list[Trained]:
    """Which steps trained a sample, and who; the newest if there are too many."""
    return await past.ask(lambda desk: trainings_of(desk.timeline.reader, task_id, sample, dataset))


@get("/tasks/{task_id:str}/audit/step", responses=READS_ONE)
async def audit_step(
    past: ThePast, task_id: FromPath[str], step: Step, dataset: Of = ""
) -> StepStory:
    """Who trained which samples in a step that counts."""
    return await past.ask(lambda desk: step_story(desk.timeline.reader, task_id, step, dataset))


@get("/tasks/{task_id:str}/audit/contents", responses=READS_ONE)
async def audit_contents(
    past: ThePast, task_id: FromPath[str], first_step: First = 0
) -> ContentPage:
    """Eight bytes that workers recorded for what they read, a page of steps at a time."""
    return await past.ask(lambda desk: recorded_contents(desk.timeline.reader, task_id, first_step))


@get("/tasks/{task_id:str}/audit/batch", responses=READS_ONE)
async def audit_batch(past: ThePast, task_id: FromPath[str], batch: Batch) -> BatchTrainers:
    """Who was to train a batch, and whether they did; also of a batch that nobody trained."""
    return await past.ask(lambda desk: expected_trainers(desk.timeline.reader, task_id, batch))


ENDPOINTS = [audit_task, audit_sample, audit_step, audit_contents, audit_batch]
