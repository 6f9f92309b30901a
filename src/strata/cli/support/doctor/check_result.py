"""The result of one check of `strata doctor`."""

from typing import Literal, TypeAlias

from msgspec import Struct

Status: TypeAlias = Literal["ok", "fix", "not checked"]


class Check(Struct, frozen=True):
    """What was checked and found; `fix` is the command or the change that mends it."""

    name: str
    status: Status
    found: str
    fix: str = ""


def ok(name: str, found: str) -> Check:
    """A part that works."""
    return Check(name=name, status="ok", found=found)


def fix(name: str, found: str, command: str) -> Check:
    """A part that must be fixed."""
    return Check(name=name, status="fix", found=found, fix=command)


def unchecked(name: str, reason: str) -> Check:
    """A part that could not be checked."""
    return Check(name=name, status="not checked", found=reason)
