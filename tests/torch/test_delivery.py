"""Guards optimizers that are launched before the host knows whether the gradients are complete."""

import copy

import pytest

torch = pytest.importorskip("torch")

from strata.torch.gradient_averaging import GradientDelivery, can_skip  # noqa: E402

OWN = torch.tensor([16.0, 5.0, 7.0], dtype=torch.float64)
WHOLE = torch.tensor([40.0, 10.0, 14.0], dtype=torch.float64)


@pytest.mark.parametrize(
    ("head", "flag", "skipped"),
    [
        (WHOLE, 0.0, False),
        (WHOLE, 1.0, True),
        (torch.tensor([40.0, 11.0, 14.0], dtype=torch.float64), 0.0, True),
        (torch.tensor([40.0, 10.0, 13.0], dtype=torch.float64), 0.0, True),
    ],
    ids=["complete", "aborted", "another pass", "other parameters"],
)
def test_update_is_skipped_unless_every_worker_has_sent_the_same_pass(head, flag, skipped):
    delivery = GradientDelivery(head, OWN, 2, torch.tensor(flag))
    delivery.wait()
    assert (delivery.skipped, bool(delivery.skip), delivery.aborted) == (
        skipped,
        skipped,
        flag == 1,
    )
    assert delivery.head == head.tolist()


KINDS = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1, fused=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.1, fused=True, amsgrad=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("flag", [0.0, 1.0])
def test_fused_optimizer_skips_its_update_on_the_device(kind, flag):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 3)
    optimizer = KINDS[kind](model.parameters())
    model(torch.randn(2, 4)).sum().backward()
    optimizer.step()
    before = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    assert can_skip(optimizer)
    optimizer.found_inf = GradientDelivery(WHOLE, OWN, 2, torch.tensor(flag)).skip
    optimizer.step()
    after = (model.state_dict(), optimizer.state_dict())
    same = torch.equal(before[0]["weight"], after[0]["weight"])
    states = zip(before[1]["state"].values(), after[1]["state"].values(), strict=True)
    kept = all(torch.equal(a[name], b[name]) for a, b in states for name in a)
    assert (same, kept) == (flag == 1.0, flag == 1.0)


def test_optimizers_that_cannot_skip_are_waited_for():
    parameters = [torch.nn.Parameter(torch.ones(2))]
    assert not can_skip(torch.optim.AdamW(parameters))
    assert not can_skip(torch.optim.LBFGS(parameters))
    scaled = torch.optim.AdamW(parameters, fused=True)
    scaled.found_inf = torch.zeros(())
    assert not can_skip(scaled)
