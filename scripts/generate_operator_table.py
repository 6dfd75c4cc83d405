#!/usr/bin/env python3
"""Writes docs/operators.md: what `treadle operators --json` says, and how many of ONNX's own cases pass (tests/onnx/passing.txt).

    scripts/generate_operator_table.py [--treadle build/release/src/cli/treadle]

Needs the package onnx, whose cases are counted. Run it when operators, dtypes or the list of passing cases change.
"""

import argparse
import collections
import json
import os
import pathlib
import subprocess
import sys
import warnings

ROOT = pathlib.Path(__file__).resolve().parent.parent
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")


def cases_of_operators():
    """Returns, by operator, the names of ONNX's node cases that test it: the graph of each contains that operator, or a function's body."""
    import numpy as np
    from onnx.backend.test.case.node import collect_testcases

    cases = collections.defaultdict(list)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # the package itself computes with infinities
        found = collect_testcases(None)
    for case in found:
        if case.model is None:
            continue
        nodes = case.model.graph.node
        names = {(node.domain or "ai.onnx", node.op_type) for node in nodes}
        if len(names) == 1:
            cases[names.pop()].append(case.name)
    return cases


def short(names):
    kinds = {"float16, float32, float64, bfloat16": "floats", "float32, float64, float16, bfloat16": "floats"}
    text = ", ".join(names)
    return kinds.get(text, text)


def disagreements():
    """Returns the fuzzer's decisions where Treadle differs from a judge and follows ONNX's specification."""
    sys.path.insert(0, str(ROOT / "tests" / "operators"))
    from disagreements import RULINGS

    judges = {"reference": "onnx.reference", "onnxruntime": "onnxruntime", "both": "both"}
    text = ["", "## Disagreements", ""]
    text += ["tests/operators/fuzz_operators.py compares every operator with onnxruntime and with ONNX's reference evaluator."]
    text += ["Treadle differs from a judge in the places below, where it follows the specification, or the specification leaves the result open.", ""]
    text += ["| operators | judge | what the judge does |", "|---|---|---|"]
    for ruling in sorted(RULINGS, key=lambda r: (r.ops, r.judge)):
        text.append(f"| {ruling.ops.replace(' ', ', ')} | {judges[ruling.judge]} | {ruling.reason.replace('|', '&#124;')} |")
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--treadle", type=pathlib.Path, default=ROOT / "build" / "release" / "src" / "cli" / "treadle")
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "docs" / "operators.md")
    options = parser.parse_args()
    operators = json.loads(subprocess.run([options.treadle, "operators", "--json"], capture_output=True, text=True, check=True).stdout)
    lines = (ROOT / "tests" / "onnx" / "passing.txt").read_text().splitlines()
    passing = {line for line in lines if line and not line.startswith("#")}
    cases = cases_of_operators()

    by_domain = collections.defaultdict(list)
    for operator in operators:
        by_domain[operator["domain"]].append(operator)
    kinds = collections.Counter(name.split("/")[0] for name in passing)
    text = [
        "# Operators",
        "",
        "Made by scripts/generate_operator_table.py from the registry (`treadle operators`) and tests/onnx/passing.txt; do not edit by hand.",
        "",
        f"{len(passing)} of ONNX's own cases pass: " + ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())) + ".",
        "",
        "| column | meaning |",
        "|---|---|",
        "| versions | opsets that changed the operator's meaning or types. Models of any opset between are brought to the newest |",
        "| dtypes | what the kernels compute |",
        "| cases | node cases of the onnx package that hold this operator only: passing / all |",
    ]
    for domain in sorted(by_domain, key=lambda name: (name != "ai.onnx", name != "ai.onnx.ml", name)):
        text += ["", f"## {domain}", "", f"{len(by_domain[domain])} operators.", ""]
        text += ["| operator | versions | computed by | dtypes | gradient | cases |", "|---|---|---|---|---|---|"]
        for operator in by_domain[domain]:
            names = cases.get((domain, operator["name"]), [])
            good = sum(f"node/{name}" in passing for name in names)
            text.append(
                f"| {operator['name']} | {', '.join(map(str, operator['versions']))} | {operator['realisation']} | {short(operator['dtypes'])}"
                f" | {'yes' if operator['gradient'] else ''} | {f'{good} / {len(names)}' if names else ''} |"
            )
    text += disagreements()
    options.output.write_text("\n".join(text) + "\n")
    print(f"{options.output}: {len(operators)} operators")


if __name__ == "__main__":
    main()
