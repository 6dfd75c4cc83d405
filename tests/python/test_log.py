"""Tests the run log in Python, and through the environment."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from test_metrics import model

import treadle


def run(session: treadle.InferenceSession) -> None:
    session.run(None, {"x": np.zeros((2, 3), np.float32)})


def test_messages_come_to_a_function() -> None:
    messages: list[str] = []
    treadle.set_log_callback(lambda severity, text: messages.append(text), 0, categories="run,session", json=True)
    try:
        run(treadle.InferenceSession(model("py logged")))
        told = [json.loads(text) for text in messages]
    finally:
        treadle.set_log_callback(None)
    assert [m["category"] for m in told] == ["session", "run", "run", "session"]
    assert told[0]["model"] == "py logged"
    with pytest.raises(treadle.Error, match="there are general, session, run"):
        treadle.set_log_callback(lambda severity, text: None, 0, categories="nothing")
    treadle.set_log_callback(None)


def test_severities_reach_pythons_logging(caplog: pytest.LogCaptureFixture) -> None:
    treadle.set_default_logger_severity(0)
    try:
        run(treadle.InferenceSession(model("py logging")))
        records = [record for record in caplog.records if record.name == "treadle.run"]
    finally:
        treadle.set_default_logger_severity(2)
    assert [record.levelno for record in records] == [logging.DEBUG] * 2
    assert records[1].treadle["ms"] > 0
    caplog.clear()
    run(treadle.InferenceSession(model("py logging")))
    assert not caplog.records


PROGRAM = """
import numpy as np, sys, treadle
treadle.InferenceSession(sys.argv[1]).run(None, {"x": np.zeros((2, 3), np.float32)})
"""


def of_program(tmp_path: Path, **environment: str) -> str:
    (tmp_path / "model.onnx").write_bytes(model("py environment"))
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "model.onnx")]
    return subprocess.run(command, env={**os.environ, **environment}, check=True, capture_output=True, text=True).stderr


def test_the_environment_asks_for_messages(tmp_path: Path) -> None:
    lines = of_program(tmp_path, TREADLE_LOG="verbose:run,s*").splitlines()
    assert [line.split(":")[0] for line in lines[:3]] == ["treadle info session", "treadle verbose run", "treadle verbose run"]
    assert 'of "py environment" is ready' in lines[0]
    file = tmp_path / "log.jsonl"
    for _ in range(2):  # messages are appended
        assert not of_program(tmp_path, TREADLE_LOG="info", TREADLE_LOG_FILE=str(file))
    told = [json.loads(line) for line in file.read_text().splitlines()]
    assert [m["model"] for m in told if "model" in m] == ["py environment"] * 2
    text = tmp_path / "log.txt"
    of_program(tmp_path, TREADLE_LOG="verbose", TREADLE_LOG_FILE=str(text))
    assert " verbose " in text.read_text()


@pytest.mark.parametrize("environment", [{"TREADLE_LOG": "loud"}, {"TREADLE_LOG": "info:nothing"}, {"TREADLE_LOG_FILE": "/nowhere/log"}])
def test_wrong_environments_are_told(tmp_path: Path, environment: dict[str, str]) -> None:
    assert "TREADLE_LOG=" in of_program(tmp_path, **environment)
