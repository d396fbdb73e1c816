"""What the mindspore_lite package answers to CASES, as JSON on standard output.

Run with the package itself to make mindspore_lite_answers.json: Python 3.7, numpy and mindspore-lite 2.0.0,
    python mindspore_lite_answers.py > mindspore_lite_answers.json
The tests put the same cases to `ranks` and compare.
"""

import io
import json
import sys
import tempfile
from pathlib import Path

A_MODEL = str(Path(__file__).resolve().parent / "mindir" / "mlp" / "model_v1.mindir")

CASES = [
    # Printed forms. The value of the last expression is printed.
    "mslite.Context()",
    "mslite.Context().target",
    "mslite.Context().cpu",
    "mslite.Context().gpu",
    "mslite.Context().parallel",
    "mslite.Model()",
    "mslite.Tensor()",
    "repr(mslite.DataType.FLOAT32)",
    "[(one.name, one.value) for one in mslite.DataType]",
    "[(one.name, one.value) for one in mslite.Format]",
    "mslite.Format.NCHW",
    "repr(mslite.ModelType.MINDIR)",
    "mslite.ModelType.MINDIR_LITE",
    "c = mslite.Context(); c.target = ['GPU']; c",
    "c = mslite.Context(); c.target = []; c.target",
    "c = mslite.Context(); c.target = None; c.target",
    "c = mslite.Context(); c.target = ['Ascend', 'cpu']; c.target",
    "c = mslite.Context(); c.cpu.precision_mode = 'preferred_fp16'; c.cpu.thread_num = 2;"
    " c.cpu.inter_op_parallel_num = 2; c.cpu.thread_affinity_mode = 1;"
    " c.cpu.thread_affinity_core_list = [0, 1]; c.cpu",
    "c = mslite.Context(); c.gpu.precision_mode = 'preferred_fp16'; c.gpu.device_id = 2; c.gpu",
    "c = mslite.Context(); c.cpu.thread_affinity_mode = 7; c.cpu.thread_affinity_mode",
    "c = mslite.Context(); c.ascend.precision_mode",
    "c = mslite.Context(); c.ascend.precision_mode = 'enforce_fp32'; c.ascend.precision_mode",
    "p = mslite.Context().parallel; p.workers_num = 4;"
    " p.config_info = {'model_file': {'mindir_path': '/home/user/model_graph.mindir'}}; p",
    "p = mslite.Context().parallel; p.config_info = {'a': {'b': 'c'}}; p.config_info = {'a': {'b': 'd'}};"
    " repr(p.config_info)",
    # Tensors.
    "t = mslite.Tensor(); t.name = 'tensor1'; t.shape = [1, 3, 2, 2]; t.format = mslite.Format.NHWC; t",
    "t = mslite.Tensor(); t.shape = [1, -1]; t",
    "t = mslite.Tensor(); t.dtype = mslite.DataType.INT64; t.shape = [2, 3]; t.get_data_to_numpy()",
    "t = mslite.Tensor(); t.shape = [2, 2]; t.set_data_from_numpy(np.arange(4, dtype=np.float32));"
    " t.get_data_to_numpy()",
    "a = np.arange(3, dtype=np.float32); t = mslite.Tensor(); t.shape = [3]; t.set_data_from_numpy(a);"
    " a[0] = 9; t.get_data_to_numpy()",
    "t = mslite.Tensor(); t.shape = [2, 3]; t.set_data_from_numpy(np.ones((3, 2), np.float32));"
    " t.get_data_to_numpy().shape",
    *(
        f"t = mslite.Tensor(); t.dtype = mslite.DataType.{name}; t.shape = [2, 3];"
        " (t.dtype, t.data_size, t.element_num, str(t.get_data_to_numpy().dtype))"
        for name in (
            "BOOL",
            "INT8",
            "INT16",
            "INT32",
            "INT64",
            "UINT8",
            "UINT16",
            "UINT32",
            "UINT64",
            "FLOAT16",
            "FLOAT32",
            "FLOAT64",
        )
    ),
    "t = mslite.Tensor(); t.dtype = mslite.DataType.UNKNOWN; t.shape = [2, 3]; (t.data_size, t.element_num)",
    "mslite.Tensor().set_data_from_numpy([1.0])",
    "t = mslite.Tensor(); t.shape = [2]; t.set_data_from_numpy(np.zeros(2, np.complex64))",
    "t = mslite.Tensor(); t.shape = [2]; t.set_data_from_numpy(np.array(['a', 'b']))",
    "t = mslite.Tensor(); t.shape = [2]; t.set_data_from_numpy(None)",
    "t = mslite.Tensor(); t.shape = [4]; t.set_data_from_numpy(np.zeros((2, 2), np.float32)); t.shape",
    "t = mslite.Tensor(); t.shape = [4]; t.set_data_from_numpy(np.zeros(4, np.float32)[::2])",
    "t = mslite.Tensor(); t.shape = [True]; t.shape",
    "t = mslite.Tensor(); t.shape = []; (t.element_num, t.data_size)",
    "t = mslite.Tensor(); t.dtype = mslite.DataType.INVALID; t.dtype",
    "c = mslite.Context(); c.target = ['cpu', 'cpu']; c.target",
    "c = mslite.Context(); c.target = ['gpu', 'cpu', 'ascend']; c.target",
    "c = mslite.Context(); c.target = ['']; c.target",
    "c = mslite.Context(); c.cpu.thread_affinity_core_list = [-1]; c.cpu.thread_affinity_core_list",
    "c = mslite.Context(); c.gpu.device_id = True; c.gpu.device_id",
    "c = mslite.Context(); (c.gpu.rank_id, c.gpu.group_size)",
    "mslite.ModelType(7)",
    "mslite.DataType(43)",
    "mslite.DataType['FLOAT32']",
    "mslite.FmkType(9)",
    "mslite.Tensor().set_data_from_numpy(np.zeros((), np.int64))",
    "mslite.Tensor().set_data_from_numpy(np.zeros(4, np.float32))",
    "mslite.Tensor().shape = 3",
    "mslite.Tensor().shape = [1.0]",
    "mslite.Tensor().shape = [1, None]",
    "mslite.Tensor().dtype = np.float32",
    "mslite.Tensor().name = 1",
    "mslite.Tensor().format = 'NCHW'",
    "mslite.Tensor().data_size = 1",
    "mslite.Tensor().element_num = 1",
    "mslite.Tensor(1)",
    # Types and values of options.
    "mslite.Context().target = 1",
    "mslite.Context().target = 'cpu'",
    "mslite.Context().target = ('cpu',)",
    "mslite.Context().target = [1]",
    "mslite.Context().target = ['cpu', None]",
    "mslite.Context().target = ['NPU']",
    "mslite.Context().cpu.thread_num = -1",
    "mslite.Context().cpu.thread_num = '1'",
    "mslite.Context().cpu.thread_num = None",
    "mslite.Context().cpu.inter_op_parallel_num = 1.0",
    "mslite.Context().cpu.inter_op_parallel_num = -3",
    "mslite.Context().cpu.thread_affinity_mode = '1'",
    "mslite.Context().cpu.thread_affinity_core_list = None",
    "mslite.Context().cpu.thread_affinity_core_list = (0, 1)",
    "mslite.Context().cpu.thread_affinity_core_list = ['a']",
    "mslite.Context().cpu.precision_mode = 1",
    "mslite.Context().cpu.precision_mode = 'fp16'",
    "mslite.Context().gpu.precision_mode = None",
    "mslite.Context().gpu.precision_mode = 'enforce_fp16'",
    "mslite.Context().gpu.device_id = 'a'",
    "mslite.Context().gpu.device_id = -1",
    "mslite.Context().ascend.device_id = 1.5",
    "mslite.Context().ascend.device_id = -1",
    "mslite.Context().ascend.precision_mode = 3",
    "mslite.Context().ascend.precision_mode = 'a'",
    "mslite.Context().parallel.workers_num = -1",
    "mslite.Context().parallel.workers_num = 'a'",
    "mslite.Context().parallel.config_info = 3",
    "mslite.Context().parallel.config_info = {1: {}}",
    "mslite.Context().parallel.config_info = {'a': 2}",
    "mslite.Context().parallel.config_info = {'a': {1: 'b'}}",
    "mslite.Context().parallel.config_info = {'a': {'b': 2}}",
    "mslite.Context().parallel.config_path = 2",
    "mslite.Context().parallel.config_path = '/no/such/file'",
    "mslite.Context().parallel.config_path = ''",
    # Models.
    "mslite.Model().get_inputs()",
    "mslite.Model().predict(1)",
    "mslite.Model().predict({})",
    "mslite.Model().predict([1])",
    "mslite.Model().predict([])",
    "mslite.Model().resize(1, [])",
    "mslite.Model().resize([], 1)",
    "mslite.Model().resize([1], [[1]])",
    "mslite.Model().resize([mslite.Tensor()], [1])",
    "mslite.Model().resize([mslite.Tensor()], [[1, 'a']])",
    "mslite.Model().resize([mslite.Tensor()], [])",
    "mslite.Model().resize([], [])",
    "mslite.Model().build_from_file(1, mslite.ModelType.MINDIR)",
    "mslite.Model().build_from_file('m.mindir', 0)",
    "mslite.Model().build_from_file('m.mindir', mslite.ModelType.MINDIR, 3)",
    "mslite.Model().build_from_file('m.mindir', mslite.ModelType.MINDIR, None, 4)",
    "mslite.Model().build_from_file('/no/such/file', mslite.ModelType.MINDIR)",
    "mslite.Model().build_from_file(a_file, mslite.ModelType.MINDIR, None, '/no/such/file')",
    "mslite.Model().build_from_file(a_file, mslite.ModelType.MINDIR)",
    "mslite.Model().build_from_file(a_file, mslite.ModelType.MINDIR_LITE, mslite.Context())",
    # Runners.
    "mslite.ModelParallelRunner()",
    "mslite.ModelParallelRunner().get_inputs()",
    "mslite.ModelParallelRunner().predict(1)",
    "mslite.ModelParallelRunner().predict({})",
    "mslite.ModelParallelRunner().predict([1])",
    "mslite.ModelParallelRunner().predict([])",
    "mslite.ModelParallelRunner().predict([mslite.Tensor()])",
    "mslite.ModelParallelRunner().build_from_file(1)",
    "mslite.ModelParallelRunner().build_from_file(None)",
    "mslite.ModelParallelRunner().build_from_file('')",
    "mslite.ModelParallelRunner().build_from_file('/no/such/file')",
    "mslite.ModelParallelRunner().build_from_file('/no/such/file', 3)",
    "mslite.ModelParallelRunner().build_from_file(a_file, 3)",
    "mslite.ModelParallelRunner().build_from_file(a_file)",
    "mslite.ModelParallelRunner().build_from_file(a_file, mslite.Context())",
    "c = mslite.Context(); c.parallel.workers_num = 2;"
    " mslite.ModelParallelRunner().build_from_file(a_file, context=c)",
]

# Every property, with a value of every kind (but tuples, which later releases take for lists), and every
# argument of every call. "t" is a tensor, "built" a model of one input x of shape [4, 20].
VALUES = (
    *("None", "True", "-1", "3", "1.5", "'a'", "''", "b'a'", "[]", "['a']", "[1]", "[1.5]", "[None]", "{}"),
    *("{'a': 1}", "{'a': {'b': 'c'}}", "object", "mslite.DataType.INT8", "mslite.Format.NHWC"),
)
PROPERTIES = (
    *("Context().target", "Context().cpu.thread_num", "Context().cpu.inter_op_parallel_num"),
    *("Context().cpu.thread_affinity_mode", "Context().cpu.thread_affinity_core_list"),
    *("Context().cpu.precision_mode", "Context().gpu.precision_mode", "Context().gpu.device_id"),
    *("Context().gpu.rank_id", "Context().gpu.group_size", "Context().ascend.precision_mode"),
    *("Context().ascend.device_id", "Context().parallel.workers_num", "Context().parallel.config_info"),
    *("Context().parallel.config_path", "Tensor().name", "Tensor().dtype", "Tensor().shape"),
    *("Tensor().format", "Tensor().element_num", "Tensor().data_size"),
    *("Converter().decrypt_key", "Converter().decrypt_mode", "Converter().device", "Converter().optimize"),
    *("Converter().enable_encryption", "Converter().encrypt_key", "Converter().infer"),
    *("Converter().input_data_type", "Converter().output_data_type", "Converter().input_format"),
    *("Converter().input_shape", "Converter().save_type", "Converter().weight_fp16"),
)
_BUILT = "built = mslite.Model(); built.build_from_file(a_model, mslite.ModelType.MINDIR); "
_TENSOR = "t = mslite.Tensor(); t.shape = [4, 20]; "
CALLS = (
    *(
        "Tensor({})",
        "Tensor().set_data_from_numpy({})",
        "Model().build_from_file({}, mslite.ModelType.MINDIR)",
    ),
    *("Model().build_from_file(a_file, {})", "Model().build_from_file(a_file, mslite.ModelType.MINDIR, {})"),
    "Model().build_from_file(a_file, mslite.ModelType.MINDIR, None, {})",
    *("Model().predict({})", "Model().resize({}, [])", "Model().resize([], {})"),
    *("ModelParallelRunner().build_from_file({})", "ModelParallelRunner().build_from_file(a_file, {})"),
    "ModelParallelRunner().predict({})",
    *("Converter().convert({}, a_file, 'out')", "Converter().convert(mslite.FmkType.ONNX, {}, 'out')"),
    *("Converter().set_config_info({}, {{}})", "Converter().set_config_info('section', {})"),
)
CASES += [f"mslite.{name} = {value}" for name in PROPERTIES for value in VALUES]
CASES += [f"mslite.{call.format(value)}" for call in CALLS for value in VALUES]
CASES += [_TENSOR + f"mslite.Model().resize([t], [{value}])" for value in VALUES]
CASES += [_TENSOR + f"mslite.Model().resize([t], [[4, {value}]])" for value in VALUES]
CASES += [_BUILT + f"built.predict([{value}])" for value in VALUES]
CASES += [_BUILT + f"built.resize([{value}], [[4, 20]])" for value in VALUES]
CASES += [_BUILT + _TENSOR + f"built.resize([t], [{value}])" for value in VALUES]
CASES += [
    _BUILT + last
    for last in (
        "[(t.name, t.shape, t.dtype, t.format) for t in built.get_inputs()]",
        "built.predict([])",
        "built.predict(built.get_inputs() * 2)",
        "built.resize(built.get_inputs(), [])",
        "built.resize(built.get_inputs() * 2, [[4, 20], [4, 20]])",
        "built.resize(built.get_inputs(), [[4, 20], [4, 20]])",
        "built.resize(built.get_inputs(), [[4, 20, 1]])",
        "built.resize(built.get_inputs(), [[4]])",
        "built.resize(built.get_inputs(), [[4, 21]])",
        "built.get_inputs()[0].set_data_from_numpy(np.zeros((4, 20)))",
        "built.get_inputs()[0].set_data_from_numpy(np.zeros((4, 15), np.float32))",
        "built.get_inputs()[0].set_data_from_numpy(np.zeros(80, np.float32))",
        "built.get_inputs()[0].set_data_from_numpy(np.zeros((4, 20), np.int32))",
        "built.build_from_file(a_file, mslite.ModelType.MINDIR)",
        "built.build_from_file(a_model, mslite.ModelType.MINDIR, None, a_file + '.none')",
    )
]
CASES += [
    "mslite.Converter()",
    "[(one.name, one.value) for one in mslite.FmkType]",
    "mslite.FmkType.ONNX",
    "mslite.Converter().get_config_info()",
    "mslite.Converter().convert(mslite.FmkType.ONNX, '/no/such/file', 'out')",
    "mslite.Converter().convert(mslite.FmkType.ONNX, a_file, 3)",
    "mslite.Converter().convert(mslite.FmkType.ONNX, a_file, 'out', 3)",
    "mslite.Converter().convert(mslite.FmkType.ONNX, a_file, 'out', '', 3)",
    "mslite.Converter().convert(mslite.FmkType.ONNX, a_file, 'out', '/no/such/file')",
    "mslite.Converter().convert(mslite.FmkType.ONNX, a_file, 'out', '', '/no/such/file')",
    "c = mslite.Converter(); c.set_config_info('a', {'b': 'c'}); c.get_config_info()",
    "c = mslite.Converter(); c.set_config_info('a', {'b': 'c'}); c.set_config_info('a', {'d': 'e'});"
    " c.get_config_info()",
    "c = mslite.Converter(); c.set_config_info('', {'b': 'c'}); c.get_config_info()",
    "c = mslite.Converter(); c.set_config_info(); c.get_config_info()",
    "c = mslite.Converter(); c.set_config_info('a'); c.get_config_info()",
    "mslite.Converter().set_config_info('a', {'b': 1})",
    "mslite.Converter().set_config_info('a', {1: 'b'})",
    *(
        f"c = mslite.Converter(); c.{name} = {value}; c"
        for name, value in (
            ("decrypt_key", "'30313233343637383939414243444546'"),
            ("decrypt_mode", "'AES-CBC'"),
            ("device", "'Ascend'"),
            ("optimize", "'none'"),
            ("optimize", "'ascend_oriented'"),
            ("enable_encryption", "True"),
            ("input_data_type", "mslite.DataType.UNKNOWN"),
            ("input_data_type", "mslite.DataType.FLOAT16"),
            ("output_data_type", "mslite.DataType.UINT8"),
            ("output_data_type", "mslite.DataType.INT64"),
            ("input_format", "mslite.Format.NCHW"),
            ("input_format", "mslite.Format.NC4"),
            ("input_shape", "{'x': [1, -1, 3]}"),
            ("input_shape", "{'x': (1, 2)}"),
            ("input_shape", "{'x': [1.5]}"),
            ("input_shape", "{1: [1]}"),
            ("input_shape", "{'x': [True]}"),
            ("save_type", "mslite.ModelType.MINDIR_LITE"),
            ("weight_fp16", "True"),
            ("infer", "True"),
        )
    ),
    "mslite.Converter(1)",
    "mslite.Converter().convert()",
    "mslite.Converter().convert(mslite.FmkType.ONNX)",
    "mslite.Converter().convert(mslite.FmkType.ONNX, a_file)",
]
# Calls with arguments missing or too many: the words are Python's own.
CASES += [
    "mslite.Model().build_from_file()",
    "mslite.Model().build_from_file(a_file)",
    "mslite.Model().build_from_file(model=a_file)",
    "mslite.Model().predict()",
    "mslite.Model().resize()",
    "mslite.Model().resize([])",
    "mslite.ModelParallelRunner().build_from_file()",
    "mslite.ModelParallelRunner().predict()",
    "mslite.Tensor().set_data_from_numpy()",
]


def answer(case, mslite, np, a_file):
    """What one case prints, or the type and message of what it raises."""
    names = {"mslite": mslite, "np": np, "a_file": a_file, "a_model": A_MODEL}
    *statements, last = [part.strip() for part in case.split(";")]
    try:
        for statement in statements:
            exec(statement, names)
        if " = " in last:
            exec(last, names)
            return "None"
        printed = io.StringIO()
        print(eval(last, names), file=printed, end="")
        return printed.getvalue()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    import mindspore_lite
    import numpy

    with tempfile.NamedTemporaryFile() as file:
        file.write(b"no model\n")
        file.flush()
        answers = {case: answer(case, mindspore_lite, numpy, file.name) for case in CASES}
    json.dump(answers, sys.stdout, indent=1, sort_keys=True)
    print()
