"""Small decoders for onnxruntime's search operators: GPT-2's and T5's inputs and outputs around one layer of attention with random weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


@dataclass
class Sizes:
    vocabulary: int = 20
    heads: int = 2
    size: int = 4
    layers: int = 2
    positions: int = 40

    @property
    def width(self) -> int:
        return self.heads * self.size


class Writer:
    """Collects the nodes and weights of a graph."""

    def __init__(self, rng: np.random.Generator, prefix: str) -> None:
        self.rng, self.prefix = rng, prefix
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def name(self) -> str:
        return f"{self.prefix}_{len(self.nodes) + len(self.weights)}"

    def op(self, op_type: str, *inputs: str, output: str | None = None, domain: str = "", **attributes: object) -> str:
        output = output or self.name()
        self.nodes.append(helper.make_node(op_type, list(inputs), [output], f"node_{output}", domain=domain, **attributes))
        return output

    def constant(self, array: object) -> str:
        self.weights.append(numpy_helper.from_array(np.asarray(array), self.name()))
        return self.weights[-1].name

    def ints(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def weight(self, *shape: int, scale: float = 1.0) -> str:
        return self.constant((scale * self.rng.standard_normal(shape)).astype(np.float32))

    def graph(self, name: str, inputs: list[onnx.ValueInfoProto], outputs: list[onnx.ValueInfoProto]) -> onnx.GraphProto:
        return helper.make_graph(self.nodes, name, inputs, outputs, self.weights)


def value(name: str, shape: list[int | str], dtype: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def split_heads(w: Writer, x: str, sizes: Sizes) -> str:
    return w.op("Transpose", w.op("Reshape", x, w.ints(0, 0, sizes.heads, sizes.size)), perm=[0, 2, 1, 3])


def attend(w: Writer, q: str, keys: str, values: str, added_mask: str, sizes: Sizes) -> str:
    scores = w.op("Add", w.op("MatMul", q, w.op("Transpose", keys, perm=[0, 1, 3, 2])), added_mask)
    mixed = w.op("Transpose", w.op("MatMul", w.op("Softmax", scores, axis=-1), values), perm=[0, 2, 1, 3])
    return w.op("MatMul", w.op("Reshape", mixed, w.ints(0, 0, sizes.width)), w.weight(sizes.width, sizes.width))


def mask_of_keys(w: Writer, mask: str) -> str:
    """Adds nodes for [batch, 1, 1, keys]: 0 for keys that count, -10000 for others."""
    absent = w.op("Sub", w.constant(np.float32(1)), w.op("Cast", mask, to=TensorProto.FLOAT))
    return w.op("Unsqueeze", w.op("Mul", absent, w.constant(np.float32(-10000))), w.ints(1, 2))


def causal_mask(w: Writer, q: str, k: str) -> str:
    """Adds nodes for a causal mask: -10000 where a key comes after the query. The last query belongs to the last key."""
    queries, keys = (w.op("Slice", w.op("Shape", y), w.ints(2), w.ints(3), w.ints(0)) for y in (q, k))
    ones = w.op("ConstantOfShape", w.op("Concat", queries, keys, axis=0), value=numpy_helper.from_array(np.ones(1, np.float32)))
    seen = w.op("Trilu", ones, w.op("Squeeze", w.op("Sub", keys, queries)), upper=0)
    return w.op("Mul", w.op("Sub", w.constant(np.float32(1)), seen), w.constant(np.float32(-10000)))


def gpt_decoder(rng: np.random.Generator, sizes: Sizes, fused: bool = False) -> onnx.GraphProto:
    """Makes a decoder from input_ids, position_ids, attention_mask, past_0 … to logits, present_0 …. `fused` uses com.microsoft's Attention."""
    w = Writer(rng, "gpt")
    words = w.weight(sizes.vocabulary, sizes.width)
    x = w.op("Add", w.op("Gather", words, "input_ids"), w.op("Gather", w.weight(sizes.positions, sizes.width), "position_ids"))
    for layer in range(sizes.layers):
        past, present = f"past_{layer}", f"present_{layer}"
        if fused:
            weights, bias = w.weight(sizes.width, 3 * sizes.width), w.weight(3 * sizes.width)
            mixed = w.name()
            inputs = [x, weights, bias, "attention_mask", past]
            w.nodes.append(helper.make_node("Attention", inputs, [mixed, present], mixed, domain="com.microsoft", num_heads=sizes.heads, unidirectional=1))
            x = w.op("Add", x, w.op("MatMul", mixed, w.weight(sizes.width, sizes.width)))
            continue
        q, k, v = (split_heads(w, w.op("MatMul", x, w.weight(sizes.width, sizes.width)), sizes) for _ in range(3))
        k, v = (
            w.op("Concat", w.op("Squeeze", w.op("Slice", past, w.ints(i), w.ints(i + 1), w.ints(0)), w.ints(0)), new, axis=2)
            for i, new in enumerate((k, v))
        )
        w.op("Concat", w.op("Unsqueeze", k, w.ints(0)), w.op("Unsqueeze", v, w.ints(0)), axis=0, output=present)
        x = w.op("Add", x, attend(w, q, k, v, w.op("Add", mask_of_keys(w, "attention_mask"), causal_mask(w, q, k)), sizes))
    w.op("MatMul", x, w.weight(sizes.width, sizes.vocabulary, scale=0.1), output="logits")
    state = [2, "batch_size", sizes.heads, "past_length", sizes.size]
    inputs = [value(name, ["batch_size", "length"], TensorProto.INT32) for name in ("input_ids", "position_ids")]
    inputs.append(value("attention_mask", ["batch_size", "total_length"], TensorProto.INT32))
    inputs += [value(f"past_{i}", state) for i in range(sizes.layers)]
    outputs = [value("logits", ["batch_size", "length", sizes.vocabulary])]
    outputs += [value(f"present_{i}", [*state[:3], "total_length", sizes.size]) for i in range(sizes.layers)]
    return w.graph("decoder", inputs, outputs)


def encoder_decoder(rng: np.random.Generator, sizes: Sizes, hidden: bool = True, whisper: bool = False) -> tuple[onnx.GraphProto, onnx.GraphProto]:
    """Makes an encoder, which also computes the first step, and its decoder: T5's, or Whisper's, which reads sound [batch, width, frames] and has no
    mask. `hidden`: the decoder gets encoder_hidden_states."""
    shared = int(rng.integers(2**31))
    mask = "" if whisper else "encoder_attention_mask"

    def decode(w: Writer, ids: str, past: list[str], cross: list[str]) -> None:
        w.rng = np.random.default_rng(shared)  # the seed for weights that encoder and decoder share
        x = w.op("Gather", w.weight(sizes.vocabulary, sizes.width), ids)
        # The scores depend on the position. Without positions, permuted tokens would give sequences with equal scores.
        before = w.op("Slice", w.op("Shape", past[0]), w.ints(2), w.ints(3), w.ints(0)) if past else w.ints(0)
        end = w.op("Add", before, w.op("Slice", w.op("Shape", ids), w.ints(1), w.ints(2), w.ints(0)))
        places = w.op("Range", w.op("Squeeze", before), w.op("Squeeze", end), w.constant(np.int64(1)))
        column = w.op("Unsqueeze", w.op("Cast", places, to=TensorProto.FLOAT), w.ints(1))
        x = w.op("Add", x, w.op("Mul", column, w.weight(sizes.width, scale=0.3)))
        for layer in range(sizes.layers):
            q, k, v = (split_heads(w, w.op("MatMul", x, w.weight(sizes.width, sizes.width)), sizes) for _ in range(3))
            names = [f"present_{kind}_self_{layer}" for kind in ("key", "value")]
            if past:
                k, v = (w.op("Concat", past[2 * layer + i], new, axis=2, output=names[i]) for i, new in enumerate((k, v)))
            else:
                k, v = (w.op("Identity", new, output=names[i]) for i, new in enumerate((k, v)))
            x = w.op("Add", x, attend(w, q, k, v, causal_mask(w, q, k), sizes))
            q = split_heads(w, w.op("MatMul", x, w.weight(sizes.width, sizes.width)), sizes)
            added = mask_of_keys(w, mask) if mask else w.constant(np.float32(0))
            x = w.op("Add", x, attend(w, q, cross[2 * layer], cross[2 * layer + 1], added, sizes))
        w.op("MatMul", x, w.weight(sizes.width, sizes.vocabulary, scale=0.1), output="logits")

    text = ["batch_size", "encode_length"]
    start = "initial_length" if whisper else 1
    own = [f"{kind}_self_{layer}" for layer in range(sizes.layers) for kind in ("key", "value")]
    cross = [f"present_{kind}_cross_{layer}" for layer in range(sizes.layers) for kind in ("key", "value")]
    w = Writer(rng, "encoder")
    if whisper:
        x = w.op("Transpose", "encoder_input_ids", perm=[0, 2, 1])
    else:
        x = w.op("Gather", w.weight(sizes.vocabulary, sizes.width), "encoder_input_ids")
    w.op("Tanh", w.op("MatMul", x, w.weight(sizes.width, sizes.width)), output="encoder_hidden_states")
    for name in cross:
        w.op("Identity", split_heads(w, w.op("MatMul", "encoder_hidden_states", w.weight(sizes.width, sizes.width)), sizes), output=name)
    decode(w, "decoder_input_ids", [], cross)
    if whisper:
        inputs = [value("encoder_input_ids", ["batch_size", sizes.width, "encode_length"])]
    else:
        inputs = [value(name, text, TensorProto.INT32) for name in ("encoder_input_ids", mask)]
    inputs.append(value("decoder_input_ids", ["batch_size", start], TensorProto.INT32))
    outputs = [value("logits", ["batch_size", start, sizes.vocabulary]), value("encoder_hidden_states", [*text, sizes.width])]
    outputs += [value(f"present_{name}", ["batch_size", sizes.heads, start, sizes.size]) for name in own]
    outputs += [value(name, ["batch_size", sizes.heads, "encode_length", sizes.size]) for name in cross]
    encoder = w.graph("encoder", inputs, outputs)

    w = Writer(rng, "decoder")
    past, given = [f"past_{name}" for name in own], [name.replace("present", "past") for name in cross]
    decode(w, "input_ids", past, given)
    inputs = [value("input_ids", ["batch_size", 1], TensorProto.INT32)]
    inputs += [value(mask, text, TensorProto.INT32)] if mask else []
    inputs += [value("encoder_hidden_states", [*text, sizes.width])] if hidden else []
    inputs += [value(name, ["batch_size", sizes.heads, "past_length", sizes.size]) for name in past]
    inputs += [value(name, ["batch_size", sizes.heads, "encode_length", sizes.size]) for name in given]
    outputs = [value("logits", ["batch_size", 1, sizes.vocabulary])]
    outputs += [value(f"present_{name}", ["batch_size", sizes.heads, "total_length", sizes.size]) for name in own]
    return encoder, w.graph("decoder", inputs, outputs)


def search_model(op_type: str, inputs: dict[str, np.ndarray | None], num_outputs: int, fixed: tuple[str, ...] = (), **attributes: object) -> bytes:
    """Makes a model of one search. `inputs` are by name, in the operator's order; those named in `fixed` are initializers."""
    names = [name if array is not None else "" for name, array in inputs.items()]
    outputs = ["sequences", "second", "third"][:num_outputs]
    node = helper.make_node(op_type, names, outputs, "search", domain="com.microsoft", **attributes)
    given = {name: array for name, array in inputs.items() if array is not None}
    fed = [
        value(name, [f"{name}_{i}" for i in range(array.ndim)] if name == "input_ids" else list(array.shape), helper.np_dtype_to_tensor_dtype(array.dtype))
        for name, array in given.items()
        if name not in fixed
    ]
    stored = [numpy_helper.from_array(given[name], name) for name in fixed if name in given]
    shown = [helper.make_value_info(name, onnx.TypeProto()) for name in outputs]
    graph = helper.make_graph([node], "search", fed, shown, stored)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    made: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
    return made
