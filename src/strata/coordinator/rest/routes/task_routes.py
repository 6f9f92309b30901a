"""Endpoints of tasks."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Annotated, Any, NamedTuple

import msgspec
from litestar import Response, get, post
from litestar.params import FromPath, JSONBody, QueryParameter

from strata.coordinator.logs.log_entries import LogEntry
from strata.coordinator.logs.log_query import LogQuery
from strata.coordinator.rest.action_responses import (
    CheckpointRequestResponse,
    ContinueTaskResponse,
    CreateTaskResponse,
    ParameterChange,
    ResizeTaskResponse,
    StopTaskResponse,
)
from strata.coordinator.rest.error_responses import READS, READS_ONE, WRITES
from strata.coordinator.rest.paging import (
    DEFAULT_LIMIT,
    HEADERS,
    Cursor,
    Limit,
    page,
    paged,
)
from strata.coordinator.rest.ports import Api, TheApi
from strata.coordinator.rest.request_models import (
    ContinueTaskRequest,
    CreateTaskRequest,
    ForkTaskRequest,
    ResizeTaskRequest,
    RestartTaskRequest,
)
from strata.coordinator.rest.response_models import TaskDetail, TaskResponse
from strata.coordinator.rest.routes.log_routes import recent
from strata.coordinator.rest.routes.workdir_routes import stored_workdir
from strata.coordinator.rest.views import state_views
from strata.coordinator.sessions.secret_config import SECRET_CONFIG, without_secrets
from strata.core.checkpoints.save_schedule import RequestCheckpoint
from strata.core.events import Command
from strata.core.task_spec import TaskSpec
from strata.core.task_state import Task, TaskState
from strata.core.tasks.continuation import ContinueTask, changes, resume_step
from strata.core.tasks.placement import StopTask, SubmitTask
from strata.core.tasks.resizing import Resized, ResizeTask
from strata.core.tasks.task_forks import ForkTask, checkpoint_at
from strata.core.tasks.task_queue import Queue
from strata.core.tasks.workdirs import Workdir
from strata.errors import (
    InvalidArgument,
    LimitExceeded,
    NotAllowedNow,
    StrataError,
    Unavailable,
)

TAIL_LINES = 5
TAIL_CHARS = 200
LINES_LOOKED_AT = 500
CONFIG_BYTES = 64 * 1024

STOPPED = "asked to stop through the API"
StopReason = Annotated[
    str, QueryParameter(max_length=200, description="Recorded as the reason of the stop.")
]
Status = Annotated[TaskState | None, QueryParameter(description="Only with this status.")]


@get("/tasks", responses=READS, response_headers=HEADERS)
async def list_tasks(
    api: TheApi, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = "", status: Status = None
) -> Response[list[TaskResponse]]:
    """Tasks, newest first; `logs` has the last lines of tasks that wrote some recently."""
    newest = await recent(api, LogQuery(), LINES_LOOKED_AT)
    tail = tails(newest.entries)
    async with api.engine.settled() as state:
        wanted = (task for task in state.tasks.values() if status in (None, task.state))
        found = page(wanted, state_views.task_order, limit, cursor)
        queue = Queue(state)
        shown = [
            state_views.task(state, queue, task, tail.get(task.id, [])) for task in found.items
        ]
        return paged(shown, found.total, found.next_cursor)


@post("/tasks", responses=WRITES)
async def create_task(api: TheApi, data: JSONBody[CreateTaskRequest]) -> CreateTaskResponse:
    """Submit a task. Without an `entry` it waits for workers that the user starts.

    The default `policy` is `replace` for workers that Strata starts, and `continue` for workers
    that the user starts.
    """
    spec = TaskSpec(
        name=data.name,
        type=data.type,
        dataset_id=data.dataset_id,
        worker_count=data.worker_count,
        min_workers=data.min_workers,
        elastic=data.elastic,
        spares=data.spares,
        policy=data.policy or ("replace" if data.entry else "continue"),
        model_state=data.model_state,
        keep_count=data.keep_count,
        keep_every=data.keep_every,
        keep_best=data.keep_best,
        keep_best_count=data.keep_best_count,
        max_restarts=data.max_restarts,
        allow_fresh_start=data.allow_fresh_start,
        entry=data.entry,
        args=data.args,
        config=encoded(data.config),
        external=not data.entry,
        priority=data.priority,
        after=data.after,
        preemptible=data.preemptible,
        epochs=data.epochs,
        max_steps=data.max_steps,
        workdir=data.workdir,
        self_test=data.self_test,
    )
    return await submitted(api, spec, data.env)


def encoded(config: dict[str, Any]) -> str:
    """The entries of `run.config` as JSON."""
    text = msgspec.json.encode(config)
    if len(text) > CONFIG_BYTES:
        raise LimitExceeded(
            f"config has {len(text)} bytes; the limit is {CONFIG_BYTES}",
            hint="put the rest in a file",
        )
    return text.decode()


async def submitted(api: Api, spec: TaskSpec, env: dict[str, str]) -> CreateTaskResponse:
    """Submit a task."""
    spec, env = hidden(spec, env)
    files = await stored_workdir(api, spec.workdir)
    task = await with_environment(
        api, spec, env, lambda stored: SubmitTask(spec=stored, workdir=files)
    )
    return CreateTaskResponse(task.id, task.state)


async def with_environment(
    api: Api, spec: TaskSpec, env: dict[str, str], command: Callable[[TaskSpec], Command]
) -> Task:
    """Submit the command that starts a task; its environment is stored outside the log."""
    env = own_env(spec, env)
    key = await asyncio.to_thread(api.vault.keep, env)
    spec = msgspec.structs.replace(spec, env_names=sorted(env), env_key=key)
    try:
        task = await api.engine.submit(command(spec))
    except Unavailable:
        api.vault.forget(key)  # the next start deletes the file, unless the task was recorded
        raise
    except StrataError:
        await asyncio.to_thread(api.vault.discard, key)
        raise
    assert isinstance(task, Task)
    return task


@get("/tasks/{task_id:str}", responses=READS_ONE)
async def get_task(api: TheApi, task_id: FromPath[str]) -> TaskDetail:
    """One task with its submitted parameters and its last log lines."""
    newest = await recent(api, LogQuery(task_id=task_id), TAIL_LINES)
    async with api.engine.settled() as state:
        tail = tails(newest.entries).get(task_id, [])
        return state_views.task_detail(state, api.heartbeats, state.task(task_id), tail)


@post("/tasks/{task_id:str}/stop", status_code=200, responses=WRITES)
async def stop_task(
    api: TheApi, task_id: FromPath[str], reason: StopReason = STOPPED
) -> StopTaskResponse:
    """Stop a task gracefully: its workers save first. Stopping twice changes nothing."""
    command = StopTask(task=task_id, reason=reason or STOPPED)
    task = await api.engine.submit(command)
    assert isinstance(task, Task)
    return StopTaskResponse(task.state in ("stopping", "stopped"), task.id, task.state)


@post("/tasks/{task_id:str}/continue", status_code=200, responses=WRITES)
async def continue_task(
    api: TheApi, task_id: FromPath[str], data: JSONBody[ContinueTaskRequest]
) -> ContinueTaskResponse:
    """Continue an ended task at its newest checkpoint, with changed parameters if given."""
    async with api.engine.settled() as state:
        task = state.task(task_id)
        plan = Plan(task.spec, resume_step(task), task.state)
    return await started_again(
        api,
        task_id,
        plan,
        data,
        lambda spec, files: ContinueTask(task=task_id, spec=spec, workdir=files),
    )


@post("/tasks/{task_id:str}/fork", responses=WRITES)
async def fork_task(
    api: TheApi, task_id: FromPath[str], data: JSONBody[ForkTaskRequest]
) -> ContinueTaskResponse:
    """Start a new task with the history of a task up to one of its checkpoints."""
    async with api.engine.settled() as state:
        task = state.task(task_id)
        plan = Plan(task.spec, checkpoint_at(task, data.step).step, task.state)
    return await started_again(
        api,
        task_id,
        plan,
        data,
        lambda spec, files: ForkTask(task=task_id, spec=spec, step=data.step, workdir=files),
    )


class Plan(NamedTuple):
    """The parameters and the state of a task, and the step at which it or its fork starts."""

    before: TaskSpec
    step: int
    now: TaskState


async def started_again(
    api: Api,
    task_id: str,
    plan: Plan,
    data: ContinueTaskRequest,
    command: Callable[[TaskSpec, Workdir | None], Command],
) -> ContinueTaskResponse:
    """Start a task from a checkpoint; with `dry_run`, only its changes are returned."""
    spec, env = hidden(continued_spec(plan.before, data), data.env)
    spec = msgspec.structs.replace(spec, env_names=sorted(own_env(spec, env)))
    require_env(task_id, plan.before, env)
    changed = [ParameterChange(name, *both) for name, both in changes(plan.before, spec).items()]
    status = plan.now
    files = await stored_workdir(api, spec.workdir)
    if not data.dry_run:
        task = await with_environment(api, spec, env, lambda stored: command(stored, files))
        task_id, status = task.id, task.state
    return ContinueTaskResponse(task_id=task_id, status=status, step=plan.step, changes=changed)


def continued_spec(before: TaskSpec, data: ContinueTaskRequest) -> TaskSpec:
    """The parameters of a task that continues."""
    given = {
        name: value
        for name, value in msgspec.structs.asdict(data).items()
        if value is not None and name in before.__struct_fields__ and name != "config"
    }
    if data.worker_count is not None and before.elastic:
        given = {"elastic": False, "min_workers": 0} | given
    if data.epochs or data.max_steps:
        given = {"epochs": 0, "max_steps": 0} | given
    config = msgspec.json.decode(before.config, type=dict[str, Any]) | data.config
    return msgspec.structs.replace(before, **given, config=encoded(config))


def hidden(spec: TaskSpec, env: dict[str, str]) -> tuple[TaskSpec, dict[str, str]]:
    """The task without the secret texts of its config, and the environment with them."""
    config, env = without_secrets(spec.config, env)
    if spec.external and SECRET_CONFIG in env:
        raise InvalidArgument(
            "config: the workers of this task are not started by an agent, which would give them "
            "its secret values",
            hint="set the values in the environment of the workers, and leave them out here",
        )
    return msgspec.structs.replace(spec, config=config), env


def own_env(spec: TaskSpec, env: dict[str, str]) -> dict[str, str]:
    """The variables of a task; `PWD` is the working folder of one without a `workdir`."""
    return {name: value for name, value in env.items() if name != "PWD" or not spec.workdir}


def require_env(task_id: str, spec: TaskSpec, env: dict[str, str]) -> None:
    """Refuse to start a task again without the values of its environment variables."""
    missing = [name for name in spec.env_names if name not in env and name != SECRET_CONFIG]
    if missing:
        raise InvalidArgument(
            f"env: {task_id} needs values for {', '.join(missing)}",
            hint="values are not stored, so give them again: env, or --env NAME=VALUE",
        )


@post("/tasks/{task_id:str}/restart", responses=WRITES)
async def restart_task(
    api: TheApi, task_id: FromPath[str], data: JSONBody[RestartTaskRequest]
) -> CreateTaskResponse:
    """Submit a task that has ended again, with the same parameters."""
    async with api.engine.settled() as state:
        task = state.task(task_id)
        spec, ended, now = task.spec, task.ended, task.state
        if task.started_ns:  # the tasks before it had completed
            spec = msgspec.structs.replace(spec, after=[])
    if spec.external:
        raise InvalidArgument(
            f"the workers of {task_id} were not started by strata",
            hint="start its workers again yourself",
        )
    require_env(task_id, spec, data.env)
    if not ended:
        raise NotAllowedNow(f"{task_id} is {now}", hint="stop it first, and wait until it ended")
    return await submitted(api, spec, data.env)


@post("/tasks/{task_id:str}/resize", status_code=200, responses=WRITES)
async def resize_task(
    api: TheApi, task_id: FromPath[str], data: JSONBody[ResizeTaskRequest]
) -> ResizeTaskResponse:
    """Change the number of workers of a task while it runs, without a restart.

    Its workers change between two steps; samples and global batch of each step stay the same.
    """
    command = ResizeTask(
        task=task_id,
        worker_count=data.worker_count,
        min_workers=data.min_workers,
        reason="asked for through the API",
    )
    resized = await api.engine.submit(command)
    assert isinstance(resized, Resized)
    return ResizeTaskResponse(
        task_id=resized.task,
        before=resized.before,
        after=resized.after,
        placed=resized.placed,
        waiting=resized.waiting,
        waiting_for=resized.waiting_for,
        changed=resized.changed,
        min_workers=data.min_workers,
    )


@post("/tasks/{task_id:str}/checkpoint", status_code=202, responses=WRITES)
async def request_checkpoint(api: TheApi, task_id: FromPath[str]) -> CheckpointRequestResponse:
    """Request a checkpoint: the workers of the task save at their next step."""
    command = RequestCheckpoint(task=task_id, reason="requested through the API")
    request = await api.engine.submit(command)
    assert isinstance(request, int)
    return CheckpointRequestResponse(request, task_id)


def tails(newest: Iterable[LogEntry]) -> dict[str, list[str]]:
    """The last messages of each task, oldest first, from lines ordered newest first."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for entry in newest:
        if entry.task_id and len(found[entry.task_id]) < TAIL_LINES:
            found[entry.task_id].insert(0, entry.message[:TAIL_CHARS])
    return found
