"""onnxruntime's tools in Python search saved models for patterns. They must find the same in models that Treadle's sessions save."""

import pathlib
import warnings

import numpy as np
import pytest
from test_onnxruntime_shim import on_both

pytest.importorskip("onnxruntime")
DIGITS = pathlib.Path(__file__).resolve().parents[2] / "examples/digits/digits.onnx"


SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}
# By model, the type that onnxruntime's optimizer is given.
KINDS = {"bert": "bert", "bert of sdpa": "bert", "gpt2": "gpt2", "t5": "t5", "vit": "vit", "whisper": "bart", "whisper of sdpa": "bart"}
SAMPLES = {"vit": (2, 3, 32, 32), "whisper": (2, 16, 64)}  # shapes of float inputs; models that are not listed read text


def exported(kind: str, path: pathlib.Path) -> None:
    """Exports a small model with random weights by torch.onnx."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    torch.manual_seed(0)  # the same weights in every test, as quantised values may tie
    ids = torch.arange(18).reshape(2, 9)
    feeds = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if kind.startswith("bert"):
        feeds["token_type_ids"] = torch.zeros_like(ids)
        attention = "sdpa" if "sdpa" in kind else "eager"
        model = transformers.BertModel(transformers.BertConfig(vocab_size=100, max_position_embeddings=64, attn_implementation=attention, **SIZES))
    elif kind == "gpt2":
        model = transformers.GPT2Model(transformers.GPT2Config(vocab_size=100, n_positions=64, n_embd=64, n_layer=2, n_head=4, attn_implementation="eager"))
    elif kind.startswith("whisper"):
        feeds = {"input_features": torch.rand(2, 16, 64)}
        sizes = {"d_model": 64, "encoder_layers": 3, "encoder_attention_heads": 4, "decoder_layers": 1, "decoder_attention_heads": 4, "encoder_ffn_dim": 96, "max_source_positions": 32, "num_mel_bins": 16}
        ids = {f"{name}_token_id": number for number, name in enumerate(("pad", "bos", "eos", "decoder_start"))}
        model = transformers.WhisperModel(transformers.WhisperConfig(vocab_size=100, attn_implementation="sdpa" if "sdpa" in kind else "eager", **sizes, **ids)).encoder
    elif kind == "t5":
        model = transformers.T5EncoderModel(transformers.T5Config(vocab_size=100, d_model=64, d_kv=16, d_ff=96, num_layers=2, num_heads=4))
    else:
        feeds = {"pixel_values": torch.rand(2, 3, 32, 32)}
        model = transformers.ViTModel(transformers.ViTConfig(image_size=32, patch_size=8, attn_implementation="eager", **SIZES))
    is_text = "input_ids" in feeds
    caches = {"use_cache": False} if is_text else {}

    class Encoder(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, *inputs):
            return self.model(**dict(zip(feeds, inputs, strict=True)), **caches).last_hidden_state

    axes = {name: {0: "batch", 1: "length"} if is_text else {0: "batch"} for name in feeds}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of tracing
        torch.onnx.export(Encoder().eval(), tuple(feeds.values()), str(path), input_names=list(feeds), dynamic_axes=axes, opset_version=14, dynamo=False)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Returns the paths of models by kind."""
    folder = tmp_path_factory.mktemp("models")

    def path_of(kind: str) -> pathlib.Path:
        path = folder / f"{kind}.onnx"
        if not path.exists():
            exported(kind, path)
        return path

    return path_of


OPTIMIZED = """
    import collections, json, numpy, onnxruntime
    from onnxruntime.transformers import optimizer
    found = []
    for level in (0, 1, 2, 99):
        model = optimizer.optimize_model({path!r}, model_type={model_type!r}, num_heads=4, hidden_size=64, opt_level=level).model
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        rng = numpy.random.default_rng(0)
        feeds = {{i.name: rng.random({sample!r}, numpy.float32) if "float" in i.type else numpy.ones((2, 9), numpy.int64) for i in session.get_inputs()}}
        found.append([level, collections.Counter(node.op_type for node in model.graph.node), session.run(None, feeds)[0].tolist()])
    print(json.dumps(found))
"""


@pytest.mark.parametrize("kind", KINDS)
def test_the_optimizer_of_transformers_fuses_the_same(models, kind):
    both = on_both(OPTIMIZED.format(path=str(models(kind)), model_type=KINDS[kind], sample=SAMPLES.get(kind.split()[0])))
    for (level, ours, answer), (_, theirs, expected) in zip(*both, strict=True):
        np.testing.assert_allclose(answer, expected, rtol=1e-3, atol=1e-3)
        if kind.startswith(("bert", "whisper")):
            ours.pop("Constant", 0), theirs.pop("Constant", 0)
            assert ours == theirs, level
            assert kind != "bert" or ours["Attention"] == 2, "it fuses them"
        elif (kind, level) != ("vit", 99):  # in this case, onnxruntime's blocked layout hides normalisations from its optimizer
            fused = {op: count for op, count in theirs.items() if op.endswith(("Attention", "Normalization", "Gelu", "Bias")) or op == "MatMul"}
            assert {op: ours.get(op, 0) for op in fused} == fused, level
            # Nodes that compute extents may differ in number.
            assert sum(ours.values()) - ours.get("Constant", 0) <= 1.1 * (sum(theirs.values()) - theirs.get("Constant", 0)), level


@pytest.mark.parametrize("kind", ["bert", "vit"])
def test_quantised_transformers_are_the_same(models, kind):
    ours, theirs = on_both(
        f"""
        import collections, json, numpy as np, onnx, onnxruntime, tempfile
        from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_dynamic, quantize_static
        from onnxruntime.quantization.shape_inference import quant_pre_process

        names = [value.name for value in onnx.load({str(models(kind))!r}).graph.input]

        def feeds(seed):
            rng = np.random.default_rng(seed)
            return {{name: rng.random((2, 3, 32, 32), np.float32) if name == "pixel_values" else rng.integers(0, 2, (2, 9)) for name in names}}

        class Samples(CalibrationDataReader):
            def __init__(self):
                self.left = [feeds(seed) for seed in range(4)]
            def get_next(self):
                return self.left.pop() if self.left else None

        folder = tempfile.mkdtemp()
        prepared, quantised = folder + "/prepared.onnx", folder + "/quantised.onnx"
        quant_pre_process({str(models(kind))!r}, prepared, skip_symbolic_shape=True)
        found = []
        for how in ("dynamic", "static"):
            if how == "static":
                quantize_static(prepared, quantised, Samples(), quant_format=QuantFormat.QDQ)
            else:
                quantize_dynamic(prepared, quantised)
            operators = collections.Counter(node.op_type for node in onnx.load(quantised).graph.node)
            options = onnxruntime.SessionOptions()
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC  # above it onnxruntime rounds at other places
            session = onnxruntime.InferenceSession(quantised, options, providers=["CPUExecutionProvider"])
            found.append([operators, session.run(None, feeds(9))[0].tolist()])
        print(json.dumps(found))
        """
    )
    for (operators, answer), (expected_operators, expected) in zip(ours, theirs, strict=True):
        for operator in ("MatMul", "MatMulInteger", "DynamicQuantizeLinear", "QuantizeLinear", "DequantizeLinear"):
            assert operators.get(operator, 0) == expected_operators.get(operator, 0), operator
        np.testing.assert_allclose(answer, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("opset", [13, 17, 21])
def test_a_quantised_model_has_the_same_opset(tmp_path, opset, bits):
    """The quantizer decides what it writes by the opset of the prepared model, which a session saved."""
    ours, theirs = on_both(
        f"""
        import collections, json, numpy as np, onnx
        from onnx import helper, numpy_helper
        from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static
        from onnxruntime.quantization.shape_inference import quant_pre_process

        weights = [numpy_helper.from_array(np.random.default_rng(i).random((4, 4), np.float32), f"w{{i}}") for i in range(2)]
        nodes = [helper.make_node("MatMul", ["x", "w0"], ["a"]), helper.make_node("Relu", ["a"], ["b"]), helper.make_node("MatMul", ["b", "w1"], ["y"])]
        graph = helper.make_graph(nodes, "graph", [helper.make_tensor_value_info("x", 1, ["n", 4])], [helper.make_tensor_value_info("y", 1, ["n", 4])], weights)

        class Samples(CalibrationDataReader):
            left = [{{"x": np.random.default_rng(seed).random((3, 4), np.float32)}} for seed in range(3)]
            def get_next(self):
                return self.left.pop() if self.left else None

        model, prepared, quantised = (f"{tmp_path}/{{name}}.onnx" for name in ("model", "prepared", "quantised"))
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", {opset})], ir_version=8), model)
        quant_pre_process(model, prepared)
        quantize_static(prepared, quantised, Samples(), activation_type=QuantType.QUInt{bits}, weight_type=QuantType.QInt8)
        written = onnx.load(quantised)
        opsets = {{domain.domain: domain.version for domain in written.opset_import}}
        print(json.dumps([opsets[""], sorted(f"{{node.domain}}.{{node.op_type}}" for node in written.graph.node)]))
        """
    )
    assert ours == theirs


@pytest.mark.parametrize("how", ["dynamic", "static"])
def test_quantisation_gives_the_same_graph(tmp_path, how):
    ours, theirs = on_both(
        f"""
        import collections, json, numpy as np, onnx, tempfile
        from onnxruntime.quantization import CalibrationDataReader, quantize_dynamic, quantize_static
        from onnxruntime.quantization.shape_inference import quant_pre_process

        class Samples(CalibrationDataReader):
            def __init__(self):
                self.left = [np.random.default_rng(i).random((1, 1, 8, 8), np.float32) for i in range(4)]
            def get_next(self):
                return {{"image": self.left.pop()}} if self.left else None

        folder = tempfile.mkdtemp(dir={str(tmp_path)!r})
        prepared, quantised = folder + "/prepared.onnx", folder + "/quantised.onnx"
        quant_pre_process({str(DIGITS)!r}, prepared)
        if {how!r} == "static":
            quantize_static(prepared, quantised, Samples())
        else:
            quantize_dynamic(prepared, quantised)
        model = onnx.load(quantised)
        print(json.dumps([model.producer_name, sorted(collections.Counter(node.op_type for node in model.graph.node).items())]))
        """
    )
    assert ours == theirs


def test_a_saved_model_keeps_its_producer(tmp_path):
    ours, theirs = on_both(
        f"""
        import json, onnx, onnxruntime
        model = onnx.load({str(DIGITS)!r})
        model.producer_name, model.producer_version = "a maker", "1.2"
        onnx.save(model, {str(tmp_path / "made.onnx")!r})
        options = onnxruntime.SessionOptions()
        options.optimized_model_filepath = {str(tmp_path / "saved.onnx")!r}
        onnxruntime.InferenceSession({str(tmp_path / "made.onnx")!r}, options, providers=["CPUExecutionProvider"])
        saved = onnx.load(options.optimized_model_filepath)
        print(json.dumps([saved.producer_name, saved.producer_version]))
        """
    )
    assert ours == theirs == ["a maker", "1.2"]


def test_a_saved_model_keeps_its_opsets(tmp_path):
    ours, theirs = on_both(
        f"""
        import json, onnx, onnxruntime
        from onnx import helper
        nodes = [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("Neg", ["a"], ["y"])]
        graph = helper.make_graph(nodes, "graph", [helper.make_tensor_value_info("x", 1, ["n", 4])], [helper.make_tensor_value_info("y", 1, None)])
        found = []
        for opset, ir, others in [(11, 6, {{}}), (13, 7, {{}}), (13, 10, {{"ai.onnx.ml": 2}}), (17, 8, {{"com.microsoft": 1}}), (21, 10, {{"an.unused": 4}})]:
            options = onnxruntime.SessionOptions()
            options.optimized_model_filepath, options.log_severity_level = {str(tmp_path / "saved.onnx")!r}, 4
            model = helper.make_model(graph, opset_imports=[helper.make_opsetid(*domain) for domain in [("", opset), *others.items()]], ir_version=ir)
            onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
            saved = onnx.load(options.optimized_model_filepath)
            stated = {{domain.domain: domain.version for domain in saved.opset_import}}
            found.append([saved.ir_version, *(stated[domain] for domain in ["", *others])])
        print(json.dumps(found))
        """
    )
    assert ours == theirs


SAVED = """
    import collections, json, numpy, onnx, onnxruntime
    from onnx import helper, numpy_helper

    def node(op, inputs, output, **attributes):
        return helper.make_node(op, inputs, [output], **attributes)

    def extent(name, of, place):
        return [node("Shape", [of], name + "s"), node("Gather", [name + "s", f"c{{place}}"], name + "g", axis=0), node("Unsqueeze", [name + "g", "zero"], name)]

    constants = {{"c0": 0, "c1": 1, "c64": 64, "zero": [0], "ones": [1, 1, 1], "none": [-1], "four": [4], "eight": [8], "two": numpy.float32(2), "small": numpy.float32(1e-6), "one": numpy.float32(1)}}
    both = [*extent("a", "x", 0), *extent("b", "x", 1), node("Concat", ["a", "b", "none", "eight"], "t", axis=0)]
    initializers = [numpy_helper.from_array(numpy.asarray(value, None if isinstance(value, numpy.float32) else numpy.int64), name) for name, value in constants.items()]
    norm = [node("Pow", ["x", "two"], "p"), node("ReduceMean", ["p", "none"], "m"), node("Add", ["m", "small"], "e"), node("Sqrt", ["e"], "r"), node("Div", ["one", "r"], "d")]
    kinds = {{
        "a product with a reciprocal": [*norm, node("Mul", ["x", "d"], "y")],
        "a reciprocal first": [*norm, node("Mul", ["d", "x"], "y")],
        "a reciprocal that is read twice": [*norm, node("Mul", ["x", "d"], "a"), node("Mul", ["a", "d"], "y")],
        "its own extents": [*extent("a", "x", 0), *extent("b", "x", 1), node("Concat", ["a", "b", "none", "eight"], "t", axis=0), node("Reshape", ["x", "t"], "y")],
        "the last of them": [*extent("b", "x", 1), node("Concat", ["none", "b", "eight"], "t", axis=0), node("Reshape", ["x", "t"], "y")],
        "a computed extent beside constants": [node("ReduceSum", ["x"], "r", keepdims=0), node("Cast", ["r"], "i", to=7), node("Mul", ["i", "c0"], "z"), node("Add", ["z", "c64"], "k"), node("Unsqueeze", ["k", "zero"], "u"),
                                               node("Concat", ["u", "eight"], "t", axis=0), node("Reshape", ["x", "t"], "y")],
        "an Expand by ones": [node("Neg", ["x"], "n"), node("Expand", ["n", "ones"], "a"), node("Relu", ["a"], "y")],
        "extents of what it is made from": [*both, node("Relu", ["x"], "z"), node("Reshape", ["z", "t"], "y")],
        "extents of one that is wider": [*both, node("Concat", ["x", "x"], "z", axis=2), node("Reshape", ["z", "t"], "y")],
        "extents of the same symbols": [node("Relu", ["x"], "z"), *extent("a", "z", 0), *extent("b", "z", 1), node("Concat", ["a", "b", "none", "eight"], "t", axis=0), node("Reshape", ["x", "t"], "y")],
        "extents in another order": [*both, node("Transpose", ["x"], "z", perm=[1, 0, 2]), node("Reshape", ["z", "t"], "y")],
        "extents that a range tells": [*extent("b", "x", 1), node("Squeeze", ["b", "zero"], "l"), node("Range", ["c0", "l", "c1"], "p"), node("Cast", ["p"], "f", to=1), node("Unsqueeze", ["f", "none"], "u"),
                                       node("Add", ["x", "u"], "z"), *extent("a", "z", 0), *extent("d", "z", 1), node("Concat", ["a", "d", "none", "eight"], "t", axis=0), node("Neg", ["z"], "n"),
                                       node("Reshape", ["n", "t"], "y")],
        "an extent of another place": [*extent("b", "x", 1), node("Concat", ["b", "none", "eight"], "t", axis=0), node("Reshape", ["x", "t"], "y")],
    }}
    found = {{}}
    for kind, nodes in kinds.items():
        graph = helper.make_graph(nodes, "graph", [helper.make_tensor_value_info("x", 1, ["batch", "length", 32])], [helper.make_tensor_value_info("y", 1, None)], initializers)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8).SerializeToString()
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.optimized_model_filepath = {path!r}
        onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        saved = onnx.load({path!r})
        x = numpy.random.default_rng(0).random((2, 8, 32), numpy.float32)
        made = [onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"]).run(None, {{"x": x}})[0] for data in (model, saved.SerializeToString())]
        assert numpy.allclose(*made)
        found[kind] = [sorted(node.op_type for node in saved.graph.node if node.op_type != "Constant"), list(made[0].shape)]
    print(json.dumps(found))
"""


def test_a_saved_model_is_simplified_alike(tmp_path):
    ours, theirs = on_both(SAVED.format(path=str(tmp_path / "saved.onnx")))
    assert ours == theirs
