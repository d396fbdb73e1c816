"""Classes from descriptions."""

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

def GetMessageClass(descriptor: Descriptor) -> type[Message]: ...
