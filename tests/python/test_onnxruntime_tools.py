"""onnxruntime's tools in plain Python look for patterns in models that sessions save: they give the same graphs over Treadle's."""

import pathlib

import pytest
from test_onnxruntime_shim import on_both

pytest.importorskip("onnxruntime")
DIGITS = pathlib.Path(__file__).resolve().parents[2] / "examples/digits/digits.onnx"


@pytest.fixture(scope="module")
def encoder(tmp_path_factory) -> pathlib.Path:
    """A small BERT, as torch.onnx and optimum write it."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")

    class Encoder(torch.nn.Module):
        def __init__(self):
            super().__init__()
            sizes = {"vocab_size": 100, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96, "max_position_embeddings": 64}
            self.model = transformers.BertModel(transformers.BertConfig(**sizes, attn_implementation="eager"))

        def forward(self, input_ids, attention_mask, token_type_ids):
            return self.model(input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids, use_cache=False).last_hidden_state

    path = tmp_path_factory.mktemp("encoder") / "bert.onnx"
    ids = torch.arange(18).reshape(2, 9)
    names = ["input_ids", "attention_mask", "token_type_ids"]
    example = (ids, torch.ones_like(ids), torch.zeros_like(ids))
    axes = {name: {0: "batch", 1: "length"} for name in names}
    torch.onnx.export(Encoder().eval(), example, str(path), input_names=names, dynamic_axes=axes, opset_version=14, dynamo=False)
    return path


def test_the_optimizer_of_transformers_fuses_the_same(encoder):
    ours, theirs = on_both(
        f"""
        import collections, json
        from onnxruntime.transformers import optimizer
        model = optimizer.optimize_model({str(encoder)!r}, model_type="bert", num_heads=4, hidden_size=64).model
        print(json.dumps(sorted(collections.Counter(node.op_type for node in model.graph.node).items())))
        """
    )
    assert ours == theirs
    assert dict(ours)["Attention"] == 2, "it fuses them"


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
