"""Tests that models from other exporters can be trained, and that other runtimes run the saved models."""

from __future__ import annotations

import json

import numpy as np
import pytest
from treadle.train import Trainer

from conftest import SHARED_DATA

onnx = pytest.importorskip("onnx")

# Models that cannot be trained, each with a part of the error's message. They have outputs of float16 or bytes, weights of bytes or within
# bodies, or a loop whose state changes its shape.
REFUSED = {
    "squeezenet_fp16": "f16",
    "superres_espcn_prepost": "u8",
    "squeezenet_int8_qoperator": "nothing to train",
    "silero_vad": "nothing to train",
    "slanet_plus_loop": "in one iteration and",
}
# Learning rates below the usual one, for models whose outputs are in the hundreds or whose statistics come from one image.
RATES = {"mnist_cntk": 1e-9, "style_candy": 1e-7, "char_gpt_kv_dynq": 1e-6, "sinet_portrait_seg": 1e-4, "smart_turn_v3_qdq": 1e-11}


def networks() -> list[str]:
    if SHARED_DATA is None:
        return []
    manifest = json.loads((SHARED_DATA / "manifest.json").read_text())
    models = manifest["models"] if isinstance(manifest, dict) else manifest
    return [model["name"] for model in models if not model["name"].startswith("ml_")]


def case_of(name: str) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    arrays = np.load(SHARED_DATA / "refs" / f"{name}.case0.npz")
    return tuple({key.split(":", 1)[1]: arrays[key] for key in arrays.files if key.startswith(side)} for side in ("in:", "out:"))


@pytest.mark.skipif(SHARED_DATA is None, reason="the shared models are not there")
@pytest.mark.parametrize("name", networks())
def test_every_network_learns_or_says_why_not(name: str) -> None:
    inputs, outputs = case_of(name)
    first = next((key for key, value in outputs.items() if value.dtype == np.float32), next(iter(outputs)))
    target = outputs[first] + 0.1 if outputs[first].dtype == np.float32 else outputs[first]
    options = {"output": first, "loss": "mean_squared_error", "learning_rate": RATES.get(name, 1e-6)}
    path = SHARED_DATA / "models" / f"{name}.onnx"
    if name in REFUSED:
        with pytest.raises(Exception, match=REFUSED[name]):
            Trainer(path, **options).step(inputs, target)
        return
    trainer = Trainer(path, **options)
    before = {key: value.copy() for key, value in trainer.parameters.items()}
    losses = [trainer.step(inputs, target) for _ in range(2)]
    assert np.isfinite(losses).all()
    assert losses[1] <= losses[0] * 1.01
    assert any(not np.array_equal(value, before[key]) for key, value in trainer.parameters.items())


@pytest.mark.skipif(SHARED_DATA is None, reason="the shared models are not there")
def test_weights_that_are_constant_nodes_learn(tmp_path, ort) -> None:
    """PaddlePaddle's exporter writes weights as Constant nodes."""
    name = "ppocr_cls_v2"
    inputs, outputs = case_of(name)
    (output,) = outputs
    trainer = Trainer(SHARED_DATA / "models" / f"{name}.onnx", output=output, loss="mean_squared_error", learning_rate=0.05)
    assert "conv1_bn_scale" in trainer.parameters
    assert set(trainer.states) >= {"conv1_bn_mean", "conv1_bn_variance"}
    target = np.float32([[0.2, 0.8], [0.7, 0.3]])[: len(outputs[output])]
    losses = [trainer.step(inputs, target) for _ in range(20)]
    assert losses[-1] < losses[0] / 2
    trainer.save(tmp_path / "tuned.onnx")
    model = onnx.load(tmp_path / "tuned.onnx")
    onnx.checker.check_model(model)
    assert {i.name for i in model.graph.initializer} >= set(trainer.parameters) | set(trainer.states)
    session = ort.InferenceSession(str(tmp_path / "tuned.onnx"), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run([output], inputs)[0], trainer.predict(inputs)[trainer.output_names.index(output)], rtol=1e-4, atol=1e-5)
