"""Both kinds of storage behind one fixture: a new kind adds a line here and passes the contract."""

import itertools

import pytest

from strata.storage.folder import LocalStorage
from strata.storage.s3 import S3Storage
from tests.storage.server import BUCKET

_prefixes = itertools.count()


@pytest.fixture
def s3_storage(s3_settings):
    return S3Storage(BUCKET, f"tests/{next(_prefixes)}", s3_settings)


@pytest.fixture(params=["local", "s3"])
def storage(request, tmp_path):
    if request.param == "local":
        return LocalStorage(tmp_path / "root")
    return request.getfixturevalue("s3_storage")
