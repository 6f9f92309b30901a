import pytest


@pytest.fixture(autouse=True)
def data_cache(tmp_path_factory, monkeypatch):
    """A data cache for each test, so that no index or file of another test is found in it."""
    folder = tmp_path_factory.mktemp("data-cache")
    monkeypatch.setenv("STRATA_DATA_CACHE_DIR", str(folder))
    return folder
