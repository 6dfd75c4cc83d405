"""Inputs and small models for the probes of onnxruntime_packages.toml. They are generated, so that nothing is downloaded."""

from __future__ import annotations

import json
import pathlib

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def sound(seconds: float = 2, rate: int = 16000) -> np.ndarray:
    """Returns sound like a voice: five harmonics that glide and pause, with noise."""
    time = np.arange(int(seconds * rate)) / rate
    phase = 2 * np.pi * np.cumsum(150 + 60 * np.sin(2 * np.pi * 0.7 * time)) / rate
    voice = sum(np.sin(k * phase) / k for k in range(1, 6)) * (np.sin(2 * np.pi * 1.3 * time) > -0.4)
    return (0.2 * voice + np.random.default_rng(0).normal(0, 0.005, time.shape)).astype(np.float32)


def picture(height: int = 120, width: int = 160, seed: int = 0) -> np.ndarray:
    """Returns a gradient with rectangles, as bytes [height, width, 3]."""
    rng = np.random.default_rng(seed)
    image = np.stack([*np.meshgrid(np.linspace(0, 255, height), np.linspace(0, 255, width), indexing="ij"), np.full((height, width), 128)], axis=-1)
    for _ in range(6):
        top, left = rng.integers(0, max(1, height - 20)), rng.integers(0, max(1, width - 20))
        image[top : top + rng.integers(10, 50), left : left + rng.integers(10, 60)] = rng.integers(0, 256, 3)
    return image.astype(np.uint8)


def batch(size: int = 32) -> np.ndarray:
    """Returns the picture as input of a network: float32 [1, 3, size, size]."""
    return np.ascontiguousarray(picture(size, size).transpose(2, 0, 1)[None], np.float32) / 255


def write(text: str, size: int = 40) -> np.ndarray:
    """Returns a line of text, black on white, as bytes [height, width, 3]."""
    from PIL import Image, ImageDraw

    image = Image.new("RGB", (size * (len(text) + 2) * 2 // 3, 2 * size), (255, 255, 255))
    ImageDraw.Draw(image).text((size // 2, size // 3), text, fill=(0, 0, 0), font_size=size)
    return np.asarray(image)


def of(name: str, dtype: int, *shape: int | str | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, list(shape))


def weights(seed: int = 0, **shapes: tuple[int, ...]) -> list[onnx.TensorProto]:
    """Returns initializers with small random numbers."""
    rng = np.random.default_rng(seed)
    return [numpy_helper.from_array(rng.normal(0, 0.3, shape).astype(np.float32), name) for name, shape in shapes.items()]


def constant(name: str, *values: int) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(values, np.int64), name)


def model(nodes: list[tuple], inputs: list, outputs: list, initializers: list, path: str | pathlib.Path | None = None, opset: int = 17, **metadata: str) -> onnx.ModelProto:
    """Returns a model with these nodes (operator, inputs, outputs, attributes)."""
    made = [helper.make_node(operator, *names, **(attributes[0] if attributes else {})) for operator, *names, attributes in ((*node[:3], node[3:]) for node in nodes)]
    result = helper.make_model(helper.make_graph(made, "graph", inputs, outputs, initializers), opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    if metadata:
        helper.set_model_props(result, metadata)
    onnx.checker.check_model(result)
    if path is not None:
        pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
        onnx.save(result, str(path))
    return result


def network(path: str | pathlib.Path | None = None, channels: int = 3, features: int = 5) -> onnx.ModelProto:
    """Returns a network of convolution, normalisation, pooling and a product: x [n, channels, h, w] to y [n, features]."""
    nodes = [
        ("Conv", ["x", "w1", "b1"], ["c"], {"pads": [1] * 4, "kernel_shape": [3, 3]}),
        ("BatchNormalization", ["c", "scale", "shift", "mean", "variance"], ["n"]),
        ("Relu", ["n"], ["r"]),
        ("MaxPool", ["r"], ["p"], {"kernel_shape": [2, 2], "strides": [2, 2]}),
        ("Identity", ["p"], ["i"]),
        ("GlobalAveragePool", ["i"], ["g"]),
        ("Flatten", ["g"], ["f"]),
        ("Gemm", ["f", "w2", "b2"], ["y"], {"transB": 1}),
    ]
    filled = [numpy_helper.from_array(np.full(8, value, np.float32), name) for name, value in (("scale", 1.1), ("shift", 0.1), ("mean", 0.2), ("variance", 0.9))]
    initializers = weights(w1=(8, channels, 3, 3), b1=(8,), w2=(features, 8), b2=(features,)) + filled
    return model(nodes, [of("x", FLOAT, "n", channels, "h", "w")], [of("y", FLOAT, "n", features)], initializers, path)


def encoder(folder: pathlib.Path, file: str = "onnx/model.onnx", head: int = 0, token_types: bool = True) -> None:
    """Saves a text model with random weights, its tokenizer and settings, as transformers does. Outputs hidden states, or logits of `head` labels."""
    import tokenizers

    letters = "abcdefghijklmnopqrstuvwxyz0123456789"
    vocabulary = {token: i for i, token in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{c}" for c in letters)])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = tokenizers.normalizers.Lowercase()
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    special = {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "unk_token": "[UNK]", "mask_token": "[MASK]"}
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 64, "max_length": 64, **special}))
    (folder / "special_tokens_map.json").write_text(json.dumps(special))
    (folder / "vocab.txt").write_text("\n".join(vocabulary))
    labels = {str(i): f"label{i}" for i in range(head)} or {"0": "none"}
    settings = {"model_type": "bert", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": len(vocabulary)}
    (folder / "config.json").write_text(json.dumps({**settings, "max_position_embeddings": 64, "pad_token_id": 0, "id2label": labels, "label2id": {v: int(k) for k, v in labels.items()}}))
    names = ["input_ids", "attention_mask", *(["token_type_ids"] if token_types else [])]
    nodes = [
        ("Gather", ["embeddings", "input_ids"], ["e"]),
        *([("Gather", ["types", "token_type_ids"], ["t"]), ("Add", ["e", "t"], ["a"])] if token_types else [("Identity", ["e"], ["a"])]),
        ("Cast", ["attention_mask"], ["m"], {"to": FLOAT}),
        ("Unsqueeze", ["m", "last"], ["m3"]),
        ("Mul", ["a", "m3"], ["masked"]),
        ("ReduceMean", ["masked"], ["context"], {"axes": [1]}),
        ("Add", ["masked", "context"], ["both"]),
        ("MatMul", ["both", "w"], ["product"]),
        ("Tanh", ["product"], ["hidden"]),
    ]
    initializers = [*weights(1, embeddings=(len(vocabulary), 16), w=(16, 16)), *(weights(2, types=(2, 16)) if token_types else []), constant("last", -1)]
    if head:
        nodes += [("Gather", ["hidden", "first"], ["pooled"], {"axis": 1}), ("MatMul", ["pooled", "wh"], ["logits"])]
        initializers += [*weights(3, wh=(16, head)), numpy_helper.from_array(np.array(0), "first")]
        outputs = [of("logits", FLOAT, "batch", head)]
    else:
        nodes += [("Identity", ["hidden"], ["last_hidden_state"])]
        outputs = [of("last_hidden_state", FLOAT, "batch", "length", 16)]
    model(nodes, [of(name, INT64, "batch", "length") for name in names], outputs, initializers, folder / file)
