"""Giving this worker's model to those who lack it.

When a generation goes on from a peer's model, the peer copies it once into memory, at the step that
all agreed upon, and trains on; a thread hashes the copy and offers it, in the form of a checkpoint
with one part. The copy is let go of when everyone who needs it has said so, or when the next
generation begins.
"""

import logging
import threading
from typing import Any

from strata.checkpoint.format import Manifest, encode_manifest
from strata.checkpoint.parts import Hashing, describe, part_file
from strata.checkpoint.staging import Capture, Staging
from strata.checkpoint.tree import flatten
from strata.sdk.blobs import Blob, Blobs

log = logging.getLogger(__name__)

PATIENCE_S = 900.0


def model_id(generation: int) -> str:
    """Under which name the model of a generation is offered."""
    return f"model-{generation}"


class Giver:
    """Offers the model of one worker, one generation at a time."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._offered = ""

    def give(
        self, state: object, generation: int, step: int, peers: int, data: dict[str, Any]
    ) -> None:
        """Copies the state and offers it to so many peers, with the positions in `data`."""
        self.stop()
        # Memory of its own, which goes, unpinned, with the last peer that reads it.
        capture = Staging().capture(flatten(state), {"step": str(step)})
        self._offered = model_id(generation)
        threading.Thread(
            target=self._offer,
            args=(capture, self._offered, step, peers, data),
            name="strata-give",
            daemon=True,
        ).start()

    def stop(self) -> None:
        """Offers it no longer."""
        if self._offered:
            self._blobs.withdraw(self._offered)
            self._offered = ""

    def _offer(
        self, capture: Capture, name: str, step: int, peers: int, data: dict[str, Any]
    ) -> None:
        capture.complete()
        hashing = Hashing(capture)
        hashing.up_to(capture.size_bytes)
        part = describe(capture, 0, hashing)
        manifest = Manifest(
            checkpoint_id=name,
            step=step,
            epoch=0,
            sequence=1,
            created_ns=0,
            size_bytes=part.size_bytes,
            world_size=1,
            parts=[part],
            data=data,
        )
        if name != self._offered:
            return
        segments = [segment for _, segment in capture.segments]
        described = encode_manifest(manifest)
        self._blobs.offer(f"{name}/{part_file(0)}", Blob(part.xxh3, "model", segments))
        about = Blob(f"{part.xxh3}-manifest", "manifest of a model", [memoryview(described)])
        self._blobs.offer(f"{name}.json", about)
        if not self._blobs.wait_read(f"{name}.json", peers, PATIENCE_S):
            log.info("not everyone has fetched the model of %s", name)
        self._blobs.withdraw(name)
