"""MindIR's messages as types, for what reads them. The classes are made in `schema`; a test compares its
table with these.

Nothing of it is there when the program runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from google.protobuf.internal.containers import (
        RepeatedCompositeFieldContainer,
        RepeatedScalarFieldContainer,
    )
    from google.protobuf.message import Message

    class External(Message):
        location: str
        offset: int
        length: int

    class Tensor(Message):
        dims: RepeatedScalarFieldContainer[int]
        data_type: int
        float_data: RepeatedScalarFieldContainer[float]
        int32_data: RepeatedScalarFieldContainer[int]
        string_data: RepeatedScalarFieldContainer[bytes]
        int64_data: RepeatedScalarFieldContainer[int]
        name: str
        raw_data: bytes
        double_data: RepeatedScalarFieldContainer[float]
        uint64_data: RepeatedScalarFieldContainer[int]
        external_data: External
        ref_key: str
        compression_type: int
        quant_params: RepeatedScalarFieldContainer[bytes]

    class Attribute(Message):
        name: str
        f: float
        i: int
        d: float
        s: bytes
        floats: RepeatedScalarFieldContainer[float]
        doubles: RepeatedScalarFieldContainer[float]
        ints: RepeatedScalarFieldContainer[int]
        strings: RepeatedScalarFieldContainer[bytes]
        tensors: RepeatedCompositeFieldContainer[Tensor]
        type: int
        values: RepeatedCompositeFieldContainer[Attribute]

    class ValueInfo(Message):
        name: str
        tensor: RepeatedCompositeFieldContainer[Tensor]
        denotation: str
        attr_info: Attribute

    class Node(Message):
        input: RepeatedScalarFieldContainer[str]
        output: RepeatedScalarFieldContainer[str]
        name: str
        op_type: str
        attribute: RepeatedCompositeFieldContainer[Attribute]
        domain: str

    class Graph(Message):
        node: RepeatedCompositeFieldContainer[Node]
        name: str
        parameter: RepeatedCompositeFieldContainer[Tensor]
        input: RepeatedCompositeFieldContainer[ValueInfo]
        output: RepeatedCompositeFieldContainer[ValueInfo]
        attribute: RepeatedCompositeFieldContainer[Attribute]
        map_parameter: RepeatedScalarFieldContainer[bytes]

    class Primitive(Message):
        name: str
        op_type: str
        attribute: RepeatedCompositeFieldContainer[Attribute]
        instance_name: str
        prim_type: int

    class Model(Message):
        ir_version: str
        producer_name: str
        producer_version: str
        model_version: str
        graph: Graph
        functions: RepeatedCompositeFieldContainer[Graph]
        little_endian: bool
        primitives: RepeatedCompositeFieldContainer[Primitive]
        mind_ir_version: int
