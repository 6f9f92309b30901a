"""Log lines arrive exactly once and in order, even if connections are cut while they are sent."""

import socket
import threading
from contextlib import suppress

import strata
from tests.sdk.harness import until

LINES = 3_000
CUTS = 5


class Cutter:
    """A proxy to a port that can cut all its connections."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self._ends: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                far = socket.create_connection(("127.0.0.1", self._port))
                self._ends += [near, far]
                for one, other in ((near, far), (far, near)):
                    threading.Thread(target=self._pass, args=(one, other), daemon=True).start()

    def _pass(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while data := one.recv(4_096):
                other.sendall(data)
        other.close()

    def cut(self) -> None:
        ends, self._ends = self._ends, []
        for end in ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def close(self) -> None:
        self._listening.close()
        self.cut()


def test_lines_arrive_once_and_in_order_over_broken_connections(hub, tmp_path):
    cutter = Cutter(hub.running.grpc_port)
    with strata.join(cutter.address, worker_id="w", capture=False, spool_dir=tmp_path) as run:
        session, lines = run._session, run._worker.lines
        for number in range(LINES):
            lines("info", f"line {number}", "stdout")
            if number % (LINES // CUTS) == LINES // CUTS // 2:
                session.heartbeat.flush_soon()
                seen = len(hub.all_lines("w"))
                until(lambda seen=seen: len(hub.all_lines("w")) > seen, what="some lines' arrival")
                cutter.cut()
        until(lambda: lines.delivered, what="the lines' delivery")
        assert run.incarnation == hub.state.workers["w"].incarnation
    cutter.close()
    entries = hub.all_lines("w")
    said = [message for message in entries if message.startswith("line ")]
    assert said == [f"line {number}" for number in range(LINES)]
