"""Tests training of attention: one node forward and one backward, with PyTorch's gradients."""

from __future__ import annotations

import io
import sys
import warnings

import numpy as np
import pytest
import treadle
from treadle.train import JointModule, Trainer

torch = pytest.importorskip("torch")
BATCH, LENGTH, HEADS, SIZE = 2, 9, 3, 4
WIDTH = HEADS * SIZE


def repeated(x):
    """Repeats one head of keys or values for all heads of queries."""
    return x.unsqueeze(2).expand(BATCH, 1, HEADS, LENGTH, SIZE).reshape(BATCH, HEADS, LENGTH, SIZE)


class Attention(torch.nn.Module):
    """Attention with queries, keys and values from one product ("packed") or from three. `kind` changes the scores."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.qkv = torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.q, self.k, self.v = (torch.nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.shared_k, self.shared_v = (torch.nn.Linear(WIDTH, SIZE) for _ in range(2))
        self.out = torch.nn.Linear(WIDTH, 5)
        self.bias = torch.nn.Parameter(torch.randn(1, HEADS, LENGTH, LENGTH))
        self.row = torch.nn.Parameter(torch.randn(LENGTH))

    def forward(self, x):
        if "shared" in self.kind:
            q = self.q(x).reshape(BATCH, LENGTH, HEADS, SIZE).transpose(1, 2)
            k, v = (repeated(layer(x).reshape(BATCH, LENGTH, 1, SIZE).transpose(1, 2)) for layer in (self.shared_k, self.shared_v))
        elif "separate" in self.kind:
            q, k, v = (layer(x).reshape(BATCH, LENGTH, HEADS, SIZE).transpose(1, 2) for layer in (self.q, self.k, self.v))
        else:
            parts = self.qkv(x).reshape(BATCH, LENGTH, 3, HEADS, SIZE).permute(2, 0, 3, 1, 4)
            q, k, v = (parts[2], parts[1], parts[0]) if "turned" in self.kind else (parts[0], parts[1], parts[2])
        scores = q @ k.transpose(-2, -1) / SIZE**0.5
        later = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
        if "bias" in self.kind:
            scores = scores + self.bias
        if "row" in self.kind:
            scores = scores + self.row
        if "causal" in self.kind:
            scores = scores.masked_fill(later, float("-inf"))
        if "finite" in self.kind:
            scores = scores.masked_fill(later, 0.5)
        y = torch.softmax(scores, -1) @ v
        return self.out(y.transpose(1, 2).reshape(BATCH, LENGTH, WIDTH))


KINDS = ["packed", "separate", "packed turned", "separate bias", "packed bias", "packed row", "packed causal", "separate causal", "packed finite", "shared",
         "shared causal"]


def exported(kind: str):
    torch.manual_seed(KINDS.index(kind))
    module, x, labels = Attention(kind), torch.randn(BATCH, LENGTH, WIDTH), torch.randn(BATCH, LENGTH, 5)
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, (x,), file, opset_version=17, input_names=["x"], output_names=["y"], dynamo=False, do_constant_folding=False)
    torch.nn.functional.mse_loss(module.double()(x.double()), labels.double()).backward()
    # The exporter transposes and renames the weights of products, so gradients are compared by values.
    gradients = [p.grad.numpy() for p in module.parameters() if p.grad is not None]
    return file.getvalue(), x.numpy(), labels.numpy(), gradients


def options(level: str) -> treadle.SessionOptions:
    made = treadle.SessionOptions()
    made.graph_optimization_level = getattr(treadle.GraphOptimizationLevel, level)
    return made


def matched(gradients, expected) -> None:
    left = list(gradients)
    for theirs in expected:
        shapes = [ours for ours in left if ours.shape in (theirs.shape, theirs.T.shape)]
        errors = [min(np.abs(form - theirs).max() for form in (ours, ours.T) if form.shape == theirs.shape) for ours in shapes]
        best = int(np.argmin(errors))
        assert errors[best] <= 2e-6 * max(1, np.abs(theirs).max()), (theirs.shape, errors)
        left = [ours for ours in left if ours is not shapes[best]]


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_those_of_pytorch(kind: str) -> None:
    model, x, labels, expected = exported(kind)
    for level in ("ORT_ENABLE_ALL", "ORT_ENABLE_BASIC"):
        trainer = Trainer(model, loss="mean_squared_error", learning_rate=0.1, sess_options=options(level))
        assert ("FusedAttentionGrad" in trainer.to_text()) == (level == "ORT_ENABLE_ALL")
        matched(trainer.gradients({"x": x}, labels).values(), expected)


def test_parts_of_one_product_have_one_gradient() -> None:
    model, *_ = exported("packed causal")
    text = Trainer(model, loss="mean_squared_error", learning_rate=0.1).to_text()
    assert text.count("= treadle.FusedAttentionGrad") == 1
    assert "Softmax" not in text and "Split" not in text and "Concat" not in text


def test_training_follows_the_graph_that_is_not_fused() -> None:
    model, x, labels, _ = exported("separate bias")
    losses = []
    for level in ("ORT_ENABLE_ALL", "ORT_DISABLE_ALL"):
        trainer = Trainer(model, loss="mean_squared_error", learning_rate=0.05, momentum=0.9, sess_options=options(level))
        losses.append([trainer.step({"x": x}, labels) for _ in range(20)])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)
    assert losses[0][-1] < losses[0][0]


def test_a_joint_module_has_the_gradient_of_its_input() -> None:
    model, x, labels, _ = exported("packed row")
    found = []
    for level in ("ORT_ENABLE_ALL", "ORT_DISABLE_ALL"):
        run = JointModule(model, inputs=["x"], sess_options=options(level)).forward({"x": x})
        found.append(run.backward([labels]))
    assert found[0].keys() == found[1].keys()
    for name, gradient in found[0].items():
        np.testing.assert_allclose(gradient, found[1][name], rtol=1e-4, atol=2e-6, err_msg=name)


def test_long_sequences_go_a_block_of_queries_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "LENGTH", 700)  # with this length, about 90 queries are in a block
    for kind in ("packed causal", "shared"):
        model, x, labels, expected = exported(kind)
        trainer = Trainer(model, loss="mean_squared_error", learning_rate=0.1)
        assert "FusedAttentionGrad" in trainer.to_text()
        matched(trainer.gradients({"x": x}, labels).values(), expected)
