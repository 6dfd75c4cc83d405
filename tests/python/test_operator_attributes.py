"""Compares the attributes of operators with the schemas of ONNX and ONNX Runtime. Additional attributes are for graphs in memory, and
refused in files."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import treadle
from treadle import _treadle

# Attributes that are in no schema, with the places that define them.
EXCEPTED = {
    "com.microsoft:QuantizeLinear.block_size": "ONNX's operator",
    "com.microsoft:DequantizeLinear.block_size": "ONNX's operator",
    "com.microsoft:TransposeMatMul.transBatchA": "FusedMatMul, its newer name",
    "com.microsoft:TransposeMatMul.transBatchB": "FusedMatMul, its newer name",
}


def schemas(ort):
    """Returns the names of attributes that an operator has had in any version."""
    known: dict[tuple[str, str], set[str]] = {}
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    for schema in (*onnx.defs.get_all_schemas_with_history(), *state.get_all_operator_schema()):
        known.setdefault((schema.domain, schema.name), set()).update(schema.attributes)
    return known


def test_operators_have_the_attributes_of_their_schemas_only(ort):
    known = schemas(ort)
    beside = {
        f"{op['domain']}:{op['name']}.{attribute[0]}"
        for op in _treadle.operators()
        if (op["domain"], op["name"]) in known
        for attribute in op["attributes"]
        if attribute[0] not in known[op["domain"], op["name"]]
    }
    assert beside == set(EXCEPTED)


def test_a_file_sets_no_internal_attribute():
    operands = [numpy_helper.from_array(np.ones(3, np.float32), name) for name in ("scale", "shift", "mean", "variance")]
    node = helper.make_node("BatchNormalization", ["x", "scale", "shift", "mean", "variance"], ["y", "m", "v"], training_mode=1)
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in (("x", [4, 3]), ("y", [4, 3]), ("v", [3]))]
    model = helper.make_model(helper.make_graph([node], "g", infos[:1], infos[1:], operands), opset_imports=[helper.make_opsetid("", 15)], ir_version=8)
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    variance = treadle.InferenceSession(model.SerializeToString()).run(["v"], {"x": x})[0]
    np.testing.assert_allclose(variance, 0.9 + 0.1 * x.var(0), rtol=1e-6)  # the variance as ONNX defines it: divided by n, not by n - 1
    node = model.graph.node[0]
    node.attribute.append(helper.make_attribute("treadle.unbiased_variance", 1))
    with pytest.raises(treadle.Error, match='(?s)BatchNormalization.*the attribute "treadle.unbiased_variance" is not one of the operator\'s') as caught:
        treadle.InferenceSession(model.SerializeToString())
    assert caught.value.code == "not_implemented"
