"""Guards that a framework's optimizer does not apply gradients of aborted collectives."""

from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

from strata.torch.default_group import DefaultGroup


def test_update_after_aborted_collectives_is_refused():
    group = DefaultGroup(SimpleNamespace(world_size=2))
    group.require_complete()
    group._watch = SimpleNamespace(aborted=False, stop=lambda: None)
    group.require_complete()
    group._watch.aborted = True
    with pytest.raises(RuntimeError, match="a worker is lost"):
        group.require_complete()
