"""Tests the scripts and manifests of docs/cluster: scripts do what their comments say, and manifests can be parsed."""

import importlib.util
import os
import socket
import subprocess
import threading

import pytest

from conftest import REPOSITORY

CLUSTER = REPOSITORY / "docs" / "cluster"


def steer():
    spec = importlib.util.spec_from_file_location("steer", CLUSTER / "steer.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("partition", "qos", "expected"),
    [("gpu", "normal", "guaranteed"), ("gpu-preempt", "", "opportunistic"), ("gpu", "scavenger", "opportunistic"), ("", "", "guaranteed")],
)
def test_tasks_get_their_class_from_partition_or_qos(partition, qos, expected):
    environment = {**os.environ, "SLURM_JOB_PARTITION": partition, "SLURM_JOB_QOS": qos, "SLURM_JOB_ID": "17", "SLURM_PROCID": "2"}
    printed = subprocess.run([CLUSTER / "slurm_task_prolog.sh"], env=environment, capture_output=True, text=True, check=True).stdout
    assert printed.splitlines() == [f"export TREADLE_JOB_CLASS={expected}", "export TREADLE_JOB_NAME=slurm-17.2"]


def test_the_prolog_starts_a_coordinator_and_never_fails(tmp_path):
    log = tmp_path / "log"
    fake = tmp_path / "treadle"
    fake.write_text(f'#!/bin/sh\necho "$@" > {log}.part\nmv {log}.part {log}\nexit 1\n')
    fake.chmod(0o755)
    environment = {**os.environ, "TREADLE": str(fake), "RUN_AS": "env", "TREADLE_POLICY": "feedback"}
    subprocess.run([CLUSTER / "slurm_prolog.sh"], env=environment, check=True, timeout=30)
    for _ in range(3000):
        if log.exists():
            break
        threading.Event().wait(0.01)
    assert log.read_text() == "coordinator --policy feedback\n"


def serve(path, answer, requests):
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()

    def work():
        connection, _ = listener.accept()
        with connection:
            requests.append(connection.makefile().readline())
            connection.sendall(answer.encode())
        listener.close()

    threading.Thread(target=work, daemon=True).start()


def test_requests_are_lines_and_answers_are_counted(tmp_path):
    requests = []
    serve(tmp_path / "socket", "ok 1\nid=7 name=train class=opportunistic share=12.5 suspended=0\n", requests)
    lines = steer().ask(str(tmp_path / "socket"), "list")
    assert requests == ["list\n"]
    assert steer().parse(lines[0]) == {"id": 7, "name": "train", "class": "opportunistic", "share": 12.5, "suspended": 0}
    serve(tmp_path / "other", 'error there is no job "x"\n', requests)
    with pytest.raises(ValueError, match='there is no job "x"'):
        steer().ask(str(tmp_path / "other"), "set x share=1")
    with pytest.raises(OSError):
        steer().ask(str(tmp_path / "nobody"), "ping")


def test_manifests_are_yaml_of_the_kinds_that_they_should_be():
    yaml = pytest.importorskip("yaml", reason="PyYAML reads the manifests")
    documents = list(yaml.safe_load_all((CLUSTER / "kubernetes.yaml").read_text()))
    assert [document["kind"] for document in documents] == ["DaemonSet", "ConfigMap", "DaemonSet", "Pod"]
    pod = documents[3]["spec"]
    assert pod["containers"][0]["resources"]["limits"] == {"treadle.dev/job": 1}
    mounted = {volume["hostPath"]["path"] for document in (documents[0], documents[3]) for volume in
               (document["spec"]["template"]["spec"] if document["kind"] == "DaemonSet" else document["spec"])["volumes"] if "hostPath" in volume}
    assert mounted == {"/dev/shm/treadle"}
