"""treadle.memory and `treadle plan`: every plan is checked pair by pair."""

import csv
import subprocess

import numpy as np
import pytest

import treadle
from treadle.memory import plan_arena


def assert_valid(sizes, first, last, offsets):
    for i in range(len(sizes)):
        for j in range(i):
            if first[i] < last[j] and first[j] < last[i]:
                assert offsets[i] + sizes[i] <= offsets[j] or offsets[j] + sizes[j] <= offsets[i]


def test_buffers_that_are_alive_together_do_not_overlap():
    random = np.random.default_rng(1)
    sizes = [int(x) for x in random.integers(1, 1000, 60)]
    first = [int(x) for x in random.integers(0, 50, 60)]
    last = [f + 1 + int(x) for f, x in zip(first, random.integers(0, 20, 60))]
    plan = plan_arena(sizes, first, last, alignment=1, time_limit_seconds=1)
    assert_valid(sizes, first, last, plan.offsets)
    peak = max(sum(s for s, f, e in zip(sizes, first, last) if f <= t < e) for t in range(80))
    assert peak <= plan.lower_bound_bytes <= plan.size_bytes
    assert plan.size_bytes == max(o + s for o, s in zip(plan.offsets, sizes))


def test_lists_of_different_lengths_are_refused():
    with pytest.raises(treadle.Error, match="2 sizes, 1 first"):
        plan_arena([1, 2], [0], [1, 2])


def test_plan_writes_the_input_columns_and_the_offset(program, tmp_path):
    table = tmp_path / "buffers.csv"
    table.write_text("id,size,lower,upper,note\na,4,0,2,x\nb,6,1,3,y\nc,4,2,4,\n")
    out = tmp_path / "plan.csv"
    run = subprocess.run([program, "plan", table, "--capacity", "10", "-o", out], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    rows = list(csv.DictReader(out.open()))
    assert [(r["id"], r["size"], r["note"]) for r in rows] == [("a", "4", "x"), ("b", "6", "y"), ("c", "4", "")]
    numbers = [[int(r[key]) for r in rows] for key in ("size", "lower", "upper", "offset")]
    assert_valid(*numbers)
    assert max(s + o for s, o in zip(numbers[0], numbers[3])) == 10
    assert "height       10 bytes" in run.stdout and "gap          0.000 %" in run.stdout


def test_plan_says_that_nothing_fits(program, tmp_path):
    table = tmp_path / "buffers.csv"
    table.write_text("id,lower,upper,size\n0,0,2,4\n1,1,3,6\n")
    run = subprocess.run([program, "plan", table, "--capacity", "9"], capture_output=True, text=True)
    assert run.returncode == 1
    assert "does not fit 9 bytes: no plan does" in run.stdout


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("id,lower,upper\n0,0,1\n", 'no column "size"'),
        ("id,lower,upper,size\n0,0,1,-4\n", 'line 2: the size "-4" is not a number in range'),
        ("id,lower,upper,size\n0,0,1\n", "line 2: 3 fields, the header has 4"),
        ("id,lower,upper,size\n0,2,1,4\n", "lives from step 2 to step 1"),
        ("", "no header line"),
    ],
)
def test_plan_names_the_line_it_cannot_read(program, tmp_path, text, message):
    table = tmp_path / "buffers.csv"
    table.write_text(text)
    run = subprocess.run([program, "plan", table], capture_output=True, text=True)
    assert run.returncode == 1
    assert message in run.stderr
