"""Messages of objects as JSON has them."""

from collections.abc import Mapping
from typing import TypeVar

from google.protobuf.message import Message

_Message = TypeVar("_Message", bound=Message)

class ParseError(Exception): ...

def ParseDict(js_dict: Mapping[str, object], message: _Message) -> _Message: ...
