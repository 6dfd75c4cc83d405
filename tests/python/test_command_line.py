"""What the program treadle says to wrong calls; tests/python/test_memory.py has `treadle plan`."""

import pathlib
import subprocess

import pytest

DIGITS = pathlib.Path(__file__).resolve().parents[2] / "examples/digits/digits.onnx"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["run", DIGITS, "--option", "x=y"], 'no option "x"'),
        (["run", DIGITS, "--option", "intra_op_num_threads=many"], "many"),
        (["run", "absent.onnx"], "absent.onnx"),
        (["frob"], "subcommand"),
    ],
)
def test_wrong_calls_end_with_a_message(program, arguments, expected):
    run = subprocess.run([program, *arguments], capture_output=True, text=True)
    assert run.returncode > 0, "an error, not a signal"
    assert expected in run.stderr
