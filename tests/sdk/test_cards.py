"""The GPUs of a host: divided among slots, and restricted per process."""

import pytest

from strata.sdk.record.gpu_cards import VISIBLE, Cards, seen_as, shares, visible_cards

EIGHT = [str(number) for number in range(8)]


def has_cards():
    return bool(Cards(["0"]).read())


@pytest.mark.parametrize(
    ("cards", "slots", "shared"),
    [
        ([], 2, [[], []]),
        (EIGHT, 8, [[number] for number in EIGHT]),
        (EIGHT, 4, [["0", "1"], ["2", "3"], ["4", "5"], ["6", "7"]]),
        (EIGHT[:3], 2, [["0"], ["1"]]),
        (["0", "1"], 4, [["0"], ["1"], ["0"], ["1"]]),
        (["GPU-a", "GPU-b"], 1, [["GPU-a", "GPU-b"]]),
    ],
)
def test_gpus_are_divided_evenly_among_slots(cards, slots, shared):
    assert shares(cards, slots) == shared


@pytest.mark.parametrize(
    ("named", "cards"),
    [("2, 0", ["2", "0"]), ("GPU-a", ["GPU-a"]), ("", []), ("-1", []), ("1,-1,0", ["1"])],
)
def test_visible_gpus_are_those_of_cuda(monkeypatch, named, cards):
    monkeypatch.setenv(VISIBLE, named)
    assert visible_cards() == cards


def test_restricted_process_uses_the_drivers_order(monkeypatch):
    monkeypatch.delenv(VISIBLE, raising=False)
    assert seen_as(["3", "3", "1"]) == {VISIBLE: "3,1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert seen_as([]) == {}
    monkeypatch.setenv(VISIBLE, "1,3")
    assert seen_as(["3"]) == {VISIBLE: "3"}


@pytest.mark.skipif(has_cards(), reason="this machine has cards")
def test_host_without_a_driver_has_no_gpus(monkeypatch):
    monkeypatch.delenv(VISIBLE, raising=False)
    assert visible_cards() == []
    assert Cards(["0", "GPU-a"]).read() == []


@pytest.mark.skipif(not has_cards(), reason="needs an NVIDIA card and its driver")
def test_gpus_are_read_by_index_and_uuid_and_others_left_out(monkeypatch):
    import pynvml

    monkeypatch.delenv(VISIBLE, raising=False)
    cards = Cards(visible_cards()).read()
    assert [card.index for card in cards] == list(range(len(cards)))
    for card in cards:
        assert card.name
        assert 0 <= card.utilization_percent <= 100
        assert 0 <= card.memory_used_bytes <= card.memory_total_bytes
        assert card.memory_total_bytes > 2**30
    uuid = pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(0))
    (first,) = Cards([uuid, "999", "GPU-none"]).read()
    assert first.index == 0
