"""Tests training over the link of two network namespaces that serve as hosts: also with delay and loss, if the kernel supports it, and with
the link cut."""

import os
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("torch")

from test_data_parallel import BATCH, OPTIONS, STEPS, WORKER, environment, network, results, samples  # noqa: E402

from treadle.train import Trainer  # noqa: E402


def ip(*arguments, tool="ip"):
    return subprocess.run([tool, *arguments], capture_output=True, text=True)


@pytest.fixture
def hosts():
    """Returns the names of two namespaces, with the addresses 10.77.0.1 and 10.77.0.2."""
    if os.geteuid() != 0 or not shutil.which("ip"):
        pytest.skip("network namespaces need root and iproute2")
    names = [f"treadle{os.getpid()}{end}" for end in "ab"]
    links = [f"tr{os.getpid()}{end}"[-14:] for end in "ab"]
    try:
        if ip("netns", "add", names[0]).returncode or ip("netns", "add", names[1]).returncode:
            pytest.skip("this machine lets nobody make network namespaces")
        if ip("link", "add", links[0], "type", "veth", "peer", "name", links[1]).returncode:
            pytest.skip("this machine has no veth")
        for name, link, address in zip(names, links, ("10.77.0.1/24", "10.77.0.2/24"), strict=True):
            assert ip("link", "set", link, "netns", name).returncode == 0
            assert ip("-n", name, "addr", "add", address, "dev", link).returncode == 0
            for device in (link, "lo"):
                assert ip("-n", name, "link", "set", device, "up").returncode == 0
        yield list(zip(names, links, strict=True))
    finally:
        for name in names:
            ip("netns", "del", name)


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.onnx"
    network(path)
    return str(path)


def start(hosts, model, **more):
    processes = []
    for rank, (name, link) in enumerate(hosts):
        own = environment(
            RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="10.77.0.1", MASTER_PORT="29511", GLOO_SOCKET_IFNAME=link, TP_SOCKET_IFNAME=link, **more
        )
        command = ["ip", "netns", "exec", name, sys.executable, "-c", WORKER, "torch", model, "{}"]
        processes.append(subprocess.Popen(command, env=own, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    return processes


@pytest.mark.parametrize("disturbance", [None, ["delay", "10ms"], ["delay", "2ms", "loss", "2%"]], ids=["plain", "delay", "loss"])
def test_hosts_take_the_step_of_the_joint_batch(hosts, model, disturbance):
    if disturbance:
        for name, link in hosts:
            if ip("netns", "exec", name, "tc", "qdisc", "add", "dev", link, "root", "netem", *disturbance).returncode:
                pytest.skip("this kernel has no netem")
    processes = start(hosts, model)
    ended = [process.communicate(timeout=180) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], ended
    alone = Trainer(model, **OPTIONS)
    joint = [alone.step({"x": x}, labels) for x, labels in (samples(BATCH, i) for i in range(STEPS))]
    for out, _ in ended:
        np.testing.assert_allclose(results(out)[0]["losses"], joint, rtol=1e-6)


def test_a_host_without_its_link_is_an_error_within_the_deadline(hosts, model):
    processes = start(hosts, model, TEST_WAITS_AT="2", TEST_TIMEOUT="5")
    for process in processes:
        assert "AT STEP 2" in process.stdout.readline()
    name, link = hosts[1]
    assert ip("-n", name, "link", "set", link, "down").returncode == 0
    begin = time.monotonic()
    ended = [process.communicate("go on\n", timeout=120) for process in processes]
    assert time.monotonic() - begin < 100
    assert all(process.returncode not in (0, None) for process in processes)
    assert "rank 1 is gone" in ended[0][1], ended[0][1]
