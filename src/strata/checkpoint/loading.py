"""`strata.load`: the state of a checkpoint by its path, in one line.

info = CheckpointManager("s3://bucket/model-alpha").get_latest()
model.load_state_dict(strata.load(info.path)["model"])
"""

import os
from typing import Any

from strata.checkpoint.catalog import is_id
from strata.checkpoint.format import MANIFEST_SUFFIX, CheckpointInfo
from strata.checkpoint.manager import CheckpointManager
from strata.config import Settings
from strata.errors import InvalidArgument


def load(
    path: str | os.PathLike[str] | CheckpointInfo,
    *,
    into: Any = None,
    settings: Settings | None = None,
) -> Any:
    """Return the state of a checkpoint, verified.

    `path` is that of a checkpoint (`CheckpointInfo.path`, or what `strata checkpoints` shows), or
    of the folder or bucket that holds several: then the newest that is whole is loaded. What was
    saved comes back as it was: `{"model": model.state_dict()}` has the tensors of the model under
    `["model"]`. With `into`, arrays and tensors of that state are filled in place.
    """
    if isinstance(path, CheckpointInfo):
        path = path.path
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        raise InvalidArgument(
            f"strata.load got {path!r:.80}",
            hint="give the path of a checkpoint, such as CheckpointManager(…).latest().path",
        )
    where = os.fspath(path).removesuffix(MANIFEST_SUFFIX).rstrip("/")
    where = where if "://" in where else os.path.abspath(where)
    root, _, name = where.rpartition("/")
    chosen = name if is_id(name) else None
    manager = CheckpointManager(root or "/" if chosen else where, settings=settings)
    try:
        return manager.load(chosen, into=into)
    finally:
        manager.storage.close()  # not the manager: whoever saves there needs the spare files
