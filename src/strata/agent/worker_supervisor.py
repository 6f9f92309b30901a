"""Supervise the workers that the coordinator wants on this host, and record how they end.

It follows the last received duties: while the coordinator is unreachable, all workers keep running.
Every change is on disk before it is acted upon, so that an agent can be killed at any time and the
next one knows its children.
"""

import asyncio
import logging
import os
import signal
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec

from strata.agent import agent_records
from strata.agent.agent_records import ChildRecord, Exit
from strata.agent.leftover_events import Leftovers
from strata.agent.self_test_gate import FailedTest, SelfTestGate
from strata.agent.slot_gpus import SlotGpus
from strata.agent.stack_collector import collect
from strata.agent.task_folders import TaskFolders
from strata.agent.warm_start import Launch, Templates
from strata.agent.worker_plan import Reason, Start, WantedStart, plan
from strata.agent.worker_process import Child, adopt, fork, new_key, spawn
from strata.agent.worker_variables import for_task
from strata.config import inherited
from strata.core.workers.host_agents import UNKNOWN_CODE
from strata.core.workers.stack_reports import StackReport
from strata.errors import Unavailable
from strata.sdk.record.line_buffer import LineBuffer
from strata.wire.v1 import coordinator_pb2 as pb

log = logging.getLogger(__name__)

LAST_LINES_S = 1.0
"""Before SIGTERM to a superseded process: it may be about to print why it failed."""

TERMINATE_DELAY_S = 3.0
"""Before SIGTERM to a process that was told to end by the coordinator."""

CANNOT_START = 127
MAX_REPORTS = 256
ORDINARY = "as a new process"
URGENCY: dict[Reason, int] = {
    "completed": 0,
    "unwanted": 1,
    "asked": 2,
    "leaving": 3,
    "superseded": 4,
}


class WorkerSupervisor:
    """The worker processes of one host. `on_news` is called when there is something to send.

    `cards` are the GPUs of each slot, if any. Without `templates` every worker is a new process.
    With a `gate` this host is tested before the first worker of a task starts; `failed_tests` has
    the failures that were not sent yet, by task.
    """

    def __init__(
        self,
        folder: Path,
        identity: Mapping[str, str],
        cards: Sequence[Sequence[str]] = (),
        templates: Templates | None = None,
        gate: SelfTestGate | None = None,
    ) -> None:
        self.failed_tests: dict[str, FailedTest] = {}
        self.exits: dict[Start, Exit] = {}
        self.on_news: Callable[[], None] = lambda: None
        self.leftovers = Leftovers(folder)
        self.folder = folder
        self._identity = identity
        self.gpus = SlotGpus(cards)
        self._templates = templates
        self._gate = gate
        if gate is not None:
            gate.on_end = self._tested
        self.folders = TaskFolders(folder)
        self.folders.on_end = self._fetched
        self._children: dict[Start, Child] = {}
        self._starting: ChildRecord | None = None
        self._jobs: dict[str, pb.Job] = {}
        self._duties: list[WantedStart] = []
        self._completed: frozenset[str] = frozenset()
        self._ended: dict[tuple[str, str], int] = {}
        self._ending: dict[Start, tuple[Reason, asyncio.Task[None]]] = {}
        self._watching: set[asyncio.Task[None]] = set()
        self._watching_stacks: set[asyncio.Task[None]] = set()
        self._outputs: dict[Start, LineBuffer] = {}
        self._unread: set[Start] = set()
        self._closing = False
        self.stacks: deque[pb.Stacks] = deque(maxlen=MAX_REPORTS)
        self._collecting: set[tuple[str, int, str]] = set()
        self.nonce = ""

    @property
    def running(self) -> list[Start]:
        """The running starts."""
        return list(self._children)

    @property
    def quiet(self) -> bool:
        """Whether nothing is running and everything was acknowledged."""
        busy = self._children or self._watching or self.exits or self._outputs
        return not busy and self.leftovers.empty

    def pids(self) -> dict[str, int]:
        """The pid of each running worker."""
        return {start.worker: child.record.pid for start, child in self._children.items()}

    def open(self) -> None:
        """Adopt the workers of an earlier agent in this folder."""
        known = agent_records.load(self.folder)
        self.nonce = known.nonce
        self._ended = {start.place: start.number for start in known.ended}
        self.exits = {each.start: each for each in known.exits}
        for record in known.children:
            child = adopt(record, self.folder)
            if child is None:
                self._note_exit(Exit(start=record.start, code=UNKNOWN_CODE))
            else:
                log.info("adopted %s, process %d", record.start.worker, child.record.pid)
                self._watch(child)
        running = {child.record.key for child in self._children.values()}
        for key in set(self.leftovers.keys()) - running:
            self.leftovers.ended(key, log.warning)
        self._save()

    def apply_duties(self, duties: pb.Duties) -> None:
        """Apply the complete duties from the coordinator."""
        self._jobs = {job.task_id: job for job in duties.jobs}
        self._duties = [
            WantedStart(
                Start(job.task_id, seat.worker_id, seat.start), job.stopping, bool(job.blocked)
            )
            for job in duties.jobs
            for seat in job.seats
        ]
        self._completed = frozenset(duties.completed_task_ids)
        self.gpus.exclude(duties.excluded_gpus)
        record = {duty.start.place for duty in self._duties} | {start.place for start in self.exits}
        self._ended = {place: last for place, last in self._ended.items() if place in record}
        if self._templates is not None:
            self._templates.retain(self._jobs)
        if self._gate is not None:
            self._gate.retain(self._jobs)
        self.folders.retain(self._jobs)
        self._prepare_for_adopted()
        self._act()

    def settled(self, start: Start) -> None:
        """Drop an exit that the coordinator has acknowledged."""
        if self.exits.pop(start, None) is not None:
            self._save()

    def take_output(self) -> pb.ProcessOutput | None:
        """Some unsent output of a worker, if any."""
        for start, lines in list(self._outputs.items()):
            taken = lines.take()
            if taken is None:
                if start not in self._unread and lines.delivered:
                    del self._outputs[start]
                continue
            # Round robin: the next call starts with the next worker.
            self._outputs[start] = self._outputs.pop(start)
            return pb.ProcessOutput(task_id=start.task, worker_id=start.worker, logs=taken)
        return None

    def output_taken(self, taken: pb.OutputTaken) -> None:
        """Note the output that the coordinator has stored."""
        for lines in self._outputs.values():
            if lines.sender == taken.sender:
                lines.taken(taken.lines)

    def collect_stacks(self, asked: pb.CollectStacks) -> None:
        """Read the stacks of workers in threads; the reports are put into `stacks`."""
        for worker in asked.worker_ids:
            key = (asked.task_id, asked.collection, worker)
            if key not in self._collecting:
                self._collecting.add(key)
                task = asyncio.create_task(self._collect(asked, worker))
                self._watching_stacks.add(task)
                task.add_done_callback(self._watching_stacks.discard)

    async def _collect(self, asked: pb.CollectStacks, worker: str) -> None:
        try:
            report = await self._read_stacks(asked, worker)
        except Exception as error:
            log.exception("the stacks of %s could not be read", worker)
            why = f"the agent could not read the stacks: {type(error).__name__}: {error}"
            report = StackReport(notes=[why])
        finally:
            self._collecting.discard((asked.task_id, asked.collection, worker))
        self.stacks.append(
            pb.Stacks(
                task_id=asked.task_id,
                collection=asked.collection,
                worker_id=worker,
                report=msgspec.json.encode(report),
            )
        )
        self.on_news()

    async def _read_stacks(self, asked: pb.CollectStacks, worker: str) -> StackReport:
        found = (each for start, each in self._children.items() if start.worker == worker)
        child = next(found, None)
        if child is None:
            return StackReport(notes=["no process of this worker runs on its host"])
        spool = self.leftovers.folder_of(child.record.key)
        limits = asked.limit_ms / 1000, asked.max_bytes
        return await asyncio.to_thread(collect, child.record.pid, spool, *limits)

    def resend(self) -> None:
        """Send everything unacknowledged again, over a new connection."""
        for lines in self._outputs.values():
            lines.resend()
        self.leftovers.resend()

    async def end_all(self) -> None:
        """End all workers gracefully, and start no more."""
        self._close()
        for start in list(self._children):
            self._end(start, "leaving")
        while self._watching:
            await asyncio.wait(self._watching)
        if self._templates is not None:
            self._templates.close()

    def kill_all(self) -> None:
        """Kill all workers."""
        self._close()
        for child in self._children.values():
            child.signal(signal.SIGKILL)

    def detach(self) -> None:
        """Leave all workers running for the next agent."""
        self._close()
        for _, task in self._ending.values():
            task.cancel()
        for task in self._watching:
            task.cancel()
        for child in self._children.values():
            child.detach()
        if self._templates is not None:
            self._templates.close()

    def _close(self) -> None:
        self._closing = True
        self.folders.close()
        if self._gate is not None:
            self._gate.close()

    def _act(self) -> None:
        """Start and end workers according to the duties."""
        if self._closing:
            return
        todo = plan(self._children, self._ended, self._duties, self._completed)
        for start in [start for start in self._ending if start not in todo.stops]:
            self._ending.pop(start)[1].cancel()
        for start, reason in todo.stops.items():
            self._end(start, reason)
        for start in todo.starts:
            job = self._jobs[start.task]
            gate, asked = self._gate, job.self_test
            tested = gate is None or gate.admits(start.task, self.gpus, asked)
            if tested and self.folders.admits(job):
                self._start(start, job)

    def _tested(self, task: str, failed: FailedTest | None) -> None:
        """Start the workers of a task after a self-test, or report that this host failed it."""
        if failed is not None and not self._closing:
            self.failed_tests[task] = failed
            self._refuse_starts(task, f"self-test failed: {failed.reason}")
        self._act()

    def _fetched(self, task: str, reason: str) -> None:
        """Start the workers of a task in its folder, or report that the folder cannot be used."""
        if reason and not self._closing:
            self._refuse_starts(task, f"the folder of the task cannot be used: {reason}")
        self._act()

    def _refuse_starts(self, task: str, reason: str) -> None:
        todo = plan(self._children, self._ended, self._duties, self._completed)
        for start in (each for each in todo.starts if each.task == task):
            self._log_for(start, f"{start.worker} is not started, {reason}")
            self._note_exit(Exit(start=start, code=CANNOT_START))
        self._save()

    def _start(self, start: Start, job: pb.Job) -> None:
        slot = self._free_slot()
        if slot is None:
            self._log_for(start, f"{start.worker} is not started: no slot without an excluded GPU")
            self._note_exit(Exit(start=start, code=CANNOT_START))
            self._save()
            return
        self._starting = ChildRecord(
            start=start, key=new_key(), grace_s=job.grace_ms / 1000, slot=slot
        )
        self._save()
        try:
            child, how = self._begin(self._starting, self._launch(self._starting, job))
        except OSError as error:
            self._starting = None
            self._log_for(start, f"{start.worker} cannot be started: {error}")
            self._note_exit(Exit(start=start, code=CANNOT_START))
            self._save()
            return
        self._starting = None
        details = (start.worker, start.number, how, child.record.pid)
        log.info("started %s (start %d) %s, process %d", *details)
        self._watch(child)
        self._save()
        child.release()

    def _begin(self, record: ChildRecord, launch: Launch) -> tuple[Child, str]:
        """Start the process of a worker; returns it and how it was started."""
        task, templates = record.start.task, self._templates
        if templates is None:
            return spawn(record, self.folder, launch), ORDINARY
        template = templates.for_launch(task, launch)
        if template is not None:
            try:
                return fork(record, self.folder, launch, template), f"from template {template.pid}"
            except Unavailable as error:
                log.info("the template of task %s is not used: %s", task, error)
                templates.retire(task)
        child = spawn(record, self.folder, launch)
        templates.prepare(task, launch)
        return child, ORDINARY

    def _launch(self, record: ChildRecord, job: pb.Job) -> Launch:
        environment = self._environment(record, job)
        entry, cwd = self.folders.where(job) if job.workdir else (job.entry, job.working_dir)
        environment |= {"PWD": cwd} if cwd else {}
        return Launch(entry=entry, args=list(job.args), environment=environment, cwd=cwd)

    def _prepare_for_adopted(self) -> None:
        """Prepare templates for adopted workers, which may have to be replaced too."""
        if self._templates is None:
            return
        for start, child in self._children.items():
            job = self._jobs.get(start.task)
            if job and not job.blocked and not self._templates.knows(start.task):
                self._templates.prepare(start.task, self._launch(child.record, job))

    def _free_slot(self) -> int | None:
        taken = {child.record.slot for child in self._children.values()}
        return self.gpus.free(taken, len(self._children.keys() - self._ending.keys()))

    def _environment(self, record: ChildRecord, job: pb.Job) -> dict[str, str]:
        start = record.start
        variables = {
            "PYTHONUNBUFFERED": "1",
            "STRATA_CAPTURE_OUTPUT": "false",
            "STRATA_SPOOL_DIR": str(self.leftovers.folder_of(record.key).resolve()),
            "STRATA_START": str(start.number),
            "STRATA_TASK": start.task,
            "TASK_CONFIG": job.config,
            "WORKER_ID": start.worker,
            "WORLD_SIZE": str(job.world_size),
        }
        threads = max(1, (os.cpu_count() or 1) // max(len(job.seats), 1))
        # Several processes with one thread per core each would compete for the cores.
        usual = {"OMP_NUM_THREADS": str(threads)}
        own = self.gpus.environment(record.slot)
        variables |= for_task(self._identity, job)
        return usual | inherited() | own | dict(job.environment) | variables

    def _watch(self, child: Child) -> None:
        self._children[child.start] = child
        self._outputs[child.start] = child.lines
        self._unread.add(child.start)
        child.listen(lambda: self.on_news())
        task = asyncio.create_task(self._follow(child))
        self._watching.add(task)
        task.add_done_callback(self._watching.discard)

    async def _follow(self, child: Child) -> None:
        """Wait for the end of a process and record it."""
        ended = await child.ended()
        how = f"signal {ended.signal}" if ended.signal else f"exit code {ended.code}"
        del self._children[child.start]
        ending = self._ending.pop(child.start, None)
        crashed = ending is None and (ended.signal or ended.code)
        level = logging.ERROR if crashed else logging.INFO
        log.log(level, "%s (start %d) ended with %s", child.start.worker, child.start.number, how)
        if ending is not None:
            ending[1].cancel()
        self._note_exit(msgspec.structs.replace(ended, gpus=self.gpus.keys(child.record.slot)))
        self._save()
        self._act()
        self.leftovers.ended(child.record.key, partial(self._log_for, child.start))
        await child.drained()
        self._unread.discard(child.start)
        self.on_news()

    def _note_exit(self, ended: Exit) -> None:
        self.exits[ended.start] = ended
        place = ended.start.place
        self._ended[place] = max(ended.start.number, self._ended.get(place, 0))
        self.on_news()

    def _end(self, start: Start, reason: Reason) -> None:
        """Start to end a process; a more urgent reason replaces an earlier one."""
        if start in self._ending:
            before, task = self._ending[start]
            if URGENCY[before] >= URGENCY[reason]:
                return
            task.cancel()
        task = asyncio.create_task(self._escalate(self._children[start], reason))
        self._ending[start] = (reason, task)

    async def _escalate(self, child: Child, reason: Reason) -> None:
        grace_s = child.record.grace_s
        steps: dict[Reason, list[tuple[float, int]]] = {
            "leaving": [(0.0, signal.SIGTERM), (grace_s, signal.SIGKILL)],
            "asked": [(TERMINATE_DELAY_S, signal.SIGTERM), (grace_s, signal.SIGKILL)],
            "superseded": [(LAST_LINES_S, signal.SIGKILL)],
            "unwanted": [(TERMINATE_DELAY_S, signal.SIGTERM), (grace_s, signal.SIGKILL)],
            "completed": [(grace_s, signal.SIGTERM), (grace_s, signal.SIGKILL)],
        }
        for wait_s, number in steps[reason]:
            await asyncio.sleep(wait_s)
            if number == signal.SIGKILL:
                self._log_for(child.start, f"killed: it did not end within {wait_s:g} s")
            child.signal(number)

    def _log_for(self, start: Start, text: str) -> None:
        """Add a line of the agent to the worker's log."""
        log.warning("%s: %s", start.worker, text)
        self._outputs.setdefault(start, LineBuffer())("error", text, "")
        self.on_news()

    def _save(self) -> None:
        children = [child.record for child in self._children.values()]
        starting = [self._starting] if self._starting is not None else []
        ended = [Start(*place, number) for place, number in self._ended.items()]
        record = agent_records.Records(
            nonce=self.nonce,
            children=children + starting,
            ended=ended,
            exits=list(self.exits.values()),
        )
        agent_records.save(self.folder, record)
