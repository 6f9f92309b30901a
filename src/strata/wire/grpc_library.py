"""gRPC's own library, for clients: `from strata.wire.grpc_library import grpc`.

Its fork support has to be switched off before it is imported for the first time. A forked child
never uses the parent's channel (see `sdk.forks`), so there is nothing for it to do.
"""

from strata import config

config.tell_grpc()

import grpc  # noqa: E402
from grpc import aio  # noqa: E402

__all__ = ["aio", "grpc"]
