"""Descriptions of messages and of their fields."""

class FileDescriptor:
    name: str

class EnumDescriptor:
    name: str

class FieldDescriptor:
    TYPE_STRING: int
    TYPE_MESSAGE: int
    name: str
    number: int
    type: int
    is_repeated: bool
    message_type: Descriptor | None

class Descriptor:
    name: str
    full_name: str
    fields: list[FieldDescriptor]
    fields_by_name: dict[str, FieldDescriptor]
