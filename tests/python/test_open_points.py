"""Where ONNX's reference and onnxruntime differ, Treadle gives the result listed in the table of docs/onnxruntime.md."""

import sys

import pytest

from conftest import REPOSITORY

pytest.importorskip("onnxruntime")
sys.path.insert(0, str(REPOSITORY / "tests" / "operators"))

import open_points  # noqa: E402


@pytest.mark.parametrize("point", open_points.POINTS, ids=lambda point: point.title)
def test_treadle_follows_the_judge_that_the_rule_names(point):
    found = open_points.outcomes(point)
    assert not open_points.same(found["ONNX"], found["onnxruntime"]), "they agree: the row is not needed any more"
    assert open_points.same(found["Treadle"], found[point.follows]), found


def test_the_page_has_the_table():
    assert open_points.page() == open_points.PAGE.read_text()
