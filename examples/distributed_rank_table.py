"""One model on several Ascend devices, one process each, started by hand; with the mindspore_lite API.

The processes find each other by the rank table that the configuration file names.

    shardrun slice MODEL.onnx --ranks 2 --output slices
    for i in 0 1; do
        shardrun exec examples/distributed_rank_table.py --model_path=slices/rank_$i.onnx \
            --device_id=$i --rank_id=$i --config_file=examples/config_file.ini &
    done; wait

Without Ascend devices: `shardrun exec --target cpu`.
"""

import argparse

import mindspore_lite as mslite
import numpy as np

parser = argparse.ArgumentParser()
parser.add_argument("--model_path", required=True)
parser.add_argument("--device_id", type=int, required=True)
parser.add_argument("--rank_id", type=int, required=True)
parser.add_argument("--config_file", required=True)
arguments = parser.parse_args()

context = mslite.Context()
context.target = ["Ascend"]
context.ascend.device_id = arguments.device_id
context.ascend.rank_id = arguments.rank_id
context.ascend.provider = "ge"

model = mslite.Model()
model.build_from_file(arguments.model_path, mslite.ModelType.MINDIR, context, arguments.config_file)

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
