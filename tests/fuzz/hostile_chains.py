"""Makes small models whose memory or time grows with each node: chains that double, nests, trees of functions, expressions of extents,
copies of long parts."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

CHAINS: dict[str, Callable[[random.Random], onnx.ModelProto]] = {}
FLOAT, INT64, BOOL, STRING = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL, TensorProto.STRING


def chain(make: Callable[[random.Random], onnx.ModelProto]) -> Callable[[random.Random], onnx.ModelProto]:
    CHAINS[make.__name__] = make
    return make


def _model(nodes: Sequence[onnx.NodeProto], inputs: Sequence = (), constants: dict | None = None, functions: Sequence = (), output: str | None = None) -> onnx.ModelProto:
    """Makes a model. `inputs` are (name, element type, shape); the output is the last node's first output."""
    infos = [helper.make_tensor_value_info(*entry) for entry in inputs]
    stored = [numpy_helper.from_array(np.asarray(value), name) for name, value in (constants or {}).items()]
    result = onnx.ValueInfoProto(name=output or nodes[-1].output[0])
    graph = helper.make_graph(list(nodes), "g", infos, [result], stored)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("f", 1)]
    return helper.make_model(graph, opset_imports=opsets, functions=list(functions), ir_version=10)


def _node(op: str, inputs: Sequence[str], output: str, **attributes) -> onnx.NodeProto:
    return helper.make_node(op, list(inputs), [output], **attributes)


def _repeat(op: str, count: int, operands: Callable[[str], Sequence[str]], start: str = "x", **attributes) -> list[onnx.NodeProto]:
    """Makes `count` nodes, each of which reads the one before."""
    nodes, last = [], start
    for i in range(count):
        nodes.append(_node(op, operands(last), f"y{i}", **attributes))
        last = f"y{i}"
    return nodes


@chain
def doubled_strings(draw):
    text = np.array(["x" * draw.choice([1, 100, 20_000])] * draw.choice([1, 7]), object)
    graph = _model(_repeat("StringConcat", draw.choice([20, 40, 300]), lambda x: [x, x]), constants={})
    graph.graph.initializer.append(helper.make_tensor("x", STRING, text.shape, [t.encode() for t in text]))
    return graph


@chain
def spread_strings(draw):
    """Copies one long text to many elements."""
    count = draw.choice([1000, 30_000, 10_000_000])
    model = _model([_node("Expand", ["x", "shape"], "y"), _node("Identity", ["y"], "z")], constants={"shape": np.array([count])})
    model.graph.initializer.append(helper.make_tensor("x", STRING, [1], [b"x" * 50_000]))
    return model


@chain
def split_strings(draw):
    model = _model([helper.make_node("StringSplit", ["x"], ["y", "n"], delimiter="a")])
    rows = draw.choice([1, 100, 5000])
    model.graph.initializer.append(helper.make_tensor("x", STRING, [rows], [b"a" * 30_000] + [b"b"] * (rows - 1)))
    return model


@chain
def doubled_constants(draw):
    axis = draw.choice([0, 1])
    return _model(_repeat("Concat", draw.choice([20, 40, 300]), lambda x: [x, x], axis=axis), constants={"x": np.ones((1, 1), np.float32)})


@chain
def tiled_constants(draw):
    return _model(_repeat("Tile", draw.choice([2, 3, 8]), lambda x: [x, "n"]), constants={"x": np.ones((1, 1), np.float32), "n": np.array([1000, 10])})


@chain
def filled_constants(draw):
    """Makes many constants, each of which is small enough to be folded."""
    count, size = draw.choice([10, 100, 2000]), draw.choice([10_000, 1_000_000, 6_000_000, 60_000_000])
    value = lambda i: helper.make_tensor("v", FLOAT, [1], [float(i)])  # noqa: E731
    nodes = [_node("ConstantOfShape", ["n"], f"c{i}", value=value(i)) for i in range(count)]
    return _model([*nodes, _node("Sum", [f"c{i}" for i in range(count)] + ["x"], "y")], [("x", FLOAT, [size])], {"n": np.array([size])})


@chain
def constant_products(draw):
    n = draw.choice([100, 500, 2000])
    value = helper.make_tensor("v", FLOAT, [1], [0.5])
    return _model([_node("ConstantOfShape", ["n"], "x", value=value), *_repeat("MatMul", draw.choice([1, 30, 1000]), lambda x: [x, "x"])], constants={"n": np.array([n, n])})


@chain
def constant_reductions(draw):
    """Makes reductions that read large constants and have small results."""
    value = helper.make_tensor("v", FLOAT, [1], [0.5])
    op = draw.choice(["ReduceSum", "ReduceMax", "ReduceLogSumExp", "ReduceL2"])
    count = draw.choice([10, 1000])
    nodes = [_node(op, ["c"], f"r{i}", keepdims=i % 2) for i in range(count)]
    return _model([_node("ConstantOfShape", ["n"], "c", value=value), *nodes, _node("Sum", [f"r{i}" for i in range(count)], "y")], constants={"n": np.array([5_000_000])})


@chain
def kept_boxes(draw):
    n, classes = draw.choice([(100, 100), (2000, 50), (3000, 1000)])
    value = helper.make_tensor("v", FLOAT, [1], [0.5])
    nodes = [_node("ConstantOfShape", ["b"], "boxes", value=value), _node("ConstantOfShape", ["s"], "scores", value=value)]
    nodes.append(_node("NonMaxSuppression", ["boxes", "scores", "most"], "y"))
    return _model(nodes, constants={"b": np.array([1, n, 4]), "s": np.array([1, classes, n]), "most": np.array([10**9])})


@chain
def joined_symbols(draw):
    count = draw.choice([100, 1500])
    return _model([_node("Concat", [f"x{i}" for i in range(count)], "y", axis=0)], [(f"x{i}", FLOAT, [f"n{i}"]) for i in range(count)])


@chain
def joined_symbols_one_by_one(draw):
    count = draw.choice([100, 900])
    nodes = [_node("Concat", ["x0" if i == 1 else f"y{i - 1}", f"x{i}"], f"y{i}", axis=0) for i in range(1, count)]
    return _model(nodes, [(f"x{i}", FLOAT, [f"n{i}"]) for i in range(count)])


def _of_extents(nodes: list[onnx.NodeProto], used: str) -> onnx.ModelProto:
    """Makes a model: `nodes` compute with the extents `a` and `b`, and the operator `used` makes a tensor of the size that the last one gives."""
    first = [_node("Shape", ["x"], "s"), _node("Gather", ["s", "i0"], "a"), _node("Gather", ["s", "i1"], "b")]
    last = [_node("Unsqueeze", [nodes[-1].output[0], "axes"], "shape"), _node(used, ["x0", "shape"] if used != "ConstantOfShape" else ["shape"], "y")]
    constants = {"i0": np.array(0), "i1": np.array(1), "axes": np.array([0]), "two": np.array(2), "three": np.array(3)}
    return _model([*first, *nodes, *last], [("x", FLOAT, ["n", "m"]), ("x0", FLOAT, ["k"])], constants)


@chain
def powers_of_extents(draw):
    nodes = [_node("Add", ["a", "b"], "y")] + _repeat("Mul", draw.choice([5, 30, 500]), lambda x: [x, x], "y")
    return _of_extents(nodes, draw.choice(["ConstantOfShape", "Expand", "Reshape"]))


@chain
def entangled_extents(draw):
    """Makes a chain of steps, each of which reads the step before twice. Written as a tree, the expression of the extents is exponentially
    large."""
    nodes, last = [], "a"
    for i in range(draw.choice([10, 60, 600])):
        op = draw.choice(["Div", "Max", "Min", "Mul", "Sub"])
        nodes += [_node("Div", [last, "two"], f"d{i}"), _node(op, [last, f"d{i}"], f"e{i}"), _node("Add", [f"e{i}", "b"], f"y{i}")]
        last = f"y{i}"
    return _of_extents(nodes, draw.choice(["ConstantOfShape", "Expand", "Reshape"]))


@chain
def reshaped_by_extents(draw):
    nodes, last = [], "x"
    for i in range(draw.choice([10, 300, 1000])):
        nodes += [_node("Shape", [last], f"s{i}"), _node("Sub", [f"s{i}", "one"], f"t{i}"), _node("Slice", [last, "zero", f"t{i}"], f"u{i}")]
        nodes += [_node("Shape", [f"u{i}"], f"v{i}"), _node("Reshape", [f"u{i}", f"v{i}"], f"y{i}")]
        last = f"y{i}"
    return _model(nodes, [("x", FLOAT, ["n"])], {"one": np.array([1]), "zero": np.array([0])})


@chain
def sliced_by_operands(draw):
    count = draw.choice([10, 1000, 2000])
    nodes = _repeat("Slice", count, lambda x: [x, "s", "e"])
    return _model(nodes, [("x", FLOAT, ["n", "m"]), ("s", INT64, [draw.choice([1, 2])]), ("e", INT64, [draw.choice([1, 2])])])


@chain
def broadcast_extents(draw):
    """Makes sums of inputs in which any extent may be 1."""
    count = draw.choice([10, 300])
    nodes, values = [], [f"x{i}" for i in range(count)]
    for i in range(3 * count):
        nodes.append(_node("Add", [draw.choice(values[-20:]), draw.choice(values[-40:])], f"y{i}"))
        values.append(f"y{i}")
    return _model(nodes, [(f"x{i}", FLOAT, [f"n{i}", f"m{i}"]) for i in range(count)])


@chain
def pooled_extents(draw):
    op = draw.choice(["MaxPool", "AveragePool"])
    return _model(_repeat(op, draw.choice([100, 1500]), lambda x: [x], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1], ceil_mode=1), [("x", FLOAT, ["n", 3, "h", "w"])])


def _function(name: str, nodes: Sequence[onnx.NodeProto]) -> onnx.FunctionProto:
    return helper.make_function("f", name, ["x"], [nodes[-1].output[0]], list(nodes), [helper.make_opsetid("", 21), helper.make_opsetid("f", 1)])


def _calls(name: str, count: int, start: str = "x") -> list[onnx.NodeProto]:
    return _repeat(name, count, lambda x: [x], start, domain="f")


@chain
def functions_of_functions(draw):
    depth, width = draw.choice([(3, 10), (20, 2), (60, 2), (4, 30), (3, 100)])
    functions = [_function("f0", [_node(draw.choice(["Relu", "Identity", "Sin"]), ["x"], "y")])]
    functions += [_function(f"f{i}", _calls(f"f{i - 1}", width)) for i in range(1, depth)]
    return _model(_calls(f"f{depth - 1}", 1), [("x", FLOAT, ["n"])], functions=functions)


@chain
def functions_with_long_parts(draw):
    """Makes a function that is called often, with a long text, list or name that the file contains once."""
    kind = draw.randrange(5)
    long = "x" * draw.choice([1000, 30_000])
    node = _node("Relu", ["x"], "y")
    if kind == 0:
        node.doc_string = long
    elif kind == 1:
        node.name = long
    elif kind == 2:
        node.metadata_props.append(onnx.StringStringEntryProto(key="k", value=long))
    elif kind == 3:
        node.output[0] = long
    nodes = [node]
    if kind == 4:
        nodes = [_node("Constant", [], "c", value_ints=[1] * 10_000), _node("Reshape", ["x", "c"], "y")]
    functions = [_function("f0", nodes), _function("f1", _calls("f0", draw.choice([1, 100]))), _function("f2", _calls("f1", 50))]
    return _model(_calls("f2", 40), [("x", FLOAT, ["n"])], functions=functions)


@chain
def functions_with_long_prefixes(draw):
    """Makes calls with long names, which become prefixes of all names within them."""
    functions = [_function("f0", [_node("Relu", ["x"], "y")])]
    for i in range(1, draw.choice([5, 40])):
        nodes = _calls(f"f{i - 1}", 2 if i < 12 else 1)
        for node in nodes:
            node.name = "x" * 500
        functions.append(_function(f"f{i}", nodes))
    return _model(_calls(functions[-1].name, 1), [("x", FLOAT, ["n"])], functions=functions)


@chain
def functions_of_constants(draw):
    """Makes a function with a constant that is folded anew in each call."""
    nodes = [_node("Constant", [], "n", value_ints=[draw.choice([1000, 300_000])]), _node("ConstantOfShape", ["n"], "c"), _node("Add", ["x", "c"], "y")]
    return _model(_calls("f1", 40), [("x", FLOAT, ["n"])], functions=[_function("f0", nodes), _function("f1", _calls("f0", draw.choice([2, 50])))])


def _branch(nodes: Sequence[onnx.NodeProto], name: str = "b") -> onnx.GraphProto:
    return helper.make_graph(list(nodes), name, [], [onnx.ValueInfoProto(name=nodes[-1].output[0])])


@chain
def nested_branches(draw):
    condition = draw.choice(["c", "known"])
    nodes = [_node("Relu", ["x"], "y")]
    for i in range(draw.choice([3, 20, 28])):
        other = _branch([_node("Identity", ["x"], f"o{i}")])
        nodes = [_node("If", [condition], f"y{i}", then_branch=_branch(nodes), else_branch=other)]
    return _model(nodes, [("x", FLOAT, ["n"]), ("c", BOOL, [])], {"known": np.array(True)})


@chain
def nested_branches_on_both_sides(draw):
    nodes = [_node("Relu", ["x"], "y")]
    for i in range(draw.choice([3, 8, 9])):
        nodes = [_node("If", ["c"], f"y{i}", then_branch=_branch(nodes), else_branch=_branch(nodes))]
    return _model(nodes, [("x", FLOAT, ["n"]), ("c", BOOL, [])])


@chain
def many_branches(draw):
    """Makes many branches that read a constant, each of which may convert or pack it."""
    dtype, op = draw.choice([(np.float16, "MatMul"), (np.float32, "MatMul"), (np.float32, "Add")])
    count = draw.choice([10, 250])
    nodes, last = [], "x"
    for i in range(count):
        branch = _branch([_node(op, [last, "w"], f"t{i}")])
        nodes.append(_node("If", ["c"], f"y{i}", then_branch=branch, else_branch=_branch([_node("Identity", [last], f"e{i}")])))
        last = f"y{i}"
    n = 100
    return _model(nodes, [("x", helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), ["n", n]), ("c", BOOL, [])], {"w": np.ones((n, n), dtype)})


@chain
def captures_of_everything(draw):
    """Makes nested bodies, each of which reads values of all bodies around it."""
    depth, width = draw.choice([(5, 100), (28, 30)])
    nodes = []
    for level in reversed(range(depth)):
        own = [_node("Relu", [f"v{level - 1}_{i}" if level else "x"], f"v{level}_{i}") for i in range(width)]
        join = [_node("Sum", [f"v{level}_{i}" for i in range(width)], f"s{level}")]
        inner = [_node("If", ["c"], f"r{level}", then_branch=_branch(nodes), else_branch=_branch([_node("Identity", [f"s{level}"], f"e{level}")]))] if nodes else []
        nodes = own + join + inner
    return _model(nodes, [("x", FLOAT, ["n"]), ("c", BOOL, [])])


def _loop(inner: list[onnx.NodeProto], carried: str, level: int) -> list[onnx.NodeProto]:
    value = lambda name, dtype: helper.make_tensor_value_info(name, dtype, [] if dtype != FLOAT else None)  # noqa: E731
    body = helper.make_graph(
        [*inner, _node("Identity", [f"c{level}"], f"d{level}")], "b", [value(f"i{level}", INT64), value(f"c{level}", BOOL), value(f"a{level}", FLOAT)],
        [onnx.ValueInfoProto(name=f"d{level}"), onnx.ValueInfoProto(name=inner[-1].output[0])],
    )
    return [_node("Loop", ["trips", "go", carried], f"l{level}", body=body)]


@chain
def nested_loops(draw):
    depth = draw.choice([2, 10, 28])
    nodes = [_node("Concat", [f"a{depth - 1}", f"a{depth - 1}"], "y", axis=0)]
    for level in reversed(range(depth)):
        nodes = _loop(nodes, f"a{level - 1}" if level else "x", level)
    start = {"trips": np.array(draw.choice([3, 2**62])), "go": np.array(True)}
    return _model(nodes, [] if draw.random() < 0.5 else [("x", FLOAT, ["n"])], {**start, "x": np.ones(3, np.float32)} if draw.random() < 0.5 else start)


@chain
def nested_optionals(draw):
    return _model(_repeat("Optional", draw.choice([10, 3000]), lambda x: [x]), [("x", FLOAT, ["n"])])


@chain
def many_nodes(draw):
    ops = draw.choice([["Relu"], ["Relu", "Sin", "Neg"], ["Transpose"], ["Identity"], ["Softmax"], ["Flatten"]])
    nodes, last = [], "x"
    for i in range(3500):
        nodes.append(_node(ops[i % len(ops)], [last], f"{i:x}"))
        last = f"{i:x}"
    return _model(nodes, [("x", FLOAT, ["n", "m"])])


@chain
def many_old_nodes(draw):
    """Makes nodes that an upgrade or a decomposition replaces by several."""
    op, attributes = draw.choice([("Celu", {}), ("LpPool", {"kernel_shape": [2]}), ("ReduceL1", {}), ("Gelu", {}), ("MeanVarianceNormalization", {}), ("LayerNormalization", {})])
    operands = (lambda x: [x, "w"]) if op == "LayerNormalization" else (lambda x: [x])
    return _model(_repeat(op, 2500, operands, **attributes), [("x", FLOAT, ["n", 3, "m"])], {"w": np.ones(1, np.float32)})


@chain
def many_readers(draw):
    count = 3500
    nodes = [_node("Relu", ["x"], f"{i:x}") for i in range(count)]
    return _model([*nodes, _node("Sum", [f"{i:x}" for i in range(count)], "y")], [("x", FLOAT, ["n"])])


@chain
def many_convolutions(draw):
    """Makes many convolutions, each of which may pack the same constant."""
    count = draw.choice([100, 1500])
    op = draw.choice(["Conv", "MatMul", "Gemm", "LSTM", "ConvTranspose"])
    if op in ("MatMul", "Gemm"):
        return _model(_repeat(op, count, lambda x: [x, "w"]), [("x", FLOAT, ["n", 100])], {"w": np.ones((100, 100), np.float32)})
    if op == "LSTM":
        nodes, last = [], "x"
        for i in range(count // 3):
            nodes += [helper.make_node("LSTM", [last, "w", "w"], [f"h{i}"], hidden_size=30), _node("Squeeze", [f"h{i}", "one"], f"y{i}")]
            last = f"y{i}"
        return _model(nodes, [("x", FLOAT, ["s", "n", 30])], {"w": np.ones((1, 120, 30), np.float32), "one": np.array([1])})
    return _model(_repeat(op, count, lambda x: [x, "w"], kernel_shape=[1, 1]), [("x", FLOAT, ["n", 100, "h", "w"])], {"w": np.ones((100, 100, 1, 1), np.float32)})


@chain
def packed_fills(draw):
    """Makes folded constants that are packed for each kind of reader."""
    n, value = draw.choice([1000, 2400]), helper.make_tensor("v", FLOAT, [1], [0.5])
    nodes = [_node("ConstantOfShape", ["s"], "w", value=value), _node("ConstantOfShape", ["f"], "k", value=value)]
    nodes += [_node("MatMul", ["x", "w"], "a"), _node("Gemm", ["x", "w"], "b", transB=1), _node("MatMul", ["w", "x"], "c")]
    nodes += [_node("Conv", ["p", "k"], "d"), _node("ConvTranspose", ["p", "k"], "e"), _node("Sum", ["a", "b", "c"], "y"), _node("Sum", ["d", "e"], "z")]
    nodes += [_node("Size", ["z"], "i"), _node("Cast", ["i"], "j", to=FLOAT), _node("Add", ["y", "j"], "r")]
    return _model(nodes, [("x", FLOAT, [n, n]), ("p", FLOAT, [1, n, 1, 1])], {"s": np.array([n, n]), "f": np.array([n, n, 1, 1])})


@chain
def many_inputs(draw):
    count = 2500
    return _model([_node("Relu", ["x0"], "y")], [(f"x{i}", FLOAT, [f"n{i}", "m"]) for i in range(count)])


@chain
def many_parts(draw):
    count = 4000
    node = helper.make_node("Split", ["x"], [f"y{i:x}" for i in range(count)], num_outputs=count)
    return _model([node], [("x", FLOAT, [draw.choice([count, "n", 10**9])])])


@chain
def equal_names(draw):
    nodes = _repeat(draw.choice(["Relu", "Gelu", "Identity"]), 3500, lambda x: [x])
    for node in nodes:
        node.name = "n"
    return _model(nodes, [("x", FLOAT, ["n"])])


@chain
def undeclared_ranks(draw):
    """Makes operators with operands of unknown ranks, which are decomposed for each possible rank."""
    op, inputs, attributes = draw.choice(
        [
            ("MultiHeadAttention", ["x", "x", "x"], {"num_heads": 1}),
            ("MultiHeadAttention", ["x"], {"num_heads": 1}),
            ("RotaryEmbedding", ["x", "p", "x", "x"], {}),
            ("Attention", ["x", "x", "", "m"], {"num_heads": 1}),
            ("QLinearGlobalAveragePool", ["q", "x", "q", "x", "q"], {}),
        ]
    )
    nodes = [helper.make_node(op, inputs, [f"y{i}"], domain="com.microsoft", **attributes) for i in range(1200)]
    model = _model(nodes, [("x", FLOAT, None), ("p", INT64, None), ("m", TensorProto.INT32, None), ("q", TensorProto.UINT8, None)])
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return model


@chain
def empty_messages(draw):
    """Makes empty messages, which need two bytes each in the file."""
    model = _model([_node("Relu", ["x"], "y")], [("x", FLOAT, ["n"])])
    kind = draw.randrange(9)
    if kind < 3:
        lists = [model.graph.value_info, model.graph.input, model.graph.initializer, model.graph.sparse_initializer, model.graph.quantization_annotation]
        field = draw.choice(lists)
        field.extend([type(field.add())()] * 49_000)
    elif kind < 6:
        field = draw.choice([model.functions, model.opset_import, model.metadata_props, model.graph.node[0].attribute, model.graph.node[0].metadata_props])
        field.extend([type(field.add())()] * 49_000)
    elif kind == 6:
        model.graph.node[0].op_type = draw.choice(["Relu", "Concat", "Sum", "Loop", "Clip"])
        model.graph.node[0].input.extend([""] * 49_000)
    elif kind == 7:
        model.graph.node[0].op_type = draw.choice(["Relu", "Split", "If"])
        model.graph.node[0].output.extend([""] * 49_000)
    else:
        model.graph.initializer.append(helper.make_tensor("t", STRING, [45_000], [b""] * 45_000))
    return model


@chain
def long_lists(draw):
    """Makes an attribute with as many numbers as fit into the file."""
    op, attribute = draw.choice([("Transpose", "perm"), ("MaxPool", "kernel_shape"), ("TreeEnsembleRegressor", "nodes_treeids"), ("TfIdfVectorizer", "ngram_counts")])
    opset = {"domain": "ai.onnx.ml"} if op.startswith("Tree") else {}
    model = _model([helper.make_node(op, ["x"], ["y"], **opset, **{attribute: [draw.choice([0, 1])] * 45_000})], [("x", FLOAT, ["n", 3, "h", "w"])])
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    return model


@chain
def long_equations(draw):
    kind = draw.randrange(3)
    if kind == 0:
        count = draw.choice([10, 2500])
        inputs = [(f"x{i}", FLOAT, ["n", "n"]) for i in range(count)]
        return _model([_node("Einsum", [name for name, _, _ in inputs], "y", equation=",".join(["ij", "jk", "kl"][i % 3] for i in range(count)) + "->il")], inputs)
    if kind == 1:
        pattern = draw.choice(["(a{1000}){1000}", "(a|b)*a" + "(a|b)" * 5000, "(" * 20_000 + ")" * 20_000, "[a-z]{9999}" * 1000, "(a*)*" * 5000])
        model = _model([_node("RegexFullMatch", ["x"], "y", pattern=pattern)], [("x", STRING, ["n"])])
        return model
    return _model([_node("StringNormalizer", ["x"], "y", stopwords=["a"] * 20_000)], [("x", STRING, ["n"])])


@chain
def long_names(draw):
    """Makes long names, which errors, notes and prefixes repeat."""
    name = "x" * 15_000
    model = _model([_node(draw.choice(["Relu", "Reshape", "Nothing", "Concat"]), [name, name], "y")], [(name, FLOAT, ["n" * 15_000, 3])])
    model.graph.node[0].name = name
    return model


@chain
def written_out_normalizations(draw):
    """Makes normalisations that are fused. For each one the pass makes a row of ones."""
    length = draw.choice([64, 8192, 10**9])
    nodes, last = [], "x"
    for i in range(draw.choice([1, 400])):
        nodes += [_node("Mul", [last, last], f"s{i}"), _node("ReduceMean", [f"s{i}", "axes"], f"m{i}"), _node("Add", [f"m{i}", "eps"], f"e{i}")]
        nodes += [_node("Sqrt", [f"e{i}"], f"q{i}"), _node("Div", [last, f"q{i}"], f"y{i}")]
        last = f"y{i}"
    return _model(nodes, [("x", FLOAT, ["n", length])], {"axes": np.array([-1]), "eps": np.array(1e-5, np.float32)})


@chain
def rotary_sections(draw):
    """Makes nodes whose decomposition has a constant as large as an attribute says."""
    size = draw.choice([512, 65_536])
    nodes = _repeat("MRotaryEmbedding", draw.choice([1, 300]), lambda x: [x, "p", "c", "c"], domain="com.microsoft", mrope_section=[size] * 3)
    model = _model(nodes, [("x", FLOAT, [1, 1, 1, 6 * size]), ("p", INT64, [3, 1, 1]), ("c", FLOAT, [10, 3 * size])])
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return model
