"""Tests profiles of training: phases of a step, also with several ranks, and classes of memory."""

import json
import sys

import numpy as np
import pytest

import treadle
from test_data_parallel import BATCH, OPTIONS, mpirun, needs_mpi, network, on_two_ranks, samples
from treadle.train import JointModule, Trainer

FEATURES, HIDDEN, CLASSES = 20, 32, 3
PARAMETERS = {"first": (FEATURES, HIDDEN), "first_bias": (HIDDEN,), "second": (HIDDEN, CLASSES), "second_bias": (CLASSES,)}
NUM_PARAMETERS = sum(int(np.prod(shape)) for shape in PARAMETERS.values())


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("profile_training") / "model.onnx"
    network(path)
    return str(path)


def profile_of(trainer, steps=3, **options):
    with treadle.profile(trainer, peaks=False, **options) as p:
        for i in range(steps):
            x, labels = samples(BATCH, i)
            trainer.step({"x": x}, labels)
    return p


def rounded_up(size):
    return -(-size // 64) * 64


def test_memory_has_the_classes_of_training(model):
    # Adam stores two numbers per parameter.
    trainer = Trainer(model, **OPTIONS, fused_update=False)
    statistics = trainer.memory()
    sizes = [4 * int(np.prod(shape)) for shape in PARAMETERS.values()]
    assert sum(sizes) <= statistics["parameters"].bytes <= sum(map(rounded_up, sizes))
    assert 2 * sum(sizes) <= statistics["optimizer_state"].bytes <= 2 * sum(map(rounded_up, sizes))
    assert statistics["gradients"].bytes == 0

    p = profile_of(trainer, memory=True)
    measured = p.memory().measured
    assert measured.before["parameters"] == statistics["parameters"].bytes
    assert measured.at_peak["optimizer_state"] == statistics["optimizer_state"].bytes
    held = {(name, kind): size for name, kind, size in measured.holders}
    for name, shape in PARAMETERS.items():
        size = 4 * int(np.prod(shape))
        assert held[name, "parameters"] == size
        assert held[f"{name}/mean", "optimizer_state"] == held[f"{name}/squares", "optimizer_state"] == size


def test_the_peaks_are_of_the_trainers_threads(model, tmp_path):
    options = treadle.SessionOptions()
    options.intra_op_num_threads = 1
    trainer = Trainer(model, **OPTIONS, sess_options=options)
    with treadle.profile(trainer) as p, treadle.profile(trainer, stream_to=tmp_path / "run.profile"):
        x, labels = samples(BATCH, 0)
        trainer.step({"x": x}, labels)
    for profile in (p, treadle.Profile.load(tmp_path / "run.profile")):
        assert profile.data["environment"]["threads"] == profile.data["peaks"]["threads"] == 1
        assert any(node.of_peak for node in profile.nodes)
    assert p.table().startswith("training step  (1 recorded run")


def test_sums_of_gradients_are_gradients(model):
    trainer = Trainer(model, **OPTIONS, accumulation_steps=2)
    sizes = [4 * int(np.prod(shape)) for shape in PARAMETERS.values()]
    assert sum(sizes) <= trainer.memory()["gradients"].bytes <= sum(map(rounded_up, sizes))


def test_parameters_that_lie_side_by_side_are_one_block(model):
    trainer = Trainer(model, **OPTIONS, fused_update=True)
    statistics = trainer.memory()
    assert statistics["parameters"].bytes == rounded_up(4 * NUM_PARAMETERS)
    assert statistics["optimizer_state"].bytes == 2 * rounded_up(4 * NUM_PARAMETERS)


def test_the_planned_arena_has_the_classes_of_training(model):
    p = profile_of(Trainer(model, **OPTIONS, fused_update=False))
    buffers = p.data["memory"]["buffers"]
    of_class = {kind: [b for b in buffers if b["class"] == kind] for kind in ("activations", "gradients", "scratch")}
    # Outputs of forward nodes count as activations, even if named otherwise; others are gradients.
    forward = {output["name"] for node in p.data["nodes"] if node["phase"] == "forward" for output in node["outputs"]}
    assert {"hidden", "scores"} & {b["name"] for b in of_class["activations"]}
    assert {b["name"] for b in of_class["activations"]} <= forward
    assert of_class["gradients"] and not {b["name"] for b in of_class["gradients"]} & forward
    sizes = {b["bytes"] for b in of_class["gradients"]}
    assert {4 * FEATURES * HIDDEN, 4 * HIDDEN * CLASSES} <= sizes, "gradients of the weights"

    memory = p.memory()
    alive = [sum(b["bytes"] for b in buffers if b["first"] <= step <= b["last"]) for step in range(len(memory.nodes))]
    assert [sum(each) for each in zip(*memory.live.values())] == alive
    for kind, series in memory.live.items():
        assert list(series) == [sum(b["bytes"] for b in of_class[kind] if b["first"] <= s <= b["last"]) for s in range(len(alive))]
    assert memory.activation_bytes == memory.live["activations"]
    text = p.table(memory=True)
    assert "gradients MB" in text


def test_measured_memory_names_what_lies_in_the_arena(model):
    trainer = Trainer(model, **OPTIONS, fused_update=False)
    trainer.step({"x": samples(BATCH, 0)[0]}, samples(BATCH, 0)[1])  # allocates the arena before the profile begins
    p = profile_of(trainer, memory=True)
    memory, buffers = p.memory(), p.data["memory"]["buffers"]
    measured = memory.measured
    fullest = [b for b in buffers if b["first"] <= memory.peak_step <= b["last"]]
    held = {(name, kind): size for name, kind, size in measured.holders}
    assert {kind for _, kind in held} >= {"activations", "gradients"}
    assert {(b["name"], b["class"]): b["bytes"] for b in fullest}.items() <= held.items()
    assert held.get(("arena", "activations"), 0) == memory.arena_bytes - sum(b["bytes"] for b in fullest)
    for kind in measured.at_peak:
        assert measured.at_peak[kind] == sum(size for _, of, size in measured.holders if of == kind)
    # The bytes of each class change with the nodes, while the total of the arena stays the same.
    assert max(measured.timeline["gradients"]) == max(memory.live["gradients"])
    assert measured.timeline["gradients"][0] == measured.timeline["gradients"][-1] == 0
    assert len({sum(each) for each in zip(*measured.timeline.values())}) <= 2
    assert "gradients" in p.table().split("held at the peak")[1]


def test_gradients_that_a_joint_module_hands_out_are_gradients(model):
    module = JointModule(model)
    with treadle.profile(module, peaks=False, memory=True) as p:
        x, _ = samples(BATCH, 0)
        run = module.forward({"x": x})
        gradients = run.backward([np.ones((BATCH, CLASSES), np.float32)])
    assert {node.phase for node in p.nodes} == {"forward", "backward"}
    statistics = module.memory()
    assert 4 * NUM_PARAMETERS <= statistics["parameters"].bytes
    sizes = sum(4 * int(np.prod(shape)) for shape in PARAMETERS.values())
    handed_out = {name: size for name, kind, size in p.memory().measured.holders if kind == "gradients"}
    assert statistics["gradients"].peak_bytes >= sizes, handed_out
    del gradients


def test_out_of_memory_names_the_classes(model):
    options = treadle.SessionOptions()
    trainer = Trainer(model, **OPTIONS, sess_options=options)
    state = trainer.memory()
    standing = sum(state[kind].bytes for kind in ("weights", "parameters", "optimizer_state", "other"))
    options.memory_limit_bytes = standing + 2000
    limited = Trainer(model, **OPTIONS, sess_options=options)
    x, labels = samples(BATCH, 0)
    with pytest.raises(treadle.Error) as caught:
        limited.step({"x": x}, labels)
    text = str(caught.value)
    assert f"parameters {state['parameters'].bytes}" in text
    assert f"optimizer_state {state['optimizer_state'].bytes}" in text
    assert "(gradients, of " in text


def phases_among_ranks(p):
    """Returns the operators of each phase, and the rows of the phase table."""
    operators = {}
    for node in p.nodes:
        operators.setdefault(node.phase, set()).add(node.op_type)
    return operators


def check_phases(operators):
    communication = operators.pop("communication")
    assert communication == {"AllReduceBegin", "AllReduceEnd"}
    assert set(operators) == {"forward", "backward", "optimizer"}
    assert not set().union(*operators.values()) & communication
    assert operators["optimizer"] == {"AdamUpdate"}
    assert {"Gemm", "Tanh"} & operators["forward"]


def test_ranks_have_a_phase_of_communication(model):
    found = [None, None]

    def work(rank, communicator):
        trainer = Trainer(model, communicator=communicator, num_threads=1, bucket_bytes=1000, **OPTIONS)
        p = profile_of(trainer)
        found[rank] = (phases_among_ranks(p), {phase["phase"]: phase["nodes"] for phase in p.data["phases"]}, p.table())

    on_two_ranks(work)
    for operators, phases, text in found:
        check_phases(operators)
        assert list(phases) == ["forward", "backward", "communication", "optimizer"]
        assert "communication" in text


def test_a_trainer_alone_communicates_nothing(model):
    p = profile_of(Trainer(model, **OPTIONS))
    assert [phase["phase"] for phase in p.data["phases"]] == ["forward", "backward", "optimizer"]


def test_the_update_after_several_steps_is_the_optimizers(model):
    p = profile_of(Trainer(model, **OPTIONS, accumulation_steps=2, fused_update=False), steps=4)
    updates = [node for node in p.nodes if node.op_type == "AdamUpdate"]
    assert len(updates) == len(PARAMETERS) and {node.phase for node in updates} == {"optimizer"}


WORKER = """
import json, os, sys
sys.path.insert(0, os.environ["TEST_FOLDER"])
from test_data_parallel import OPTIONS
from test_profile_training import phases_among_ranks, profile_of
from treadle.train import Trainer

trainer = Trainer(sys.argv[1], communicator="auto", bucket_bytes=1000, **OPTIONS)
operators = phases_among_ranks(profile_of(trainer))
print("RESULT " + json.dumps({"rank": trainer.rank, "operators": {phase: sorted(names) for phase, names in operators.items()}}), flush=True)
"""


@needs_mpi
def test_processes_of_mpirun_have_a_phase_of_communication(model):
    ran = mpirun(2, sys.executable, "-c", WORKER, model)
    assert ran.returncode == 0, ran.stderr
    found = [json.JSONDecoder().raw_decode(part)[0] for part in ran.stdout.split("RESULT ")[1:]]
    assert sorted(result["rank"] for result in found) == [0, 1]
    for result in found:
        check_phases({phase: set(names) for phase, names in result["operators"].items()})
