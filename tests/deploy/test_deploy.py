"""The examples of examples/deploy with the frameworks that they are made for: their answers must equal onnxruntime's. `scripts/setup --deploy` makes
`.venv-deploy` and `.venv-mlserver`, which also need Treadle's wheel."""

import http.client
import pathlib
import sys
import threading
import urllib.parse

import numpy as np
import pytest

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "bench"))
deploy = pytest.importorskip("deploy")
import load  # this module is in examples/deploy

MODEL = str(REPOSITORY / "examples/digits/digits.onnx")


@pytest.fixture(scope="module")
def expected():
    """Returns the scores of a batch of images."""
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(MODEL, providers=["CPUExecutionProvider"])
    return lambda pictures: session.run(None, {"image": pictures})[0]


def close(ours, theirs):
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", deploy.WEB)
def test_servers_answer_what_the_model_gives(kind, expected):
    pictures = [np.random.default_rng(seed).random((1 + seed % 3, 1, 8, 8), np.float32) for seed in range(24)]
    answers = {}
    with deploy.server(kind, MODEL, "treadle", "image") as (address, name):
        url = urllib.parse.urlsplit(address)

        def send(first):
            connection = http.client.HTTPConnection(url.hostname, url.port)
            for place in range(first, len(pictures), 4):
                body, headers = load.request_of(pictures[place], name)
                answers[place] = load.answer_of(load.post(connection, url.path, body, headers), name)

        threads = [threading.Thread(target=send, args=(first,)) for first in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        connection = http.client.HTTPConnection(url.hostname, url.port)
        wrong, headers = load.request_of(np.zeros((1, 1, 9, 8), np.float32), name)
        with pytest.raises(RuntimeError, match="image"):  # the error must name the input
            load.post(connection, url.path, wrong, headers)
        body, headers = load.request_of(pictures[0], name)
        close(load.answer_of(load.post(connection, url.path, body, headers), name), answers[0])  # the server must keep working
    assert len(answers) == len(pictures)
    for place, batch in enumerate(pictures):
        close(answers[place], expected(batch))


def test_mlserver_describes_the_model():
    with deploy.server("mlserver", MODEL, "treadle", "image") as (address, _):
        url = urllib.parse.urlsplit(address)
        connection = http.client.HTTPConnection(url.hostname, url.port)
        connection.request("GET", "/v2/models/model")
        text = connection.getresponse().read().decode()
    assert '"name":"image","datatype":"FP32","shape":[-1,1,8,8]' in text
    assert '"name":"scores","datatype":"FP32","shape":[-1,10]' in text


@pytest.mark.parametrize("kind", deploy.JOBS)
def test_data_sets_get_the_models_scores(kind, expected, tmp_path):
    out = tmp_path / "scores.npz"
    assert deploy.job(kind, MODEL, "treadle", "--rows", "1000", "--out", str(out)).endswith("rows/s")
    found = np.load(out)
    assert found["scores"].shape == (1000, 10)
    pictures = found["data"].reshape(-1, 1, 8, 8)
    order = np.arange(1000) if kind == "spark" else found["id"]
    close(found["scores"], expected(pictures[order]))
