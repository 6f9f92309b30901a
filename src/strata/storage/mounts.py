"""Which file system a path is on, by a name that is the same on every host that mounts it.

Linux lists mounts in /proc/self/mountinfo with their source: `server:/export` for NFS, `//server/x`
for CIFS. The source of a local disk, such as /dev/sda1, and the device numbers name another file
system on every host, so only those of network file systems are returned.
"""

import os
from pathlib import Path

MOUNTS = Path("/proc/self/mountinfo")
LINUX_TYPES = frozenset(["nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "lustre"])
NETWORK_TYPES = LINUX_TYPES.union(["beegfs", "gpfs", "wekafs", "glusterfs", "panfs", "orangefs"])
MAX_TEXT = 200


def shared_source(path: str | Path, mounts: Path = MOUNTS) -> str:
    """The source of the network file system that holds a path; empty if it is local or unknown."""
    try:
        lines = mounts.read_text("utf-8", "replace").splitlines()
        place = os.path.realpath(path)
    except OSError:
        return ""
    best, source = "", ""
    for line in lines:
        mount, _, details = line.partition(" - ")
        fields, kind = mount.split(), details.split()
        if len(fields) < 5 or len(kind) < 2:
            continue
        point = _unescaped(fields[4])
        inside = place == point or place.startswith(point.rstrip("/") + "/")
        # A later mount on the same point hides an earlier one.
        if inside and len(point) >= len(best):
            best, source = point, _unescaped(kind[1]) if is_shared(kind[0], kind[1]) else ""
    return source[:MAX_TEXT]


def is_shared(kind: str, source: str) -> bool:
    """Whether the source of a mount is one file system for all hosts that name it."""
    network = source.startswith("//") or ":/" in source
    return kind in NETWORK_TYPES or (kind.startswith("fuse.") and network)


def _unescaped(text: str) -> str:
    """A field in which the kernel wrote blanks and backslashes in octal."""
    for code, character in ((r"\040", " "), (r"\011", "\t"), (r"\012", "\n"), (r"\134", "\\")):
        text = text.replace(code, character)
    return text
