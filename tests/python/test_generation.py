"""Tests that com.microsoft's GreedySearch, Sampling, BeamSearch and WhisperBeamSearch give ONNX Runtime's tokens, with small random
decoders."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

import treadle
from generation_models import Sizes, encoder_decoder, gpt_decoder, search_model
from treadle import errors

ROUNDS = int(os.environ.get("TREADLE_TEST_ROUNDS", "12"))
Feeds = dict[str, np.ndarray]


def i32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def given(inputs: dict[str, Any]) -> Feeds:
    return {name: array for name, array in inputs.items() if array is not None}


def expected(ort: Any, made: bytes, feeds: Feeds) -> list[Any]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(made, options, providers=["CPUExecutionProvider"])
    return list(session.run(None, {i.name: feeds[i.name] for i in session.get_inputs()}))


def actual(made: bytes, feeds: Feeds, **options: Any) -> list[np.ndarray]:
    session = treadle.InferenceSession(made, **options)
    return list(session.run(None, {i.name: feeds[i.name] for i in session.get_inputs()}))


class Draw:
    """Draws random arguments of a search: a prompt, padded in front, and parameters, each of which may be absent."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = np.random.default_rng(seed)
        self.sizes = Sizes(vocabulary=int(rng.integers(5, 30)))
        self.batch, self.length = int(rng.integers(1, 4)), int(rng.integers(1, 6))
        self.ids = rng.integers(2, self.sizes.vocabulary, (self.batch, self.length)).astype(np.int32)
        for row in self.ids:
            row[: rng.integers(0, self.length)] = 0

    def maybe(self, array: np.ndarray) -> np.ndarray | None:
        return array if self.rng.integers(2) else None

    def vocab_mask(self) -> np.ndarray:
        """Returns a mask that allows some tokens, always including the end of text."""
        mask = (self.rng.uniform(size=self.sizes.vocabulary) < 0.8).astype(np.int32)
        mask[1] = 1
        return mask

    def prefix_mask(self) -> np.ndarray:
        return (self.rng.uniform(size=(self.batch, self.sizes.vocabulary)) < 0.8).astype(np.int32)

    def penalty(self) -> np.ndarray:
        return np.array([self.rng.uniform(0.8, 1.5)], np.float32)

    def beams(self, start: int, shortest: int = 1) -> dict[str, np.ndarray | None]:
        rng, beams = self.rng, int(self.rng.integers(1, 5))
        return {
            "input_ids": self.ids,
            "max_length": i32(start + int(rng.integers(shortest, 12))),
            "min_length": i32(rng.integers(0, 8)),
            "num_beams": i32(beams),
            "num_return_sequences": i32(rng.integers(1, beams + 1)),
            "length_penalty": np.array([rng.uniform(0.5, 2)], np.float32),
            "repetition_penalty": self.maybe(self.penalty()),
            "vocab_mask": self.maybe(self.vocab_mask()),
            "prefix_vocab_mask": self.maybe(self.prefix_mask()),
            "attention_mask": self.maybe((self.ids != 0).astype(np.int32)),
        }

    def attributes(self, **more: object) -> dict[str, object]:
        return {"eos_token_id": 1, "pad_token_id": 0, "no_repeat_ngram_size": int(self.rng.integers(0, 4)), **more}

    def fixed(self) -> tuple[str, ...]:
        return ("max_length", "num_beams") if self.rng.integers(2) else ()


def same_beams(found: list[np.ndarray], wanted: list[np.ndarray]) -> None:
    np.testing.assert_array_equal(found[0], wanted[0])
    np.testing.assert_allclose(found[1], wanted[1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_greedy_search(ort: Any, seed: int) -> None:
    draw = Draw(seed)
    inputs = {
        "input_ids": draw.ids,
        "max_length": i32(draw.length + int(draw.rng.integers(1, 12))),
        "min_length": draw.maybe(i32(draw.rng.integers(0, 8))),
        "repetition_penalty": draw.maybe(draw.penalty()),
        "vocab_mask": draw.maybe(draw.vocab_mask()),
        "prefix_vocab_mask": draw.maybe(draw.prefix_mask()),
        "attention_mask": draw.maybe((draw.ids != 0).astype(np.int32)),
    }
    made = search_model("GreedySearch", inputs, 1, **draw.attributes(decoder=gpt_decoder(draw.rng, draw.sizes)))
    wanted, found = expected(ort, made, given(inputs))[0], actual(made, given(inputs))[0]
    assert found.shape == wanted.shape
    # ONNX Runtime leaves its output unwritten after the round in which the last text ends.
    written = max(draw.length, int(np.nonzero((found != 0).any(0))[0].max()) + 1)
    np.testing.assert_array_equal(found[:, :written], wanted[:, :written])
    assert (found[:, written:] == 0).all()


@pytest.mark.parametrize("kind", ["decoder", "init_decoder", "attention"])
@pytest.mark.parametrize("seed", range(ROUNDS))
def test_beam_search_of_a_decoder(ort: Any, seed: int, kind: str) -> None:
    draw = Draw(seed)
    decoder = gpt_decoder(draw.rng, draw.sizes, fused=kind == "attention")
    attributes = draw.attributes(decoder=decoder, early_stopping=1, **({"init_decoder": decoder} if kind == "init_decoder" else {}))
    inputs = draw.beams(draw.length)
    made = search_model("BeamSearch", inputs, 2, draw.fixed(), **attributes)
    same_beams(actual(made, given(inputs)), expected(ort, made, given(inputs)))


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_beams_that_may_improve_go_on(ort: Any, seed: int) -> None:
    # The case has only one text: with several, ONNX Runtime compares a text with the best score of another one.
    draw = Draw(seed)
    draw.ids, draw.batch = draw.ids[:1], 1
    inputs = draw.beams(draw.length)
    made = search_model("BeamSearch", inputs, 3, **draw.attributes(decoder=gpt_decoder(draw.rng, draw.sizes), early_stopping=0))
    found, wanted = actual(made, given(inputs)), expected(ort, made, given(inputs))
    same_beams(found, wanted)
    assert found[2].shape == wanted[2].shape
    rounds = len(found[2]) if not (found[2] == 0).all((1, 2, 3)).any() else int((found[2] == 0).all((1, 2, 3)).argmax())
    assert rounds > 0
    np.testing.assert_allclose(found[2][:rounds], wanted[2][:rounds], rtol=1e-4, atol=1e-4)  # the rest of ONNX Runtime's output is unwritten


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_texts_of_a_batch_do_not_depend_on_each_other(seed: int) -> None:
    draw = Draw(seed)
    inputs = draw.beams(draw.length) | {"prefix_vocab_mask": None, "attention_mask": None}
    made = search_model("BeamSearch", inputs, 2, **draw.attributes(decoder=gpt_decoder(draw.rng, draw.sizes), early_stopping=0))
    together = actual(made, given(inputs))
    for i in range(draw.batch):
        alone = actual(made, given(inputs) | {"input_ids": draw.ids[i : i + 1]})
        np.testing.assert_array_equal(together[0][i], alone[0][0])


@pytest.mark.parametrize(
    ("name", "value"),
    [("num_beams", 2**31 - 1), ("num_beams", 0), ("num_beams", -1), ("max_length", 2**31 - 1), ("max_length", -1), ("num_return_sequences", 2**31 - 1), ("num_return_sequences", 0)],
)  # fmt: skip
def test_sizes_of_a_beam_search_keep_their_bounds(name: str, value: int) -> None:
    draw = Draw(1)
    inputs = draw.beams(draw.length) | {name: i32(value)}
    made = search_model("BeamSearch", inputs, 2, **draw.attributes(decoder=gpt_decoder(draw.rng, draw.sizes), early_stopping=0))
    options = treadle.SessionOptions()
    options.memory_limit_bytes = 1 << 28
    with pytest.raises((errors.InvalidArgument, errors.OutOfMemory)):
        treadle.InferenceSession(made, options).run(None, given(inputs))


@pytest.mark.parametrize("hidden", [True, False])
@pytest.mark.parametrize("seed", range(ROUNDS))
def test_beam_search_of_an_encoder_and_a_decoder(ort: Any, seed: int, hidden: bool) -> None:
    draw = Draw(seed)
    encoder, decoder = encoder_decoder(draw.rng, draw.sizes, hidden)
    attributes = draw.attributes(encoder=encoder, decoder=decoder, model_type=1, decoder_start_token_id=2, early_stopping=1)
    inputs = draw.beams(1, shortest=2)
    made = search_model("BeamSearch", inputs, 2, draw.fixed(), **attributes)
    same_beams(actual(made, given(inputs)), expected(ort, made, given(inputs)))


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_whisper_beam_search(ort: Any, seed: int) -> None:
    draw = Draw(seed)
    rng = draw.rng
    draw.sizes = sizes = Sizes(vocabulary=int(rng.integers(30, 90)))
    start, first_time = int(rng.integers(1, 4)), sizes.vocabulary // 2
    inputs = draw.beams(start, shortest=2) | {
        "input_ids": rng.standard_normal((draw.batch, sizes.width, draw.length)).astype(np.float32),
        "repetition_penalty": np.array([1], np.float32),
        "vocab_mask": None,
        "prefix_vocab_mask": None,
        "attention_mask": None,
        "decoder_input_ids": rng.integers(10, first_time, (draw.batch, start)).astype(np.int32),
        "logits_processor": i32(rng.integers(0, 2)),
    }
    if rng.integers(2):
        inputs |= {"cross_qk_layer_head": None, "extra_decoding_ids": None, "temperature": np.array([0.7], np.float32)}
    names = ("translate", "transcribe", "start_of_lm", "no_timestamps")
    tokens = {f"{name}_token_id": i for i, name in enumerate(names, start=3)} | {"beginning_timestamp_token_id": first_time}
    encoder, decoder = encoder_decoder(rng, sizes, hidden=False, whisper=True)
    attributes = draw.attributes(encoder=encoder, decoder=decoder, early_stopping=1, decoder_start_token_id=2, **tokens)
    made = search_model("WhisperBeamSearch", inputs, 2, **attributes)
    same_beams(actual(made, given(inputs)), expected(ort, made, given(inputs)))


@pytest.mark.parametrize("options", [{"execution_mode": treadle.ExecutionMode.ORT_PARALLEL}, {"device": "sim"}, {"graph_optimization_level": treadle.GraphOptimizationLevel.ORT_DISABLE_ALL}, {"verify_plans": True}])
@pytest.mark.parametrize("seed", range(3))
def test_searches_run_as_every_loop_does(seed: int, options: dict[str, Any]) -> None:
    draw = Draw(seed)
    inputs = draw.beams(draw.length)
    decoder = gpt_decoder(draw.rng, draw.sizes)
    made = search_model("BeamSearch", inputs, 3, **draw.attributes(decoder=decoder, init_decoder=decoder))
    session_options = treadle.SessionOptions()
    for name, value in options.items():
        setattr(session_options, name, value)
    for a, b in zip(actual(made, given(inputs)), actual(made, given(inputs), sess_options=session_options)):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def sampling(draw: Draw, inputs: dict[str, np.ndarray | None], **attributes: object) -> bytes:
    return search_model("Sampling", inputs, 1, **draw.attributes(decoder=gpt_decoder(draw.rng, draw.sizes), **attributes))


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_sampling_the_likeliest_token_is_greedy(seed: int) -> None:
    draw = Draw(seed)
    decoder = gpt_decoder(draw.rng, draw.sizes)
    inputs = {"input_ids": draw.ids, "max_length": i32(draw.length + 8)}
    found = [
        actual(search_model(kind, inputs, 1, eos_token_id=1, pad_token_id=0, decoder=decoder, **more), given(inputs))[0]
        for kind, more in [("Sampling", {"top_p": 1e-6}), ("GreedySearch", {})]
    ]
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("custom", [0, 1])
@pytest.mark.parametrize("seed", range(6))
def test_sampled_tokens_have_onnxruntimes_distribution(ort: Any, seed: int, custom: int) -> None:
    draw = Draw(seed)
    rows = 4000
    ids = np.repeat(draw.ids[:1], rows, 0)
    mask = np.repeat((draw.rng.uniform(size=(1, draw.sizes.vocabulary)) < 0.5).astype(np.int32), rows, 0)
    inputs = {
        "input_ids": ids,
        "max_length": i32(draw.length + 1),
        "min_length": None,
        "repetition_penalty": draw.maybe(draw.penalty()),
        "vocab_mask": draw.maybe(draw.vocab_mask()),
        "prefix_vocab_mask": None,
        "attention_mask": None,
        "presence_mask": draw.maybe(mask),
        "seed": i32(seed),
    }
    made = sampling(draw, inputs, custom=custom, top_p=float(draw.rng.uniform(0.2, 0.95)), temperature=float(draw.rng.uniform(0.5, 2)), presence_penalty=0.5)
    counts = [np.bincount(run[0][:, -1], minlength=draw.sizes.vocabulary) for run in (actual(made, given(inputs)), expected(ort, made, given(inputs)))]
    both = counts[0] + counts[1]
    # Chi-squared test of two samples. The bound is the mean plus five standard deviations.
    chi = ((counts[0] - counts[1])[both > 0] ** 2 / both[both > 0]).sum()
    freedom = max(int((both > 0).sum()) - 1, 1)
    assert chi < freedom + 5 * np.sqrt(2 * freedom) + 5, (counts, chi)


def test_a_seed_repeats_what_is_drawn() -> None:
    draw = Draw(1)
    inputs = {"input_ids": np.repeat(draw.ids[:1], 50, 0), "max_length": i32(draw.length + 6)}
    seeded = dict.fromkeys(("min_length", "repetition_penalty", "vocab_mask", "prefix_vocab_mask", "attention_mask", "presence_mask"))
    made = sampling(draw, inputs | seeded | {"seed": i32(5)}, top_p=1.0, temperature=20.0)
    session = treadle.InferenceSession(made)
    runs = [session.run(None, given(inputs) | {"seed": i32(seed)})[0] for seed in (5, 5, 6)]
    np.testing.assert_array_equal(runs[0], runs[1])
    assert (runs[0] != runs[2]).any()
    assert len(np.unique(runs[0], axis=0)) > 10


def test_sampling_without_a_seed_differs_from_run_to_run() -> None:
    draw = Draw(1)
    inputs = {"input_ids": np.repeat(draw.ids[:1], 50, 0), "max_length": i32(draw.length + 6)}
    session = treadle.InferenceSession(sampling(draw, inputs, top_p=1.0, temperature=20.0))
    assert (session.run(None, given(inputs))[0] != session.run(None, given(inputs))[0]).any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_length": i32(1)}, "max_length is 1, and the sequences have"),
        ({"num_return_sequences": i32(9)}, "num_return_sequences is 9; expected 1 to num_beams"),
        ({"repetition_penalty": np.array([0], np.float32)}, "repetition_penalty is 0; expected more than 0"),
        ({"vocab_mask": np.ones(3, np.int32)}, "elements of vocab_mask and the vocabulary"),
        ({"input_ids": np.full((1, 2), 99, np.int32)}, "index 99 is out of bounds for an axis of 25"),
    ],
)
def test_wrong_parameters_are_named(change: Feeds, message: str) -> None:
    draw = Draw(3)
    draw.ids = i32(4, 5).reshape(1, 2)
    draw.batch, draw.length = 1, 2
    inputs = draw.beams(2) | {"repetition_penalty": np.array([1.5], np.float32), "prefix_vocab_mask": None, "attention_mask": None} | change
    made = search_model("BeamSearch", inputs, 2, **draw.attributes(decoder=gpt_decoder(draw.rng, draw.sizes)))
    with pytest.raises(errors.Error, match=message):
        actual(made, given(inputs))


def test_a_decoder_without_a_past_is_refused() -> None:
    draw = Draw(0)
    decoder = gpt_decoder(draw.rng, draw.sizes)
    del decoder.output[-1]
    made = search_model("GreedySearch", {"input_ids": draw.ids, "max_length": i32(9)}, 1, **draw.attributes(decoder=decoder))
    with pytest.raises(errors.Error, match='"decoder" has 5 inputs and 2 outputs; expected 4 and 2'):
        treadle.InferenceSession(made)
