"""The secret of peer tokens: kept across restarts, refused if damaged."""

import pytest

from strata.coordinator.sessions.standing_messages import SECRET_BYTES, PeerTokens, secret_in
from strata.errors import Corrupt, Unavailable


def test_restart_gives_the_same_tokens(tmp_path):
    token = PeerTokens(secret_in(tmp_path / "secret")).of("task", 1)
    assert PeerTokens(secret_in(tmp_path / "secret")).of("task", 1) == token
    assert PeerTokens(secret_in(tmp_path / "other")).of("task", 1) != token
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600
    assert sorted(file.name for file in tmp_path.iterdir()) == ["other", "secret"]


@pytest.mark.parametrize(
    "content", [b"", b"x" * (SECRET_BYTES - 1), bytes(SECRET_BYTES), b"x" * (SECRET_BYTES + 1)]
)
def test_damaged_secret_is_refused(tmp_path, content):
    file = tmp_path / "secret"
    file.write_bytes(content)
    with pytest.raises(Corrupt, match=str(file)) as caught:
        PeerTokens(secret_in(file))
    assert "delete the file" in caught.value.hint
    assert file.read_bytes() == content


def test_unreadable_secret_is_refused(tmp_path):
    (tmp_path / "secret").mkdir()
    with pytest.raises(Unavailable):
        PeerTokens(secret_in(tmp_path / "secret"))
