"""Tests that a GPU refuses operands that do not fit together, and with the host's words. Their extents are known in the run only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from onnx import helper
from test_gpu_device import gpus

import treadle

def zeros(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.zeros(shape, dtype)


@dataclass
class Refusal:
    op_type: str
    feeds: list[np.ndarray]
    says: str
    attributes: dict[str, Any] = field(default_factory=dict)


BYTES, ONE = zeros(2, 3, dtype=np.uint8), np.ones(1, np.float32)
REFUSALS = [
    Refusal("GroupNormalization", [zeros(1, 4, 2), zeros(4), zeros(4)], "4 channels cannot be split into 3 groups", {"num_groups": 3}),
    Refusal("LRN", [zeros(1, 4, 2)], "size is 0", {"size": 0}),
    Refusal("LpPool", [zeros(1, 1, 4, 4)], "p is 0, not a positive integer", {"p": 0, "kernel_shape": [2, 2]}),
    Refusal("Multinomial", [zeros(1, 0)], "there are no classes to draw from", {"sample_size": 2}),
    Refusal("QuantizeLinear", [zeros(2, 3), zeros(2), BYTES[0, :2]], "2 scales for an axis of extent 3", {"axis": 1}),
    Refusal("QuantizeLinear", [zeros(2, 3), zeros(3), BYTES[0, :2]], "2 zero points for 3 scales", {"axis": 1}),
    Refusal("MatMulInteger", [BYTES, BYTES.T, BYTES[0, :1], BYTES[0]], "b_zero_point is [3]"),
    Refusal("QLinearMatMul", [BYTES, zeros(3), BYTES[0, :1], BYTES.T, ONE, BYTES[0, :1], ONE, BYTES[0, :1]], "a_scale is [3]"),
    Refusal("QLinearMatMul", [BYTES, ONE, BYTES[0, :1], BYTES.T, ONE, BYTES[0, :1], zeros(2), BYTES[0, :1]], "scales of the result: 2 and 1 differ"),
]


def refused(of: Refusal, device: str) -> str:
    """Returns the words of the error, without the node's name and the types of its operands."""
    fed = {f"x{i}": x for i, x in enumerate(of.feeds)}
    inputs = [helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(x.dtype), [f"{k}_{i}" for i in range(x.ndim)]) for k, x in fed.items()]
    node = helper.make_node(of.op_type, list(fed), ["y"], "node", **of.attributes)
    graph = helper.make_graph([node], "one", inputs, [helper.make_empty_tensor_value_info("y")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    options = treadle.SessionOptions()
    options.device = device
    session = treadle.InferenceSession(model.SerializeToString(), options)
    assert session.to_text("devices").startswith(device), "the node is on the device"
    with pytest.raises(treadle.Error) as caught:
        session.run(None, fed)
    return next(line for line in str(caught.value).splitlines() if of.says in line).strip()


@pytest.mark.parametrize("of", REFUSALS, ids=lambda of: f"{of.op_type}: {of.says}")
def test_operands_are_refused_with_the_words_of_the_host(of: Refusal) -> None:
    if not gpus():
        pytest.skip("no Vulkan")
    assert refused(of, "gpu:0") == refused(of, "cpu")
