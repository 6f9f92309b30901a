"""States that are made of objects: models, optimizers, whatever has `state_dict`.

A script may hand over `{"model": model, "optimizer": optimizer}` itself. Saved is what
`state_dict()` answers; restoring fills those tensors where they are and then gives the whole to
`load_state_dict`, which also takes what was not there before an optimizer's first step.

Containers stay the same objects: a dict or list that was handed over is the one that is filled, so
whoever holds it sees the restored state.
"""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from strata.checkpoint.sharded import is_dtensor


@runtime_checkable
class Stateful(Protocol):
    """An object that tells its state and takes it back."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any: ...


def plain(state: Any) -> Any:
    """The state with every object replaced by its own state."""
    if isinstance(state, Stateful):
        return plain(state.state_dict())
    if isinstance(state, dict):
        return {key: plain(each) for key, each in state.items()}
    if isinstance(state, list):
        return [plain(each) for each in state]
    if type(state) is tuple:
        return tuple(plain(each) for each in state)
    return state


def vessel(state: Any) -> Any:
    """`plain` for what is to be filled: an optimizer of sharded parameters has its moments by then.

    It makes them at its first step. Without them they would be read whole on every rank, and as
    tensors that it cannot use.
    """
    if isinstance(state, dict):
        return {key: vessel(each) for key, each in state.items()}
    if hasattr(state, "param_groups") and not state.state_dict()["state"]:
        _make_moments(state)
    return plain(state)


def _make_moments(optimizer: Any) -> None:
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    if not any(is_dtensor(each) for each in parameters):
        return
    rates = [group["lr"] for group in optimizer.param_groups]
    gradients = [each.grad for each in parameters]
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    for each in parameters:
        each.grad = each.detach() * 0 if each.requires_grad else None
    optimizer.step()
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    for each, gradient in zip(parameters, gradients, strict=True):
        each.grad = gradient


def put_back(state: Any, loaded: Any, placed: Callable[[Any], None] = lambda value: None) -> Any:
    """Brings what was loaded into an existing state; what it is now, the same object if it can.

    `placed` is told of each value that is in its place.
    """
    if isinstance(state, Stateful):
        state.load_state_dict(loaded)
        placed(loaded)
        return state
    if isinstance(state, dict) and isinstance(loaded, dict):
        for key in [key for key in state if key not in loaded]:
            del state[key]
        for key, each in loaded.items():
            state[key] = put_back(state.get(key), each, placed)
        return state
    if isinstance(state, list) and isinstance(loaded, list):
        known = [*state, *[None] * (len(loaded) - len(state))]
        state[:] = [put_back(was, each, placed) for was, each in zip(known, loaded, strict=False)]
        return state
    placed(loaded)
    return loaded
