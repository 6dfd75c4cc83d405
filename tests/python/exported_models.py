#!/usr/bin/env python3
"""Compares architectures exported from PyTorch with PyTorch itself: small configurations with random weights, both exporters.

    tests/python/exported_models.py [NAME ...] [--exporter dynamo|torchscript] [--verbose]

Each architecture is exported with symbolic extents where it allows them. It runs with the example that it was exported with and, if extents are
symbolic, with another one.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import os
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import numpy as np
import torch
from torch import nn

TOLERANCE = 1e-4  # allowed error, relative to the largest magnitude of an output
EXPORTERS = ("dynamo", "torchscript")


@dataclass(frozen=True)
class Architecture:
    """Says how to make a network, and its inputs for a given size. The network is exported with the inputs of size 1."""

    make: Callable[[], nn.Module]
    inputs: Callable[[int], tuple[torch.Tensor, ...]]
    dynamic: dict[str, list[int]] = field(default_factory=dict)  # for each input, the axes that are symbolic
    names: tuple[str, ...] = ("x",)


class Outputs(nn.Module):
    """A model of transformers with plain tensors as inputs and outputs."""

    def __init__(self, model: nn.Module, names: tuple[str, ...], take: str) -> None:
        super().__init__()
        self.model, self.names, self.take = model, names, take

    def forward(self, *values: torch.Tensor) -> torch.Tensor:
        return getattr(self.model(**dict(zip(self.names, values)), return_dict=True), self.take)


def _ids(size: int, vocabulary: int = 64) -> torch.Tensor:
    return torch.randint(2, vocabulary, (size, 6 + size), generator=torch.Generator().manual_seed(size))


def _noise(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))


def _text(config: str, model: str, take: str = "last_hidden_state", mask: bool = True, **fields: Any) -> Architecture:
    names = ("input_ids", "attention_mask") if mask else ("input_ids",)

    def make() -> nn.Module:
        import transformers

        usual = {
            "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "max_position_embeddings": 40,
            "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1,
        }  # fmt: skip
        made = getattr(transformers, config)(**{**usual, "use_cache": False, "attn_implementation": "eager", **fields})
        return Outputs(getattr(transformers, model)(made), names, take)

    def inputs(size: int) -> tuple[torch.Tensor, ...]:
        ids = _ids(size)
        present = torch.ones_like(ids)
        present[0, -1] = 0
        return (ids, present) if mask else (ids,)

    return Architecture(make, inputs, {name: [0, 1] for name in names}, names)


def _image(config: str, model: str, take: str, side: int = 32, **fields: Any) -> Architecture:
    def make() -> nn.Module:
        import transformers

        return Outputs(getattr(transformers, model)(getattr(transformers, config)(**fields)), ("pixel_values",), take)

    return Architecture(make, lambda size: (_noise(size, 3, side, side),), {"pixel_values": [0]}, ("pixel_values",))


def _plain(make: Callable[[], nn.Module], *shape: int) -> Architecture:
    return Architecture(make, lambda size: (_noise(size, *shape),), {"x": [0]})


class Recurrent(nn.Module):
    """A recurrent network that returns its output for the last step."""

    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.cells, self.last = kind(5, 8, num_layers=2, bidirectional=True, batch_first=True), nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.cells(x)[0][:, -1])


class UNet(nn.Module):
    """A U-Net: scales down and up again, with skip connections."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.inner = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.up, self.out = nn.ConvTranspose2d(16, 8, 2, 2), nn.Conv2d(16, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        high = torch.relu(self.down(x))
        low = nn.functional.gelu(self.inner(high))
        return self.out(torch.cat([high, self.up(low)], 1)).softmax(1)


class Squeezed(nn.Module):
    """A mobile block: expansion, depthwise convolution, and squeeze-and-excitation."""

    def __init__(self) -> None:
        super().__init__()
        self.expand = nn.Sequential(nn.Conv2d(3, 16, 1, bias=False), nn.BatchNorm2d(16), nn.Hardswish())
        self.depthwise = nn.Sequential(nn.Conv2d(16, 16, 5, padding=2, groups=16, bias=False), nn.BatchNorm2d(16), nn.SiLU())
        self.gate = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(16, 4, 1), nn.ReLU(), nn.Conv2d(4, 16, 1), nn.Hardsigmoid())
        self.project = nn.Conv2d(16, 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.depthwise(self.expand(x))
        return x + self.project(y * self.gate(y))


class Attended(nn.Module):
    """PyTorch's scaled_dot_product_attention with a causal mask."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


class Detector(nn.Module):
    """A detector: boxes of a grid with their scores, and non-maximum suppression."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv2d(3, 6, 3, stride=2, padding=1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.body(x).flatten(2).transpose(1, 2)
        score, best = y[..., 5].sigmoid().topk(5, dim=1)
        return torch.gather(y[..., :4], 1, best.unsqueeze(-1).expand(-1, -1, 4)).exp().clamp(max=10), score


class Resampled(nn.Module):
    """Images that are resized, sampled by a grid, and padded by reflection."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = nn.functional.interpolate(x, scale_factor=2.0, mode="bilinear", align_corners=False)
        y = nn.functional.interpolate(nn.functional.pad(y, (1, 2, 2, 1), mode="reflect"), size=(9, 7), mode="nearest")
        return nn.functional.pixel_unshuffle(nn.functional.pixel_shuffle(y.repeat(1, 4, 1, 1), 2)[..., :8, :8], 2)


def architectures() -> dict[str, Architecture]:
    vit = {"image_size": 32, "patch_size": 8, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    stages = {"hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1]}
    gpt = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 40}
    shared = {"num_key_value_heads": 2}
    return {
        "MLP": _plain(lambda: nn.Sequential(nn.Linear(7, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 3), nn.LogSoftmax(-1)), 7),
        "LSTM": _plain(lambda: Recurrent(nn.LSTM), 6, 5),
        "GRU": _plain(lambda: Recurrent(nn.GRU), 6, 5),
        "RNN": _plain(lambda: Recurrent(nn.RNN), 6, 5),
        "U-Net": _plain(UNet, 3, 16, 16),
        "MobileBlock": _plain(Squeezed, 3, 12, 12),
        "Detector": _plain(Detector, 3, 16, 16),
        "Resampling": _plain(Resampled, 3, 8, 8),
        "Temporal convolutions": _plain(
            lambda: nn.Sequential(nn.Conv1d(4, 8, 3, dilation=2, padding=2), nn.GroupNorm(2, 8), nn.PReLU(8), nn.MaxPool1d(2), nn.Conv1d(8, 4, 3)), 4, 20
        ),
        "Volumes": _plain(lambda: nn.Sequential(nn.Conv3d(2, 4, 3, padding=1), nn.InstanceNorm3d(4, affine=True), nn.ELU(), nn.AvgPool3d(2)), 2, 4, 6, 6),
        "Attention": Architecture(
            Attended, lambda size: tuple(_noise(size, 2, 5, 8) + i for i in range(3)), {name: [0] for name in "qkv"}, ("q", "k", "v")
        ),
        "TransformerEncoder": _plain(lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), 2, enable_nested_tensor=False), 6, 16),
        "BERT": _text("BertConfig", "BertModel"),
        "RoBERTa": _text("RobertaConfig", "RobertaModel"),
        "DistilBERT": _text("DistilBertConfig", "DistilBertModel", dim=32, n_layers=2, n_heads=4, hidden_dim=48),
        "ALBERT": _text("AlbertConfig", "AlbertModel", embedding_size=16),
        "ELECTRA": _text("ElectraConfig", "ElectraModel", embedding_size=16),
        "MPNet": _text("MPNetConfig", "MPNetModel"),
        "GPT-2": _text("GPT2Config", "GPT2LMHeadModel", "logits", **gpt),
        "GPT-NeoX": _text("GPTNeoXConfig", "GPTNeoXForCausalLM", "logits"),
        "OPT": _text("OPTConfig", "OPTForCausalLM", "logits", ffn_dim=48, word_embed_proj_dim=32),
        "LLaMA": _text("LlamaConfig", "LlamaForCausalLM", "logits", **shared),
        "Mistral": _text("MistralConfig", "MistralForCausalLM", "logits", **shared),
        "Qwen2": _text("Qwen2Config", "Qwen2ForCausalLM", "logits", **shared),
        "Qwen3": _text("Qwen3Config", "Qwen3ForCausalLM", "logits", head_dim=8, **shared),
        "Gemma": _text("GemmaConfig", "GemmaForCausalLM", "logits", head_dim=8, **shared),
        "Phi": _text("PhiConfig", "PhiForCausalLM", "logits"),
        "Bloom": _text("BloomConfig", "BloomForCausalLM", "logits", n_layer=2, n_head=4),
        "ViT": _image("ViTConfig", "ViTModel", "last_hidden_state", **vit),
        "DeiT": _image("DeiTConfig", "DeiTModel", "last_hidden_state", **vit),
        "DINOv2": _image("Dinov2Config", "Dinov2Model", "last_hidden_state", **{k: v for k, v in vit.items() if k != "intermediate_size"}),
        "Swin": _image("SwinConfig", "SwinModel", "last_hidden_state", image_size=32, patch_size=4, embed_dim=8, depths=[1, 1], num_heads=[2, 2], window_size=4),
        "ResNet": _image("ResNetConfig", "ResNetModel", "last_hidden_state", embedding_size=8, layer_type="bottleneck", **stages),
        "ConvNeXt": _image("ConvNextConfig", "ConvNextModel", "last_hidden_state", **stages),
        "RegNet": _image("RegNetConfig", "RegNetModel", "last_hidden_state", embedding_size=8, groups_width=8, **stages),
        "MobileNetV2": _image("MobileNetV2Config", "MobileNetV2Model", "last_hidden_state", depth_multiplier=0.25),
        "MobileViT": _image(
            "MobileViTConfig", "MobileViTModel", "last_hidden_state", side=64, image_size=64, hidden_sizes=[16, 16, 16], neck_hidden_sizes=[8, 8, 8, 8, 16, 16, 32],
            num_attention_heads=2,
        ),
        "SegFormer": _image(
            "SegformerConfig", "SegformerForSemanticSegmentation", "logits", side=64, hidden_sizes=[8, 8, 16, 16], depths=[1, 1, 1, 1], decoder_hidden_size=16,
            num_attention_heads=[1, 1, 2, 2], num_labels=3,
        ),
    }  # fmt: skip


def _quiet() -> contextlib.ExitStack:
    stack = contextlib.ExitStack()
    stack.enter_context(warnings.catch_warnings())
    warnings.simplefilter("ignore")
    stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
    stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
    logging.disable(logging.WARNING)
    stack.callback(logging.disable, logging.NOTSET)
    return stack


def export(architecture: Architecture, module: nn.Module, exporter: str) -> bytes:
    """Exports the module, and returns the ONNX file's contents."""
    inputs = architecture.inputs(2)
    with _quiet(), torch.no_grad():
        if exporter == "dynamo":
            shapes = tuple(
                {axis: torch.export.Dim.AUTO for axis in architecture.dynamic.get(name, [])} or None for name in architecture.names
            )
            # A module that takes *values has a single parameter, the tuple of all values.
            nested = (shapes,) if isinstance(module, Outputs) else shapes
            program = torch.onnx.export(module, inputs, dynamo=True, dynamic_shapes=nested, input_names=list(architecture.names), verbose=False)
            return program.model_proto.SerializeToString()
        file = io.BytesIO()
        axes = {name: {axis: f"{name}_{axis}" for axis in places} for name, places in architecture.dynamic.items()}
        torch.onnx.export(module, inputs, file, dynamo=False, input_names=list(architecture.names), dynamic_axes=axes, opset_version=17)
        return file.getvalue()


def _spread(module: nn.Module) -> nn.Module:
    """Gives the module weights that keep activations in a normal range: with initial weights, outputs may be almost zero."""
    for parameter in module.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=(parameter.numel() / parameter.shape[0]) ** -0.5)
        elif parameter.ndim == 1:
            parameter.data += 0.1 * torch.randn_like(parameter)
    return module


def difference(architecture: Architecture, exporter: str) -> float:
    """Returns the largest difference of an output, relative to its largest magnitude."""
    import treadle

    torch.manual_seed(0)
    # PyTorch's fast path calls one operator for a whole layer, and ONNX does not have this operator.
    torch.backends.mha.set_fastpath_enabled(False)
    module = _spread(architecture.make().eval())
    options = treadle.SessionOptions()
    session = treadle.InferenceSession(export(architecture, module, exporter), options)
    worst = 0.0
    for size in (2, 3):
        inputs = architecture.inputs(size)
        with torch.no_grad():
            expected = module(*inputs)
        wanted = [y.numpy() for y in (expected if isinstance(expected, tuple) else (expected,))]
        found = session.run(None, {entry.name: value.numpy() for entry, value in zip(session.get_inputs(), inputs, strict=True)})
        for ours, theirs in zip(found, wanted, strict=True):
            if ours.shape != theirs.shape or not np.isfinite(ours).all():
                return float("inf")
            assert np.abs(theirs).max() > 1e-3, "the network forgets its input"
            worst = max(worst, float(np.abs(ours - theirs).max() / np.abs(theirs).max()))
    return worst


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--exporter", choices=EXPORTERS)
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    failed = tried = 0
    for name, architecture in architectures().items():
        if options.names and name not in options.names:
            continue
        for exporter in [options.exporter] if options.exporter else EXPORTERS:
            started, tried = time.time(), tried + 1
            try:
                found = difference(architecture, exporter)
                text = f"{found:.1e}" + ("" if found <= TOLERANCE else " DIFFERENT")
                failed += found > TOLERANCE
            except Exception as error:  # any library may raise this error
                if options.verbose:
                    raise
                failed += 1
                text = f"{type(error).__name__}: {str(error)[:400]}"
            print(f"{name}, {exporter}: {text} ({time.time() - started:.1f} s)", flush=True)
    print(f"{tried - failed} of {tried} agree")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
