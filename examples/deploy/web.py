"""Serves a model with gunicorn or uvicorn: the body of a POST is an array (.npy), and the answer is the model's first output in the same format.

    MODEL=digits.onnx gunicorn --preload --workers 2 --threads 2 web:wsgi
    MODEL=digits.onnx uvicorn --workers 2 web:asgi

With --preload, gunicorn imports this module once and forks: all workers read the same pages of weights.
"""

import asyncio
import importlib
import io
import os

import numpy as np

runtime = importlib.import_module(os.environ.get("RUNTIME", "treadle"))  # "onnxruntime" runs the same lines

options = runtime.SessionOptions()
options.intra_op_num_threads = 1  # requests share the cores
session = runtime.InferenceSession(os.environ["MODEL"], options, providers=["CPUExecutionProvider"])
name = session.get_inputs()[0].name


def predict(body):
    """Runs the model on the array. @raises ValueError if the body is no array"""
    if not body.startswith(b"\x93NUMPY"):
        raise ValueError("the body is no array in the format .npy")
    batch = np.load(io.BytesIO(body), allow_pickle=False)
    answer = io.BytesIO()
    np.save(answer, session.run(None, {name: batch})[0])
    return answer.getvalue()


def wsgi(environ, start_response):
    """Answers gunicorn's requests, each on a thread of its own."""
    try:
        answer = predict(environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0)))
    except Exception as error:  # the request has another form, dtype or shape than the model's input
        start_response("400 Bad Request", [("Content-Type", "text/plain")])
        return [str(error).encode()]
    start_response("200 OK", [("Content-Type", "application/octet-stream"), ("Content-Length", str(len(answer)))])
    return [answer]


async def asgi(scope, receive, send):
    """For uvicorn: runs are on threads, so that the loop goes on with other requests."""
    if scope["type"] != "http":
        return
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    try:
        status, kind, answer = 200, b"application/octet-stream", await asyncio.to_thread(predict, body)
    except Exception as error:
        status, kind, answer = 400, b"text/plain", str(error).encode()
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", kind), (b"content-length", str(len(answer)).encode())]})
    await send({"type": "http.response.body", "body": answer})
