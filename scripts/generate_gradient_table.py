#!/usr/bin/env python3
"""Writes docs/gradients.md: which operators have gradients, and by how many random cases they were checked.

    PYTHONPATH=build/release/python scripts/generate_gradient_table.py [--treadle build/release/src/cli/treadle] [--batches 3000]

Runs tests/operators/fuzz_gradients.py, which needs onnxruntime and, for the second judge, torch. Run it when rules change.
"""

import argparse
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "operators"))

HEAD = """# Gradients

Made by scripts/generate_gradient_table.py; do not edit by hand.

Training differentiates a graph by rules, which each operator's file in `src/ops` defines.

| rule | meaning |
|---|---|
| nodes | The gradient consists of ordinary nodes. |
| kernel | The gradient is an operator of the treadle domain with a kernel of its own. It computes float32 and float64; float16 and bfloat16 are cast to float32. |
| of its parts | The operator is decomposed, and has the gradients of its parts. |
| of its bodies | If, Loop and Scan: the bodies are differentiated, and computed again on the way back. |
| nothing flows | The operator is constant almost everywhere (Floor, Sign, Hardmax). |

If a node between a parameter and the loss has no rule, or its rule does not differentiate by the operand, training fails with an error that names the node.

- Loop and Scan keep the states of their iterations. A state whose shape changes between iterations is an error.
- The forward pass keeps random numbers that a body draws. Random numbers in a body within a body are an error.
- The gradient of a sequence is a sequence. A loop may append elements to a sequence and read sequences from outside. A loop that reads the sequence that it changes is an error.
- If extents are symbols, BroadcastGrad sums over the axes that a run finds stretched.
- QuantizeLinear and DequantizeLinear are straight through: rounded elements pass the gradient on, clipped elements pass none. Scales have gradients, scales of blocks too.
- Integers that stand for quantised values pass gradients on through MatMulInteger, ConvInteger, QLinearMatMul, QLinearConv, Cast, Add, Sub, and what moves elements. Any other operator on such integers is an error that names it.
- Equal elements share the gradient of a reduction. In Max and Min of two operands, the first gets it.
- These operands have no gradient: regions of RoiAlign and MaxRoiPool, scales and roi of Resize, scales that DynamicQuantizeLinear finds, zero points, caches of RotaryEmbedding, weights of classes in losses.

*Checked* counts random cases that were right (shapes, attributes, broadcasts, opsets; tests/operators/fuzz_gradients.py): by central differences in float64 / by PyTorch in float64 /
in float32, float16 and bfloat16 against float64.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--treadle", type=pathlib.Path, default=ROOT / "build" / "release" / "src" / "cli" / "treadle")
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "docs" / "gradients.md")
    parser.add_argument("--batches", type=int, default=3000, help="of some 13 cases")
    options = parser.parse_args()
    import fuzz_gradients
    import gradient_cases

    operators = json.loads(subprocess.run([options.treadle, "operators", "--json"], capture_output=True, text=True, check=True).stdout)
    kernels = {o["name"].removesuffix("Grad") for o in operators if o["domain"] == "treadle" and o["name"].endswith("Grad")}
    kernels |= {"Conv", "AveragePool", "LpPool"}
    tally = fuzz_gradients.fuzz(range(options.batches))
    if wrong := [f for f in tally.findings if f.startswith("wrong")]:
        sys.exit("\n".join(wrong))
    text = [HEAD]
    for domain in ("ai.onnx", "com.microsoft"):
        rows = []
        for operator in (o for o in operators if o["domain"] == domain):
            name = operator["name"]
            found = tally.ops.get(name if domain == "ai.onnx" else f"{domain}.{name}", {})
            if name in gradient_cases.FLAT and operator["gradient"]:
                rule = "nothing flows"
            elif operator["realisation"] == "executor":
                rule = "of its bodies"
            elif operator["gradient"]:
                rule = "kernel" if name in kernels else "nodes"
            elif "decomposed" in operator["realisation"] and "kernel" not in operator["realisation"]:
                rule = "of its parts"
            else:
                continue
            narrow = sum(found.get(dtype, 0) for dtype in ("float32", "float16", "bfloat16"))
            checked = f"{found.get('same', 0)} / {found.get('torch', 0)} / {narrow}" if found.get("same") else ""
            rows.append(f"| {name} | {rule} | {checked} |")
        text += [f"\n## {domain}\n", "| operator | rule | checked |", "|---|---|---|", *rows]
    text.append(f"\n{sum(c['same'] for c in tally.ops.values())} cases agree with central differences, {tally.verdicts['torch']} of them with PyTorch too.")
    options.output.write_text("\n".join(text) + "\n")
    print(f"{options.output}: {sum(tally.verdicts.values())} cases")


if __name__ == "__main__":
    main()
