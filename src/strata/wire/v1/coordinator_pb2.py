"""The messages of proto/strata/v1/coordinator.proto, built from its compiled description.

The Python code that protoc generates runs only with protobuf of its own major version or the next
one, but training environments have 5, 6 or 7. The functions used here are the same in all of them.
`make proto` writes the description (`coordinator.binpb`) and the types (`coordinator_pb2.pyi`).
"""

from pathlib import Path

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper

_compiled = Path(__file__).with_name("coordinator.binpb").read_bytes()
(_file,) = FileDescriptorSet.FromString(_compiled).file
_pool = descriptor_pool.Default()
_pool.AddSerializedFile(_file.SerializeToString())
DESCRIPTOR = _pool.FindFileByName(_file.name)

for _name, _message in DESCRIPTOR.message_types_by_name.items():
    globals()[_name] = message_factory.GetMessageClass(_message)
for _name, _enum in DESCRIPTOR.enum_types_by_name.items():
    globals()[_name] = EnumTypeWrapper(_enum)
    globals().update({value.name: value.number for value in _enum.values})
