"""Packages from PyPI that use onnxruntime give the same answers on Treadle: the installed ones of scripts/onnxruntime_packages.toml."""

from __future__ import annotations

import importlib.util
import math
import os
import sys

import pytest
from conftest import REPOSITORY

pytest.importorskip("onnxruntime")
pytest.importorskip("tomllib")


def script():
    spec = importlib.util.spec_from_file_location("onnxruntime_suites", REPOSITORY / "scripts/onnxruntime_suites.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


suites = script()


@pytest.fixture(autouse=True)
def treadle_is_found(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))


@pytest.mark.parametrize("package", [name for name in suites.packages() if suites.version_of(name, None)])
def test_answers_are_the_same(package):
    probe = suites.packages()[package]
    theirs, ours = (suites.answer(probe, on_treadle) for on_treadle in (False, True))
    assert suites.difference(ours["result"], theirs["result"], theirs["tolerance"]) is None


def test_a_probe_that_computes_nothing_fails():
    with pytest.raises(RuntimeError, match="0 runs"):
        suites.answer("result = 1", on_treadle=True)


@pytest.mark.parametrize(
    ("ours", "theirs", "place"),
    [
        ([1.0, 2.002], [1.0, 2.0], None),
        ([1.0, 2.01], [1.0, 2.0], "result[1]"),
        ({"a": [math.nan, "x"]}, {"a": [math.nan, "x"]}, None),
        ({"a": [math.nan, "x"]}, {"a": [math.nan, "y"]}, "result['a'][1]"),
        ({"a": 1}, {"b": 1}, "result"),
        ([1, 2], [1, 2, 3], "result"),
        ([1.0, math.nan], [1.0, 0.0], "result[1]"),
        ([True], [False], "result[0]"),
    ],
)
def test_differences_are_found(ours, theirs, place):
    found = suites.difference(ours, theirs, 1e-3)
    assert (found is None) if place is None else found.startswith(place + ":")
