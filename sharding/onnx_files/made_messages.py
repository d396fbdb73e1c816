"""Classes of protobuf messages, made from tables of field numbers.

They lie in a pool of their own, so that a program may import another library with messages of the same names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from google.protobuf.descriptor_pb2 import DescriptorProto
    from google.protobuf.message import Message

Fields = Mapping[str, tuple[int, str]]
"""Name -> number and type: protobuf's name of a type or a message of the table; ``*`` after it: repeated;
``{}`` after it: by a text."""


def message_classes(
    package: str, messages: Mapping[str, Fields], *, syntax: str = "proto2", choices: Mapping[str, str] = {}
) -> dict[str, type[Message]]:
    """The classes by name. ``choices``: messages of which one field at most is set, and the name of that."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax=syntax)
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        if name in choices:
            message.oneof_decl.add(name=choices[name])
        for field, (number, kind) in fields.items():
            if kind.endswith("{}"):
                entry = _entry(message, field)
                _add(entry, package, "key", (1, "string"), messages)
                _add(entry, package, "value", (2, kind[:-2]), messages)
                _add(message, package, field, (number, f"{name}.{entry.name}*"), messages)
            else:
                _add(message, package, field, (number, kind), messages, chosen=name in choices)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
        for name in messages
    }


def _entry(message: DescriptorProto, field: str) -> DescriptorProto:
    """The message of one entry of a mapping, which must have this name."""
    entry = message.nested_type.add(name="".join(map(str.capitalize, field.split("_"))) + "Entry")
    entry.options.map_entry = True
    return entry


def _add(
    message: DescriptorProto,
    package: str,
    name: str,
    field: tuple[int, str],
    messages: Mapping[str, Fields],
    *,
    chosen: bool = False,
) -> None:
    from google.protobuf import descriptor_pb2

    kinds = descriptor_pb2.FieldDescriptorProto
    number, kind = field
    repeated, plain = kind.endswith("*"), kind.rstrip("*")
    entry = message.field.add(name=name, number=number)
    entry.label = kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL
    if chosen:
        entry.oneof_index = 0
    if plain.split(".")[0] in messages:
        entry.type, entry.type_name = kinds.TYPE_MESSAGE, f".{package}.{plain}"
    else:
        entry.type = kinds.Type.Value(f"TYPE_{plain.upper()}")
