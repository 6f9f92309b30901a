"""A worker process for tests that stop and kill it: `child_worker.py ADDRESS ID STEPS`.

It sends a heartbeat every 50 ms and makes a step with each one until it has made STEPS; then it
sends heartbeats without steps, with --waiting as a worker that waits for others. With --skew-s its
clocks are wrong. It prints each message it receives. When fenced, it registers again.
"""

import argparse
import threading
import time
from queue import SimpleQueue

import grpc

from strata.coordinator.sessions.unary_calls import SERVICE
from strata.wire.v1 import coordinator_pb2 as pb

BEAT_S = 0.05


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("address")
    parser.add_argument("id")
    parser.add_argument("steps", type=int)
    parser.add_argument("--waiting", action="store_true")
    parser.add_argument("--skew-s", type=float, default=0.0)
    return parser.parse_args()


def say(*words: object) -> None:
    print(*words, flush=True)


class Child:
    """Run one worker, one incarnation after the other."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        self.step = 0
        self.channel = grpc.insecure_channel(given.address)

    def register(self) -> int:
        call = self.channel.unary_unary(
            f"/{SERVICE}/RegisterWorker",
            request_serializer=pb.RegisterWorkerRequest.SerializeToString,
            response_deserializer=pb.RegisterWorkerResponse.FromString,
        )
        incarnation = call(pb.RegisterWorkerRequest(worker_id=self.given.id)).incarnation
        say("registered", incarnation)
        return incarnation

    def live(self, incarnation: int) -> None:
        """Run one incarnation until it is fenced."""
        outgoing: SimpleQueue[pb.WorkerMessage | None] = SimpleQueue()
        hello = pb.Hello(worker_id=self.given.id, incarnation=incarnation)
        outgoing.put(pb.WorkerMessage(hello=hello))
        over = threading.Event()
        beating = threading.Thread(target=self.beat, args=(outgoing, over), daemon=True)
        call = self.channel.stream_stream(
            f"/{SERVICE}/Session",
            request_serializer=pb.WorkerMessage.SerializeToString,
            response_deserializer=pb.CoordinatorMessage.FromString,
        )
        try:
            for message in call(iter(outgoing.get, None)):
                kind = message.WhichOneof("body")
                if kind == "standing":
                    say("standing", message.standing.incarnation, message.standing.world_size)
                    if not beating.is_alive():
                        beating.start()
                elif kind == "pulse":
                    say("pulse", message.pulse.server_wall_ns)
                elif kind == "refused":
                    say("refused", message.refused.code, message.refused.hint)
                    return
        except grpc.RpcError as error:
            say("broken", error.code().name)
        finally:
            over.set()
            outgoing.put(None)

    def beat(self, outgoing, over: threading.Event) -> None:
        skew_ns = int(self.given.skew_s * 1e9)
        while not over.is_set():
            made = self.step >= self.given.steps
            self.step += not made
            beat = pb.Beat(
                state=pb.WORKER_STATE_TRAINING,
                step=self.step,
                waiting=made and self.given.waiting,
                sent_mono_ns=time.monotonic_ns() + skew_ns,
                sent_wall_ns=time.time_ns() + skew_ns,
            )
            outgoing.put(pb.WorkerMessage(beat=beat))
            over.wait(BEAT_S)


def main() -> None:
    child = Child(arguments())
    while True:
        child.live(child.register())


if __name__ == "__main__":
    main()
