"""Makes random sequences of calls of ONNX Runtime's C interface: libonnxruntime.so.1 must answer as onnxruntime's own library does.

`TREADLE_INTERFACE_CALLS` sets the number of sequences; the default is 400.
"""

from __future__ import annotations

import glob
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from onnxruntime_c import LIBRARY

pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.skipif(not LIBRARY.exists(), reason="libonnxruntime.so.1 is not built; set TREADLE_ORT_LIBRARY")


def test_sequences_are_answered_alike() -> None:
    import onnxruntime

    [theirs] = glob.glob(os.path.join(os.path.dirname(onnxruntime.__file__), "capi", "libonnxruntime.so*"))
    command = [sys.executable, str(Path(__file__).with_name("interface_calls.py")), str(LIBRARY), theirs, "--count", os.environ.get("TREADLE_INTERFACE_CALLS", "400")]
    run = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "ORT_DISABLE_TELEMETRY": "1"})
    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-2000:]


def test_each_function_is_called_or_left_out_with_a_reason() -> None:
    import interface_calls as calls

    drawn = {each.full for functions in [*calls.OF_SUBJECT.values(), *calls.OF_KERNEL.values()] for each in functions}
    for each in calls.FUNCTIONS:
        assert (each.full in drawn) != any(re.search(pattern, each.full) for pattern in calls.LEFT_OUT), each.full
    assert len(drawn) > 300
