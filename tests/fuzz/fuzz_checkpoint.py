"""A checkpoint: exactly the state that was saved, or an error that names the file.

The first byte says whether the rest is the part, the manifest, or the sidecar of a part. A manifest
has no checksum, so a changed one may describe another state; a part has one.
"""

import tempfile
from functools import cache
from pathlib import Path

import msgspec
import numpy as np

from strata.checkpoint.manager import CheckpointManager
from strata.checkpoint.manifest import decode_manifest
from strata.checkpoint.write.part_sidecar import Sidecar, read_sidecars, sidecar_name, write_sidecar
from strata.storage.folder import LocalStorage
from tests.checkpoint.conftest import assert_same
from tests.fuzz.targets import refused_naming

NAME = "step-00000001-saved"
STATE = {
    "model": {"weight": np.arange(12, dtype=np.float32).reshape(3, 4), "bias": np.ones(3)},
    "optimizer": {"betas": (0.9, 0.999), "state": {0: {"exp_avg": np.zeros(4)}}},
    "seed": 1,
    "raw": b"bytes",
}
PART, MANIFEST, SIDECAR = f"{NAME}/part-00000.safetensors", f"{NAME}.json", sidecar_name(NAME, 0)


@cache
def _saved() -> dict[str, bytes]:
    with tempfile.TemporaryDirectory(prefix="strata-fuzz-") as folder:
        with CheckpointManager(folder) as manager:
            manager.save(STATE, step=1, checkpoint_id=NAME, metadata={"a": [1, {"b": 2.5}]})
            manager.wait_pending()
        files = {name: Path(folder, name).read_bytes() for name in (PART, MANIFEST)}
        part = decode_manifest(files[MANIFEST], NAME).parts[0]
        sidecar = Sidecar(
            checkpoint_id=NAME, step=1, epoch=0, attempt=1, world_size=1, shapes="s", part=part
        )
        write_sidecar(LocalStorage(Path(folder)), sidecar)
        return files | {SIDECAR: Path(folder, SIDECAR).read_bytes()}


def seeds() -> list[bytes]:
    files = _saved()
    return [bytes([number]) + files[name] for number, name in enumerate((MANIFEST, PART, SIDECAR))]


def check(data: bytes) -> None:
    files = _saved()
    chosen = (MANIFEST, PART, SIDECAR)[data[0] % 3] if data else PART
    with tempfile.TemporaryDirectory(prefix="strata-fuzz-") as folder:
        for name, content in (files | {chosen: data[1:]}).items():
            path = Path(folder, name)
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content)
        storage = LocalStorage(Path(folder))
        if chosen == SIDECAR:
            checksum = msgspec.json.decode(files[SIDECAR], type=Sidecar).part.xxh3
            with refused_naming(NAME):
                read_sidecars(storage, NAME, {0: checksum})
            return
        with refused_naming(NAME), CheckpointManager(storage) as manager:
            loaded = manager.load(NAME)
            if chosen == PART:
                assert_same(loaded, STATE)
        with CheckpointManager(storage) as manager, refused_naming(), manager.open(NAME) as reader:
            reader.verify()
