"""Stacks of a worker's processes, as they are collected and recorded, and their size limit.

A report names functions, files and lines, never arguments or local variables, which may hold
secrets. Files below the working directory are relative to it; others keep the part after
`site-packages` or the standard library.
"""

from collections.abc import Sequence
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct, field, structs

StackSource: TypeAlias = Literal["py-spy-native", "py-spy", "faulthandler", "worker", "none"]
"""How stacks were read: by py-spy with or without native frames, by the signal handler of
`faulthandler`, by the worker's own session thread, or not at all."""

FrameOrigin: TypeAlias = Literal["user", "library", "native"]

MAX_PROCESSES = 8
MAX_THREADS = 64
MAX_FRAMES = 100
MAX_TEXT = 300
MAX_NOTES = 12


class StackFrame(Struct, frozen=True, omit_defaults=True):
    """One call; `origin` says whether the user's script, a library or native code runs."""

    function: str
    file: str = ""
    line: int = 0
    origin: FrameOrigin = "user"


class ThreadStack(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The calls of one thread, innermost first; `cut` counts those that were left out."""

    name: str = ""
    main: bool = False
    frames: list[StackFrame] = field(default_factory=list)
    cut: int = 0


class ProcessStacks(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The threads of one process. `state` is that of the operating system, such as `sleeping` or
    `stopped`; the first process of a report is the one that the agent started."""

    pid: int
    program: str = ""
    state: str = ""
    source: StackSource = "none"
    threads: list[ThreadStack] = field(default_factory=list)
    cut: int = 0


class PendingExchange(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The last exchange of values with the other members that a worker began.

    `number` counts the exchanges of the generation, the same on every member. `since_s` is how long
    it has lasted, `missing` the members that have not arrived, if the worker knows them. `group` is
    the process group of PyTorch that the number counts in; empty for exchanges of Strata.
    """

    kind: str
    number: int
    pending: bool
    generation: int = 0
    since_s: float = 0.0
    missing: list[str] = field(default_factory=list)
    group: str = ""


class StackReport(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What one reporter knows of a worker: its stacks, and what it waits for.

    `notes` say why a better source of stacks was not used. Only the worker itself knows its step,
    its generation, its exchange and the answers that it waits for.
    """

    processes: list[ProcessStacks] = field(default_factory=list)
    exchange: PendingExchange | None = None
    waits_for: list[str] = field(default_factory=list)
    state: str = ""
    step: int = -1
    generation: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def source(self) -> StackSource:
        """How the stacks of the worker's first process were read."""
        return self.processes[0].source if self.processes else "none"


class Place(Struct, frozen=True):
    """Where a worker's script is: the frame, and the thread or process that is there."""

    frame: StackFrame
    thread: str = ""

    @property
    def text(self) -> str:
        """A phrase such as `load_batch at data.py:41`."""
        text = described(self.frame)
        return f"{text} ({self.thread})" if self.thread else text


def described(frame: StackFrame) -> str:
    """A phrase for one call."""
    if not frame.file:
        return frame.function
    where = f"{frame.file}:{frame.line}" if frame.line else frame.file
    return f"{frame.function} at {where}"


DATA_CODE = ("strata/data/", "strata/sdk/data/", "torch/utils/data/")
"""Code that waits for threads or processes that read data."""


def place_of(report: StackReport) -> Place | None:
    """The innermost call of the user's script, or else of any code; None without stacks.

    A training thread that waits in a data loader stands where the loader's thread or process is.
    """
    if not any(process.threads for process in report.processes):
        return None
    main, others = _main_thread(report), other_places(report)
    if main is None or not main.frames:
        return others[0] if others else None
    at = next((i for i, each in enumerate(main.frames) if each.origin == "user"), None)
    waits = at is not None and any(_reads_data(each) for each in main.frames[:at])
    if others and (at is None or waits):
        return others[0]
    if at is not None:
        return Place(main.frames[at])
    python = (each for each in main.frames if each.origin != "native")
    return Place(next(python, main.frames[0]))


WAITING_CODE = ("torch/distributed/", "strata/sdk/peers/", "strata/torch/process_group")
"""Code in which a worker waits for the other workers."""


def collective_of(report: StackReport) -> str:
    """The collective function that the user's script has called and waits in; empty if none."""
    main = _main_thread(report)
    found = ""
    for frame in main.frames if main is not None else ():
        if frame.origin == "user":
            return found
        if frame.origin == "library" and frame.file.startswith(WAITING_CODE):
            found = frame.function
    return ""


def other_places(report: StackReport) -> list[Place]:
    """Where threads and processes beside the training thread run the user's script."""
    main = _main_thread(report)
    return [place for process in report.processes for place in _places(process, report, main)]


def _main_thread(report: StackReport) -> ThreadStack | None:
    """The main thread of the first process in which the user's script runs."""
    mains = [t for process in report.processes for t in process.threads if t.main]
    running = (t for t in mains if any(each.origin == "user" for each in t.frames))
    return next(running, mains[0] if mains else None)


def _places(process: ProcessStacks, report: StackReport, main: ThreadStack | None) -> list[Place]:
    """Where other threads of a process run the user's script."""
    child = process is not report.processes[0]
    found = []
    for thread in process.threads:
        frame = next((each for each in thread.frames if each.origin == "user"), None)
        if frame is not None and thread is not main:
            name = f"process {process.pid}" if child else f"thread {thread.name or 'unnamed'}"
            found.append(Place(frame, name))
    return found


def _reads_data(frame: StackFrame) -> bool:
    return frame.origin == "library" and frame.file.startswith(DATA_CODE)


def origin_of(path: str, package: str) -> FrameOrigin:
    """Whose code a file is, by its path; `package` is the folder of Strata itself."""
    if path.startswith("<"):
        return "user" if path in ("<string>", "<stdin>") else "library"
    if not path.endswith(".py"):
        return "native"
    library = ("/site-packages/", "/dist-packages/", "/lib/python3", f"{package}/")
    return "library" if any(part in path for part in library) else "user"


def shown_file(path: str, folder: str, package: str) -> str:
    """A file as a report names it: relative to the working directory, or from its package on."""
    for part in ("/site-packages/", "/dist-packages/"):
        if part in path:
            return path.rpartition(part)[2]
    if path.startswith(f"{package}/"):
        return f"strata/{path[len(package) + 1 :]}"
    if "/lib/python3" in path:
        return path.rpartition("/lib/python3")[2].partition("/")[2]
    inside = folder.rstrip("/") + "/"
    return path[len(inside) :] if path.startswith(inside) else path.rpartition("/")[2]


def bounded(report: StackReport, max_bytes: int) -> StackReport:
    """The report in at most `max_bytes` of JSON; the longest stacks are cut first, at their outer
    end, and counted."""
    kept = structs.replace(
        report,
        processes=[_limited(process) for process in report.processes[:MAX_PROCESSES]],
        waits_for=[each[:MAX_TEXT] for each in report.waits_for[:MAX_NOTES]],
        notes=[each[:MAX_TEXT] for each in report.notes[:MAX_NOTES]],
    )
    while len(msgspec.json.encode(kept)) > max_bytes:
        longest = max((len(t.frames) for p in kept.processes for t in p.threads), default=0)
        if longest > 4:
            processes = [_shorter(process, longest * 3 // 4) for process in kept.processes]
        elif any(len(process.threads) > 1 for process in kept.processes):
            processes = [_fewer(process, len(process.threads) // 2) for process in kept.processes]
        else:
            return structs.replace(kept, processes=[], notes=["the stacks were too large"])
        kept = structs.replace(kept, processes=processes)
    return kept


def _limited(process: ProcessStacks) -> ProcessStacks:
    return _shorter(_fewer(process, MAX_THREADS), MAX_FRAMES)


def _fewer(process: ProcessStacks, count: int) -> ProcessStacks:
    """At most `count` threads: the main thread and those that run the user's script first."""
    if len(process.threads) <= max(count, 1):
        return process
    kept = sorted(process.threads, key=_rank)[: max(count, 1)]
    left_out = len(process.threads) - len(kept)
    return structs.replace(process, threads=kept, cut=process.cut + left_out)


def _rank(thread: ThreadStack) -> tuple[bool, bool]:
    return not thread.main, not any(each.origin == "user" for each in thread.frames)


def _shorter(process: ProcessStacks, count: int) -> ProcessStacks:
    threads = [
        structs.replace(
            each, frames=_clipped(each.frames[:count]), cut=each.cut + len(each.frames) - count
        )
        if len(each.frames) > count
        else structs.replace(each, frames=_clipped(each.frames))
        for each in process.threads
    ]
    return structs.replace(process, threads=threads)


def _clipped(frames: Sequence[StackFrame]) -> list[StackFrame]:
    return [
        each
        if len(each.function) + len(each.file) <= MAX_TEXT
        else structs.replace(each, function=each.function[:150], file=each.file[-150:])
        for each in frames
    ]
