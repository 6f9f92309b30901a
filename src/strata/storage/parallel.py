"""Reading one object by ranges, several at once."""

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import TypeVar

from strata.errors import Corrupt
from strata.storage.base import ObjectReader

RANGE_BYTES = 16 * 1024 * 1024
THREADS = 8

Item = TypeVar("Item")


def download(reader: ObjectReader, buffer: memoryview, offset: int) -> None:
    """Fills the buffer with the bytes from `offset` on."""
    view = buffer.cast("B")
    if offset + view.nbytes > reader.size_bytes:
        raise Corrupt(
            f"the object has {reader.size_bytes} bytes where {offset + view.nbytes} were expected",
            hint="it was cut short or replaced; restore it or use another checkpoint",
        )

    def fill(start: int) -> None:
        reader.read_into(offset + start, [view[start : start + RANGE_BYTES]])

    for_each(fill, range(0, view.nbytes, RANGE_BYTES))


def for_each(work: Callable[[Item], None], items: Sequence[Item], threads: int = THREADS) -> None:
    """Does the work for every item, in parallel; the first failure stops the rest and is raised."""
    if len(items) < 2 or threads < 2:
        for item in items:
            work(item)
        return
    with ThreadPoolExecutor(min(threads, len(items)), thread_name_prefix="strata-io") as pool:
        futures = [pool.submit(work, item) for item in items]
        done, _ = wait(futures, return_when=FIRST_EXCEPTION)
        pool.shutdown(wait=True, cancel_futures=True)
        failed = [future for future in futures if future in done and future.exception()]
        if failed:
            failed[0].result()
