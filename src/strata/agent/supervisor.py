"""Keeps the workers running that the coordinator wants here, and remembers how the others ended.

It acts on what it was told last and on nothing else: while the coordinator is away, everything
that runs goes on. Every change is on disk before it is acted upon, so that an agent that was
killed at any moment leaves a successor that knows its children.
"""

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count
from pathlib import Path

from strata.agent import records
from strata.agent.child import Child, adopt, fork, new_key, spawn
from strata.agent.leftovers import Leftovers
from strata.agent.plan import Duty, Reason, Start, plan
from strata.agent.records import Exit, Kept
from strata.agent.warm_start import Launch, Templates
from strata.config import inherited
from strata.core.agents import UNKNOWN_CODE
from strata.errors import Unavailable
from strata.sdk.cards import seen_as
from strata.sdk.lines import LineBuffer
from strata.wire.v1 import coordinator_pb2 as pb

log = logging.getLogger(__name__)

LAST_WORDS_S = 1.0
"""For a process that no longer counts: it may be about to print why it failed."""

MOMENT_S = 3.0
"""For a process that was told to end in another way, before SIGTERM says so too."""

CANNOT_START = 127
ORDINARY = "as a new process"
URGENCY: dict[Reason, int] = {
    "completed": 0,
    "unwanted": 1,
    "asked": 2,
    "leaving": 3,
    "superseded": 4,
}


class Supervisor:
    """The processes of one host. `on_news` is called when there is something to tell.

    `cards` are those of each slot, where there are any. Without `templates` every worker is
    started in the ordinary way.
    """

    def __init__(
        self,
        folder: Path,
        identity: Mapping[str, str],
        cards: Sequence[Sequence[str]] = (),
        templates: Templates | None = None,
    ) -> None:
        self.exits: dict[Start, Exit] = {}
        self.on_news: Callable[[], None] = lambda: None
        self.leftovers = Leftovers(folder)
        self._folder = folder
        self._identity = identity
        self._cards = cards
        self._templates = templates
        self._children: dict[Start, Child] = {}
        self._starting: Kept | None = None
        self._jobs: dict[str, pb.Job] = {}
        self._duties: list[Duty] = []
        self._completed: frozenset[str] = frozenset()
        self._ended: dict[tuple[str, str], int] = {}
        self._ending: dict[Start, tuple[Reason, asyncio.Task[None]]] = {}
        self._watching: set[asyncio.Task[None]] = set()
        self._outputs: dict[Start, LineBuffer] = {}
        self._unread: set[Start] = set()
        self._closing = False
        self.nonce = ""

    @property
    def running(self) -> list[Start]:
        """What runs here."""
        return list(self._children)

    @property
    def quiet(self) -> bool:
        """Whether nothing runs and everything was told."""
        busy = self._children or self._watching or self.exits or self._outputs
        return not busy and self.leftovers.empty

    def pids(self) -> dict[str, int]:
        """The process of each worker that runs."""
        return {start.worker: child.kept.pid for start, child in self._children.items()}

    def open(self) -> None:
        """Takes over what an earlier agent in this folder left."""
        known = records.load(self._folder)
        self.nonce = known.nonce
        self._ended = {start.place: start.number for start in known.ended}
        self.exits = {each.start: each for each in known.exits}
        for kept in known.children:
            child = adopt(kept, self._folder)
            if child is None:
                self._note_exit(Exit(kept.start, UNKNOWN_CODE))
            else:
                log.info("adopted %s, process %d", kept.start.worker, child.kept.pid)
                self._watch(child)
        running = {child.kept.key for child in self._children.values()}
        for key in set(self.leftovers.keys()) - running:
            self.leftovers.ended(key, log.warning)
        self._save()

    def told(self, duties: pb.Duties) -> None:
        """The coordinator said what it wants here: all of it."""
        self._jobs = {job.task_id: job for job in duties.jobs}
        self._duties = [
            Duty(Start(job.task_id, seat.worker_id, seat.start), job.stopping, bool(job.blocked))
            for job in duties.jobs
            for seat in job.seats
        ]
        self._completed = frozenset(duties.completed_task_ids)
        kept = {duty.start.place for duty in self._duties} | {start.place for start in self.exits}
        self._ended = {place: last for place, last in self._ended.items() if place in kept}
        if self._templates is not None:
            self._templates.retain(self._jobs)
        self._prepare_for_adopted()
        self._act()

    def settled(self, start: Start) -> None:
        """The coordinator knows of an exit."""
        if self.exits.pop(start, None) is not None:
            self._save()

    def take_output(self) -> pb.ProcessOutput | None:
        """Some of what a worker wrote, if anything waits."""
        for start, lines in list(self._outputs.items()):
            taken = lines.take()
            if taken is None:
                if start not in self._unread and lines.delivered:
                    del self._outputs[start]
                continue
            # The next one's turn comes first the next time.
            self._outputs[start] = self._outputs.pop(start)
            return pb.ProcessOutput(task_id=start.task, worker_id=start.worker, logs=taken)
        return None

    def output_taken(self, taken: pb.OutputTaken) -> None:
        """The coordinator has what a worker wrote, up to a number."""
        for lines in self._outputs.values():
            if lines.sender == taken.sender:
                lines.taken(taken.lines)

    def resend(self) -> None:
        """A new connection: what was not acknowledged is told again."""
        for lines in self._outputs.values():
            lines.resend()
        self.leftovers.resend()

    async def end_all(self) -> None:
        """Ends everything that runs, gracefully, and starts nothing more."""
        self._closing = True
        for start in list(self._children):
            self._end(start, "leaving")
        while self._watching:
            await asyncio.wait(self._watching)
        if self._templates is not None:
            self._templates.close()

    def kill_all(self) -> None:
        """Ends everything that runs at once."""
        self._closing = True
        for child in self._children.values():
            child.signal(signal.SIGKILL)

    def let_go(self) -> None:
        """Leaves everything that runs to the next agent."""
        self._closing = True
        for _, task in self._ending.values():
            task.cancel()
        for task in self._watching:
            task.cancel()
        for child in self._children.values():
            child.let_go()
        if self._templates is not None:
            self._templates.close()

    def _act(self) -> None:
        """Does what leads to what is wanted."""
        if self._closing:
            return
        todo = plan(self._children, self._ended, self._duties, self._completed)
        for start in [start for start in self._ending if start not in todo.stops]:
            self._ending.pop(start)[1].cancel()
        for start, reason in todo.stops.items():
            self._end(start, reason)
        for start in todo.starts:
            self._start(start, self._jobs[start.task])

    def _start(self, start: Start, job: pb.Job) -> None:
        self._starting = Kept(start, new_key(), job.grace_ms / 1000, slot=self._free_slot())
        self._save()
        try:
            child, how = self._begin(self._starting, self._launch(self._starting, job))
        except OSError as error:
            self._starting = None
            self._say(start, f"{start.worker} cannot be started: {error}")
            self._note_exit(Exit(start, CANNOT_START))
            self._save()
            return
        self._starting = None
        told = (start.worker, start.number, how, child.kept.pid)
        log.info("started %s (start %d) %s, process %d", *told)
        self._watch(child)
        self._save()
        child.release()

    def _begin(self, kept: Kept, launch: Launch) -> tuple[Child, str]:
        """The process of a worker, and how it was started."""
        task, templates = kept.start.task, self._templates
        if templates is None:
            return spawn(kept, self._folder, launch), ORDINARY
        template = templates.for_launch(task, launch)
        if template is not None:
            try:
                return fork(kept, self._folder, launch, template), f"from template {template.pid}"
            except Unavailable as error:
                log.info("the template of task %s is not used: %s", task, error)
                templates.retire(task)
        child = spawn(kept, self._folder, launch)
        templates.prepare(task, launch)
        return child, ORDINARY

    def _launch(self, kept: Kept, job: pb.Job) -> Launch:
        environment = self._environment(kept, job)
        return Launch(
            entry=job.entry, args=list(job.args), environment=environment, cwd=job.working_dir
        )

    def _prepare_for_adopted(self) -> None:
        """Workers that an earlier agent started may have to be replaced, too."""
        if self._templates is None:
            return
        for start, child in self._children.items():
            job = self._jobs.get(start.task)
            if job and not job.blocked and not self._templates.knows(start.task):
                self._templates.prepare(start.task, self._launch(child.kept, job))

    def _free_slot(self) -> int:
        taken = {child.kept.slot for child in self._children.values()}
        return next(slot for slot in count() if slot not in taken)

    def _environment(self, kept: Kept, job: pb.Job) -> dict[str, str]:
        start = kept.start
        told = {
            "PYTHONUNBUFFERED": "1",
            "STRATA_CAPTURE_OUTPUT": "false",
            "STRATA_SPOOL_DIR": str(self.leftovers.folder_of(kept.key).resolve()),
            "STRATA_START": str(start.number),
            "STRATA_TASK": start.task,
            "TASK_CONFIG": job.config,
            "WORKER_ID": start.worker,
            "WORLD_SIZE": str(job.world_size),
        }
        threads = max(1, (os.cpu_count() or 1) // max(len(job.seats), 1))
        if job.working_dir:
            told["PWD"] = job.working_dir
        # As many threads as cores in each of many processes would stand in each other's way.
        usual = {"OMP_NUM_THREADS": str(threads)}
        own = seen_as(self._cards[kept.slot % len(self._cards)]) if self._cards else {}
        return usual | inherited() | own | dict(job.environment) | told | dict(self._identity)

    def _watch(self, child: Child) -> None:
        self._children[child.start] = child
        self._outputs[child.start] = child.lines
        self._unread.add(child.start)
        child.listen(lambda: self.on_news())
        task = asyncio.create_task(self._follow(child))
        self._watching.add(task)
        task.add_done_callback(self._watching.discard)

    async def _follow(self, child: Child) -> None:
        """Sees a process to its end."""
        ended = await child.ended()
        how = f"signal {ended.signal}" if ended.signal else f"exit code {ended.code}"
        del self._children[child.start]
        ending = self._ending.pop(child.start, None)
        crashed = ending is None and (ended.signal or ended.code)
        level = logging.ERROR if crashed else logging.INFO
        log.log(level, "%s (start %d) ended with %s", child.start.worker, child.start.number, how)
        if ending is not None:
            ending[1].cancel()
        self._note_exit(ended)
        self._save()
        self._act()
        self.leftovers.ended(child.kept.key, partial(self._say, child.start))
        await child.drained()
        self._unread.discard(child.start)
        self.on_news()

    def _note_exit(self, ended: Exit) -> None:
        self.exits[ended.start] = ended
        place = ended.start.place
        self._ended[place] = max(ended.start.number, self._ended.get(place, 0))
        self.on_news()

    def _end(self, start: Start, reason: Reason) -> None:
        """Begins to end a process; a more urgent reason takes over from a lesser one."""
        if start in self._ending:
            before, task = self._ending[start]
            if URGENCY[before] >= URGENCY[reason]:
                return
            task.cancel()
        task = asyncio.create_task(self._escalate(self._children[start], reason))
        self._ending[start] = (reason, task)

    async def _escalate(self, child: Child, reason: Reason) -> None:
        grace_s = child.kept.grace_s
        steps: dict[Reason, list[tuple[float, int]]] = {
            "leaving": [(0.0, signal.SIGTERM), (grace_s, signal.SIGKILL)],
            "asked": [(MOMENT_S, signal.SIGTERM), (grace_s, signal.SIGKILL)],
            "superseded": [(LAST_WORDS_S, signal.SIGKILL)],
            "unwanted": [(MOMENT_S, signal.SIGTERM), (grace_s, signal.SIGKILL)],
            "completed": [(grace_s, signal.SIGTERM), (grace_s, signal.SIGKILL)],
        }
        for wait_s, number in steps[reason]:
            await asyncio.sleep(wait_s)
            if number == signal.SIGKILL:
                self._say(child.start, f"killed: it did not end within {wait_s:g} s")
            child.signal(number)

    def _say(self, start: Start, text: str) -> None:
        """A line in the worker's log, from its agent."""
        log.warning("%s: %s", start.worker, text)
        self._outputs.setdefault(start, LineBuffer())("error", text, "")
        self.on_news()

    def _save(self) -> None:
        children = [child.kept for child in self._children.values()]
        starting = [self._starting] if self._starting is not None else []
        ended = [Start(*place, number) for place, number in self._ended.items()]
        kept = records.Records(self.nonce, children + starting, ended, list(self.exits.values()))
        records.save(self._folder, kept)
