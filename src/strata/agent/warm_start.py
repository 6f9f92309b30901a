"""Templates for fast replacement: one process per task that has imported the script's modules.

The first workers of a task are started as new processes. Some seconds later, after their imports,
the agent starts a `fork_server` for the task's script, the *template*. Later workers are forked
from it, which saves the imports. In any doubt a new process is started: the entry is not a Python
file, the task's environment, folder or script changed, the imports cannot be forked, or the
template does not answer.

The template belongs to the agent and ends with it; it is not a worker.
"""

import asyncio
import json
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from strata.errors import Unavailable

log = logging.getLogger(__name__)

PROGRAM = Path(__file__).with_name("fork_server.py")
ANSWER_S = 5.0
MAX_MESSAGE_BYTES = 1 << 16

PER_WORKER = frozenset(
    {"CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES", "STRATA_SPOOL_DIR", "STRATA_START", "WORKER_ID"}
)
"""Variables that differ between workers; no import reads them."""


class Launch(NamedTuple):
    """How a worker is started."""

    entry: str
    args: Sequence[str]
    environment: Mapping[str, str]
    cwd: str

    @property
    def common(self) -> tuple[object, ...]:
        """What must be the same for all workers forked from one template."""
        shared = {k: v for k, v in self.environment.items() if k not in PER_WORKER}
        return self.entry, shared, self.cwd


class Template:
    """The fork server of one task."""

    def __init__(self, launch: Launch) -> None:
        self.common = launch.common
        self.ready = False
        self._workers: set[int] = set()
        self._retired = False
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        nobody, output = os.pipe()
        shared = {k: v for k, v in launch.environment.items() if k not in PER_WORKER}
        try:
            self._process = subprocess.Popen(
                [sys.executable, str(PROGRAM), str(theirs.fileno()), launch.entry],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=launch.cwd or None,
                env=shared,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
            os.close(nobody)
            os.close(output)
        ours.settimeout(ANSWER_S)
        self._socket = ours
        asyncio.get_running_loop().add_reader(ours, self._on_message)

    @property
    def pid(self) -> int:
        """The pid of the template."""
        return self._process.pid

    @property
    def ended(self) -> bool:
        """Whether its process has ended."""
        return self._socket.fileno() < 0

    @property
    def unfit(self) -> bool:
        """Whether it ended before it was ready: another one would do so too."""
        return self.ended and not self.ready

    def start(self, launch: Launch, streams: Sequence[int], go: int) -> int:
        """Fork a worker that waits for a byte on `go`; returns its pid."""
        pid = self._ask(
            [*streams, go],
            script=launch.entry,
            args=list(launch.args),
            environment=dict(launch.environment),
            cwd=launch.cwd or str(Path.cwd()),
        )["pid"]
        self._workers.add(pid)
        return int(pid)

    def exit_code(self, pid: int) -> int:
        """The exit code of an ended worker, negative for a signal."""
        code = int(self._ask([], reap=pid)["code"])
        self._workers.discard(pid)
        if self._retired:
            self.retire()
        return code

    def retire(self) -> None:
        """End it once the exit codes of its workers are known."""
        self._retired = True
        if not self._workers:
            self.close()

    def close(self) -> None:
        """End it; its workers continue."""
        if not self.ended:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._process.kill()
            self._process.wait()

    def _ask(self, fds: Sequence[int], **request: object) -> dict[str, Any]:
        """Send a request and wait for the answer; a template that does not answer is ended."""
        if self.ended:
            raise Unavailable("the template has ended")
        try:
            socket.send_fds(self._socket, [json.dumps(request).encode()], fds)
            answer: dict[str, Any] = json.loads(self._socket.recv(MAX_MESSAGE_BYTES))
        except (OSError, ValueError) as error:
            self.close()
            raise Unavailable(f"the template does not answer: {error}") from error
        if "error" in answer:
            raise Unavailable(answer["error"])
        return answer

    def _on_message(self) -> None:
        """Handle an unrequested message: the template is ready, unfit or has ended."""
        try:
            answer = json.loads(self._socket.recv(MAX_MESSAGE_BYTES) or b"{}")
        except OSError as error:
            answer = {"error": str(error)}
        if answer.get("ready"):
            self.ready = True
            log.info("the template of %s is ready, process %d", self.common[0], self.pid)
            return
        reason = answer.get("error", "it ended by itself")
        log.info("no template for %s: %s", self.common[0], reason)
        self.close()


class Templates:
    """The templates of an agent, one per task."""

    def __init__(self, after_s: float) -> None:
        self._after_s = after_s
        self._templates: dict[str, Template] = {}
        self._retired: list[Template] = []
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def pids(self) -> list[int]:
        """The pids of the templates that are ready."""
        return [each.pid for each in self._templates.values() if each.ready and not each.ended]

    def for_launch(self, task: str, launch: Launch) -> Template | None:
        """A ready template for that worker, if any."""
        found = self._templates.get(task)
        if found is None or not found.ready or found.ended or found.common != launch.common:
            return None
        return found

    def knows(self, task: str) -> bool:
        """Whether a task has a template, will have one, or cannot have one."""
        return task in self._templates or task in self._timers

    def prepare(self, task: str, launch: Launch) -> None:
        """Start a template after a delay, counted from the last call for that task."""
        if not (sys.platform == "linux" and launch.entry.endswith(".py")):
            return
        if timer := self._timers.pop(task, None):
            timer.cancel()
        loop = asyncio.get_running_loop()
        self._timers[task] = loop.call_later(self._after_s, self._make, task, launch)

    def retire(self, task: str) -> None:
        """Stop using a task's template."""
        if found := self._templates.pop(task, None):
            self._retired = [each for each in [*self._retired, found] if not each.ended]
            found.retire()

    def retain(self, tasks: Collection[str]) -> None:
        """Retire the templates of all other tasks."""
        for task in [task for task in self._timers if task not in tasks]:
            self._timers.pop(task).cancel()
        for task in [task for task in self._templates if task not in tasks]:
            self.retire(task)

    def close(self) -> None:
        """End all templates."""
        self.retain(())
        for template in self._retired:
            template.close()

    def _make(self, task: str, launch: Launch) -> None:
        self._timers.pop(task, None)
        found = self._templates.get(task)
        if found is not None and found.common == launch.common and (found.unfit or not found.ended):
            return
        self.retire(task)
        try:
            self._templates[task] = Template(launch)
        except OSError as error:
            log.warning("no template for %s: %s", launch.entry, error)
