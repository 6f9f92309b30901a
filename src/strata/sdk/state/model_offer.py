"""Offer this worker's model to members without one.

When a generation resumes from a peer's model, that peer copies the model once into memory, at the
agreed step, and trains on. A thread hashes the copy and offers it as a checkpoint with one part.
The copy is released when all members that need it have confirmed, or when the next generation
begins.
"""

import logging
import threading
from typing import Any

from strata.checkpoint.manifest import Manifest, encode_manifest
from strata.checkpoint.state.state_tree import flatten
from strata.checkpoint.write.part_writer import PartHasher, describe, part_file
from strata.checkpoint.write.staging import Staging, StateCapture
from strata.sdk.peers.blob_server import Blob, Blobs

log = logging.getLogger(__name__)

OFFER_TIMEOUT_S = 900.0


def model_id(generation: int) -> str:
    """The name under which the model of a generation is offered."""
    return f"model-{generation}"


class ModelOffer:
    """Offers the model of one worker to its peers, one generation at a time."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._offered = ""

    def offer(
        self,
        state: object,
        generation: int,
        step: int,
        peers: int,
        data: dict[str, Any],
        metrics: dict[str, float],
    ) -> None:
        """Copy the state and offer it to `peers` members, with data positions and metrics."""
        self.stop()
        # Not the checkpoints' staging memory: this copy is unpinned, and freed after the last read.
        capture = Staging().capture(flatten(state), {"step": str(step)})
        self._offered = model_id(generation)
        threading.Thread(
            target=self._serve,
            args=(capture, self._offered, step, peers, data, metrics),
            name="strata-give",
            daemon=True,
        ).start()

    def stop(self) -> None:
        """Withdraw the offer."""
        if self._offered:
            self._blobs.withdraw(self._offered)
            self._offered = ""

    def _serve(
        self,
        capture: StateCapture,
        name: str,
        step: int,
        peers: int,
        data: dict[str, Any],
        metrics: dict[str, float],
    ) -> None:
        capture.complete()
        hashing = PartHasher(capture)
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
            metrics=metrics,
        )
        if name != self._offered:
            return
        segments = [segment for _, segment in capture.segments]
        described = encode_manifest(manifest)
        self._blobs.offer(
            f"{name}/{part_file(0)}", Blob(id=part.xxh3, what="model", segments=segments)
        )
        about = Blob(
            id=f"{part.xxh3}-manifest", what="manifest of a model", segments=[memoryview(described)]
        )
        self._blobs.offer(f"{name}.json", about)
        if not self._blobs.wait_read(f"{name}.json", peers, OFFER_TIMEOUT_S):
            log.info("offer %s timed out before all peers had downloaded it", name)
        self._blobs.withdraw(name)
