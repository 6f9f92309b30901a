"""The folder of an export: it appears complete, on disk, or not at all.

Everything is written into a hidden folder beside the target and synced; then the folder is renamed.
A failed export deletes the hidden folder. A killed process leaves it as `.NAME.….partial`, which no
program takes for an export.
"""

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from strata.errors import AlreadyExists
from strata.files import sync_folder
from strata.storage.storage_errors import disk_error


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A folder to write to; it becomes the target if the block succeeds."""
    require_absent(target)
    draft = target.with_name(f".{target.name}.{secrets.token_hex(4)}.partial")
    try:
        draft.mkdir(parents=True)
        yield draft
        sync_folder(draft)
        require_absent(target)
        draft.rename(target)
        sync_folder(target.parent)
    except BaseException as error:
        shutil.rmtree(draft, ignore_errors=True)
        if isinstance(error, OSError):
            raise disk_error(error, f"cannot write the export to {target}") from error
        raise


def require_absent(target: Path) -> None:
    if os.path.lexists(target):
        raise AlreadyExists(f"{target} already exists", hint="choose another folder with --out")
