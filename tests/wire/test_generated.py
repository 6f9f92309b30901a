"""Generated code, and backward compatibility of `v1`: clients built from an older proto continue to
work. tests/golden/coordinator-v1.binpb has everything that was released; it only grows. After
adding to the proto, regenerate it with `make proto`.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
    MethodDescriptorProto,
)

from strata.wire.v1 import coordinator_pb2 as pb

ROOT = Path(__file__).parents[2]
PROTO = ROOT / "proto" / "strata" / "v1"
GENERATED = ROOT / "src" / "strata" / "wire" / "v1"
GOLDEN = ROOT / "tests" / "golden" / "coordinator-v1.binpb"


def compile_proto(*outputs: str) -> None:
    """Generate as `make proto` does, into other folders."""
    command = [sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={PROTO}"]
    subprocess.run([*command, *outputs, "coordinator.proto"], check=True, timeout=60)


def golden() -> FileDescriptorProto:
    (file,) = FileDescriptorSet.FromString(GOLDEN.read_bytes()).file
    return file


Parts = dict[str, tuple[object, ...]]


def field_shape(field: FieldDescriptorProto) -> tuple[object, ...]:
    return (field.name, field.type, field.type_name, field.label)


def method_shape(method: MethodDescriptorProto) -> tuple[object, ...]:
    streaming = (method.client_streaming, method.server_streaming)
    return (method.input_type, method.output_type, *streaming)


def message_parts(name: str, message: DescriptorProto) -> Iterator[tuple[str, tuple[object, ...]]]:
    yield f"message {name}", ()
    for field in message.field:
        yield f"field {field.number} of {name}", field_shape(field)
    for nested in message.nested_type:
        yield from message_parts(f"{name}.{nested.name}", nested)
    for enum in message.enum_type:
        yield from enum_parts(f"{name}.{enum.name}", enum)


def enum_parts(name: str, enum: EnumDescriptorProto) -> Iterator[tuple[str, tuple[object, ...]]]:
    for value in enum.value:
        yield f"value {value.number} of {name}", (value.name,)


def parts(file: FileDescriptorProto) -> Parts:
    """Everything a client may rely on, by its identity on the wire."""
    found: Parts = {f"package {file.package}": ()}
    for message in file.message_type:
        found.update(message_parts(message.name, message))
    for enum in file.enum_type:
        found.update(enum_parts(enum.name, enum))
    for service in file.service:
        for method in service.method:
            found[f"method {service.name}.{method.name}"] = method_shape(method)
    return found


def broken(before: FileDescriptorProto, after: FileDescriptorProto) -> list[str]:
    """What a client of `before` would miss or misread in `after`."""
    then, now = parts(before), parts(after)
    return [name for name, shape in then.items() if now.get(name) != shape]


def test_generated_files_match_the_proto(tmp_path):
    description = tmp_path / "coordinator.binpb"
    compile_proto(f"--descriptor_set_out={description}", f"--pyi_out={tmp_path}")
    made = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert set(made) == {"coordinator.binpb", "coordinator_pb2.pyi"}
    committed = {name: (GENERATED / name).read_bytes() for name in made}
    assert committed == made, "run make proto"


def test_module_is_not_the_code_that_protoc_generates():
    # Which refuses protobuf of other major versions, so not every environment could import it.
    code = (GENERATED / "coordinator_pb2.py").read_text("utf-8")
    assert "ValidateProtobufRuntimeVersion" not in code, "restore it, and run make proto"


def test_module_has_every_message_and_enum_of_the_proto():
    for name, message in pb.DESCRIPTOR.message_types_by_name.items():
        assert getattr(pb, name).DESCRIPTOR is message
    for name, enum in pb.DESCRIPTOR.enum_types_by_name.items():
        assert {value.name: value.number for value in enum.values} == dict(
            getattr(pb, name).items()
        )
        assert all(getattr(pb, value.name) == value.number for value in enum.values)


def test_proto_is_backward_compatible(tmp_path):
    compile_proto(f"--descriptor_set_out={tmp_path / 'now.binpb'}")
    (now,) = FileDescriptorSet.FromString((tmp_path / "now.binpb").read_bytes()).file
    assert broken(golden(), now) == []
    assert parts(now) == parts(golden()), "the proto has grown: regenerate the golden file"


def drop_field(file: FileDescriptorProto) -> None:
    del file.message_type[0].field[1]


def drop_message(file: FileDescriptorProto) -> None:
    del file.message_type[0]


def drop_method(file: FileDescriptorProto) -> None:
    del file.service[0].method[2]


def drop_value(file: FileDescriptorProto) -> None:
    del file.enum_type[0].value[3]


def renumber(file: FileDescriptorProto) -> None:
    file.message_type[0].field[0].number = 99


def rename(file: FileDescriptorProto) -> None:
    file.message_type[0].field[0].name = "other"


def retype(file: FileDescriptorProto) -> None:
    file.message_type[0].field[2].type = FieldDescriptorProto.TYPE_STRING


def repeat(file: FileDescriptorProto) -> None:
    file.message_type[0].field[0].label = FieldDescriptorProto.LABEL_REPEATED


def unstream(file: FileDescriptorProto) -> None:
    next(m for m in file.service[0].method if m.name == "Session").server_streaming = False


def rename_package(file: FileDescriptorProto) -> None:
    file.package = "strata.v2"


@pytest.mark.parametrize(
    "change",
    [
        drop_field,
        drop_message,
        drop_method,
        drop_value,
        renumber,
        rename,
        retype,
        repeat,
        unstream,
        rename_package,
    ],
)
def test_compatibility_checker_finds_breaking_changes(
    change: Callable[[FileDescriptorProto], None],
):
    changed = golden()
    change(changed)
    assert broken(golden(), changed)


def test_compatibility_checker_accepts_additions():
    grown = golden()
    grown.message_type[0].field.add(name="more", number=99, type=FieldDescriptorProto.TYPE_INT64)
    grown.message_type.add(name="New")
    grown.service[0].method.add(name="Also")
    assert broken(golden(), grown) == []
