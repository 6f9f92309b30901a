"""Transfer of model state between two processes, in clear text and with TLS: GB/s and CPU per GB.

The server and the client are those of workers, on loopback. A round transfers the state once in
clear text and once encrypted; medians of five rounds after a first one. CPU seconds do not depend
on what else runs on the machine; GB/s do. Prints JSON. Exits with 1 when the receiver needs more
than 2 s of CPU for an encrypted GB.
"""

import statistics
import subprocess
import sys
import threading
import time

import numpy as np
import psutil
from common import show

from strata.coordinator.sessions.peer_certificates import peer_certificate
from strata.sdk.peers.blob_client import PeerClient
from strata.sdk.peers.blob_server import Blob, Blobs
from strata.sdk.peers.peer_encryption import peer_encryption
from strata.sdk.record.recorder import Recorder
from strata.wire.v1 import coordinator_pb2 as pb

SIZE_BYTES = 512 * 2**20
ROUNDS = 5
CONNECTIONS = (1, 4)
BOUND_S = 2.0
CERTIFICATES = {"clear_text": "", "encrypted": peer_certificate(b"s" * 32, "bench")}


def serve() -> None:
    """Offer the state in both ways, print the addresses, and end with stdin."""
    state = np.random.default_rng(0).integers(0, 256, SIZE_BYTES, np.uint8)
    for certificate in CERTIFICATES.values():
        offered = Blobs(Recorder())
        offered.open_to(pb.Standing(peer_token="t", peer_certificate=certificate))
        offered.offer("state", Blob(id="id", what="model", segments=[memoryview(state)]))
        print(offered.address(("127.0.0.1", 9)), flush=True)
    sys.stdin.read()


class Transfers:
    """Transfers from one server, in one way, and what each took."""

    def __init__(self, way: str, address: str, server: psutil.Process) -> None:
        self._address, self._server = address, server
        self._encryption = peer_encryption(CERTIFICATES[way])
        self._into = np.zeros(SIZE_BYTES, np.uint8)
        self.took: list[tuple[float, float, float]] = []

    def transfer(self, connections: int) -> None:
        """Read the state over several connections."""
        peer = PeerClient("s", self._address, "t", "w", 1, Recorder(), self._encryption)
        size, view = SIZE_BYTES // connections, memoryview(self._into)

        def read(at: int) -> None:
            peer.read_into("state", at, [view[at : at + size]])

        reading = [
            threading.Thread(target=read, args=(each * size,)) for each in range(connections)
        ]
        before = time.perf_counter(), time.process_time(), self._server_cpu_s()
        for thread in reading:
            thread.start()
        for thread in reading:
            thread.join()
        after = time.perf_counter(), time.process_time(), self._server_cpu_s()
        wall_s, received_s, sent_s = (new - old for new, old in zip(after, before, strict=True))
        self.took.append((wall_s, received_s, sent_s))

    def _server_cpu_s(self) -> float:
        used = self._server.cpu_times()
        return used.user + used.system


def measured(way: str, address: str, server: psutil.Process) -> dict[int, Transfers]:
    return {count: Transfers(way, address, server) for count in CONNECTIONS}


def main() -> int:
    command = [sys.executable, __file__, "serve"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    found: dict[str, object] = {"state_bytes": SIZE_BYTES, "rounds": ROUNDS}
    with subprocess.Popen(command, text=True, **pipes) as process:
        server = psutil.Process(process.pid)
        ways = {
            way: measured(way, process.stdout.readline().strip(), server) for way in CERTIFICATES
        }
        for _ in range(ROUNDS + 1):
            for count in CONNECTIONS:
                for transfers in ways.values():
                    transfers[count].transfer(count)
        process.stdin.close()
    worst_s = 0.0
    for way, by_count in ways.items():
        for count, transfers in by_count.items():
            wall_s, received_s, sent_s = (
                statistics.median(each) for each in zip(*transfers.took[1:], strict=True)
            )
            gigabytes = SIZE_BYTES / 1e9
            found[f"{way}_{count}_connections"] = {
                "gb_per_s": round(gigabytes / wall_s, 2),
                "receiver_cpu_s_per_gb": round(received_s / gigabytes, 2),
                "sender_cpu_s_per_gb": round(sent_s / gigabytes, 2),
            }
            worst_s = max(worst_s, received_s / gigabytes)
    show("peer tls", found)
    return int(worst_s > BOUND_S)


if __name__ == "__main__":
    raise SystemExit(serve() if sys.argv[1:] == ["serve"] else main())
