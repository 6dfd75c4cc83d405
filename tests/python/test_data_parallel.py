"""Compares training with several processes, by mpirun and torch.distributed, with one process that trains with the joint batch."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

import treadle  # noqa: E402
from treadle.communicator import connect_threads  # noqa: E402
from treadle.train import CheckpointFolder, Trainer  # noqa: E402

MPIRUN = shutil.which("mpirun")
needs_mpi = pytest.mark.usefixtures("mpi")
BATCH, FEATURES, CLASSES, STEPS = 12, 20, 3, 5


def network(path):
    """Saves a model of two layers without any layer that depends on the whole batch."""
    random = np.random.default_rng(1)
    first = random.normal(0, 0.2, (FEATURES, 32)).astype(np.float32)
    second = random.normal(0, 0.2, (32, CLASSES)).astype(np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("Gemm", ["x", "first", "first_bias"], ["hidden"]),
            helper.make_node("Tanh", ["hidden"], ["active"]),
            helper.make_node("Gemm", ["active", "second", "second_bias"], ["scores"]),
        ],
        "two_layers",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", FEATURES])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", CLASSES])],
        [
            numpy_helper.from_array(first, "first"),
            numpy_helper.from_array(np.zeros(32, np.float32), "first_bias"),
            numpy_helper.from_array(second, "second"),
            numpy_helper.from_array(np.zeros(CLASSES, np.float32), "second_bias"),
        ],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def samples(count, seed):
    random = np.random.default_rng(seed)
    labels = random.integers(0, CLASSES, count)
    x = random.normal(0, 1, (count, FEATURES)).astype(np.float32)
    x[np.arange(count), labels] += 2
    return x, labels


OPTIONS = {"optimizer": "adam", "learning_rate": 0.01}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("data_parallel") / "model.onnx"
    network(path)
    return str(path)


@pytest.fixture(scope="module")
def joint_losses(model):
    trainer = Trainer(model, **OPTIONS)
    return [trainer.step({"x": x}, labels) for x, labels in (samples(BATCH, i) for i in range(STEPS))]


# The program of each process: it makes steps with its part of the joint batch, and prints the losses in a line.
WORKER = """
import json, os, sys
sys.path.insert(0, os.environ["TEST_FOLDER"])
import numpy as np
from test_data_parallel import BATCH, OPTIONS, STEPS, samples
from treadle.train import Trainer

launcher, model, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
if launcher == "torch":
    import datetime
    import torch.distributed
    torch.distributed.init_process_group("gloo", timeout=datetime.timedelta(seconds=float(os.environ.get("TEST_TIMEOUT", 60))))
trainer = Trainer(model, communicator="auto", bucket_bytes=1000, **OPTIONS, **options)
rank, ranks = trainer.rank, trainer.num_ranks
losses = []
for i in range(STEPS):
    if i == int(os.environ.get("TEST_DIES_AT", -1)) and rank == 1:
        os.kill(os.getpid(), 9)
    if i == int(os.environ.get("TEST_WAITS_AT", -1)):
        print(f"AT STEP {i}", flush=True)
        sys.stdin.readline()
    x, labels = samples(BATCH, i)
    mine = slice(BATCH * rank // ranks, BATCH * (rank + 1) // ranks)
    losses.append(trainer.step({"x": x[mine]}, labels[mine]))
state = sum(value.nbytes for value in trainer.optimizer_state.values())
digest = [float(np.abs(value).sum()) for value in trainer.parameters.values()]
print("RESULT " + json.dumps({"rank": rank, "losses": losses, "state": state, "digest": digest}), flush=True)
if launcher == "torch":  # its threads do not outlive the interpreter
    del trainer
    torch.distributed.destroy_process_group()
"""


def environment(**more):
    return {**os.environ, "TEST_FOLDER": str(pathlib.Path(__file__).parent), "OMP_NUM_THREADS": "1", **more}


def results(text):
    # The ranks share a pipe, so one line may contain several results.
    found = [json.JSONDecoder().raw_decode(part)[0] for part in text.split("RESULT ")[1:]]
    return sorted(found, key=lambda result: result["rank"])


def mpirun(ranks, *command, timeout=240, **more):
    launcher = [MPIRUN, "--allow-run-as-root", "--oversubscribe", "-n", str(ranks)]
    return subprocess.run([*launcher, *command], capture_output=True, text=True, timeout=timeout, env=environment(**more))


def torchrun(ranks, model, options, tmp_path, **more):
    (tmp_path / "worker.py").write_text(WORKER)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command = [*launcher, str(tmp_path / "worker.py"), "torch", model, json.dumps(options)]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment(**more))


def on_two_ranks(work):
    """Calls work(rank, communicator) on a thread for each of two ranks."""
    errors = []

    def run(rank, communicator):
        try:
            work(rank, communicator)
        except Exception as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=run, args=each) for each in enumerate(connect_threads(2))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def check_losses(found, ranks, joint):
    assert [result["rank"] for result in found] == list(range(ranks))
    for result in found:
        np.testing.assert_allclose(result["losses"], joint, rtol=1e-6)
        assert result["losses"] == found[0]["losses"]
        assert result["digest"] == found[0]["digest"]


@needs_mpi
@pytest.mark.parametrize("options", [{}, {"shard_optimizer": True}], ids=["whole", "sharded"])
def test_processes_of_mpirun_take_the_step_of_the_joint_batch(model, joint_losses, options):
    ran = mpirun(2, sys.executable, "-c", WORKER, "mpi", model, json.dumps(options))
    assert ran.returncode == 0, ran.stderr
    found = results(ran.stdout)
    check_losses(found, 2, joint_losses)
    whole = sum(value.nbytes for value in Trainer(model, **OPTIONS).optimizer_state.values())
    assert sum(result["state"] for result in found) == (whole if options else 2 * whole)


@needs_mpi
def test_mpi_adds_bfloat16(model, joint_losses):
    ran = mpirun(3, sys.executable, "-c", WORKER, "mpi", model, json.dumps({"reduction": "bfloat16"}))
    assert ran.returncode == 0, ran.stderr
    found = results(ran.stdout)
    assert all(result["losses"] == found[0]["losses"] and result["digest"] == found[0]["digest"] for result in found)
    np.testing.assert_allclose(found[0]["losses"], joint_losses, rtol=0.02)
    assert found[0]["losses"] != joint_losses


@pytest.mark.parametrize("options", [{}, {"shard_optimizer": True}, {"reduction": "bfloat16"}], ids=["whole", "sharded", "bfloat16"])
def test_processes_of_torch_distributed_take_the_step_of_the_joint_batch(model, joint_losses, options, tmp_path):
    pytest.importorskip("torch")
    ran = torchrun(2, model, options, tmp_path)
    assert ran.returncode == 0, ran.stderr
    found = results(ran.stdout)
    if "reduction" in options:
        np.testing.assert_allclose(found[0]["losses"], joint_losses, rtol=0.02)
        assert found[0]["digest"] == found[1]["digest"]
    else:
        check_losses(found, 2, joint_losses)


def test_a_killed_process_of_torch_distributed_is_named(model, tmp_path):
    pytest.importorskip("torch")
    processes = []
    for rank in range(2):
        own = environment(
            RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(20000 + os.getpid() % 20000), TEST_DIES_AT="2"
        )
        command = [sys.executable, "-c", WORKER, "torch", model, "{}"]
        processes.append(subprocess.Popen(command, env=own, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    _, text = processes[0].communicate(timeout=120)
    processes[1].communicate(timeout=120)
    assert processes[0].returncode not in (0, None)
    assert "rank 1 is gone" in text, text


def test_threads_are_ranks_too(model, joint_losses):
    losses = [None, None]

    def work(rank, communicator):
        trainer = Trainer(model, communicator=communicator, num_threads=1, **OPTIONS)
        mine = slice(BATCH * rank // 2, BATCH * (rank + 1) // 2)
        losses[rank] = [trainer.step({"x": x[mine]}, labels[mine]) for x, labels in (samples(BATCH, i) for i in range(STEPS))]

    on_two_ranks(work)
    for each in losses:
        np.testing.assert_allclose(each, joint_losses, rtol=1e-6)


class Alone:
    """A communicator in Python with one rank, which counts the calls."""

    rank, size = 0, 1

    def __init__(self):
        self.calls = []

    def all_reduce(self, data, dtype):
        self.calls.append((data.nbytes, dtype))

    def broadcast(self, data, root):
        if self.calls is None:
            raise ConnectionError("the cable is out")


def test_an_object_of_python_is_a_communicator(model, joint_losses):
    ranks = Alone()
    trainer = Trainer(model, communicator=ranks, bucket_bytes=1000, **OPTIONS)
    losses = [trainer.step({"x": x}, labels) for x, labels in (samples(BATCH, i) for i in range(STEPS))]
    np.testing.assert_allclose(losses, joint_losses, rtol=1e-6)
    assert {dtype for _, dtype in ranks.calls} == {"float32"}
    parameters = sum(value.nbytes for value in trainer.parameters.values())
    assert sum(nbytes for nbytes, _ in ranks.calls) > STEPS * parameters
    ranks.calls = None
    with pytest.raises(Exception, match="the cable is out"):
        Trainer(model, communicator=ranks, **OPTIONS)


def test_options_without_a_communicator_are_errors(model):
    for options in ({"shard_optimizer": True}, {"reduction": "bfloat16"}, {"reduction": "float16"}, {"bucket_bytes": 0}, {"bucket_bytes": 1000}):
        with pytest.raises(treadle.errors.InvalidArgument):
            Trainer(model, **options)
    with pytest.raises(treadle.errors.NotFound, match="no plugin has registered"):
        Trainer(model, communicator="carrier pigeons")


# Tests of the command line

COMMAND = [sys.executable, "-m", "treadle", "train"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    x, labels = samples(205, 77)  # the last batch is not full, but has a sample for each rank
    path = tmp_path_factory.mktemp("data") / "data.npz"
    np.savez(path, x=x, labels=labels)
    return str(path)


def arguments(model, data, folder, *more, epochs=3):
    return [
        *[*COMMAND, model, "--data", data, "-o", f"{folder}/out.onnx", "--batch-size", "16", "--epochs", str(epochs), "--validation", "0.2"],
        *["--optimizer", "adam", "--learning-rate", "0.01", "--log", f"{folder}/log", "--log-steps", "1", "--checkpoint", f"{folder}/checkpoints"],
        *more,
    ]


def logged(folder):
    return [json.loads(line) for line in (folder / "log").read_text().splitlines()]


def losses_of(events):
    return [event["loss"] for event in events if event["event"] == "step"]


@pytest.fixture(scope="module")
def trained_alone(model, data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone")
    subprocess.run(arguments(model, data, folder), check=True, capture_output=True, timeout=240, env=environment())
    return logged(folder)


@needs_mpi
@pytest.mark.parametrize("ranks", [2, 3])
def test_the_command_has_the_losses_of_one_process(model, data, trained_alone, tmp_path, ranks):
    ran = mpirun(ranks, *arguments(model, data, tmp_path, "--shard-optimizer"))
    assert ran.returncode == 0, ran.stderr
    events = logged(tmp_path)
    np.testing.assert_allclose(losses_of(events), losses_of(trained_alone), rtol=1e-5)
    for here, alone in zip(events, trained_alone, strict=True):
        assert here["event"] == alone["event"]
        if here["event"] == "epoch":
            np.testing.assert_allclose(here["validation_loss"], alone["validation_loss"], rtol=1e-5)
            assert here["validation_accuracy"] == pytest.approx(alone["validation_accuracy"])
    assert ran.stdout.count("epoch 3/3  loss") == 1  # only rank 0 prints


@needs_mpi
def test_a_killed_rank_ends_the_others_and_any_number_resumes(model, data, trained_alone, tmp_path):
    command = [MPIRUN, "--allow-run-as-root", "--oversubscribe", "-n", "2"]
    command += arguments(model, data, tmp_path, "--checkpoint-steps", "2", "--keep-last", "0", epochs=1000)
    started = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())
    checkpoints = tmp_path / "checkpoints"
    end = time.monotonic() + 120
    while not (checkpoints.exists() and len(list(checkpoints.glob("*.safetensors"))) > 2):
        assert time.monotonic() < end and started.poll() is None, started.communicate()
        time.sleep(0.01)
    children = subprocess.run(["pgrep", "-P", str(started.pid)], capture_output=True, text=True).stdout.split()
    ranks = {}
    for child in children:
        text = pathlib.Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
        ranks.update({entry: int(child) for entry in text if entry.startswith(b"OMPI_COMM_WORLD_RANK=")})
    os.kill(ranks[b"OMPI_COMM_WORLD_RANK=1"], signal.SIGKILL)
    _, text = started.communicate(timeout=60)
    assert started.returncode != 0
    assert "rank 1" in text, text
    steps = sorted(int(path.stem.split("-")[1]) for path in checkpoints.glob("checkpoint-*.safetensors"))
    first = steps[0]
    for ranks_then in (1, 3):
        folder = tmp_path / f"resumed_{ranks_then}"
        (folder / "checkpoints").mkdir(parents=True)
        name = f"checkpoint-{first:012d}.safetensors"
        shutil.copy(checkpoints / name, folder / "checkpoints" / name)
        ran = mpirun(ranks_then, *arguments(model, data, folder, "--resume"))
        assert ran.returncode == 0, ran.stderr
        np.testing.assert_allclose(losses_of(logged(folder)), losses_of(trained_alone)[first:], rtol=1e-5)


@needs_mpi
def test_a_stopped_rank_is_named_within_the_deadline(model, data, tmp_path):
    command = [MPIRUN, "--allow-run-as-root", "--oversubscribe", "-n", "3"]
    command += arguments(model, data, tmp_path, "--communicator-deadline", "2", epochs=100000)
    started = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())
    end = time.monotonic() + 120
    while not (tmp_path / "log").exists() or (tmp_path / "log").read_text().count("step") < 20:
        assert time.monotonic() < end and started.poll() is None, started.communicate()
        time.sleep(0.01)
    for child in subprocess.run(["pgrep", "-P", str(started.pid)], capture_output=True, text=True).stdout.split():
        if b"OMPI_COMM_WORLD_RANK=1" in pathlib.Path(f"/proc/{child}/environ").read_bytes().split(b"\0"):
            os.kill(int(child), signal.SIGSTOP)
    _, text = started.communicate(timeout=60)
    assert started.returncode != 0
    assert "rank 1 has not come within 2 s" in text, text


@needs_mpi
def test_what_one_rank_cannot_do_all_ranks_say(model, data, tmp_path):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "checkpoint-000000000007.safetensors").write_text("")
    ran = mpirun(2, *arguments(model, data, tmp_path), timeout=60)
    assert ran.returncode != 0
    assert "has checkpoints already" in ran.stderr


def test_a_checkpoint_folder_of_threads(model, tmp_path):
    def work(rank, communicator):
        trainer = Trainer(model, communicator=communicator, num_threads=1, shard_optimizer=True, **OPTIONS)
        x, labels = samples(BATCH, 1)
        mine = slice(BATCH * rank // 2, BATCH * (rank + 1) // 2)
        trainer.step({"x": x[mine]}, labels[mine])
        CheckpointFolder(tmp_path).save(trainer, {"rank": str(rank)})

    on_two_ranks(work)
    alone = Trainer(model, **OPTIONS)
    assert CheckpointFolder(tmp_path).resume(alone)[1] == {"rank": "0"}
    assert alone.num_steps == 1
