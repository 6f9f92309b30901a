"""Runs the self-test of this host before the first worker of each task that asks for it, or of
each task if the agent's settings say so.

A host on which a part of the test failed is reported to the coordinator, which excludes it; the
workers that wait are reported as not started, and are placed on other hosts. A test that cannot run
or does not end in time says nothing about the hardware: it is a warning, and the workers start.
"""

import asyncio
import contextlib
import logging
import sys
from collections.abc import Callable, Collection
from pathlib import Path

from msgspec import Struct

from strata.agent.host_self_test import FAILED, FAILED_GPU
from strata.agent.slot_gpus import SlotGpus
from strata.config import inherited
from strata.sdk.record.gpu_cards import seen_as

log = logging.getLogger(__name__)

LIMIT_S = 10.0
MAX_REASON = 500


class FailedTest(Struct, frozen=True):
    """Why this host failed its test, and the GPU if only that failed."""

    reason: str
    gpu: str = ""


class SelfTestGate:
    """The tasks for which this host was tested, `always` also unasked; `on_end` is called with a
    task after its test, and with the failure if there was one."""

    def __init__(self, target: str, folder: Path, *, always: bool = True) -> None:
        self._always = always
        host, _, port = target.rpartition(":")
        module = "strata.agent.host_self_test"
        self._command = [sys.executable, "-m", module, host.strip("[]"), port, str(folder)]
        self._passed: set[str] = set()
        self._running: dict[str, asyncio.Task[None]] = {}
        self.on_end: Callable[[str, FailedTest | None], None] = lambda task, failed: None

    def admits(self, task: str, gpus: SlotGpus, asked: bool) -> bool:
        """Whether workers of a task may start; if not, its test runs, without excluded GPUs.
        `asked` is whether the task asks for a test."""
        if task in self._passed or not (self._always or asked):
            return True
        if task not in self._running:
            self._running[task] = asyncio.create_task(self._test(task, gpus))
        return False

    def retain(self, tasks: Collection[str]) -> None:
        """Forget tasks that have no duties here."""
        self._passed &= set(tasks)

    def close(self) -> None:
        """End the tests that run."""
        for test in self._running.values():
            test.cancel()

    async def _test(self, task: str, gpus: SlotGpus) -> None:
        failed = await self._failure(gpus)
        del self._running[task]
        if failed is not None:
            log.error("this host failed its self-test before task %s: %s", task, failed.reason)
        else:
            self._passed.add(task)
        self.on_end(task, failed)

    async def _failure(self, gpus: SlotGpus) -> FailedTest | None:
        """Run the test; returns why this host failed, or nothing."""
        pipe = asyncio.subprocess.PIPE
        try:
            child = await asyncio.create_subprocess_exec(
                *self._command,
                stdout=pipe,
                stderr=asyncio.subprocess.STDOUT,
                env=inherited() | seen_as(gpus.usable()),
            )
        except OSError as error:
            log.warning("this host is not tested: the self-test cannot be started: %s", error)
            return None
        try:
            async with asyncio.timeout(LIMIT_S):
                output, _ = await child.communicate()
        except TimeoutError:
            log.warning("this host is not tested: the self-test did not end in %g s", LIMIT_S)
            return None
        finally:
            if child.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    child.kill()
                await child.wait()
        text = output.decode("utf-8", "replace").strip()
        lines = [line for line in text.splitlines() if not line.startswith(FAILED_GPU)]
        named = [line.removeprefix(FAILED_GPU) for line in text.splitlines() if line not in lines]
        for line in lines:
            log.info("self-test: %s", line)
        if child.returncode == FAILED and lines:
            gpu = gpus.key_of(named[-1]) if named else ""
            return FailedTest(lines[-1][:MAX_REASON], gpu)
        if child.returncode:
            log.warning("this host is not tested: the self-test ended with %d", child.returncode)
        return None
