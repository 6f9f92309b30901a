"""What workers decide together, between messages and the core's commands."""

from typing import TypeAlias

from strata.core.agreements import AgreeOnValue, LeaveLoop
from strata.core.final_saves import EndTraining
from strata.core.scheduling import StopRun
from strata.wire.v1 import coordinator_pb2 as pb

Deciding: TypeAlias = AgreeOnValue | LeaveLoop | EndTraining | StopRun

KINDS = ("agree", "leave_loop", "end_training", "stop_run")


def command(worker: str, incarnation: int, message: pb.WorkerMessage) -> Deciding:
    """The command that a message asks for."""
    kind = message.WhichOneof("body")
    if kind == "agree":
        asked = message.agree
        return AgreeOnValue(
            worker=worker,
            incarnation=incarnation,
            key=asked.key,
            step=asked.step,
            value=asked.value,
        )
    if kind == "leave_loop":
        left = message.leave_loop
        return LeaveLoop(worker=worker, incarnation=incarnation, loop=left.loop, step=left.step)
    if kind == "end_training":
        return EndTraining(worker=worker, incarnation=incarnation, step=message.end_training.step)
    return StopRun(worker=worker, incarnation=incarnation, reason=message.stop_run.reason)


def answer(request: int, told: object) -> pb.CoordinatorMessage:
    """The answer: the value that was agreed on, or that it is done."""
    if isinstance(told, str):
        return pb.CoordinatorMessage(request=request, agreed=pb.Agreed(value=told))
    return pb.CoordinatorMessage(request=request, done=pb.Done())
