#!/usr/bin/env python3
"""Compares onnxruntime-genai on Treadle's libonnxruntime and on onnxruntime's own: a LLaMA of 100 M parameters with random weights.

    PYTHONPATH=build/release/python bench/genai.py [--threads 1 2] [--precisions fp32 int4] [--prompt 512] [--tokens 128] [--rounds 3] [--folder FOLDER]

Each round is a process of its own, onnxruntime's and Treadle's in turn; the best of each counts. The models are made with transformers and
genai's builder, in a temporary folder or in `--folder`, where the next call finds them. Needs onnxruntime-genai, transformers and torch.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

GENERATE = """
import json, sys, time
import numpy as np
import onnxruntime_genai as og

folder, prompt_length, num_tokens = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
model = og.Model(folder)
prompt = np.random.default_rng(0).integers(3, 30000, (1, prompt_length)).astype(np.int32)

def generate():
    params = og.GeneratorParams(model)
    length = prompt_length + num_tokens + 1
    params.set_search_options(min_length=length, max_length=length)
    generator = og.Generator(model, params)
    begin = time.perf_counter()
    generator.append_tokens(prompt)
    generator.generate_next_token()
    middle = time.perf_counter()
    for _ in range(num_tokens):
        generator.generate_next_token()
    return prompt_length / (middle - begin), num_tokens / (time.perf_counter() - middle), generator.get_sequence(0)[-8:]

generate()
prefill, decode, last = generate()
libraries = {line.split()[-1] for line in open("/proc/self/maps") if "libonnxruntime.so" in line}
peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps({"prefill": prefill, "decode": decode, "peak_mb": peak // 1024, "tokens": [int(t) for t in last], "libraries": sorted(libraries)}))
"""


def make_llama(folder: pathlib.Path) -> None:
    import tokenizers
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(hidden_size=640, num_hidden_layers=12, intermediate_size=1792, vocab_size=32000, num_attention_heads=10,
                                      num_key_value_heads=5, max_position_embeddings=2048, bos_token_id=1, eos_token_id=2, pad_token_id=0)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    tokenizers.Tokenizer(tokenizers.models.WordLevel({f"t{i}": i for i in range(32000)}, unk_token="t0")).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "t1", "eos_token": "t2", "pad_token": "t0"}))


def built(folder: pathlib.Path, precision: str) -> pathlib.Path:
    source, model = folder / "llama", folder / precision
    if not (source / "config.json").exists():
        source.mkdir(parents=True, exist_ok=True)
        make_llama(source)
    if not (model / "genai_config.json").exists():
        command = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", source, "-o", model, "-p", precision, "-e", "cpu", "-c", folder / "cache"]
        subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL)
    return model


def set_threads(model: pathlib.Path, threads: int) -> None:
    path = model / "genai_config.json"
    config = json.loads(path.read_text())
    config["model"]["decoder"]["session_options"]["intra_op_num_threads"] = threads
    path.write_text(json.dumps(config, indent=4))


def generate(model: pathlib.Path, on_treadle: bool, args: argparse.Namespace) -> dict:
    program = model.parent / "generate.py"
    program.write_text(GENERATE)
    command = [sys.executable, *(["-m", "treadle.onnxruntime_shim"] if on_treadle else []), program, model, args.prompt, args.tokens]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=True, env={**os.environ, "ORT_DISABLE_TELEMETRY": "1"})
    return json.loads(done.stdout.strip().splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--precisions", nargs="+", default=["fp32", "int4"])
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=pathlib.Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (args.folder or pathlib.Path(temporary)).resolve()
        print("| precision | threads | prompt, tokens/s | onnxruntime | ratio | decoding, tokens/s | onnxruntime | ratio | memory, MB | onnxruntime | same tokens |\n" + "|---" * 11 + "|")
        for precision in args.precisions:
            model = built(folder, precision)
            for threads in args.threads:
                set_threads(model, threads)
                rounds = [[generate(model, on_treadle, args) for on_treadle in (False, True)] for _ in range(args.rounds)]
                theirs, ours = zip(*rounds, strict=True)
                row = [precision, str(threads)]
                for what in ("prefill", "decode"):
                    best = [max(found[what] for found in each) for each in (ours, theirs)]
                    row += [f"{best[0]:.0f}", f"{best[1]:.0f}", f"{best[0] / best[1]:.2f}"]
                row += [str(min(found["peak_mb"] for found in each)) for each in (ours, theirs)]
                row.append("yes" if ours[0]["tokens"] == theirs[0]["tokens"] else "no")
                print("| " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
