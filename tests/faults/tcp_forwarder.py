"""A TCP forwarder: a port of this machine that leads elsewhere, slowly if that is asked."""

import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

CHUNK = 65_536
MAX_CONNECTIONS = 200
HELD_CHUNKS = 256
SLICE_S = 0.05


class Forwarder:
    """Forwards connections to its port on loopback; a context that ends them.

    `connect` makes the connection that each leads to. Each direction delivers what it got
    `delay_s` later, and at most `bytes_per_s`.
    """

    def __init__(self) -> None:
        self.delay_s = 0.0
        self.bytes_per_s = float("inf")
        self.connect: Callable[[], socket.socket] = _nowhere
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._ended = threading.Event()
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def __enter__(self) -> "Forwarder":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all connections."""
        self._ended.set()
        for each in list(self._threads):
            each.join(10)
        self._listener.close()

    def _start(self, run: Callable[..., None], *given: object) -> None:
        self._threads = [each for each in self._threads if each.is_alive()]
        thread = threading.Thread(target=run, args=given, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._ended.is_set():
            if not select.select([self._listener], [], [], SLICE_S)[0]:
                continue
            near, _ = self._listener.accept()
            if len(self._threads) < 2 * MAX_CONNECTIONS:
                self._start(self._forward, near)
            else:
                near.close()

    def _forward(self, near: socket.socket) -> None:
        """Run one connection to its end."""
        with near, suppress(OSError), self.connect() as far:
            for each in (near, far):
                each.settimeout(10)
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            held: dict[socket.socket, deque[tuple[float, bytes]]] = {near: deque(), far: deque()}
            open_ends = {near, far}
            while (open_ends or any(held.values())) and not self._ended.is_set():
                self._take(open_ends, held)
                self._deliver(held[near], far)
                self._deliver(held[far], near)

    def _take(
        self,
        open_ends: set[socket.socket],
        held: dict[socket.socket, deque[tuple[float, bytes]]],
    ) -> None:
        """Read what arrived; the moment at which it is due goes with it."""
        waiting = [chunks[0][0] - time.monotonic() for chunks in held.values() if chunks]
        wait_s = max(0.0, min([SLICE_S, *waiting]))
        reading = [each for each in open_ends if len(held[each]) < HELD_CHUNKS]
        for source in select.select(reading, [], [], wait_s)[0]:
            data = source.recv(CHUNK)
            if not data:
                open_ends.discard(source)
            held[source].append((time.monotonic() + self.delay_s, data))

    def _deliver(self, chunks: deque[tuple[float, bytes]], to: socket.socket) -> None:
        """Send what is due."""
        while chunks and chunks[0][0] <= time.monotonic():
            data = chunks.popleft()[1]
            if not data:
                to.shutdown(socket.SHUT_WR)
                return
            time.sleep(len(data) / self.bytes_per_s)
            to.sendall(data)


def _nowhere() -> socket.socket:
    raise OSError("the forwarder leads nowhere yet")
