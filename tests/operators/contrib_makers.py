"""Draws float32 nodes of the operators of com.microsoft, by the makers of the tests in tests/python, which compare them with onnxruntime, and by
the makers of the gradients' fuzzer."""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "python"))

import test_microsoft_attention as attention
import test_microsoft_experts as experts
import test_microsoft_operators as operators
import test_microsoft_quantized as quantized
import test_microsoft_recent as recent
import test_microsoft_sequences as sequences
from draft import Case, Choices, Rejected, draw_declared
from microsoft_makers import MAKERS as DIFFERENTIABLE, MicrosoftDraft

DOMAIN = "com.microsoft"
TOLERANCE = 2e-6  # the relative tolerance of a case whose `tolerance` is 1
Drawn = tuple[str, dict[str, Any], dict[str, Any]]


def _blocks(rng: np.random.Generator) -> Drawn:
    bits = (2, 4, 8, None)[rng.integers(4)]
    inputs, attributes, _ = quantized.gather_block_quantized(rng, bits)
    return "GatherBlockQuantized", inputs, {"attributes": attributes, "constants": ("data", "scales", "zero_points")}


def _quantised_lstm(rng: np.random.Generator) -> Drawn:
    inputs, attributes = quantized.quantised_lstm(rng)
    constants = ("w", "r", "b", "w_scale", "w_zero", "r_scale", "r_zero")
    return "DynamicQuantizeLSTM", inputs, {"attributes": attributes, "outputs": 3, "constants": constants, "rtol": 0.05}


def _attention_lstm(rng: np.random.Generator) -> Drawn:
    inputs, attributes = sequences.draw_attn_lstm(rng)
    return "AttnLSTM", inputs, {"attributes": attributes, "outputs": 3, "rtol": 1e-4}


def _attention(make: Callable[[Any], Any]) -> Callable[[np.random.Generator], Drawn]:
    def draw(rng: np.random.Generator) -> Drawn:
        case = make(attention.Source(int(rng.integers(1 << 30))))
        more = {"attributes": case.attributes, "outputs": case.outputs, "rtol": case.tolerance, "compared": case.compared}
        return case.op, dict(case.inputs), more

    return draw


_MAKERS = [
    *operators.CASES, *recent.CASES, *quantized.CASES.values(), experts.moe, experts.qmoe, *map(_attention, attention.MAKERS), _blocks, _quantised_lstm, _attention_lstm,
]  # fmt: skip


def _names() -> dict[str, list[Callable[[np.random.Generator], Drawn]]]:
    """Returns the makers of each operator, by the operator's name."""
    found: dict[str, list[Callable[[np.random.Generator], Drawn]]] = {}
    for make in _MAKERS:
        for op in {make(np.random.default_rng(seed))[0] for seed in range(12)}:
            found.setdefault(op, []).append(make)
    return found


MAKERS = _names()
NAMES = sorted({*MAKERS, *DIFFERENTIABLE})


def make_case(op: str, choices: Choices) -> Case:
    """Draws a node of the operator. @raises Rejected if the choices make no valid one"""
    makers = MAKERS.get(op, [])
    kind = choices.below(len(makers) + (op in DIFFERENTIABLE))
    if kind == len(makers):
        return _of_gradients(op, choices)
    name, inputs, options = makers[kind](np.random.default_rng(choices.below(1 << 30)))
    if name != op:
        raise Rejected
    outputs = options.get("outputs", 1)
    names = [f"y{i}" for i in range(outputs)] if isinstance(outputs, int) else outputs
    while inputs and next(reversed(inputs.values())) is None:
        inputs.popitem()
    fixed = choices.below(2) == 0
    return Case(
        op, DOMAIN, 1, 1, list(inputs.values()), dict(options.get("attributes") or {}), len(names), [fixed and name in options.get("constants", ()) for name in inputs],
        tolerance=max(8.0, max(options.get("rtol", 1e-5), options.get("atol", 1e-5)) / TOLERANCE), declared=draw_declared(choices, len(inputs)),
        unwanted=frozenset(i for i, each in enumerate(names) if not each), steps=options.get("steps", 0), compared=options.get("compared"),
    )  # fmt: skip


def _of_gradients(op: str, choices: Choices) -> Case:
    draft = MicrosoftDraft(op, choices, 1, np.float32)
    DIFFERENTIABLE[op](draft)
    draft.inputs = [x.astype(np.float32) if x is not None and x.dtype == np.float64 else x for x in draft.inputs]
    draft.tolerance = 16
    if op == "EmbedLayerNormalization":
        draft.num_outputs = 2  # onnxruntime requires the output mask_index
    return draft.finish(1)
