"""A runtime for MLServer, which serves models by KServe's protocol (V2) over HTTP and gRPC.

Run `mlserver start .` in this folder. model-settings.json contains the model's path.
"""

import asyncio
import importlib
import os

from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.errors import InferenceError
from mlserver.types import InferenceRequest, InferenceResponse, MetadataTensor
from mlserver.utils import get_model_uri

DATATYPES = {"tensor(float)": "FP32", "tensor(double)": "FP64", "tensor(float16)": "FP16", "tensor(int64)": "INT64", "tensor(int32)": "INT32",
             "tensor(int8)": "INT8", "tensor(uint8)": "UINT8", "tensor(bool)": "BOOL"}  # fmt: skip


def described(values):
    """Describes inputs or outputs as in the protocol's metadata; -1 stands for an extent that each request determines."""
    return [
        MetadataTensor(name=value.name, datatype=DATATYPES[value.type], shape=[extent if isinstance(extent, int) else -1 for extent in value.shape])
        for value in values
    ]


class OnnxModel(MLModel):
    """Serves a model by one session, in which requests run at the same time on several threads."""

    async def load(self) -> bool:
        runtime = importlib.import_module(os.environ.get("RUNTIME", "treadle"))  # "onnxruntime" runs the same lines
        options = runtime.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = runtime.InferenceSession(await get_model_uri(self._settings), options, providers=["CPUExecutionProvider"])
        self.inputs, self.outputs = described(self._session.get_inputs()), described(self._session.get_outputs())
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        feeds = {tensor.name: NumpyCodec.decode_input(tensor) for tensor in payload.inputs}
        names = [output.name for output in payload.outputs or []] or [value.name for value in self._session.get_outputs()]
        try:
            results = await asyncio.to_thread(self._session.run, names, feeds)
        except Exception as error:  # the request has another form, dtype or shape than the model's inputs
            raise InferenceError(str(error)) from error
        outputs = [NumpyCodec.encode_output(name, result) for name, result in zip(names, results, strict=True)]
        return InferenceResponse(model_name=self.name, model_version=self.version, outputs=outputs)
