"""ONNX Runtime as a runtime of MLServer, for benchmarks/serving.py, which writes its settings."""

import numpy as np
import onnxruntime
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse


class Session(MLModel):
    """One model."""

    async def load(self) -> bool:
        """Loads it."""
        options = onnxruntime.SessionOptions()
        extra = self.settings.parameters.extra
        options.intra_op_num_threads = extra["threads"]
        self._session = onnxruntime.InferenceSession(
            extra["path"], options, providers=["CPUExecutionProvider"]
        )
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """One request."""
        feeds = {one.name: NumpyCodec.decode_input(one) for one in payload.inputs}
        names = [one.name for one in self._session.get_outputs()]
        outputs = self._session.run(None, feeds)
        return InferenceResponse(
            model_name=self.name,
            outputs=[
                NumpyCodec.encode_output(name, np.asarray(value))
                for name, value in zip(names, outputs, strict=True)
            ],
        )
