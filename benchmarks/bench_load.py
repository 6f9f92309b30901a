"""Load that one coordinator holds, and what happens beyond it.

Sessions of workers are opened and send heartbeats and events as training workers do. Beside them,
requests of the REST API arrive at fixed times, whether or not earlier ones were answered, at a rate
that doubles until the 99th percentile of their answer times has doubled or requests fall behind.

Beyond: more long reads at once than one client may have, and more connections than the coordinator
accepts, none of which sends a request. Counted are the statuses of the answers and the answers to
heartbeats; afterwards the first rate is measured again, without a restart.

The clients are one process on the same machine, so both sides share its cores.
"""

import asyncio
import re
import tempfile
import time
from collections import Counter
from pathlib import Path

from common import show, spread
from fleet import Fleet
from processes import Server, coordinator

SESSIONS = 2_000
TRAINING_S = 8.0
STEP_S = 0.1
RATES = (25, 50, 100, 200, 400, 800)
RATE_S = 2.0
ATTEMPTS = 2
CONNECTIONS = 32
AT_ONCE = 600
ROUNDS = 3
SILENT = 2_500
SHORT, LONG = (
    f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    for path in ("/api/status", "/api/timeline/lanes")
)
EVENTS_PER_BATCH = 20


class Connection:
    """A keep-alive connection; it is opened again after the server has closed it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._free = asyncio.Lock()

    async def get(self, request: bytes = SHORT) -> str:
        """The status of an answer; `closed` if there was none."""
        async with self._free:
            try:
                if self._streams is None:
                    self._streams = await asyncio.open_connection("127.0.0.1", self._port)
                reader, writer = self._streams
                writer.write(request)
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                await reader.readexactly(int(head.partition(b"content-length: ")[2].split()[0]))
            except (OSError, asyncio.IncompleteReadError):
                self.close()
                return "closed"
            if b"connection: close" in head:
                self.close()
            status = head.split()[1].decode()
            waits = b"retry-after" in head
            return f"{status} with retry-after" if waits else status

    def close(self) -> None:
        """Close it; the next request opens another."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


async def at_rate(port: int, rate: int) -> dict[str, object]:
    """Send requests at fixed times; an answer's time counts from when its request was due."""
    connections = [Connection(port) for _ in range(CONNECTIONS)]
    took: list[float] = []
    statuses: Counter[str] = Counter()
    began = time.perf_counter() + 0.1

    async def one(number: int) -> None:
        due = began + number / rate
        await asyncio.sleep(max(due - time.perf_counter(), 0))
        statuses[await connections[number % CONNECTIONS].get()] += 1
        took.append(time.perf_counter() - due)

    await asyncio.gather(*(one(number) for number in range(int(rate * RATE_S))))
    lasted_s = time.perf_counter() - began
    for each in connections:
        each.close()
    answered = round(len(took) / lasted_s, 1)
    return {"answered_per_s": answered, "ms": spread(took, 1e3), "statuses": dict(statuses)}


def rates(port: int) -> dict[str, object]:
    """Raise the rate until the 99th percentile has doubled, in the better of two attempts."""
    found: dict[str, dict] = {}
    doubled = None
    for rate in RATES:
        attempts = [asyncio.run(at_rate(port, rate)) for _ in range(ATTEMPTS)]
        found[str(rate)] = measured = min(attempts, key=lambda each: each["ms"]["p99"])
        first = found[str(RATES[0])]["ms"]["p99"]
        behind = measured["answered_per_s"] < 0.8 * rate
        if rate > RATES[0] and (measured["ms"]["p99"] >= 2 * first or behind):
            doubled = rate
            break
    return {"by_rate": found, "p99_doubled_at_per_s": doubled}


async def beyond(port: int, server: Server, fleet: Fleet) -> dict[str, object]:
    """Too many requests and connections at once, while workers send heartbeats."""
    statuses: Counter[str] = Counter()
    peak_mb, silent = server.rss_mb(), []
    for _ in range(SILENT):
        try:
            silent.append(await asyncio.open_connection("127.0.0.1", port))
        except OSError:
            statuses["not connected"] += 1
    began = time.perf_counter()
    beats = asyncio.create_task(asyncio.to_thread(fleet.beats, waves=5))
    for _ in range(ROUNDS):
        connections = [Connection(port) for _ in range(AT_ONCE)]
        asked = (each.get(LONG) for each in connections)
        statuses.update(await asyncio.gather(*asked))
        peak_mb = max(peak_mb, server.rss_mb())
        for each in connections:
            each.close()
    await beats  # raises if a heartbeat was not answered
    for _, writer in silent:
        writer.close()
    return {
        "silent_connections": SILENT,
        "requests_at_once": AT_ONCE,
        "statuses": dict(statuses),
        "heartbeats_answered": 5 * SESSIONS,
        "took_s": round(time.perf_counter() - began, 2),
        "peak_rss_mb": round(peak_mb, 1),
    }


def http_port(folder: Path) -> int:
    """The port that the coordinator printed."""
    printed = (folder / "stderr.txt").read_text("utf-8")
    found = re.search(r"dashboard +\S+:(\d+)", printed)
    assert found is not None, printed
    return int(found[1])


def measure(folder: Path) -> dict[str, object]:
    """All parts, with one coordinator."""
    with coordinator(folder / "load") as server:
        port, empty_mb = http_port(folder / "load"), server.rss_mb()
        fleet = Fleet(server.port, SESSIONS)
        idle_mb = server.rss_mb()
        began, cpu_s = time.perf_counter(), server.cpu_s()
        sent, _ = fleet.train_evenly(TRAINING_S, STEP_S)
        lasted_s = time.perf_counter() - began
        sessions = {
            "held": SESSIONS,
            "kb_each": round((idle_mb - empty_mb) / SESSIONS * 1e3, 1),
            "beats_per_s": round(5 * SESSIONS / fleet.beats(waves=5)),
            "events_per_s": round(sent * EVENTS_PER_BATCH / lasted_s),
            "share_of_a_core": round((server.cpu_s() - cpu_s) / lasted_s, 2),
        }
        rest = rates(port)
        over = asyncio.run(beyond(port, server, fleet))
        after = asyncio.run(at_rate(port, RATES[0]))
        return {
            "sessions": sessions,
            "rest": rest,
            "beyond": over,
            "afterwards": {**after, "rss_mb": round(server.rss_mb(), 1)},
        }


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="strata-load-") as folder:
        result = measure(Path(folder))
        unclear = set(result["beyond"]["statuses"]) - {"200", "429 with retry-after"}
        unclear -= {"503 with retry-after"}
        recovered = set(result["afterwards"]["statuses"]) == {"200"}
        refused = any("retry-after" in status for status in result["beyond"]["statuses"])
        held = int(refused and recovered and not unclear)
        show("load", result | {"refused_clearly_and_recovered": held}, Path(folder))
        if not held:
            raise SystemExit(f"refused {refused}, recovered {recovered}, unclear {sorted(unclear)}")


if __name__ == "__main__":
    main()
