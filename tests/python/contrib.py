"""Helpers that run models of a single operator of com.microsoft on Treadle and on ONNX Runtime."""

import numpy as np
import onnx
from onnx import helper, numpy_helper

import treadle


def model(op_type, inputs, outputs, attributes=None, constants=(), static=True, domain="com.microsoft", opset=21):
    """`inputs`: arrays by name, None for an absent one, in the order of the operator's. `outputs`: how many, or their names ("" for none).

    `static`: inputs are declared with their extents; False: with symbols; None: not even with a rank.
    """
    names = [name if array is not None else "" for name, array in inputs.items()]
    while names and not names[-1]:
        names.pop()
    outputs = [f"out{i}" for i in range(outputs)] if isinstance(outputs, int) else outputs
    node = helper.make_node(op_type, names, outputs, "node", domain=domain, **(attributes or {}))
    fed, stored = [], []
    for name, array in inputs.items():
        if array is None:
            continue
        if name in constants:
            stored.append(numpy_helper.from_array(array, name))
        else:
            shape = list(array.shape) if static else None if static is None else [f"{name}_{i}" for i in range(array.ndim)]
            fed.append(helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), shape))
    results = [helper.make_value_info(name, onnx.TypeProto()) for name in outputs if name]
    graph = helper.make_graph([node], "one_node", fed, results, stored)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()


def feeds_of(inputs, constants):
    return {name: array for name, array in inputs.items() if array is not None and name not in constants}


def run(made, feeds):
    return treadle.InferenceSession(made).run(None, feeds)


def compare(ort, op_type, inputs, outputs=1, attributes=None, constants=(), rtol=1e-5, atol=1e-5, steps=0, static=True, ranks=True, **more):
    """Compares both runtimes' outputs; integers may differ by `steps`. With `ranks`, also compares a model that declares no ranks of its inputs."""
    feeds = feeds_of(inputs, constants)
    made = model(op_type, inputs, outputs, attributes, constants, static, **more)
    session = ort.SessionOptions()
    session.log_severity_level = 4
    session.intra_op_num_threads = 1  # ONNX Runtime's rounding of recurrent states depends on the number of threads
    expected = ort.InferenceSession(made, session, providers=["CPUExecutionProvider"]).run(None, feeds)
    actual = run(made, feeds)
    what = f"{op_type} {attributes} {[(n, None if a is None else (a.dtype, a.shape)) for n, a in inputs.items()]}"
    results = [(actual, what)]
    if ranks:
        results.append((run(model(op_type, inputs, outputs, attributes, constants, None, **more), feeds), f"{what}, shapes not declared"))
    for given, label in results:
        assert len(expected) == len(given)
        for e, a in zip(expected, given):
            check_same(e, a, label, rtol, atol, steps)
    return actual


def check_same(e, a, what, rtol, atol, steps):
    assert e.dtype == a.dtype, what
    assert e.shape == a.shape, what
    if e.dtype.kind == "f":
        np.testing.assert_allclose(a.astype(np.float64), e.astype(np.float64), rtol=rtol, atol=atol, err_msg=what)
    elif steps:
        assert np.abs(a.astype(np.int64) - e.astype(np.int64)).max(initial=0) <= steps, what
    else:
        np.testing.assert_array_equal(a, e, err_msg=what)
