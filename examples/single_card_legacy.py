"""One model on one device, with the mindspore_lite API as it was before contexts had targets.

    shardrun exec examples/single_card_legacy.py MODEL.onnx INPUT.bin

INPUT.bin holds the first input's values, float32, in any shape of as many elements.
"""

import sys

import mindspore_lite as mslite
import numpy as np

if len(sys.argv) != 3:
    sys.exit("usage: shardrun exec examples/single_card_legacy.py MODEL.onnx INPUT.bin")
model_path, input_path = sys.argv[1:]

cpu = mslite.CPUDeviceInfo(enable_fp16=False)
context = mslite.Context(thread_num=1, thread_affinity_mode=2)
context.append_device_info(cpu)

model = mslite.Model()
model.build_from_file(model_path, mslite.ModelType.MINDIR, context)

inputs = model.get_inputs()
inputs[0].set_data_from_numpy(np.fromfile(input_path, dtype=np.float32))

outputs = model.get_outputs()
model.predict(inputs, outputs)

for output in outputs:
    name = output.get_tensor_name().rstrip()
    size, count = output.get_data_size(), output.get_element_num()
    print(f"tensor name is:{name} tensor size is:{size} tensor elements num is:{count}")
    values = output.get_data_to_numpy().flatten()
    print("output data is:", *values[:50])
