"""Typical uses of optimum-onnx: `python jobs.py FOLDER WORK` runs every job with the models of models.py in FOLDER, and prints the answers, or texts
of failures, as JSON. Jobs write their files to WORK."""

import collections
import json
import pathlib
import shutil
import sys
import traceback

import numpy as np
import onnx
import onnxruntime
import PIL.Image
import sentence_transformers
import torch
import transformers
from optimum.onnxruntime import (
    ORTModelForCausalLM,
    ORTModelForFeatureExtraction,
    ORTModelForImageClassification,
    ORTModelForMaskedLM,
    ORTModelForMultipleChoice,
    ORTModelForQuestionAnswering,
    ORTModelForSemanticSegmentation,
    ORTModelForSeq2SeqLM,
    ORTModelForSequenceClassification,
    ORTModelForSpeechSeq2Seq,
    ORTModelForTokenClassification,
    ORTModelForZeroShotImageClassification,
    ORTOptimizer,
    ORTQuantizer,
    pipeline,
)
from optimum.onnxruntime.configuration import AutoQuantizationConfig, OptimizationConfig

FOLDER, WORK = (pathlib.Path(argument) for argument in sys.argv[1:3])
TEXTS = ["the quick brown fox", "jumps over a lazy dog and runs away"]
JOBS = {}


def job(function):
    JOBS[function.__name__] = function
    return function


def batch(name="features", texts=TEXTS, **options):
    return transformers.AutoTokenizer.from_pretrained(FOLDER / name)(texts, padding=True, return_tensors="pt", **options)


def ask(kind, name, inputs, bindings=(False, True), **options):
    """Returns all outputs of a model, with and without IO binding."""
    answers = []
    for binding in bindings:
        model = kind.from_pretrained(FOLDER / name, use_io_binding=binding, **options)
        found = model(**inputs)
        answers.append({key: value.tolist() for key, value in found.items() if isinstance(value, torch.Tensor)})
    return answers


def write(kind, name, inputs, **options):
    """Returns the tokens that a decoder generates: greedy, with beams, and with seeds, each with and without IO binding and caches."""
    ways = {"greedy": {}, "beams": {"num_beams": 3, "num_return_sequences": 2}, "sampled": {"do_sample": True, "top_k": 8}}
    answers = {}
    for binding in (False, True):
        model = kind.from_pretrained(FOLDER / name, use_io_binding=binding, **options)
        for way, settings in ways.items():
            torch.manual_seed(0)
            answers[f"{way} {binding}"] = model.generate(**inputs, max_new_tokens=12, **settings).tolist()
    return answers


@job
def feature_extraction():
    model = ORTModelForFeatureExtraction.from_pretrained(FOLDER / "features")
    arrays = model(**transformers.AutoTokenizer.from_pretrained(FOLDER / "features")(TEXTS, padding=True, return_tensors="np"))
    return [ask(ORTModelForFeatureExtraction, "features", batch()), arrays.last_hidden_state.tolist()]


@job
def sequence_classification():
    return ask(ORTModelForSequenceClassification, "sequences", batch("sequences", return_token_type_ids=False))


@job
def token_classification():
    return ask(ORTModelForTokenClassification, "tokens", batch())


@job
def question_answering():
    return ask(ORTModelForQuestionAnswering, "answers", batch("answers", list(zip(TEXTS, reversed(TEXTS), strict=True))))


@job
def masked_language():
    return ask(ORTModelForMaskedLM, "masks", batch("masks", return_token_type_ids=False))


@job
def multiple_choice():
    inputs = {key: value.reshape(2, 1, -1).repeat(1, 3, 1) for key, value in batch("choices").items()}
    return ask(ORTModelForMultipleChoice, "choices", inputs)


@job
def gpt2():
    tokenizer = transformers.AutoTokenizer.from_pretrained(FOLDER / "gpt2", padding_side="left")
    inputs = tokenizer(TEXTS, padding=True, return_tensors="pt", return_token_type_ids=False)
    return write(ORTModelForCausalLM, "gpt2", inputs)


@job
def llama():
    return write(ORTModelForCausalLM, "llama", batch("llama", TEXTS[:1], return_token_type_ids=False))


@job
def t5():
    return [write(ORTModelForSeq2SeqLM, "t5", batch("t5", return_token_type_ids=False), use_merged=merged) for merged in (False, True)]


@job
def bart():
    return [write(ORTModelForSeq2SeqLM, "bart", batch("bart", return_token_type_ids=False), use_merged=merged) for merged in (False, True)]


@job
def whisper():
    sound = np.sin(np.arange(16000) / 20).astype(np.float32)
    features = transformers.WhisperFeatureExtractor(feature_size=16)(sound, sampling_rate=16000, return_tensors="pt")
    return write(ORTModelForSpeechSeq2Seq, "whisper", {"input_features": features.input_features})


@job
def clip():
    pictures = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    # Optimum does not know the extents of this model's outputs.
    return ask(ORTModelForZeroShotImageClassification, "clip", {**batch("clip", return_token_type_ids=False), "pixel_values": pictures}, bindings=[False])


@job
def vit():
    return ask(ORTModelForImageClassification, "vit", {"pixel_values": torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))})


@job
def segformer():
    return ask(ORTModelForSemanticSegmentation, "segformer", {"pixel_values": torch.rand(1, 3, 64, 96, generator=torch.Generator().manual_seed(0))}, bindings=[False])  # as above


@job
def pipelines():
    def made(task, kind, name, **options):
        model = kind.from_pretrained(FOLDER / name)
        return pipeline(task, model=model, tokenizer=transformers.AutoTokenizer.from_pretrained(FOLDER / name), accelerator="ort", **options)

    tags = made("token-classification", ORTModelForTokenClassification, "tokens", aggregation_strategy="simple")
    question = made("question-answering", ORTModelForQuestionAnswering, "answers")
    writer = made("text-generation", ORTModelForCausalLM, "gpt2")
    picture = PIL.Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 50, 3), np.uint8))
    looker = pipeline("image-classification", model=ORTModelForImageClassification.from_pretrained(FOLDER / "vit"), accelerator="ort", image_processor=transformers.ViTImageProcessor(size={"height": 32, "width": 32}))
    return [
        made("feature-extraction", ORTModelForFeatureExtraction, "features")(TEXTS),
        tags(TEXTS),
        question(question="what jumps", context=TEXTS[1]),
        writer(TEXTS[0], max_new_tokens=8, do_sample=False),
        looker(picture),
    ]


def counts(path):
    return sorted(collections.Counter(node.op_type for node in onnx.load(path).graph.node).items())


@job
def dynamic_quantisation():
    answers = []
    for name, settings in (("features", AutoQuantizationConfig.avx512_vnni(is_static=False, per_channel=False)), ("gpt2", AutoQuantizationConfig.avx2(is_static=False, per_channel=True))):
        folder = WORK / f"quantised-{name}"
        ORTQuantizer.from_pretrained(FOLDER / name).quantize(save_dir=folder, quantization_config=settings)
        path = folder / "model_quantized.onnx"
        answers.append(counts(path))
        if name == "features":
            answers.append(ask(ORTModelForFeatureExtraction, folder, batch(), file_name=path.name))
    return answers


COMPUTES = {"Attention", "BiasGelu", "Conv", "EmbedLayerNormalization", "FastGelu", "Gemm", "LayerNormalization", "MatMul", "SkipLayerNormalization", "Softmax"}


def optimised(level):
    answers = {}
    for name, kind, inputs in (
        ("features", ORTModelForFeatureExtraction, batch()),
        ("gpt2", ORTModelForCausalLM, batch("gpt2", TEXTS[:1], return_token_type_ids=False)),
        ("vit", ORTModelForImageClassification, {"pixel_values": torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))}),
    ):
        folder = WORK / f"optimised-{name}-{level}"
        ORTOptimizer.from_pretrained(kind.from_pretrained(FOLDER / name)).optimize(OptimizationConfig(optimization_level=level, optimize_for_gpu=False), save_dir=folder)
        path = folder / "model_optimized.onnx"
        # Nodes that compute extents may differ, so only those in COMPUTES are counted. Nodes of "vit" at level 99 are not compared, because
        # onnxruntime's blocked layout hides normalisations from its own optimizer.
        fused = [] if (name, level) == ("vit", 99) else [entry for entry in counts(path) if entry[0] in COMPUTES]
        answers[name] = [fused, ask(kind, folder, inputs, file_name=path.name)]
    return answers


@job
def optimizer():
    return optimised(1)


@job
def optimizer_extended():
    return optimised(2)


@job
def optimizer_all():
    return optimised(99)


@job
def sentences():
    folder = WORK / "sentences"
    shutil.copytree(FOLDER.resolve() / "features", folder)
    (folder / "onnx").mkdir()
    (folder / "model.onnx").rename(folder / "onnx" / "model.onnx")
    model = sentence_transformers.SentenceTransformer(str(folder), backend="onnx", model_kwargs={"file_name": "onnx/model.onnx"})
    return model.encode(TEXTS).tolist()


def main():
    answers = {"module": onnxruntime.InferenceSession.__module__}
    for name, function in JOBS.items():
        try:
            answers[name] = {"answer": function()}
        except Exception:
            answers[name] = {"failed": traceback.format_exc()}
    print(json.dumps(answers, default=lambda value: value.tolist()))


if __name__ == "__main__":
    main()
