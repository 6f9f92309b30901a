"""A worker's own stacks: reported by its session thread, or written on a signal.

The session thread answers the coordinator with the frames of all threads and with what only this
process knows: its step, its pending exchange, and the requests without an answer. That works while
Python code can run. If a thread holds the GIL forever, the agent's signal makes `faulthandler`
write the frames to a file (see `agent/stack_collector`); the signal is one that no program uses by
custom.
"""

import atexit
import contextlib
import faulthandler
import json
import os
import signal
import sys
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from msgspec import structs

from strata.core.workers.stack_reports import (
    MAX_FRAMES,
    PendingExchange,
    ProcessStacks,
    StackFrame,
    StackReport,
    ThreadStack,
    origin_of,
    shown_file,
)

PACKAGE = str(Path(__file__).resolve().parents[2])
"""The folder of Strata itself, whose frames are not the user's."""

MAX_GROUP = 100
"""Characters of the name of a process group."""

STACKS_FILE = "stacks.txt"
STACKS_SIGNAL: int = getattr(signal, "SIGRTMIN", 34) + 9

_files: list[Any] = []


def register_signal(folder: Path) -> None:
    """Let the agent, which knows the folder, make this process write its stacks there."""
    if _files or not hasattr(signal, "SIGRTMIN"):
        return
    with contextlib.suppress(OSError, RuntimeError, ValueError):
        if signal.getsignal(STACKS_SIGNAL) is not signal.SIG_DFL:
            return  # the script uses this signal
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / STACKS_FILE
        file = path.open("ab", buffering=0)
        faulthandler.register(STACKS_SIGNAL, file=file, all_threads=True)
        _files.append(file)  # faulthandler keeps only the descriptor
        atexit.register(path.unlink, missing_ok=True)


def own_threads() -> list[ThreadStack]:
    """The frames of all threads of this process, except the calling one."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main, folder = threading.main_thread().ident, _folder()
    return [
        ThreadStack(name=names.get(ident, ""), main=ident == main, frames=_frames(frame, folder))
        for ident, frame in sys._current_frames().items()
        if ident != threading.get_ident()
    ]


def _folder() -> str:
    try:
        return os.getcwd()
    except OSError:
        return ""  # it was deleted


def _frames(frame: FrameType | None, folder: str) -> list[StackFrame]:
    found: list[StackFrame] = []
    while frame is not None and len(found) < MAX_FRAMES:
        path = frame.f_code.co_filename
        found.append(
            StackFrame(
                function=frame.f_code.co_name,
                file=shown_file(path, folder, PACKAGE),
                line=frame.f_lineno or 0,
                origin=origin_of(path, PACKAGE),
            )
        )
        frame = frame.f_back
    return found


def own_report(
    waits_for: list[str],
    exchange: Callable[[], PendingExchange | None] = lambda: None,
    state: str = "",
    step: int = -1,
    generation: int = 0,
) -> StackReport:
    """What this worker knows of itself."""
    program = Path(sys.argv[0]).name if sys.argv else ""
    newest, pending = exchange(), flight_recorder()
    if newest is not None and pending is not None:
        pending = structs.replace(pending, generation=newest.generation)
    process = ProcessStacks(
        pid=os.getpid(), program=program, source="worker", threads=own_threads()
    )
    return StackReport(
        processes=[process],
        exchange=pending or newest,
        waits_for=waits_for,
        state=state,
        step=step,
        generation=generation,
    )


def flight_recorder() -> PendingExchange | None:
    """The oldest collective of nccl that has not completed, by PyTorch's flight recorder.

    None if PyTorch is not loaded, records nothing (TORCH_FR_BUFFER_SIZE) or all have completed.
    """
    c10d = sys.modules.get("torch._C._distributed_c10d")
    dump = getattr(c10d, "_dump_nccl_trace_json", None)
    if dump is None:
        return None
    try:
        return pending_in(json.loads(dump(includeCollectives=True, onlyActive=True)))
    except (TypeError, ValueError, RuntimeError):
        return None


def pending_in(dumped: dict[str, Any]) -> PendingExchange | None:
    """The oldest entry of a dump of the flight recorder that has not completed."""
    for entry in dumped.get("entries", []):
        if entry.get("state") != "completed":
            return _pending(entry, dumped.get("pg_config", {}))
    return None


def _pending(entry: dict[str, Any], groups: dict[str, dict[str, str]]) -> PendingExchange:
    name, description = entry.get("process_group", ("", ""))
    kind = str(entry.get("profiling_name", "")).removeprefix("nccl:") or "collective"
    # Groups that were split from others may have the same name, but not the same ranks.
    ranks = groups.get(name, {}).get("ranks", "").strip("[]")
    parts = [description or "unnamed", name, f"ranks {ranks}" if ranks else ""]
    number = entry.get("collective_seq_id")
    if entry.get("is_p2p"):
        # Each pair of ranks counts its own messages, so the message is part of the group.
        parts.append(kind)
        number = entry.get("p2p_seq_id")
    return PendingExchange(
        kind=kind.lstrip("_").replace("_", "-"),
        number=int(number or 0),
        pending=True,
        group=_short(" ".join(part for part in parts if part)),
    )


def _short(group: str) -> str:
    """The name of a group; a long list of ranks is replaced by its checksum."""
    if len(group) <= MAX_GROUP:
        return group
    return f"{group[: MAX_GROUP - 12]}... {zlib.crc32(group.encode()):08x}"
