"""The messages of `launcher.serving.grpc.schema` whose fields are read or written by name, as types. A test
compares its table with these.

Nothing of it is there when the program runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from google.protobuf.internal.containers import (
        MessageMap,
        RepeatedCompositeFieldContainer,
        RepeatedScalarFieldContainer,
    )
    from google.protobuf.message import Message

    class Named(Message):
        name: str
        version: str

    class InferParameter(Message):
        bool_param: bool
        int64_param: int
        string_param: str
        double_param: float
        uint64_param: int

    class InferTensorContents(Message):
        bool_contents: RepeatedScalarFieldContainer[bool]
        int_contents: RepeatedScalarFieldContainer[int]
        int64_contents: RepeatedScalarFieldContainer[int]
        uint_contents: RepeatedScalarFieldContainer[int]
        uint64_contents: RepeatedScalarFieldContainer[int]
        fp32_contents: RepeatedScalarFieldContainer[float]
        fp64_contents: RepeatedScalarFieldContainer[float]
        bytes_contents: RepeatedScalarFieldContainer[bytes]

    class InferTensor(Message):
        name: str
        datatype: str
        shape: RepeatedScalarFieldContainer[int]
        parameters: MessageMap[InferParameter]
        contents: InferTensorContents

    class InferRequestedOutput(Message):
        name: str
        parameters: MessageMap[InferParameter]

    class ModelInferRequest(Message):
        model_name: str
        model_version: str
        id: str
        parameters: MessageMap[InferParameter]
        inputs: RepeatedCompositeFieldContainer[InferTensor]
        outputs: RepeatedCompositeFieldContainer[InferRequestedOutput]
        raw_input_contents: RepeatedScalarFieldContainer[bytes]

    class ModelInferResponse(Message):
        model_name: str
        model_version: str
        id: str
        parameters: MessageMap[InferParameter]
        outputs: RepeatedCompositeFieldContainer[InferTensor]
        raw_output_contents: RepeatedScalarFieldContainer[bytes]

    class ModelStreamInferResponse(Message):
        error_message: str
        infer_response: ModelInferResponse

    class ModelRepositoryParameter(Message):
        bool_param: bool
        int64_param: int
        string_param: str
        bytes_param: bytes

    class RepositoryIndexRequest(Message):
        repository_name: str
        ready: bool

    class RepositoryModelRequest(Message):
        repository_name: str
        model_name: str
        parameters: MessageMap[ModelRepositoryParameter]

    class HealthCheckRequest(Message):
        service: str
