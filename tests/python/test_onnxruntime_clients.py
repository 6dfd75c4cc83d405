"""Compiled packages that load onnxruntime's library run unchanged on Treadle's, with the same answers."""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import textwrap
import zipfile

import pytest
import treadle
from conftest import REPOSITORY, SHARED_DATA

LIBRARY = pathlib.Path(os.environ.get("TREADLE_ORT_LIBRARY", REPOSITORY / "build/release/onnxruntime/libonnxruntime.so.1"))
pytestmark = pytest.mark.skipif(not LIBRARY.exists(), reason="libonnxruntime.so.1 is not built; set TREADLE_ORT_LIBRARY")


def needs(*packages: str) -> pytest.MarkDecorator:
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {missing}")


def answers(folder: pathlib.Path, program: str, *arguments: str, shim: bool = False, preload: bool = False) -> dict:
    """Runs a program, and returns the JSON that it prints last. `libraries` are those loaded under onnxruntime's name."""
    script = folder / "program.py"
    script.write_text(textwrap.dedent(program) + textwrap.dedent("""
        import json, re
        libraries = sorted({line.split()[-1] for line in open("/proc/self/maps") if re.search(r"libonnxruntime\\.so", line)})
        print(json.dumps({"result": result, "libraries": libraries}))
        """))
    environment = dict(os.environ, **({"LD_PRELOAD": str(LIBRARY)} if preload else {}))
    command = [sys.executable, *(["-m", "treadle.onnxruntime_shim"] if shim else []), str(script), *arguments]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert run.returncode == 0, run.stderr[-2000:]
    return json.loads(run.stdout.strip().splitlines()[-1])


VOICE_ACTIVITY = """
    import sys, wave
    import numpy as np
    import sherpa_onnx

    config = sherpa_onnx.VadModelConfig()
    config.silero_vad.model = sys.argv[1]
    config.sample_rate = 16000
    detector = sherpa_onnx.VoiceActivityDetector(config, buffer_size_in_seconds=100)
    with wave.open(sys.argv[2]) as file:
        samples = np.frombuffer(file.readframes(file.getnframes()), np.int16).astype(np.float32) / 32768
    for i in range(0, len(samples) - 511, 512):
        detector.accept_waveform(samples[i : i + 512])
    detector.flush()
    result = []
    while not detector.empty():
        result.append([detector.front.start, len(detector.front.samples)])
        detector.pop()
    """


@needs("sherpa_onnx")
@pytest.mark.skipif(SHARED_DATA is None, reason="no models")
def test_sherpa_onnx_hears_the_same(tmp_path: pathlib.Path) -> None:
    files = [str(SHARED_DATA / "models/silero_vad.onnx"), str(SHARED_DATA / "audio/speech_silero_test_16k.wav")]
    theirs, ours = (answers(tmp_path, VOICE_ACTIVITY, *files, preload=preload) for preload in (False, True))
    assert str(LIBRARY.resolve()) in ours["libraries"]
    assert len(theirs["result"]) > 3
    assert ours["result"] == theirs["result"]


GENERATE = """
    import sys
    import numpy as np
    import onnxruntime_genai as og

    model = og.Model(sys.argv[1])
    prompt = np.random.default_rng(0).integers(3, 250, (1, 9)).astype(np.int32)

    def tokens(rewind=False, **options):
        params = og.GeneratorParams(model)
        params.set_search_options(min_length=29, max_length=29, **options)
        generator = og.Generator(model, params)
        generator.append_tokens(prompt)
        while not generator.is_done():
            generator.generate_next_token()
        if rewind:
            generator.rewind_to(12)
            for _ in range(5):
                generator.generate_next_token()
        return [int(token) for token in generator.get_sequence(0)]

    result = {"greedy": tokens(), "rewound": tokens(rewind=True), "beam": tokens(num_beams=3), "sampled": tokens(do_sample=True, top_k=5, temperature=0.7, random_seed=3)}
    """


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Saves a LLaMA with random weights as transformers does."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    folder = tmp_path_factory.mktemp("llama")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(hidden_size=64, num_hidden_layers=2, intermediate_size=128, vocab_size=256, num_attention_heads=4, num_key_value_heads=2,
                                      max_position_embeddings=256, bos_token_id=1, eos_token_id=2, pad_token_id=0)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    tokenizers.Tokenizer(tokenizers.models.WordLevel({f"t{i}": i for i in range(256)}, unk_token="t0")).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "t1", "eos_token": "t2", "pad_token": "t0"}))
    return folder


@needs("onnxruntime_genai", "onnx_ir", "transformers", "torch")
@pytest.mark.parametrize("precision", ["fp32", "int4"])
def test_genai_generates_the_same_tokens(tmp_path: pathlib.Path, llama: pathlib.Path, precision: str) -> None:
    command = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", str(llama), "-o", str(tmp_path / "model"), "-p", precision, "-e", "cpu", "-c", str(tmp_path / "cache")]
    built = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert built.returncode == 0, built.stderr[-2000:]
    theirs, ours = (answers(tmp_path, GENERATE, str(tmp_path / "model"), shim=shim) for shim in (False, True))
    assert [pathlib.Path(path).resolve() for path in ours["libraries"]] == [pathlib.Path(treadle.onnxruntime_library()).resolve()]
    if precision == "int4" and "avx512_vnni" not in pathlib.Path("/proc/cpuinfo").read_text():
        del ours["result"]["sampled"], theirs["result"]["sampled"]  # only onnxruntime rounds the activations here, so sampled tokens may differ
    assert ours["result"] == theirs["result"]


# Settings that transformers' small configurations add to `small`, and what genai's builder writes for them: 4-bit weights that the last product
# shares with the table of tokens (GatherBlockQuantized), caches as long as a window (sliding_window_cache).
BUILD = """
    import json, pathlib, runpy, sys
    import tokenizers, torch, transformers
    from safetensors.torch import load_file, save_file

    small = dict(hidden_size=64, num_hidden_layers=2, intermediate_size=64, vocab_size=256, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
                 bos_token_id=1, eos_token_id=2, pad_token_id=0)
    window = dict(head_dim=16, sliding_window=8)
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    families = {
        "Llama": dict(tie_word_embeddings=True),
        "Qwen2": dict(tie_word_embeddings=True),
        "Qwen3": dict(tie_word_embeddings=True, head_dim=16),
        "SmolLM3": dict(tie_word_embeddings=True),
        "Gemma2": dict(window, query_pre_attn_scalar=16),
        "Gemma3": dict(window, num_hidden_layers=3, layer_types=kinds),
        "GptOss": dict(window, num_local_experts=4, num_experts_per_tok=2, tie_word_embeddings=False),
    }

    def experts_of_four_bits(folder):
        path = folder / "model.safetensors"
        tensors = load_file(path)
        for layer in range(small["num_hidden_layers"]):
            for name, rows in (("gate_up_proj", 128), ("down_proj", 64)):
                prefix = f"model.layers.{layer}.mlp.experts.{name}"
                tensors[prefix + "_blocks"] = torch.randint(0, 256, (4, rows, 2, 16), dtype=torch.uint8)
                tensors[prefix + "_scales"] = torch.randint(120, 125, (4, rows, 2), dtype=torch.uint8)
        save_file(tensors, path, metadata={"format": "pt"})

    folder = pathlib.Path(sys.argv[1])
    for family, more in families.items():
        source = folder / family
        torch.manual_seed(0)
        config = getattr(transformers, {"Gemma3": "Gemma3TextConfig"}.get(family, family + "Config"))(**{**small, **more})
        getattr(transformers, family + "ForCausalLM")(config).save_pretrained(source)
        if family == "GptOss":
            experts_of_four_bits(source)
        if family == "Gemma3":  # the builder knows no others
            saved = json.loads((source / "config.json").read_text())
            saved["rope_parameters"] = {"rope_type": "default", "rope_theta": 1e6, "rope_local_base_freq": 1e4}
            (source / "config.json").write_text(json.dumps(saved))
        tokenizers.Tokenizer(tokenizers.models.WordLevel({f"t{i}": i for i in range(256)}, unk_token="t0")).save(str(source / "tokenizer.json"))
        (source / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "t1", "eos_token": "t2", "pad_token": "t0"}))
        for precision in ("fp32", "int4"):
            sys.argv = ["builder", "-i", str(source), "-o", str(folder / f"{family}-{precision}"), "-p", precision, "-e", "cpu", "-c", str(folder / "cache")]
            runpy.run_module("onnxruntime_genai.models.builder", run_name="__main__")
    """

GENERATE_FAMILIES = """
    import pathlib, sys
    import numpy as np
    import onnxruntime_genai as og

    result = {}
    for folder in sorted(pathlib.Path(sys.argv[1]).glob("*-*/genai_config.json")):
        model = og.Model(str(folder.parent))
        for length in (5, 21):  # shorter and longer than the window
            params = og.GeneratorParams(model)
            params.set_search_options(min_length=length + 20, max_length=length + 20)
            generator = og.Generator(model, params)
            generator.append_tokens(np.random.default_rng(length).integers(3, 250, (1, length)).astype(np.int32))
            while not generator.is_done():
                generator.generate_next_token()
            result[f"{folder.parent.name} {length}"] = [int(token) for token in generator.get_sequence(0)]
    """

FAMILIES = ("Llama", "Qwen2", "Qwen3", "SmolLM3", "Gemma2", "Gemma3", "GptOss")


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory) -> tuple[pathlib.Path, dict, dict]:
    """Returns the folder of models, and each one's tokens by onnxruntime and by Treadle."""
    folder = tmp_path_factory.mktemp("families")
    script = folder / "build.py"
    script.write_text(textwrap.dedent(BUILD))
    built = subprocess.run([sys.executable, str(script), str(folder)], capture_output=True, text=True, check=False, timeout=600)
    assert built.returncode == 0, built.stderr[-2000:]
    theirs, ours = (answers(folder, GENERATE_FAMILIES, str(folder), shim=shim) for shim in (False, True))
    assert [pathlib.Path(path).resolve() for path in ours["libraries"]] == [pathlib.Path(treadle.onnxruntime_library()).resolve()]
    return folder, theirs["result"], ours["result"]


@needs("onnxruntime_genai", "onnx_ir", "transformers", "torch", "tokenizers", "safetensors")
@pytest.mark.parametrize("precision", ["fp32", "int4"])
@pytest.mark.parametrize("family", FAMILIES)
def test_families_generate_the_same_tokens(families: tuple[pathlib.Path, dict, dict], family: str, precision: str) -> None:
    onnx = pytest.importorskip("onnx")
    folder, theirs, ours = families
    model = onnx.load(folder / f"{family}-{precision}" / "model.onnx", load_external_data=False)
    nodes = [(node.op_type, {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}) for node in model.graph.node]
    if precision == "int4" and family != "GptOss":
        assert "GatherBlockQuantized" in dict(nodes)
    if family in ("Gemma2", "Gemma3", "GptOss"):
        assert any(attributes.get("sliding_window_cache") == 1 for _, attributes in nodes)
    for length in (5, 21):
        name = f"{family}-{precision} {length}"
        assert len(theirs[name]) == length + 20
        # With 4-bit weights, activations are rounded to 8 bits, and the order of sums depends on the machine. With random weights, several
        # tokens have nearly the same score. So fewer tokens are compared.
        compared = length + (20 if precision == "fp32" else 8)
        assert ours[name][:compared] == theirs[name][:compared]


CUSTOM_OPERATORS = """
    import numpy as np
    import onnxruntime
    import onnxruntime_extensions
    from onnx import helper

    def run(op_type, inputs, output_dtypes):
        values = [helper.make_tensor_value_info(f"x{i}", helper.np_dtype_to_tensor_dtype(x.dtype) if x.dtype != object else 8, [None] * x.ndim) for i, x in enumerate(inputs)]
        outputs = [helper.make_tensor_value_info(f"y{i}", dtype, None) for i, dtype in enumerate(output_dtypes)]
        node = helper.make_node(op_type, [v.name for v in values], [o.name for o in outputs], domain="ai.onnx.contrib")
        model = helper.make_model(helper.make_graph([node], "graph", values, outputs), ir_version=9,
                                  opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.contrib", 1)])
        options = onnxruntime.SessionOptions()
        options.register_custom_ops_library(onnxruntime_extensions.get_library_path())
        session = onnxruntime.InferenceSession(model.SerializeToString(), options)
        return [y.tolist() for y in session.run(None, {f"x{i}": x for i, x in enumerate(inputs)})]

    def texts(*items):
        return np.array(items, object)

    result = [
        run("StringUpper", [texts("abc", "déf")], [8]),
        run("StringLength", [texts("abc", "déf")], [7]),
        run("StringJoin", [np.array([["abc", "def"], ["q", "r"]], object), texts(";"), np.array([1])], [8]),
        run("StringRegexReplace", [texts("abc", "bcd"), texts("b(.)"), texts("<\\\\1>")], [8]),
        run("StringSplit", [texts("a,b", "c"), texts(","), np.array([True])], [7, 8, 7]),
        run("StringEqual", [texts("a", "b"), texts("a", "c")], [9]),
        run("Inverse", [np.array([[2, 1], [1, 3]], np.float32)], [1]),
        run("NegPos", [np.array([1, -2, 3], np.float32)], [1, 1]),
        run("SegmentSum", [np.arange(6, dtype=np.float32).reshape(3, 2), np.array([0, 0, 1])], [1]),
    ]
    """


@needs("onnxruntime_extensions")
def test_extensions_give_their_operators(tmp_path: pathlib.Path) -> None:
    theirs, ours = (answers(tmp_path, CUSTOM_OPERATORS, shim=shim) for shim in (False, True))
    assert len(theirs["result"]) == 9
    assert ours["result"] == theirs["result"]


MASKS = """
    import sys
    import koredact
    import onnxruntime

    masker = koredact.Masker(sys.argv[1], ort_dylib=sys.argv[2])
    texts = ["call 010 1234 5678 now", "mail abc@def.com 12", "\uac00\ub098 \ub2e4\ub77c 99", ""]
    result = [[[s.start, s.end, s.type, round(s.score, 4)] for s in masker.predict_raw(text)] for text in texts]
    result += [masker.mask_many(texts, workers=2)]
    """


def token_classifier(folder: pathlib.Path, labels: list[str]) -> None:
    """Saves a token classifier with random weights and its tokenizer, as transformers does."""
    import numpy as np
    import tokenizers
    from onnx import helper, numpy_helper

    characters = "0123456789abcdefghijklmnopqrstuvwxyz\uac00\ub098\ub2e4\ub77c-@."
    vocabulary = {token: i for i, token in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(p + c for c in characters for p in ("", "##"))])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    tokenizer.save(str(folder / "tokenizer.json"))
    special = {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "unk_token": "[UNK]"}
    (folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 128, **special}))
    numbers = {str(i): label for i, label in enumerate(labels)}
    (folder / "config.json").write_text(json.dumps({"model_type": "bert", "id2label": numbers, "max_position_embeddings": 128}))
    rng = np.random.default_rng(0)
    weights = {"embeddings": rng.normal(size=(len(vocabulary), 32)), "head": rng.normal(size=(32, len(labels)))}
    initializers = [numpy_helper.from_array(w.astype(np.float32), name) for name, w in weights.items()] + [numpy_helper.from_array(np.array([2]), "last")]
    nodes = [
        helper.make_node("Gather", ["embeddings", "input_ids"], ["embedded"]),
        helper.make_node("Tanh", ["embedded"], ["hidden"]),
        helper.make_node("MatMul", ["hidden", "head"], ["scores"]),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=1),
        helper.make_node("Unsqueeze", ["mask", "last"], ["mask3"]),
        helper.make_node("Mul", ["scores", "mask3"], ["logits"]),
    ]
    inputs = [helper.make_tensor_value_info(name, 7, ["batch", "length"]) for name in ("input_ids", "attention_mask", "token_type_ids")]
    logits = helper.make_tensor_value_info("logits", 1, ["batch", "length", len(labels)])
    model = helper.make_model(helper.make_graph(nodes, "graph", inputs, [logits], initializers), opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    (folder / "onnx").mkdir()
    (folder / "onnx" / "model.onnx").write_bytes(model.SerializeToString())


@needs("koredact", "tokenizers", "onnxruntime")
def test_a_client_in_rust_gives_the_same(tmp_path: pathlib.Path) -> None:
    """The client koredact is written in Rust with the crate ort, which loads the library whose path it gets."""
    import koredact

    token_classifier(tmp_path, ["O", *(f"{place}-{kind}" for kind in koredact.ENTITY_TYPES for place in "BI")])
    theirs, ours = (answers(tmp_path, MASKS, str(tmp_path), library) for library in (koredact._onnxruntime_dylib(), str(LIBRARY)))
    assert str(LIBRARY.resolve()) in ours["libraries"]
    assert sum(map(len, theirs["result"][:3])) > 20
    assert ours["result"] == theirs["result"]


JAR = os.environ.get("TREADLE_ONNXRUNTIME_JAR", "")


@pytest.mark.skipif(not JAR or shutil.which("javac") is None, reason="TREADLE_ONNXRUNTIME_JAR names no jar with the classes ai.onnxruntime, or there is no javac")
def test_a_client_in_java_gives_the_same(tmp_path: pathlib.Path) -> None:
    """Uses onnxruntime's Java classes and native library, and replaces only libonnxruntime.so."""
    with zipfile.ZipFile(JAR) as jar:
        for name in jar.namelist():
            if name.startswith("ai/onnxruntime/native/linux-x64/"):
                jar.extract(name, tmp_path)
    theirs = tmp_path / "ai/onnxruntime/native/linux-x64"
    ours = tmp_path / "ours"
    ours.mkdir()
    shutil.copy(theirs / "libonnxruntime4j_jni.so", ours)
    needed = subprocess.run(["readelf", "-d", str(ours / "libonnxruntime4j_jni.so")], capture_output=True, text=True, check=True).stdout
    for name in {"libonnxruntime.so", *re.findall(r"libonnxruntime\.so[.0-9]*", needed)}:
        (ours / name).symlink_to(LIBRARY)
    small_models(tmp_path)
    subprocess.run(["javac", "-cp", JAR, "-d", str(tmp_path), str(pathlib.Path(__file__).with_name("OnnxRuntimeClient.java"))], check=True)
    said = []
    for folder in (theirs, ours):
        command = ["java", f"-Donnxruntime.native.path={folder}", "-cp", f"{JAR}:{tmp_path}", "OnnxRuntimeClient", str(tmp_path)]
        run = subprocess.run(command, env={**os.environ, "LD_LIBRARY_PATH": str(folder)}, capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stderr[-2000:]
        said.append(run.stdout)
    assert said[0].count("\n") > 10
    assert said[1] == said[0]


def small_models(folder: pathlib.Path) -> None:
    import numpy as np
    import onnx
    from onnx import helper, numpy_helper

    def save(name: str, nodes: list, inputs: list, outputs: list, initializers: list = ()) -> None:  # type: ignore[assignment]
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
        model = helper.make_model(helper.make_graph(nodes, "graph", inputs, outputs, initializers), opset_imports=opsets, ir_version=8, producer_name="a test", domain="d", model_version=3)
        helper.set_model_props(model, {"key": "value"})
        onnx.save(model, str(folder / name))

    of = helper.make_tensor_value_info
    w, b = np.arange(6, dtype=np.float32).reshape(3, 2), np.array([1, -1], np.float32)
    save("affine.onnx", [helper.make_node("MatMul", ["x", "w"], ["xw"]), helper.make_node("Add", ["xw", "b"], ["y"])], [of("x", 1, ["rows", 3])], [of("y", 1, ["rows", 2])],
         [numpy_helper.from_array(w, "w"), numpy_helper.from_array(b, "b")])
    save("text.onnx", [helper.make_node("Identity", ["x"], ["y"])], [of("x", 8, ["n"])], [of("y", 8, ["n"])])
    maps = helper.make_sequence_type_proto(helper.make_map_type_proto(8, helper.make_tensor_type_proto(1, [])))
    save("zip.onnx", [helper.make_node("ZipMap", ["x"], ["y"], domain="ai.onnx.ml", classlabels_strings=["cat", "dog"])], [of("x", 1, ["n", 2])], [helper.make_value_info("y", maps)])
    save("split.onnx", [helper.make_node("SplitToSequence", ["x"], ["y"], axis=0)], [of("x", 1, ["n", 2])], [helper.make_tensor_sequence_value_info("y", 1, None)])
