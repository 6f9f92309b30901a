"""Opens the weights that a path or URL names, if another tool wrote them.

A file is safetensors by its suffix, else of `torch.save`. A folder is of DCP (`.metadata`) or of
Hugging Face (`model.safetensors`, or the index of several files). Formats of PyTorch are read from
local disks only.
"""

from pathlib import Path

from strata.checkpoint.foreign.dcp_folder import METADATA_FILE, DcpFolder
from strata.checkpoint.foreign.safetensors_files import SafetensorsFiles, folder_files
from strata.checkpoint.foreign.torch_file import TorchFile
from strata.checkpoint.read.weight_source import WeightSource
from strata.config import Settings
from strata.errors import NotFound
from strata.storage.backend import StorageBackend
from strata.storage.folder import LocalStorage
from strata.storage.locations import open_storage

FILE_SUFFIX = ".safetensors"


def open_foreign(storage: StorageBackend, settings: Settings) -> WeightSource:
    """The weights at the place that a storage names: a file, or a folder."""
    url = storage.url
    if url.endswith(FILE_SUFFIX):
        folder, _, file = url.rpartition("/")
        return SafetensorsFiles(url, open_storage(folder or "/", settings), [file])
    path = Path(url) if isinstance(storage, LocalStorage) else None
    if path is not None and path.is_file():
        return TorchFile(path)
    if path is not None and (path / METADATA_FILE).is_file():
        return DcpFolder(path)
    files = folder_files(storage)
    if files:
        return SafetensorsFiles(url, storage, files)
    if path is not None and not path.exists():
        raise NotFound(f"{url} does not exist", hint="check the path; each worker reads it")
    raise NotFound(
        f"there are no weights in {url}",
        hint="give a checkpoint of Strata, a .safetensors file or a folder with model.safetensors; "
        "on a local disk also a file of torch.save or a folder of DCP",
    )
