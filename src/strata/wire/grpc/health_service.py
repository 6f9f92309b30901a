"""The standard health service, `grpc.health.v1.Health`: Check and Watch.

A service is serving, not serving, or unknown; the empty name means the whole server. Watchers get
the present status and then every change. The methods are public, because a probe has no token.
"""

from collections import defaultdict

from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from strata.wire.grpc.grpc_call import Call, CloseReason, RpcError
from strata.wire.grpc.grpc_server import GrpcServer
from strata.wire.grpc.grpc_stream import GrpcStream
from strata.wire.http2.hpack import Status

SERVICE = "grpc.health.v1.Health"
MAX_SERVICE_CHARACTERS = 200

_SERVING = HealthCheckResponse(status=HealthCheckResponse.SERVING)
_NOT_SERVING = HealthCheckResponse(status=HealthCheckResponse.NOT_SERVING)
_UNKNOWN = HealthCheckResponse(status=HealthCheckResponse.SERVICE_UNKNOWN)

_WatchStream = GrpcStream[HealthCheckRequest, HealthCheckResponse]


class HealthService:
    """Health status of the server's services."""

    def __init__(self) -> None:
        self._answers = {"": _SERVING}
        self._watchers: defaultdict[str, set[_WatchStream]] = defaultdict(set)

    def serve_on(self, server: GrpcServer) -> None:
        def listen(stream: _WatchStream) -> _Watch:
            return _Watch(self, stream)

        decode, encode = HealthCheckRequest.FromString, HealthCheckResponse.SerializeToString
        server.unary(f"/{SERVICE}/Check", decode, encode, self._check, public=True)
        server.stream(f"/{SERVICE}/Watch", decode, encode, listen, public=True)

    def set(self, service: str, serving: bool) -> None:
        """Set the status of a service; watchers are notified if it changed."""
        answer = _SERVING if serving else _NOT_SERVING
        if self._answers.get(service) is not answer:
            self._answers[service] = answer
            for stream in self._watchers.get(service, ()):
                stream.send(answer)

    def close(self) -> None:
        """Set all services to not serving, and end the watch streams, which never end alone."""
        for service in list(self._answers):
            self.set(service, False)
        for streams in self._watchers.values():
            for stream in streams:
                stream.finish(Status.UNAVAILABLE, "the server is shutting down")

    def watch(self, service: str, stream: _WatchStream) -> None:
        self._watchers[service].add(stream)
        stream.send(self._answers.get(service, _UNKNOWN))

    def unwatch(self, service: str, stream: _WatchStream) -> None:
        streams = self._watchers[service]
        streams.discard(stream)
        if not streams:
            del self._watchers[service]

    def _check(
        self, request: HealthCheckRequest, call: Call[HealthCheckRequest, HealthCheckResponse]
    ) -> HealthCheckResponse:
        answer = self._answers.get(request.service)
        if answer is None:
            name = request.service[:MAX_SERVICE_CHARACTERS]
            raise RpcError(Status.NOT_FOUND, f"unknown service {name!r}")
        return answer


class _Watch:
    """Listener of one watch stream."""

    def __init__(self, health: HealthService, stream: _WatchStream) -> None:
        self._health = health
        self._stream = stream
        self._service: str | None = None

    def on_message(self, message: HealthCheckRequest) -> None:
        if self._service is not None:
            raise RpcError(Status.UNIMPLEMENTED, "Watch takes exactly one request")
        if len(message.service) > MAX_SERVICE_CHARACTERS:
            raise RpcError(Status.INVALID_ARGUMENT, "the name of the service is too long")
        self._service = message.service
        self._health.watch(message.service, self._stream)

    def on_half_close(self) -> None:
        """Do nothing: the watch continues."""

    def on_close(self, reason: CloseReason) -> None:
        if self._service is not None:
            self._health.unwatch(self._service, self._stream)
