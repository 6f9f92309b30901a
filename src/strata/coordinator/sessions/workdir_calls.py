"""The gRPC call by which agents read the folders of tasks.

A folder that is damaged or incomplete here cannot be repaired by a retry, so the tasks whose
workers wait for it fail with the reason.
"""

import asyncio
import logging
from typing import Any

from strata.coordinator.engine.engine import Engine
from strata.coordinator.metrics.coordinator_metrics import Metrics
from strata.coordinator.sessions.unary_calls import SERVICE, decoder
from strata.coordinator.workdir_store import Workdirs
from strata.core.tasks.placement import FailStart
from strata.errors import Corrupt, InvalidArgument, NotFound, StrataError
from strata.wire.grpc.grpc_call import Call
from strata.wire.grpc.grpc_server import GrpcServer
from strata.wire.v1 import coordinator_pb2 as pb

log = logging.getLogger(__name__)


class WorkdirCalls:
    """Handler of `ReadWorkdir`."""

    def __init__(self, engine: Engine, workdirs: Workdirs, metrics: Metrics) -> None:
        self._engine = engine
        self._store = workdirs.store
        self._metrics = metrics

    def serve(self, server: GrpcServer) -> None:
        """Register the call with the server."""
        encode = pb.ReadWorkdirResponse.SerializeToString
        request = decoder(pb.ReadWorkdirRequest)
        server.unary(f"/{SERVICE}/ReadWorkdir", request, encode, self.read)

    async def read(
        self, request: pb.ReadWorkdirRequest, call: Call[Any, Any]
    ) -> pb.ReadWorkdirResponse:
        """Return a list of files, or a piece of a file."""
        self._metrics.count_request("grpc")
        try:
            content = await asyncio.to_thread(self._content, request.workdir, request.piece)
        except (Corrupt, NotFound) as error:
            await self._fail(request.workdir, error)
            raise
        return pb.ReadWorkdirResponse(content=content)

    def _content(self, workdir: str, piece: str) -> bytes:
        if not piece:
            return self._store.get_list(workdir)
        if piece not in self._store.workdir(workdir).pieces:
            raise InvalidArgument(
                f"folder {workdir[:100]} has no piece {piece[:100]!r}",
                hint="read its list of files first",
            )
        return self._store.get(piece)

    async def _fail(self, workdir: str, error: StrataError) -> None:
        tasks = list(self._engine.kernel.state.tasks.values())
        for task in tasks:
            if task.spec.workdir == workdir and not task.ended:
                about = {"task_id": task.id}
                log.error("no worker of task %s can be started: %s", task.id, error, extra=about)
                reason = f"cannot start: {error}"
                await self._engine.submit(FailStart(task=task.id, reason=reason))
