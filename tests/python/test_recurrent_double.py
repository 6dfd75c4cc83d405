"""Tests that RNN, GRU and LSTM in float64 compute in double precision, like PyTorch's layers in double."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

import treadle

torch = pytest.importorskip("torch")

KINDS = {"RNN": (torch.nn.RNN, [0]), "GRU": (torch.nn.GRU, [1, 0, 2]), "LSTM": (torch.nn.LSTM, [0, 3, 1, 2])}


def onnx_weights(layer, kind: str, bidirectional: bool) -> list[np.ndarray]:
    """Returns W, R and B of PyTorch's layer, with gates in ONNX's order."""
    found = []
    for parts in (["weight_ih"], ["weight_hh"], ["bias_ih", "bias_hh"]):
        directions = []
        for suffix in ("_l0", "_l0_reverse")[: 1 + bidirectional]:
            rows = [np.split(getattr(layer, part + suffix).detach().numpy(), len(KINDS[kind][1])) for part in parts]
            directions.append(np.concatenate([gates[i] for gates in rows for i in KINDS[kind][1]]))
        found.append(np.stack(directions))
    return found


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_float64_is_computed_in_double(kind: str, constant: bool, bidirectional: bool) -> None:
    torch.manual_seed(3)
    steps, batch, width, hidden = 6, 3, 5, 7
    layer = KINDS[kind][0](width, hidden, bidirectional=bidirectional).double()
    x = torch.randn(steps, batch, width, dtype=torch.float64)
    y, last = layer(x)
    weights = dict(zip(("W", "R", "B"), onnx_weights(layer, kind, bidirectional)))
    attributes = {"hidden_size": hidden, "direction": "bidirectional" if bidirectional else "forward"}
    if kind == "GRU":
        attributes["linear_before_reset"] = 1
    outputs = ["Y", "Y_h", "Y_c"][: 3 if kind == "LSTM" else 2]
    node = helper.make_node(kind, ["X", *weights], outputs, **attributes)
    given = {"X": x.numpy()} | ({} if constant else weights)
    stored = [helper.make_tensor(name, 11, w.shape, w.reshape(-1)) for name, w in weights.items()] if constant else []
    inputs = [helper.make_tensor_value_info(name, 11, array.shape) for name, array in given.items()]
    graph = helper.make_graph([node], "layer", inputs, [helper.make_tensor_value_info(name, 11, None) for name in outputs], stored)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    found = treadle.InferenceSession(made).run(None, given)
    wanted = y.detach().numpy().reshape(steps, batch, 1 + bidirectional, hidden).transpose(0, 2, 1, 3)
    np.testing.assert_allclose(found[0], wanted, rtol=1e-13, atol=1e-14)
    for a, b in zip(found[1:], last if kind == "LSTM" else [last]):
        np.testing.assert_allclose(a, b.detach().numpy(), rtol=1e-13, atol=1e-14)
