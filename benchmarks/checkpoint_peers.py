"""Cost of saving and loading the same tensors with other libraries.

torch.save, safetensors and torch.distributed.checkpoint (DCP) run here: its async_save as
documented, with a stager that is kept, and with that, shared memory and its own process. A stall
ends when the state may change again. Orbax runs in its own environment.
"""

import os
import shutil
import time
from functools import partial
from pathlib import Path

from checkpoint_measures import forget, timed

DCP_KINDS = ("dcp_thread", "dcp_stager", "dcp_process")


class TorchPeers:
    """The peers that need torch; raises ImportError if it is not installed."""

    def __init__(self, folder: Path, state) -> None:
        import torch
        import torch.distributed.checkpoint as dcp
        from safetensors.torch import save_file

        self.torch, self.dcp, self.save_file = torch, dcp, save_file
        self.folder = folder
        self.state = {name: torch.from_numpy(array) for name, array in state.items()}
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        os.environ.setdefault("MASTER_PORT", "29531")
        torch.distributed.init_process_group("gloo", rank=0, world_size=1)
        self.kinds = self._kinds()
        for name, options in self.kinds.items():  # the first starts processes and takes memory
            futures(self._async_save(name, options))[1].result()
            shutil.rmtree(self.folder / name)

    def _async_save(self, name, options):
        return self.dcp.async_save(self.state, checkpoint_id=str(self.folder / name), **options)

    def _kinds(self) -> dict[str, dict[str, object]]:
        from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
        from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

        def stager(shared: bool) -> DefaultStager:
            return DefaultStager(
                StagingOptions(
                    use_pinned_memory=False,
                    use_shared_memory=shared,
                    use_async_staging=shared,
                    use_non_blocking_copy=False,
                )
            )

        process = AsyncCheckpointerType.PROCESS
        options = (
            {},
            {"async_stager": stager(False)},
            {"async_stager": stager(True), "async_checkpointer_type": process},
        )
        return dict(zip(DCP_KINDS, options, strict=True))

    def versions(self) -> dict[str, str]:
        import safetensors

        return {"torch": self.torch.__version__, "safetensors": safetensors.__version__}

    def measure(self, figures, training) -> None:
        file = self.folder / "peer"
        for name, save in (
            ("torch_save", lambda: self.torch.save(self.state, file)),
            ("safetensors", lambda: self.save_file(self.state, file)),
        ):
            figures[f"{name}_total_s"].append(timed(partial(synced, save, file)))
            file.unlink()
        self._measure_dcp(figures)
        for name, options in self.kinds.items():
            self._measure_async(figures, name, options, training)

    def _measure_dcp(self, figures) -> None:
        folder = self.folder / "dcp"
        save = partial(self.dcp.save, self.state, checkpoint_id=str(folder))
        figures["dcp_save_total_s"].append(timed(save))
        forget(folder)
        target = {name: self.torch.zeros_like(value) for name, value in self.state.items()}
        load = partial(self.dcp.load, target, checkpoint_id=str(folder))
        figures["dcp_load_s"].append(timed(load))
        shutil.rmtree(folder)

    def _measure_async(self, figures, name, options, training) -> None:
        begun = time.perf_counter()
        staged, uploaded = futures(self._async_save(name, options))
        staged.result()
        figures[f"{name}_stall_s"].append(time.perf_counter() - begun)
        uploaded.result()
        figures[f"{name}_total_s"].append(time.perf_counter() - begun)
        shutil.rmtree(self.folder / name)
        step_s = training.step_s()
        _, uploaded = futures(self._async_save(name, options))
        stolen_s = training.stolen_s(step_s, lambda: not uploaded.done())
        figures[f"{name}_stolen_s"].append(stolen_s)
        uploaded.result()
        shutil.rmtree(self.folder / name)


class Captured:
    """The staging of a save that was complete when its call returned."""

    def result(self) -> None:
        """Return at once: there is no staging to wait for."""


def futures(answer):
    """The futures of async_save: the end of staging, and of the upload."""
    if hasattr(answer, "upload_completion"):
        return answer.staging_completion, answer.upload_completion
    return Captured(), answer


def synced(save, path: Path) -> None:
    save()
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
