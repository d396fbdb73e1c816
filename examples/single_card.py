"""One model on one device, with the mindspore_lite API.

shardrun exec examples/single_card.py --model_path=MODEL.onnx [--target=gpu]
"""

import argparse

import mindspore_lite as mslite
import numpy as np

parser = argparse.ArgumentParser()
parser.add_argument("--model_path", required=True)
parser.add_argument("--target", default="cpu", choices=["cpu", "gpu", "ascend"])
parser.add_argument("--thread_num", type=int, default=1)
arguments = parser.parse_args()

context = mslite.Context()
context.target = [arguments.target]
context.cpu.thread_num = arguments.thread_num
context.cpu.thread_affinity_mode = 2

model = mslite.Model()
model.build_from_file(arguments.model_path, mslite.ModelType.MINDIR, context)

inputs = model.get_inputs()
# Open dimensions (-1) need a length before there can be data.
model.resize(inputs, [[length if length > 0 else 1 for length in tensor.shape] for tensor in inputs])
for tensor in inputs:
    ones = np.ones_like(tensor.get_data_to_numpy())
    tensor.set_data_from_numpy(ones)

for output in model.predict(inputs):
    print(
        f"tensor name is:{output.name} tensor size is:{output.data_size} elements num is:{output.element_num}"
    )
    values = output.get_data_to_numpy().flatten()
    print("output data is:", *values[:50])
