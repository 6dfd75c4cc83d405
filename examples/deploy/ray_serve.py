"""Serves a model with Ray Serve: the body of a POST is an array (.npy), and the answer is the model's first output in the same format.

    MODEL=digits.onnx serve run ray_serve:app
"""

import asyncio
import importlib
import io
import os

import numpy as np
from ray import serve
from starlette.requests import Request
from starlette.responses import Response


@serve.deployment(num_replicas=int(os.environ.get("REPLICAS", "2")), ray_actor_options={"num_cpus": 1})
class Model:
    """One replica of the server, whose session has one thread."""

    def __init__(self, path, runtime="treadle"):
        runtime = importlib.import_module(runtime)  # "onnxruntime" runs the same lines
        options = runtime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self.name = self.session.get_inputs()[0].name

    def predict(self, body):
        if not body.startswith(b"\x93NUMPY"):
            raise ValueError("the body is no array in the format .npy")
        batch = np.load(io.BytesIO(body), allow_pickle=False)
        answer = io.BytesIO()
        np.save(answer, self.session.run(None, {self.name: batch})[0])
        return answer.getvalue()

    async def __call__(self, request: Request) -> Response:
        body = await request.body()
        try:
            return Response(await asyncio.to_thread(self.predict, body), media_type="application/octet-stream")
        except Exception as error:  # the request has another form, dtype or shape than the model's input
            return Response(str(error), status_code=400, media_type="text/plain")


app = Model.bind(os.path.abspath(os.environ["MODEL"]), os.environ.get("RUNTIME", "treadle"))
