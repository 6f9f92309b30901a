"""Decisions that all workers of a run share: agreed values, evaluations, a stop.

None of them enters a generation: that happens only in a loop, where the position of the script is
known (see `sdk/data/script_position`). So they tolerate the loss of a worker: a value is agreed on
through the coordinator, and an evaluation falls back to each worker scoring everything.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import Any, TypeVar

import msgspec

from strata.core.workers.worker_operations import EvaluationCompleted, EvaluationStarted
from strata.errors import InvalidArgument
from strata.sdk.data.evaluation import Evaluation, Scored, combined
from strata.sdk.interrupts import GenerationChanged
from strata.sdk.peers.exchange import Exchange
from strata.sdk.run_loops import RunLoops
from strata.wire.v1 import coordinator_pb2 as pb

Value = TypeVar("Value")

_evaluations = count(1)


class RunDecisions(RunLoops):
    """The shared decisions of a run. For the training thread."""

    def agree(self, value: Value) -> Value:
        """Rank 0's value, on every worker: for decisions that must not differ.

            if run.agree(accuracy > 0.99):
                break

        The value consists of numbers, strings, lists and dicts, as in JSON. It is recorded before
        any worker gets it, so all get the same one; if rank 0 is lost before it has sent its value,
        another worker's is used. Every worker must call it at the same place of the script.
        """
        agreed: Value = msgspec.json.decode(self._agreed(_as_json(value)))
        return agreed

    def stop(self, reason: str = "") -> None:
        """Stop the training on every worker: they save, and their loops end.

        The loops raise `StopRequested`, which the `with strata.join()` block catches: code after
        the loops does not run.
        """
        request = self._session.ask("stop_run", pb.StopRun(reason=reason))
        self._session.answer(request)

    def evaluate(
        self,
        dataset: Any,
        score: Callable[[Any], float | Mapping[str, float]],
        *,
        batch_size: int = 256,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        num_workers: int = 0,
    ) -> Any:
        """The mean of `score(batch)` over a dataset, the same on every worker.

        `dataset` is a torch Dataset, a Strata dataset, or a sequence. `score` returns a number, or
        several by name, as means over the batch; batches are weighted by their number of samples.
        Each worker scores its share, and no step is counted. If a worker is lost, each of the
        others scores the whole dataset.
        """
        self._report_left_loop()
        evaluation = Evaluation(dataset, score, batch_size, collate_fn, num_workers)
        with self._recorded_evaluation(evaluation):
            return self._evaluated(evaluation)

    @contextmanager
    def _recorded_evaluation(self, evaluation: Evaluation) -> Iterator[None]:
        """Record the start and the end of an evaluation."""
        emit, op = self._worker.recorder.emit, f"evaluate-{next(_evaluations)}"
        emit(EvaluationStarted(step=self.steps, samples=evaluation.samples), op=op)
        try:
            yield
        except BaseException as error:
            emit(EvaluationCompleted(ok=False, error=type(error).__name__), op=op)
            raise
        emit(EvaluationCompleted(ok=True), op=op)

    def _evaluated(self, evaluation: Evaluation) -> Any:
        """The combined scores of all workers."""
        try:
            shares = self.together(partial(self._scored, evaluation))
        except GenerationChanged:
            if self._step is not None:
                raise
            shares = [evaluation.share(0, 1)]
        means = {name: mean.hex() for name, mean in combined(shares).items()}
        agreed = self._agreed(msgspec.json.encode(means).decode())
        return _unnamed({name: float.fromhex(each) for name, each in _names(agreed).items()})

    def _scored(self, evaluation: Evaluation, exchange: Exchange) -> list[Scored]:
        own = evaluation.share(self.rank, self.world_size)
        shares = exchange.everyone(msgspec.json.encode(own).decode())
        return [msgspec.json.decode(each, type=Scored) for each in shares]

    def _agreed(self, value: str) -> str:
        """The value agreed on at this place of the script, as JSON."""
        self._report_left_loop()
        key = self._script.agreement_key(self.steps)
        return self._run_state.agreements.agree(key, value)


def _names(value: str) -> dict[str, str]:
    return msgspec.json.decode(value, type=dict[str, str])


def _unnamed(means: dict[str, float]) -> float | dict[str, float]:
    """The plain number if the score has no names."""
    return means[""] if set(means) == {""} else means


def _as_json(value: object) -> str:
    """The value as JSON; numbers of other libraries are converted."""
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidArgument(
            f"run.agree cannot send {value}", hint="agree on a decision, such as a bool, instead"
        )
    try:
        return msgspec.json.encode(value, enc_hook=_number).decode()
    except (TypeError, ValueError) as error:
        raise InvalidArgument(
            f"run.agree cannot send a {type(value).__name__}: {error}",
            hint="pass numbers, strings, lists or dicts",
        ) from error


def _number(value: Any) -> Any:
    item = getattr(value, "item", None)
    if item is None:
        raise TypeError(f"{type(value).__name__} is not a number, string, list or dict")
    return item()
