"""Tests a small LLaMA as exported from transformers: rotary embedding, grouped queries, masks, with and without a cache."""

import numpy as np
import pytest

import treadle

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

CONFIG = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 64,
}
LAYERS, KV_HEADS, HEAD = 2, 2, 16


class Decoder(torch.nn.Module):
    """The model with its cache as plain inputs and outputs, keys and values of each layer."""

    def __init__(self, cached):
        super().__init__()
        torch.manual_seed(0)
        config = transformers.LlamaConfig(attn_implementation="eager", **CONFIG)
        self.model, self.cached = transformers.LlamaForCausalLM(config).eval(), cached

    def forward(self, input_ids, attention_mask, position_ids, *past):
        cache = None
        if self.cached:
            cache = transformers.DynamicCache(config=self.model.config)
            for layer in range(LAYERS):
                cache.update(past[2 * layer], past[2 * layer + 1], layer)
        out = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=cache,
            use_cache=self.cached,
        )
        if not self.cached:
            return out.logits
        states = [state for layer in out.past_key_values.layers for state in (layer.keys, layer.values)]
        return (out.logits, *states)


def example(batch, length, past):
    generator = np.random.default_rng(length)
    states = [generator.standard_normal((batch, KV_HEADS, past, HEAD)).astype(np.float32) for _ in range(2 * LAYERS)]
    ids = generator.integers(0, CONFIG["vocab_size"], (batch, length))
    mask = np.ones((batch, past + length), np.int64)
    mask[0, 0] = 0  # the prompt is padded on the left
    positions = np.tile(np.arange(past, past + length), (batch, 1))
    return [ids, mask, positions, *(states if past else [])]


@pytest.fixture(scope="module", params=[False, True], ids=["whole", "cached"])
def decoder(request, tmp_path_factory):
    cached = request.param
    module, path = Decoder(cached), str(tmp_path_factory.mktemp("llama") / "llama.onnx")
    arguments = example(2, 5, 3 if cached else 0)
    names = ["input_ids", "attention_mask", "position_ids"]
    states = [f"{kind}.{layer}" for layer in range(LAYERS) for kind in ("key", "value")] if cached else []
    axes = {name: {0: "batch", 1: "length"} for name in names}
    axes["attention_mask"] = {0: "batch", 1: "total" if cached else "length"}
    axes |= {"past_" + name: {0: "batch", 2: "past"} for name in states} | {"logits": {0: "batch", 1: "length"}}
    with torch.no_grad():
        torch.onnx.export(
            module,
            tuple(torch.from_numpy(x) for x in arguments),
            path,
            dynamo=False,
            input_names=names + ["past_" + name for name in states],
            output_names=["logits", *states],
            dynamic_axes=axes,
            opset_version=17,
        )
    return cached, module, path


def count(text, op):
    return sum(f" {op}(" in line for line in text.splitlines())


def test_is_recognised(decoder):
    cached, _, path = decoder
    text = treadle.Model.load(path).to_text(optimized=True)
    assert count(text, "= treadle.FusedRotary") == 2 * LAYERS
    assert count(text, "= treadle.FusedAttention") == LAYERS
    assert count(text, "= RMSNormalization") == 2 * LAYERS + 1
    for gone in ("Neg", "Slice", "Expand", "Softmax"):
        assert count(text, "= " + gone) == 0, gone
    # Only the values of attention are transposed, to the order of axes in the cache.
    assert count(text, "= Transpose") == (LAYERS if cached else 0)


@pytest.mark.parametrize(("batch", "length", "past"), [(2, 5, 3), (1, 1, 9), (3, 17, 1), (2, 1, 30)])
def test_values_are_those_of_torch_and_of_the_graph_as_written(decoder, batch, length, past):
    cached, module, path = decoder
    arguments = example(batch, length, past if cached else 0)
    with torch.no_grad():
        expected = module(*(torch.from_numpy(x) for x in arguments))
    expected = [x.numpy() for x in (expected if cached else [expected])]
    plain = treadle.SessionOptions()
    plain.graph_optimization_level = treadle.GraphOptimizationLevel.ORT_DISABLE_ALL
    for options in (treadle.SessionOptions(), plain):
        session = treadle.InferenceSession(path, options)
        feeds = {info.name: x for info, x in zip(session.get_inputs(), arguments, strict=True)}
        results = session.run(None, feeds)
        assert len(results) == len(expected)
        for result, want in zip(results, expected, strict=True):
            # If a row is masked completely, the result is the mean of all values, in both.
            np.testing.assert_allclose(result, want, atol=3e-5 * np.abs(want).max())


def test_tokens_one_by_one_give_what_all_at_once_give(decoder):
    cached, _, path = decoder
    if not cached:
        pytest.skip("without a cache")
    ids, mask, positions = example(1, 8, 0)
    mask[:] = 1
    with torch.no_grad():
        expected = Decoder(False)(*(torch.from_numpy(x) for x in (ids, mask, positions))).numpy()
    session = treadle.InferenceSession(path)
    states = [np.zeros((1, KV_HEADS, 0, HEAD), np.float32)] * (2 * LAYERS)
    names = [info.name for info in session.get_inputs()]
    for t in range(ids.shape[1]):
        step = [ids[:, t : t + 1], mask[:, : t + 1], positions[:, t : t + 1], *states]
        logits, *states = session.run(None, dict(zip(names, step, strict=True)))
        np.testing.assert_allclose(logits[:, 0], expected[:, t], atol=3e-5 * np.abs(expected).max())
