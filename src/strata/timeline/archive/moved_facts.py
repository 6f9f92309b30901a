"""Facts of a log that were moved to object storage: upload, and download by readers."""

from strata.config import Settings
from strata.errors import StrataError
from strata.storage.locations import open_storage
from strata.store.fact_references import Fetch, Moved, checksum

FOLDER = "facts"


def fetching(settings: Settings | None = None) -> Fetch:
    """A function that downloads moved facts, by default with the settings of this process."""

    def fetch(moved: Moved) -> bytes:
        storage = open_storage(moved.place, settings)
        try:
            return storage.get(moved.name)
        except StrataError as error:
            raise type(error)(
                f"facts of the log were moved to {moved.place}: {error.message}", hint=error.hint
            ) from error
        finally:
            storage.close()

    return fetch


def put_away(payload: bytes, position: int, log: str, place: str, settings: Settings) -> Moved:
    """Upload the payload of a batch of facts, and return where it is.

    `log` distinguishes logs that share a place. Repeated after a crash, it writes the same object.
    """
    moved = Moved(
        place=place,
        name=f"{FOLDER}/{log}/{position:012}-{checksum(payload)}.segment",
        size_bytes=len(payload),
        xxh3=checksum(payload),
    )
    storage = open_storage(place, settings)
    try:
        storage.put(moved.name, payload)
    finally:
        storage.close()
    return moved
