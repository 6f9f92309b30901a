"""Claims: which process is writing a checkpoint, so that no other process deletes its files.

A claim is written before any file of a checkpoint and deleted after its manifest is written. A
process that finds a claim checks whether the writer is alive. On the same machine, since the same
boot and in the same process namespace, the kernel knows (process id and start time; ids are reused,
start times are not). Otherwise only the claim's age decides.
"""

import os
import socket
import time
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from strata.checkpoint.manifest import CLAIM_SUFFIX, MANIFEST_SUFFIX
from strata.errors import UNDECODABLE, AlreadyExists, Corrupt, NotFound
from strata.storage.backend import StorageBackend

WriterState = Literal["alive", "dead", "unknown"]


class Claim(Struct, frozen=True):
    """The process that writes a checkpoint."""

    host: str
    boot: str
    namespace: str
    pid: int
    started: str
    created_ns: int


def own_claim() -> Claim:
    return Claim(
        host=socket.gethostname(),
        boot=_read("/proc/sys/kernel/random/boot_id"),
        namespace=_link("/proc/self/ns/pid"),
        pid=os.getpid(),
        started=start_time(os.getpid()),
        created_ns=time.time_ns(),
    )


def put_claim(storage: StorageBackend, checkpoint_id: str, claim: Claim) -> None:
    """Record that this process writes the checkpoint. May be called more than once."""
    name, data = checkpoint_id + CLAIM_SUFFIX, msgspec.json.encode(claim)
    try:
        storage.put(name, data, if_absent=True)
    except AlreadyExists:
        if storage.get(name) != data:
            raise AlreadyExists(
                f"checkpoint {checkpoint_id} is being written by another process",
                hint="give the checkpoint another id",
            ) from None
    if storage.exists(checkpoint_id + MANIFEST_SUFFIX):
        drop_claim(storage, checkpoint_id)
        raise AlreadyExists(
            f"checkpoint {checkpoint_id} already exists", hint="give the checkpoint another id"
        )


def drop_claim(storage: StorageBackend, checkpoint_id: str) -> None:
    storage.delete(checkpoint_id + CLAIM_SUFFIX)


def writer_state(storage: StorageBackend, checkpoint_id: str) -> WriterState:
    """Whether the writer of a claimed checkpoint is alive, as far as this process can tell."""
    try:
        claim = msgspec.json.decode(storage.get(checkpoint_id + CLAIM_SUFFIX), type=Claim)
    except (Corrupt, *UNDECODABLE):
        return "unknown"
    except NotFound:
        return "alive"  # committed or abandoned meanwhile, so its writer was alive
    mine = own_claim()
    same = (claim.boot, claim.namespace, claim.host) == (mine.boot, mine.namespace, mine.host)
    if not same or not claim.boot or not claim.started:
        return "unknown"
    return "alive" if start_time(claim.pid) == claim.started else "dead"


def start_time(pid: int) -> str:
    """The start time of a process in kernel ticks since boot, or "" if there is no such process."""
    stat = _read(f"/proc/{pid}/stat")
    # The program's name is in parentheses and may contain spaces; the start time is field 22.
    fields = stat.rpartition(")")[2].split()
    return fields[19] if len(fields) > 19 and fields[0] != "Z" else ""


def _read(path: str) -> str:
    try:
        return Path(path).read_text("utf-8", "replace").strip()
    except OSError:
        return ""


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
