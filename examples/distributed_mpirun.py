"""One model on several GPUs, one process each, started by mpirun; with the mindspore_lite API.

Each process finds its rank in its context and takes its own rank model: the
braces in the path stand for the rank.

    shardrun slice MODEL.onnx --ranks 2 --output slices
    mpirun -n 2 shardrun exec examples/distributed_mpirun.py --model_path="slices/rank_{}.onnx"

Without GPUs: `shardrun exec --target cpu`.
"""

import argparse

import mindspore_lite as mslite
import numpy as np

parser = argparse.ArgumentParser()
parser.add_argument("--model_path", required=True, help="with {} where the rank stands")
arguments = parser.parse_args()

context = mslite.Context()
context.target = ["gpu"]
context.gpu.device_id = context.gpu.rank_id
print(f"rank id: {context.gpu.rank_id}, group size: {context.gpu.group_size}")

model = mslite.Model()
model.build_from_file(arguments.model_path.format(context.gpu.rank_id), mslite.ModelType.MINDIR, context)

inputs = model.get_inputs()
if any(-1 in tensor.shape for tensor in inputs):  # an open dimension takes any length: here 1
    model.resize(inputs, [[max(axis, 1) for axis in tensor.shape] for tensor in inputs])
NUMPY = {mslite.DataType.INT32: np.int32, mslite.DataType.INT64: np.int64}
for tensor in inputs:
    tensor.set_data_from_numpy(np.ones(tensor.shape, dtype=NUMPY.get(tensor.dtype, np.float32)))

for output in model.predict(inputs):
    name, size, count = output.name.rstrip(), output.data_size, output.element_num
    print(f"tensor's name is:{name} data size is:{size} tensor elements num is:{count}")
    values = output.get_data_to_numpy().flatten()
    print("output data is:", *values[:10])
