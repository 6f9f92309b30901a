"""What the workers of a run find out and decide together: values, evaluations, a stop."""

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from strata.errors import InvalidArgument, NotAllowedNow
from strata.sdk.evaluation import Scored, combined, scored
from strata.sdk.exchange import Exchange
from strata.sdk.run_loops import RunLoops
from strata.sdk.signals import GenerationChanged, StopRequested
from strata.wire.v1 import coordinator_pb2 as pb

Value = TypeVar("Value")
Result = TypeVar("Result")


class RunDecisions(RunLoops):
    """A run as a group that decides together. For the training thread."""

    def agree(self, value: Value) -> Value:
        """Rank 0's value, on every worker: for whatever must not differ between them.

            if run.agree(accuracy > 0.99):
                break

        The value is numbers, strings, lists and dicts, as in JSON. It is recorded before a worker
        acts on it, so all get the same one, also if rank 0 is lost meanwhile. Every worker must ask
        at the same place of the script.
        """
        key = self._script.agreement_key(self.steps)
        said = _as_json(value)
        while True:
            self._session.require_usable()
            if self._membership.changed:
                self._take_up_outside_step()
            count = self._membership.agreed
            asked = pb.Agree(key=key, step=self.steps, value=said if self.rank == 0 else "")
            try:
                answer = self._session.answer(self._session.ask("agree", asked))
                agreed: Value = msgspec.json.decode(answer.agreed.value)
                return agreed
            except NotAllowedNow as error:
                if isinstance(error, GenerationChanged | StopRequested):
                    raise
            self._wait_for_agreement(count)

    def stop(self, reason: str = "") -> None:
        """End the training for every worker: they save, and their loops end.

        The loops raise `StopRequested`, which the `with strata.join()` block takes: code after the
        loops does not run.
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

        `dataset` is a torch Dataset, a dataset of Strata's, or a sequence. `score` gives a number,
        or several by name, as means over the batch; batches are weighted by their samples. Each
        worker scores its share, and no step is counted. When a worker is lost meanwhile the
        evaluation is done again.
        """

        def everyone(exchange: Exchange) -> list[Scored]:
            own = scored(
                dataset,
                score,
                self.rank,
                self.world_size,
                batch_size=batch_size,
                collate_fn=collate_fn,
                num_workers=num_workers,
            )
            told = exchange.everyone(msgspec.json.encode(own).decode())
            return [msgspec.json.decode(each, type=Scored) for each in told]

        return combined(self._together_again(everyone))

    def _together_again(self, act: Callable[[Exchange], Result]) -> Result:
        """What all workers do together between two steps; done again when one of them is lost."""
        while True:
            if self._membership.changed:
                self._take_up_outside_step()
            try:
                return self.together(act)
            except GenerationChanged:
                if self._step is not None:
                    raise

    def _take_up_outside_step(self) -> None:
        if self._step is not None:
            raise self._change()
        self._take_up_or_stop()

    def _wait_for_agreement(self, count: int) -> None:
        """Until another value was agreed on, or the membership changed."""
        membership, worker = self._membership, self._worker
        worker.waiting = True
        try:
            self._session.wait_for(
                lambda: (
                    membership.agreed != count
                    or membership.changed
                    or bool(self.stop_requested and self.ending)
                )
            )
        finally:
            worker.waiting = False
        if self.ending:
            raise StopRequested(f"the others are leaving: {self.stop_requested}")


def _as_json(value: object) -> str:
    """The value as text; numbers of other libraries count as numbers."""
    try:
        text = msgspec.json.encode(value, enc_hook=_number).decode()
    except (TypeError, ValueError) as error:
        raise InvalidArgument(
            f"run.agree cannot take a {type(value).__name__}: {error}",
            hint="agree on numbers, strings, lists or dicts",
        ) from error
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidArgument(
            f"run.agree cannot take {value}", hint="agree on what follows from it, such as a bool"
        )
    return text


def _number(value: Any) -> Any:
    item = getattr(value, "item", None)
    if item is None:
        raise TypeError(f"{type(value).__name__} is not a number, string, list or dict")
    return item()
