"""The files of a store as bytes, to cut, mix and damage them."""

from pathlib import Path

NAMES = ("log.db", "log.db-wal", "log.db.mark")


def take(folder: Path) -> dict[str, bytes]:
    """The files as a crash at this moment would leave them; shared memory is lost in a crash."""
    return {name: (folder / name).read_bytes() for name in NAMES if (folder / name).exists()}


def put(folder: Path, image: dict[str, bytes]) -> Path:
    """Lay the files into an empty folder; returns the path of the store."""
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.iterdir():
        left.unlink()
    for name, data in image.items():
        (folder / name).write_bytes(data)
    return folder / "log.db"


def changed(before: bytes, after: bytes) -> range:
    """The offsets of a write: from the first byte that differs to the last."""
    padded = before.ljust(len(after), b"\0")
    differing = [at for at, byte in enumerate(after) if byte != padded[at] or at >= len(before)]
    return range(differing[0], differing[-1] + 1) if differing else range(0)
