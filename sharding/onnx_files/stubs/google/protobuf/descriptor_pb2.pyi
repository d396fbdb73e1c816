"""Descriptions of messages, as messages."""

from google.protobuf.internal.containers import (
    RepeatedCompositeFieldContainer,
    RepeatedScalarFieldContainer,
)
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper
from google.protobuf.message import Message

class FieldDescriptorProto(Message):
    class Type(int, metaclass=EnumTypeWrapper): ...

    TYPE_MESSAGE: int
    LABEL_OPTIONAL: int
    LABEL_REPEATED: int
    name: str
    number: int
    label: int
    type: int
    type_name: str
    oneof_index: int

class OneofDescriptorProto(Message):
    name: str

class MessageOptions(Message):
    map_entry: bool

class DescriptorProto(Message):
    name: str
    field: RepeatedCompositeFieldContainer[FieldDescriptorProto]
    nested_type: RepeatedCompositeFieldContainer[DescriptorProto]
    oneof_decl: RepeatedCompositeFieldContainer[OneofDescriptorProto]
    options: MessageOptions

class FileDescriptorProto(Message):
    name: str
    package: str
    syntax: str
    dependency: RepeatedScalarFieldContainer[str]
    message_type: RepeatedCompositeFieldContainer[DescriptorProto]
    def __init__(self, *, name: str = ..., package: str = ..., syntax: str = ...) -> None: ...
