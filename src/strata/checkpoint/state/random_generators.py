"""The state of a process's random generators, saved with a checkpoint and restored.

Python's, NumPy's global one and, if it is in use, PyTorch's, on the host and on every device. Every
rank has its own. A script must save generators that it created itself.
"""

import random
import sys
from typing import Any

import numpy as np


def random_state() -> dict[str, Any]:
    """The state of the generators: plain values and arrays."""
    version, numbers, gauss = random.getstate()
    state: dict[str, Any] = {
        "python": {"version": version, "state": np.array(numbers, np.uint32), "gauss": gauss},
        "numpy": np.random.get_state(legacy=False),
    }
    torch = sys.modules.get("torch")
    if torch is not None:
        state["torch"] = torch.get_rng_state()
        if torch.cuda.is_initialized():
            state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def set_random_state(state: dict[str, Any]) -> None:
    """Restore the generators."""
    python = state["python"]
    random.setstate((python["version"], tuple(python["state"].tolist()), python["gauss"]))
    np.random.set_state(state["numpy"])
    torch = sys.modules.get("torch")
    if torch is not None and "torch" in state:
        torch.set_rng_state(state["torch"])
        cards = state.get("cuda", [])
        if cards and torch.cuda.is_available() and torch.cuda.device_count() == len(cards):
            torch.cuda.set_rng_state_all(cards)
