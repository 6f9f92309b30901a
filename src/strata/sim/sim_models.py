"""Simulated models, and the storage that holds their checkpoints.

The storage is an object storage in memory. Workers write real sidecars there, so the coordinator's
own code writes the manifests, refuses parts that differ and deletes expired checkpoints. The
storage can be made unreachable for the coordinator.
"""

import msgspec
from msgspec import Struct

from strata.checkpoint.manifest import MANIFEST_SUFFIX, CheckpointPart, decode_manifest
from strata.checkpoint.write.part_sidecar import Sidecar, sidecar_name
from strata.checkpoint.write.part_writer import part_file
from strata.checkpoint.write.replica_digests import Replicas
from strata.config import Settings
from strata.coordinator.checkpoint_files import CheckpointPlaces
from strata.errors import AlreadyExists, NotFound, Unavailable
from strata.storage.backend import Buffer, ObjectInfo, ObjectListing, StorageBackend

PART_BYTES = 1_000_000


class Model(Struct):
    """A model in training; `digest` depends on all applied steps and their order."""

    attempt: int
    generation: int
    steps: int = 0
    digest: int = 0

    def train(self) -> None:
        """Apply the next step."""
        self.digest = step_digest(self.digest, self.steps)
        self.steps += 1

    def copy(self) -> "Model":
        """A copy of the model."""
        return Model(
            attempt=self.attempt, generation=self.generation, steps=self.steps, digest=self.digest
        )

    @property
    def checksum(self) -> str:
        """The checksum with which a part of this model is acknowledged."""
        return f"{self.digest:016x}"


def step_digest(digest: int, step: int) -> int:
    """The digest of a model after one more step."""
    return (digest * 6364136223846793005 + step + 1442695040888963407) % (1 << 64)


class SimStorage:
    """The checkpoints of one task, by name; has only the storage methods that are used here."""

    recycles = False

    def __init__(self, url: str, storages: "SimStorages") -> None:
        self.url = url
        self._storages = storages
        self._objects: dict[str, bytes] = {}

    def put(self, name: str, data: Buffer, *, if_absent: bool = False) -> None:
        """Store an object."""
        self._reach()
        if if_absent and name in self._objects:
            raise AlreadyExists(f"{name} exists")
        self._objects[name] = bytes(data)

    def get(self, name: str) -> bytes:
        """A whole object."""
        self._reach()
        if name not in self._objects:
            raise NotFound(f"there is no {name}")
        return self._objects[name]

    def list(self, folder: str = "") -> ObjectListing:
        """One level of names."""
        self._reach()
        prefix = f"{folder}/" if folder else ""
        below = [name for name in sorted(self._objects) if name.startswith(prefix)]
        rests = {name: name.removeprefix(prefix).partition("/") for name in below}
        objects = [
            ObjectInfo(name=name, size_bytes=len(self._objects[name]), modified_s=0.0)
            for name, (_, deeper, _) in rests.items()
            if not deeper
        ]
        folders = {prefix + first for first, deeper, _ in rests.values() if deeper}
        return ObjectListing(objects, sorted(folders))

    def delete(self, name: str) -> None:
        """Remove an object."""
        self._reach()
        self._objects.pop(name, None)

    def delete_folder(self, folder: str) -> None:
        """Remove every object below a folder."""
        self._reach()
        for name in [name for name in self._objects if name.startswith(f"{folder}/")]:
            del self._objects[name]

    def close(self) -> None:
        """Close nothing: no file or connection is open."""

    def _reach(self) -> None:
        if self._storages.unreachable:
            raise Unavailable("the storage cannot be reached", hint="check the network")

    def save(self, checkpoint: str, rank: int, world_size: int, model: Model) -> None:
        """Store a rank's sidecar, also while the storage is unreachable for the coordinator."""
        part = CheckpointPart(
            rank=rank,
            file=f"{checkpoint}/{part_file(rank)}",
            size_bytes=PART_BYTES,
            xxh3=model.checksum,
            header_bytes=0,
            header_xxh3="",
            piece_bytes=PART_BYTES,
            tensors=[],
            tree=None,
        )
        sidecar = Sidecar(
            checkpoint_id=checkpoint,
            step=model.steps,
            epoch=0,
            attempt=model.attempt,
            world_size=world_size,
            shapes="",
            replicas=Replicas(model.digest.to_bytes(8, "big")),
            metadata=msgspec.structs.asdict(model),
            part=part,
        )
        self._objects[sidecar_name(checkpoint, rank)] = msgspec.json.encode(sidecar)

    def load(self, checkpoint: str) -> Model | None:
        """The model of a checkpoint; None if it has no manifest."""
        encoded = self._objects.get(checkpoint + MANIFEST_SUFFIX)
        if encoded is None:
            return None
        return msgspec.convert(decode_manifest(encoded, checkpoint).metadata, Model)


class SimStorages(CheckpointPlaces):
    """The storages of all tasks; they survive a crash of the coordinator."""

    def __init__(self) -> None:
        super().__init__(Settings(), "sim")
        self.unreachable = False
        self._tasks: dict[str, SimStorage] = {}

    def of(self, task: str) -> SimStorage:
        """The storage of one task."""
        if task not in self._tasks:
            self._tasks[task] = SimStorage(f"sim://{task}", self)
        return self._tasks[task]

    def storage(self, task: str) -> StorageBackend:
        """The storage of one task, with the coordinator's type."""
        return self.of(task)  # type: ignore[return-value]  # it has the methods that are called

    def close(self) -> None:
        """Close nothing: no file or connection is open."""
