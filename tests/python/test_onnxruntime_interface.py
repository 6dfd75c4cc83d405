"""Functions of ONNX Runtime's C interface with legal and illegal arguments, drawn at random: libonnxruntime.so.1 answers as onnxruntime's own library does.

`TREADLE_INTERFACE_CALLS` says how many sequences of them; a few hundred else.
"""

from __future__ import annotations

import glob
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import interface_calls
import pytest
from onnxruntime_c import ENTRIES, LIBRARY

pytestmark = pytest.mark.skipif(not LIBRARY.exists(), reason="libonnxruntime.so.1 is not built; set TREADLE_ORT_LIBRARY")

CALLS = int(os.environ.get("TREADLE_INTERFACE_CALLS", "378"))

# Function, the arguments for which the answers differ (a pattern over their list), and why.
DIFFERENCES = [
    ("BindInput", "", "any value of the main graph can be fed, and a value is checked in the run"),
    ("BindOutput$", "", "outputs go to tensors"),
    ("BindOutputToDevice", r"OrtMemoryInfo\[2\]", "the CPU is the only device"),
    ("GetSparseTensor", r"OrtValue\[6\]|OrtValue\[5\]", "a sparse tensor that is not filled yet has no values, which is no fault"),
    ("AddInitializer", "", "values may be strings, and in the library's memory"),
    ("SetIntraOpNumThreads|SetInterOpNumThreads", "", "a pool has 4,096 threads at the most"),
]


def answers(library: str, length: int) -> list:
    script = Path(__file__).with_name("interface_calls.py")
    count = CALLS if length == 1 else CALLS // 4
    run = subprocess.run([sys.executable, str(script), library, "66", str(count), str(length)], capture_output=True, text=True, check=False, env={**os.environ, "ORT_DISABLE_TELEMETRY": "1"})
    assert run.returncode == 0, run.stderr
    return [json.loads(line) for line in run.stdout.splitlines() if line.startswith("[")]


def is_explained(call: list) -> bool:
    return any(re.match(function, call[0]) and re.search(pattern, str(call[1])) for function, pattern, _ in DIFFERENCES)


@pytest.mark.parametrize("length", [1, 8])
def test_calls_are_answered_alike(length: int) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    [theirs] = glob.glob(os.path.join(os.path.dirname(onnxruntime.__file__), "capi", "libonnxruntime.so*"))
    different = []
    for (calls, have), (also, want) in zip(answers(str(LIBRARY), length), answers(theirs, length), strict=True):
        assert calls == also
        assert "died" not in str(have), calls  # onnxruntime may
        for call, ours_is, theirs_is in zip(calls, have, want):
            if "died" in str(theirs_is) or (ours_is != theirs_is and is_explained(call)):
                break  # what follows may depend on it
            if ours_is != theirs_is:
                different.append((call, "have", ours_is, "want", theirs_is))
                break
    assert not different, "\n".join(str(each) for each in different)


def test_each_function_is_called_or_left_out_with_a_reason() -> None:
    called = {name for name, _, _ in interface_calls.functions()}
    for name, _ in ENTRIES:
        assert name in called or any(re.search(pattern, name) for pattern in interface_calls.LEFT_OUT), name
    assert len(called) > 100
