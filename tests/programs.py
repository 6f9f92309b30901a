"""Programs that tests run and pip does not have; `make test` installs them where it may."""

import shutil

import pytest

PACKAGES = {
    "chromium": "chromium",
    "node": "nodejs",
    "npm": "npm",
    "prometheus": "prometheus",
    "promtool": "prometheus",
}


def program(name: str) -> str:
    """The path of a program; without it the test fails and says what to install."""
    found = shutil.which(name)
    if found is None:
        pytest.fail(
            f"this test needs {name}: install it (Debian: apt-get install {PACKAGES[name]}), or "
            f"run make test where it may use apt-get",
            pytrace=False,
        )
    return found
