"""Server reflection, `grpc.reflection.v1` and `v1alpha`, so that tools can explore a server.

The two versions differ in name only, so both use the messages of v1alpha, and the description of v1
is derived from that of v1alpha. Services are those registered at the time of the request;
descriptions come from protobuf's default pool.
"""

from collections.abc import Callable, Iterator

from google.protobuf import descriptor_pool
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_reflection.v1alpha.reflection_pb2 import (
    DESCRIPTOR,
    ErrorResponse,
    ExtensionNumberResponse,
    FileDescriptorResponse,
    ListServiceResponse,
    ServerReflectionRequest,
    ServerReflectionResponse,
    ServiceResponse,
)

from strata.wire.grpc.grpc_call import CloseReason
from strata.wire.grpc.grpc_server import GrpcServer
from strata.wire.grpc.grpc_stream import GrpcStream
from strata.wire.http2.hpack import Status

PACKAGES = ("grpc.reflection.v1", "grpc.reflection.v1alpha")

_pool = descriptor_pool.Default()
_ReflectionStream = GrpcStream[ServerReflectionRequest, ServerReflectionResponse]


def serve_reflection(server: GrpcServer) -> None:
    def listen(stream: _ReflectionStream) -> _Questions:
        return _Questions(server, stream)

    _describe_v1()
    for package in PACKAGES:
        server.stream(
            f"/{package}.ServerReflection/ServerReflectionInfo",
            ServerReflectionRequest.FromString,
            ServerReflectionResponse.SerializeToString,
            listen,
        )


class _Questions:
    """Listener of one reflection stream."""

    def __init__(self, server: GrpcServer, stream: _ReflectionStream) -> None:
        self._server = server
        self._stream = stream

    def on_message(self, message: ServerReflectionRequest) -> None:
        answer = _ANSWERS.get(message.WhichOneof("message_request") or "", _unknown_question)
        try:
            response = answer(self._server, message)
        except KeyError:
            response = _error(Status.NOT_FOUND, "not found")
        response.valid_host = message.host
        response.original_request.CopyFrom(message)
        self._stream.send(response)

    def on_half_close(self) -> None:
        self._stream.finish()

    def on_close(self, reason: CloseReason) -> None:
        """Do nothing: the stream holds no state."""


def _list_services(
    server: GrpcServer, request: ServerReflectionRequest
) -> ServerReflectionResponse:
    names = sorted({path.split("/")[1] for path in server.methods})
    services = [ServiceResponse(name=name) for name in names]
    return ServerReflectionResponse(list_services_response=ListServiceResponse(service=services))


def _file_by_name(server: GrpcServer, request: ServerReflectionRequest) -> ServerReflectionResponse:
    return _files(_pool.FindFileByName(request.file_by_filename))


def _file_of_symbol(
    server: GrpcServer, request: ServerReflectionRequest
) -> ServerReflectionResponse:
    return _files(_pool.FindFileContainingSymbol(request.file_containing_symbol))


def _file_of_extension(
    server: GrpcServer, request: ServerReflectionRequest
) -> ServerReflectionResponse:
    wanted = request.file_containing_extension
    extended = _pool.FindMessageTypeByName(wanted.containing_type)
    extension = _pool.FindExtensionByNumber(extended, wanted.extension_number)
    return _files(_pool.FindFileContainingSymbol(extension.full_name))


def _extension_numbers(
    server: GrpcServer, request: ServerReflectionRequest
) -> ServerReflectionResponse:
    extended = _pool.FindMessageTypeByName(request.all_extension_numbers_of_type)
    numbers = sorted(extension.number for extension in _pool.FindAllExtensions(extended))
    response = ExtensionNumberResponse(base_type_name=extended.full_name, extension_number=numbers)
    return ServerReflectionResponse(all_extension_numbers_response=response)


def _unknown_question(
    server: GrpcServer, request: ServerReflectionRequest
) -> ServerReflectionResponse:
    return _error(Status.INVALID_ARGUMENT, "unsupported reflection request")


_ANSWERS: dict[str, Callable[[GrpcServer, ServerReflectionRequest], ServerReflectionResponse]] = {
    "list_services": _list_services,
    "file_by_filename": _file_by_name,
    "file_containing_symbol": _file_of_symbol,
    "file_containing_extension": _file_of_extension,
    "all_extension_numbers_of_type": _extension_numbers,
}


def _error(status: Status, message: str) -> ServerReflectionResponse:
    return ServerReflectionResponse(
        error_response=ErrorResponse(error_code=status, error_message=message)
    )


def _files(file: FileDescriptor) -> ServerReflectionResponse:
    """A file and its dependencies."""
    needed = {each.name: each.serialized_pb for each in _with_dependencies(file)}
    response = FileDescriptorResponse(file_descriptor_proto=needed.values())
    return ServerReflectionResponse(file_descriptor_response=response)


def _with_dependencies(file: FileDescriptor) -> Iterator[FileDescriptor]:
    yield file
    for dependency in file.dependencies:
        yield from _with_dependencies(dependency)


def _describe_v1() -> None:
    v1, v1alpha = PACKAGES
    description = FileDescriptorProto.FromString(DESCRIPTOR.serialized_pb)
    description.name = "grpc/reflection/v1/reflection.proto"
    description.package = v1
    for message in description.message_type:
        for field in filter(lambda each: each.type_name, message.field):
            field.type_name = field.type_name.replace(f".{v1alpha}.", f".{v1}.")
    for method in description.service[0].method:
        method.input_type = method.input_type.replace(f".{v1alpha}.", f".{v1}.")
        method.output_type = method.output_type.replace(f".{v1alpha}.", f".{v1}.")
    _pool.AddSerializedFile(description.SerializeToString())
