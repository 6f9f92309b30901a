"""The gRPC library for clients: `from strata.wire.grpc_library import grpc`.

Its fork support has to be disabled before its first import: while a stream is open, its handlers
make forks slow and the exit of a forked process hang. It is not needed, because a forked child
never uses the parent's channel (see `sdk/session/channel`).
"""

from strata import config

config.export({"GRPC_ENABLE_FORK_SUPPORT": "0"})

import grpc  # noqa: E402
from grpc import aio  # noqa: E402

__all__ = ["aio", "grpc"]
