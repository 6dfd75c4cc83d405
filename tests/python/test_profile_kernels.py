"""Tests the reasons that profiles give for kernels that do not compute a node."""

import numpy as np
from onnx import TensorProto, helper, numpy_helper

import treadle
from small_models import model
from small_models import tensor as info


def model_of(nodes, inputs, outputs, constants=None):
    return model(nodes, inputs, outputs, [numpy_helper.from_array(np.asarray(value), name) for name, value in (constants or {}).items()], opset=18)


def session_of(model, optimised=True, **options):
    made = treadle.SessionOptions()
    made.intra_op_num_threads = 1
    if not optimised:
        made.graph_optimization_level = treadle.GraphOptimizationLevel.ORT_DISABLE_ALL
    for name, value in options.items():
        setattr(made, name, value)
    return treadle.InferenceSession(model, made)


def random(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


PRODUCTS = model_of(
    [
        helper.make_node("MatMul", ["x", "w"], ["a"], "by_constant"),
        helper.make_node("MatMul", ["a", "z"], ["b"], "by_computed"),
        helper.make_node("Mod", ["b", "five"], ["y"], "rest", fmod=1),
    ],
    [info("x", [3, 4]), info("z", [5, 6])],
    [info("y", [3, 6])],
    {"w": random(4, 5), "five": np.float32(5)},
)
PRODUCT_FEEDS = {"x": random(3, 4), "z": random(5, 6)}


def unused_of(nodes):
    return {node.name: [(unused.name, unused.why) for unused in node.unused_kernels] for node in nodes}


def check_unused(unused):
    assert ("packed", "B is not constant") in unused["by_computed"], unused
    assert not any("B is not constant" in why for _, why in unused["by_constant"]), unused
    assert ("plain", "packed goes before it") in unused["by_constant"], unused
    # The kernel's element types, none of which is the node's.
    assert any(why.startswith("for ") and "float64" in why and why.endswith(", not float32") for _, why in unused["rest"]), unused


def test_nodes_say_why_other_kernels_do_not_compute_them(tmp_path):
    session = session_of(PRODUCTS, optimised=False)
    with treadle.profile(session, peaks=False, passes=True, stream_to=tmp_path / "run.profile") as streamed, treadle.profile(session, peaks=False) as without:
        session.run(None, PRODUCT_FEEDS)
    check_unused(unused_of(streamed.nodes))
    assert all(node.unused_kernels == () for node in without.nodes), "it costs nothing unless asked for"
    with treadle.profile(session, peaks=False, passes=True) as p:
        session.run(None, PRODUCT_FEEDS)
    assert unused_of(p.nodes) == unused_of(streamed.nodes)
    saved = tmp_path / "p.json"
    p.save(saved)
    assert unused_of(treadle.Profile.load(saved).nodes) == unused_of(p.nodes)


def test_explain_says_why_other_kernels_do_not_compute_a_node():
    options = treadle.SessionOptions()
    options.graph_optimization_level = treadle.GraphOptimizationLevel.ORT_DISABLE_ALL
    explanation = treadle.explain(PRODUCTS, sess_options=options)
    nodes = {node["name"]: [(u["kernel"], u["why"]) for u in node.get("unused_kernels", [])] for node in explanation.data["nodes"]}
    check_unused(nodes)
    history = explanation.node("by_computed")
    assert [(u.name, u.why) for u in history.unused_kernels] == nodes["by_computed"]
    assert "kernel packed is not taken: B is not constant" in str(history)


def test_nodes_of_bodies_say_it_too():
    body = helper.make_graph(
        [helper.make_node("MatMul", ["x", "z"], ["inner"], "product")], "then", [], [info("inner", [3, 4])]
    )
    other = helper.make_graph([helper.make_node("Identity", ["x"], ["outer"], "same")], "else", [], [info("outer", [3, 4])])
    model = model_of(
        [helper.make_node("If", ["c"], ["y"], "branch", then_branch=body, else_branch=other)],
        [info("c", [], TensorProto.BOOL), info("x", [3, 4]), info("z", [4, 4])],
        [info("y", [3, 4])],
    )
    session = session_of(model)
    with treadle.profile(session, peaks=False, passes=True) as p:
        session.run(None, {"c": np.array(True), "x": random(3, 4), "z": random(4, 4)})
    product = next(node for node in p.nodes if node.op_type in ("MatMul", "FusedMatMul"))
    assert any("B is not constant" in unused.why for unused in product.unused_kernels)
