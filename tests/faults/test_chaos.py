"""A short chaos run with a fixed seed: faults one after the other in the same cluster."""

from tests.faults.chaos import rampage

SEED = 21
FAULTS = 3


def test_faults_one_after_the_other_lose_nothing(tmp_path):
    assert rampage(tmp_path / "cluster", SEED, seconds=600, quick=True, most=FAULTS) == FAULTS
