"""Runs the scenarios on ONNX Runtime's training executor, in its environment (see README.md), and writes recorded/onnxruntime-training.json.

ORTModule itself needs PyTorch and builds an extension. The parts that it uses do not: the builder of the gradient graph, which puts a YieldOp between
forward and backward, and the TrainingAgent, which runs the graph up to the YieldOp and then from there.
"""

from __future__ import annotations

import pathlib
import sys
import tempfile
import types

# The package imports parts that need PyTorch. This script does not use them, so they are replaced.
for part in ("amp", "optim"):
    sys.modules[f"onnxruntime.training.{part}"] = types.ModuleType(f"onnxruntime.training.{part}")

import numpy as np
import onnx
import onnxruntime
from onnxruntime.capi import _pybind_state as native
from onnxruntime.training import artifacts
from onnxruntime.training.api import CheckpointState, Module, Optimizer

import networks as nets
import onnx_networks as models
import operator_cases
from recording import Recording, error_of

onnxruntime.set_default_logger_severity(4)
record = Recording("onnxruntime-training", onnxruntime.__version__)
HOST = native.OrtDevice(native.OrtDevice.cpu(), native.OrtDevice.default_memory(), 0)
MLP = {**nets.MLP, **nets.MLP_DATA}


_alive = []  # keeps arrays alive, because values share their memory, even while a run waits for its gradients


def vector(arrays):
    values = native.OrtValueVector()
    for array in arrays:
        _alive.append(np.array(array, order="C"))
        values.push_back(native.OrtValue.ortvalue_from_numpy(_alive[-1], HOST))
    return values


def arrays(values):
    """Returns copies, as the executor reuses the memory."""
    return [np.array(values[i].numpy()) for i in range(len(values))]


class Joint:
    """A model with forward and backward in one graph and parameters as inputs, as ORTModule makes it."""

    def __init__(self, model, parameters, trained=None, inputs=()):
        self.values = {}
        for tensor in onnx.load_from_string(model).graph.initializer:
            if tensor.name in parameters:
                self.values[tensor.name] = onnx.numpy_helper.to_array(tensor)
        config = native.OrtModuleGraphBuilderConfiguration()
        config.initializer_names = list(parameters)
        config.initializer_names_to_train = list(parameters if trained is None else trained)
        config.input_names_require_grad = list(inputs)
        config.build_gradient_graph = True
        config.loglevel = native.Severity(4) if hasattr(native, "Severity") else config.loglevel
        builder = native.OrtModuleGraphBuilder()
        builder.initialize(model, config)
        builder.build(native.TrainingGraphTransformerConfiguration())
        self.info = builder.get_graph_info()
        content = builder.get_gradient_model()
        graph = onnx.load_from_string(content).graph
        self.feeds = [value.name for value in graph.input]
        self.gradients = [value.name for value in graph.output]
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL  # fused nodes would bypass the cache
        self._session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        outputs = [HOST] * len(self.info.user_output_names)
        self._agent = native.TrainingAgent(self._session._sess, self.feeds, outputs, self.gradients, [HOST] * len(self.gradients), 0)

    def forward(self, cache=None, **feeds):
        state, outputs = native.PartialGraphExecutionState(), native.OrtValueVector()
        values = {**self.values, **feeds}
        self._agent.run_forward(vector([values[name] for name in self.feeds]), outputs, state, cache)
        return state, arrays(outputs)

    def backward(self, state, heads):
        gradients = native.OrtValueVector()
        self._agent.run_backward(vector(heads), gradients, state)
        return {name.removesuffix("_grad"): array for name, array in zip(self.gradients, arrays(gradients), strict=True)}


def record_forward_and_backward():
    data, head = nets.MLP_DATA["data"], nets.MLP_DATA["head"]
    joint = Joint(models.mlp(), nets.MLP, inputs=["data"])
    state, (output,) = joint.forward(data=data)
    gradients = joint.backward(state, [head])
    again = error_of(joint.backward, state, [head])
    frozen = Joint(models.mlp(), nets.MLP, trained=["fc1_weight", "fc2_bias"])
    state, _ = frozen.forward(data=data)
    some = frozen.backward(state, [head])
    record.add(
        "forward_and_backward",
        MLP,
        output=output,
        gradients=gradients,
        second_backward_error=again,
        gradients_with_frozen_parameters=some,
    )
    first_state, (first,) = joint.forward(data=data)
    second_state, (second,) = joint.forward(data=-data)
    joint.forward(data=data * 3)  # this run is abandoned: it gets no gradients
    second_gradients = joint.backward(second_state, [head])
    record.add(
        "runs_interleaved",
        MLP,
        outputs=[first, second],
        gradients={"first": joint.backward(first_state, [head])["fc1_weight"], "second": second_gradients["fc1_weight"]},
    )


def record_cache():
    """Records that a cached value replaces its node's computation in every run that gets the cache."""
    data, head = nets.MLP_DATA["data"], nets.MLP_DATA["head"]
    joint = Joint(models.mlp(), nets.MLP)
    cache = native.OrtValueCache()
    # Differs from the value that the node would compute by a factor of 2.
    hidden = (data @ nets.MLP["fc1_weight"].T + nets.MLP["fc1_bias"]) * np.float32(0.5)
    cache.insert("fc1_output", native.OrtValue.ortvalue_from_numpy(hidden, HOST))
    state, (output,) = joint.forward(cache, data=data)
    gradients = joint.backward(state, [head])
    _, (other,) = joint.forward(cache, data=data * 100)  # the output does not depend on the data any more
    keys = list(cache.keys())
    cache.remove("fc1_output")
    _, (computed,) = joint.forward(cache, data=data)
    record.add("cache", MLP, keys=keys, output=output, gradients=gradients, output_for_other_data=other, output_when_removed=computed)


def record_several_outputs():
    """Records y = a·b and z = exp(b), with and without a gradient of z."""
    nodes = [models.node("Mul", ["a", "b"], ["y"]), models.node("Exp", ["b"], ["z"])]
    model = models.model(nodes, [], [models.value("y", [8]), models.value("z", [8])], {"a": nets.POINTS, "b": nets.OTHER})
    joint = Joint(model, ["a", "b"])
    state, outputs = joint.forward()
    both = joint.backward(state, [nets.HEAD, nets.POSITIVE])
    state, _ = joint.forward()
    one = joint.backward(state, [nets.HEAD, np.zeros(8, np.float32)])  # ORTModule passes zeros if a gradient is None
    inputs = {"a": nets.POINTS, "b": nets.OTHER, "head": nets.HEAD, "other": nets.POSITIVE}
    record.add("several_outputs", inputs, outputs=outputs, gradients=both, gradients_of_the_first=one)


def record_operators():
    facts = {}
    for name, case in operator_cases.CASES.items():
        try:
            joint = Joint(models.operator(case), list(case.operands))
        except RuntimeError as error:
            print(f"{name} has no gradient: {str(error)[-120:].strip()}")
            facts[name] = {}
            continue
        state, outputs = joint.forward()
        gradients = joint.backward(state, case.heads([output.shape for output in outputs]))
        facts[name] = {"outputs": outputs, **gradients}
    record.add("gradients_of_operators", operators=facts)


class Training:
    """ONNX Runtime's on-device training: artifacts made from an inference model, then a module and an optimiser with a checkpoint."""

    def __init__(self, model, optimiser, loss, rate, frozen=()):
        self._folder = tempfile.TemporaryDirectory()
        folder = pathlib.Path(self._folder.name)
        loaded = onnx.load_from_string(model)
        parameters = [tensor.name for tensor in loaded.graph.initializer if tensor.data_type == onnx.TensorProto.FLOAT]
        artifacts.generate_artifacts(
            loaded,
            requires_grad=[name for name in parameters if name not in frozen],
            frozen_params=list(frozen),
            loss=loss,
            optimizer=optimiser,
            artifact_directory=str(folder),
        )
        self.state = CheckpointState.load_checkpoint(str(folder / "checkpoint"))
        self.module = Module(str(folder / "training_model.onnx"), self.state, str(folder / "eval_model.onnx"))
        self.optimiser = Optimizer(str(folder / "optimizer_model.onnx"), self.module)
        self.optimiser.set_learning_rate(rate)

    def step(self, data, labels):
        self.module.train()
        loss = float(self.module(data, labels))
        self.optimiser.step()
        self.module.lazy_reset_grad()
        return loss

    def evaluate(self, data, labels):
        self.module.eval()
        return float(self.module(data, labels))

    def parameters(self):
        return {name: np.array(parameter.data) for name, parameter in self.state.parameters}

    def gradients(self):
        return {name: np.array(parameter.grad) for name, parameter in self.state.parameters if parameter.requires_grad}

    def exported(self, outputs):
        path = str(pathlib.Path(self._folder.name) / "exported.onnx")
        self.module.export_model_for_inferencing(path, outputs)
        return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


def record_training():
    batches = nets.chain(20)["batches"]
    targets = nets.normal(7, targets=(20, 4, 3))["targets"]
    kinds = {
        "sgd": (artifacts.OptimType.SGD, artifacts.LossType.CrossEntropyLoss, 0.1, ()),
        "sgd_squared_error": (artifacts.OptimType.SGD, artifacts.LossType.MSELoss, 0.02, ()),
        "sgd_frozen": (artifacts.OptimType.SGD, artifacts.LossType.CrossEntropyLoss, 0.1, ("fc1_weight", "fc2_bias")),
        "adamw": (artifacts.OptimType.AdamW, artifacts.LossType.CrossEntropyLoss, 0.02, ()),
    }
    for name, (optimiser, loss, rate, frozen) in kinds.items():
        training = Training(models.mlp(), optimiser, loss, rate, frozen)
        labels = targets if loss == artifacts.LossType.MSELoss else [nets.MLP_LABELS] * len(batches)
        losses = [training.step(batch, label) for batch, label in zip(batches, labels, strict=True)]
        session = training.exported(["fc2_output"])
        record.add(
            f"training_{name}",
            {**nets.MLP, "batches": batches, "targets": targets},
            rate=rate,
            frozen=list(frozen),
            losses=losses,
            loss_in_evaluation=training.evaluate(batches[0], labels[0]),
            parameters=training.parameters(),
            exported_inputs=[value.name for value in session.get_inputs()],
            exported_outputs=session.run(None, {"data": nets.MLP_DATA["data"]})[0],
        )


def record_training_of_a_convolution_network():
    batches = nets.normal(8, batches=(10, 4, 2, 6, 6))["batches"]
    training = Training(models.convnet(), artifacts.OptimType.SGD, artifacts.LossType.CrossEntropyLoss, 0.05, tuple(nets.CONV_STATES))
    losses = [training.step(batch, nets.MLP_LABELS) for batch in batches]
    values = training.parameters()
    record.add(
        "training_of_a_convolution_network",
        {**nets.CONV, **nets.CONV_STATES, "batches": batches},
        rate=0.05,
        losses=losses,
        parameters={name: values[name] for name in nets.CONV},
        states={name: values[name] for name in nets.CONV_STATES},
    )


def record_gradient_accumulation():
    """Records that gradients accumulate until they are reset."""
    batches = nets.chain(20)["batches"]
    training = Training(models.mlp(), artifacts.OptimType.SGD, artifacts.LossType.CrossEntropyLoss, 0.1)
    facts = []
    for batch in batches[:2]:
        training.module.train()
        training.module(batch, nets.MLP_LABELS)
        facts.append(training.gradients())
    training.module.lazy_reset_grad()
    training.module(batches[1], nets.MLP_LABELS)
    record.add(
        "gradient_accumulation", {**nets.MLP, "batches": batches}, one=facts[0], both=facts[1], second_after_reset=training.gradients()
    )


record_forward_and_backward()
record_cache()
record_several_outputs()
record_operators()
record_training()
record_training_of_a_convolution_network()
record_gradient_accumulation()
record.write()
