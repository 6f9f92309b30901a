"""The standard health service, `grpc.health.v1.Health`: Check and Watch.

A service is serving, not serving, or unknown; the empty name stands for the whole server. Watchers
are told at once and then at every change. The methods are public: a probe has no token.
"""

from collections import defaultdict

from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from strata.wire.grpc_call import Call, CloseReason, RpcError
from strata.wire.grpc_server import GrpcServer
from strata.wire.grpc_stream import Stream
from strata.wire.hpack import Status

SERVICE = "grpc.health.v1.Health"
MAX_SERVICE_CHARACTERS = 200

_SERVING = HealthCheckResponse(status=HealthCheckResponse.SERVING)
_NOT_SERVING = HealthCheckResponse(status=HealthCheckResponse.NOT_SERVING)
_UNKNOWN = HealthCheckResponse(status=HealthCheckResponse.SERVICE_UNKNOWN)

_WatchStream = Stream[HealthCheckRequest, HealthCheckResponse]


class Health:
    """What this server says of its services."""

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
        """Say how a service is; watchers hear of it if that is news."""
        answer = _SERVING if serving else _NOT_SERVING
        if self._answers.get(service) is not answer:
            self._answers[service] = answer
            for stream in self._watchers.get(service, ()):
                stream.send(answer)

    def close(self) -> None:
        """Say that nothing serves any more, and end the watches, which would outlive any grace."""
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
    """One watcher, from its request until its stream closes."""

    def __init__(self, health: Health, stream: _WatchStream) -> None:
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
        """The client has asked; what it asked for goes on."""

    def on_close(self, reason: CloseReason) -> None:
        if self._service is not None:
            self._health.unwatch(self._service, self._stream)
