"""Set the command line and environment that `ps` and /proc show for this process.

A forked process shows those of its parent. On Linux a process can set other memory for them
(`prctl(PR_SET_MM)`), unless the kernel was built without it.
"""

import ctypes
import mmap
from collections.abc import Mapping, Sequence
from pathlib import Path

PR_SET_MM = 35
PR_SET_MM_MAP = 14
STAT_FIELDS = {
    "start_code": 26,
    "end_code": 27,
    "start_stack": 28,
    "start_data": 45,
    "end_data": 46,
    "start_brk": 47,
}
"""Field numbers in /proc/self/stat, counted from 1 as in proc(5)."""

_shown: list[mmap.mmap] = []


class _Map(ctypes.Structure):
    """`struct prctl_mm_map`."""

    _fields_ = [
        *(
            (name, ctypes.c_uint64)
            for name in (
                *("start_code", "end_code", "start_data", "end_data", "start_brk", "brk"),
                *("start_stack", "arg_start", "arg_end", "env_start", "env_end", "auxv"),
            )
        ),
        ("auxv_size", ctypes.c_uint32),
        ("exe_fd", ctypes.c_uint32),
    ]


def show_process_as(command: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Show this process with that command line and environment; False if not supported."""
    words = b"".join(word.encode(errors="surrogateescape") + b"\0" for word in command)
    settings = [f"{name}={value}" for name, value in environment.items()]
    variables = b"".join(each.encode(errors="surrogateescape") + b"\0" for each in settings)
    # The kernel shows private anonymous memory only.
    kind = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    memory = mmap.mmap(-1, len(words) + len(variables) + 1, flags=kind)
    memory.write(words + variables)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.sbrk.restype = ctypes.c_void_p
    stat = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    known = {name: int(stat[number - 3]) for name, number in STAT_FIELDS.items()}
    wanted = _Map(
        **known,
        brk=libc.sbrk(0),
        arg_start=start,
        arg_end=start + len(words),
        env_start=start + len(words),
        env_end=start + len(words) + len(variables),
        exe_fd=0xFFFFFFFF,
    )
    size = ctypes.c_ulong(ctypes.sizeof(wanted))
    if libc.prctl(PR_SET_MM, PR_SET_MM_MAP, ctypes.byref(wanted), size, ctypes.c_ulong(0)):
        return False
    _shown.append(memory)  # it must outlive this call
    return True
