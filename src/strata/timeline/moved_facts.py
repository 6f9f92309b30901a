"""Facts of a log that are in a storage: how they get there, and how readers fetch them."""

from strata.config import Settings
from strata.errors import StrataError
from strata.storage.opening import open_storage
from strata.store.moved import Fetch, Moved, checksum

FOLDER = "facts"


def fetching(settings: Settings | None = None) -> Fetch:
    """Fetches moved facts, with the settings of this process if none are given."""

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
    """Stores the payload of a row of facts; says where it is.

    `log` tells the logs of one place apart. Repeated after a crash, it writes the same object.
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
