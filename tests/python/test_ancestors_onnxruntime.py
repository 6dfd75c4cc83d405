"""Compares joint modules, partial runs and the trainer with ONNX Runtime's training (tests/ancestors/recorded/onnxruntime-training.json)."""

import numpy as np
import onnx
import pytest

import treadle
from treadle import errors
from treadle.train import JointModule, Trainer

from recorded import Recorded, close, operator_cases
from recorded import networks as nets
from recorded import onnx_networks as models

ORT = Recorded("onnxruntime-training")
MLP = {**nets.MLP, **nets.MLP_DATA}
DATA, HEAD = nets.MLP_DATA["data"], nets.MLP_DATA["head"]
BATCHES = nets.chain(20)["batches"]
TARGETS = nets.normal(7, targets=(20, 4, 3))["targets"]


def close_by_name(got, expected, **tolerances):
    assert set(got) == set(expected)
    for name, values in expected.items():
        close(got[name], values, **tolerances)


def test_forward_to_the_yield_and_backward_from_it():
    facts = ORT("forward_and_backward", MLP)
    run = JointModule(models.mlp(), inputs=["data"]).forward({"data": DATA})
    close(run.outputs[0], facts["output"])
    close_by_name(run.backward([HEAD]), facts["gradients"])
    assert facts["second_backward_error"] == "RuntimeError"
    with pytest.raises(errors.InvalidArgument, match="has run already"):
        run.backward([HEAD])
    frozen = JointModule(models.mlp(), frozen=["fc1_bias", "fc2_weight"]).forward({"data": DATA})
    close_by_name(frozen.backward([HEAD]), facts["gradients_with_frozen_parameters"])


def test_runs_are_interleaved_and_abandoned():
    facts = ORT("runs_interleaved", MLP)
    module = JointModule(models.mlp())
    first, second = (module.forward({"data": sign * DATA}) for sign in (1, -1))
    module.forward({"data": DATA * 3})  # this run is abandoned: it gets no gradients
    close([first.outputs[0], second.outputs[0]], facts["outputs"])
    close(second.backward([HEAD])["fc1_weight"], facts["gradients"]["second"])
    close(first.backward([HEAD])["fc1_weight"], facts["gradients"]["first"])


def test_a_cached_value_replaces_the_computation_of_its_node():
    facts = ORT("cache", MLP)
    session = treadle.InferenceSession(models.mlp())
    hidden = (DATA @ nets.MLP["fc1_weight"].T + nets.MLP["fc1_bias"]) * np.float32(0.5)
    cache = treadle.ValueCache()
    cache["fc1_output"] = hidden.copy()

    def run(data, cache):
        run = session.partial_run({"data": data}, cache)
        assert run.advance()
        return run.outputs()[0]

    close(run(DATA, cache), facts["output"])
    assert list(cache.keys()) == facts["keys"]
    # ONNX Runtime computes the tanh in place of the cached value, so its next run finds tanh(hidden) in the cache. Treadle never overwrites
    # cached values: the other data leave no trace, and the output repeats.
    spoiled = np.tanh(np.tanh(hidden)) @ nets.MLP["fc2_weight"].T + nets.MLP["fc2_bias"]
    close(spoiled, facts["output_for_other_data"])
    close(run(DATA * 100, cache), facts["output"])
    np.testing.assert_array_equal(cache["fc1_output"], hidden)
    close(run(DATA, treadle.ValueCache()), facts["output_when_removed"])


def test_several_outputs():
    facts = ORT("several_outputs", {"a": nets.POINTS, "b": nets.OTHER, "head": nets.HEAD, "other": nets.POSITIVE})
    nodes = [models.node("Mul", ["a", "b"], ["y"]), models.node("Exp", ["b"], ["z"])]
    model = models.model(nodes, [], [models.value("y", [8]), models.value("z", [8])], {"a": nets.POINTS, "b": nets.OTHER})
    run = JointModule(model).forward({})
    close(run.outputs, facts["outputs"])
    close_by_name(run.backward([nets.HEAD, nets.POSITIVE]), facts["gradients"])
    # ORTModule passes zeros for an output without a gradient. For a JointModule, the caller can leave the output out.
    close_by_name(JointModule(model, outputs=["y"]).forward({}).backward([nets.HEAD]), facts["gradients_of_the_first"])


# Points where a derivative jumps (at 0, or where operands are equal): for each operand the positions, and the share of the head gradient here and
# there. Of equal operands, the first gets the whole gradient here and in MXNet; in ONNX Runtime each gets half.
KINKS = {
    "LeakyRelu": ([3], {"a": (1, 0.1)}),
    "Max": ([0, 3], {"a": (1, 0.5), "b": (0, 0.5)}),
    "Min": ([0, 3], {"a": (1, 0.5), "b": (0, 0.5)}),
}


def approximate_gelu_gradient(x):
    """Returns the derivative of x/2 (1 + tanh u) with u = sqrt(2/pi) (x + 0.044715 x^3)."""
    x = x.astype(np.float64)
    tanh = np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))
    return 0.5 * (1 + tanh) + 0.5 * x * (1 - tanh**2) * np.sqrt(2 / np.pi) * (1 + 3 * 0.044715 * x**2)


@pytest.mark.parametrize("name", operator_cases.CASES)
def test_gradients_of_operators(name):
    case = operator_cases.CASES[name]
    facts = ORT("gradients_of_operators")["operators"][name]
    run = JointModule(models.operator(case)).forward({})
    heads = case.heads([output.shape for output in run.outputs])
    gradients = run.backward(heads)
    assert set(case.operands) <= set(gradients)  # constants of float type also have gradients
    if not facts:  # ONNX Runtime has no gradient for this operator; test_ancestors_mxnet.py compares it with MXNet's
        return
    for got, expected in zip(run.outputs, facts["outputs"], strict=True):
        close(got, expected, atol=1e-5)
    for operand in case.operands:
        got = gradients[operand]
        expected = np.array(facts[operand], np.float32)
        if name == "Gelu tanh":
            # ONNX Runtime uses the derivative of the exact function even if the approximation was computed, so the third digit differs.
            close(expected, ORT("gradients_of_operators")["operators"]["Gelu"]["a"])
            close(got, approximate_gelu_gradient(case.operands["a"]) * heads[0], atol=1e-5)
            return
        if name == "Where, broadcast" and operand == "b":
            assert expected.shape == (3, 4)  # ONNX Runtime does not sum over the axis that was broadcast
            expected = expected.sum(0)
        if name in KINKS:
            positions, (ours, theirs) = KINKS[name][0], KINKS[name][1][operand]
            close(got[positions], ours * heads[0][positions])
            close(expected[positions], theirs * heads[0][positions])
            got, expected = np.delete(got, positions), np.delete(expected, positions)
        close(got, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "loss"),
    [("sgd", "softmax_cross_entropy"), ("sgd_squared_error", "mean_squared_error"), ("sgd_frozen", "softmax_cross_entropy")],
)
def test_training_by_gradient_descent(kind, loss):
    facts = ORT(f"training_{kind}", {**nets.MLP, "batches": BATCHES, "targets": TARGETS})
    trainer = Trainer(models.mlp(), loss=loss, learning_rate=facts["rate"], frozen=facts["frozen"])
    labels = TARGETS if loss == "mean_squared_error" else [nets.MLP_LABELS] * len(BATCHES)
    close([trainer.step({"data": batch}, label) for batch, label in zip(BATCHES, labels, strict=True)], facts["losses"], rtol=1e-3)
    close(trainer.evaluate({"data": BATCHES[0]}, labels[0]), facts["loss_in_evaluation"], rtol=1e-3)
    assert set(trainer.parameters) == set(nets.MLP) - set(facts["frozen"])
    for name, values in facts["parameters"].items():
        close(trainer.parameters.get(name, nets.MLP[name]), values, rtol=1e-3, atol=1e-4)
    session = treadle.InferenceSession(trainer.to_bytes())
    assert [value.name for value in session.get_inputs()] == facts["exported_inputs"]
    close(session.run(None, {"data": DATA})[0], facts["exported_outputs"], rtol=1e-3, atol=1e-4)


def test_training_of_a_convolution_network():
    batches = nets.normal(8, batches=(10, 4, 2, 6, 6))["batches"]
    facts = ORT("training_of_a_convolution_network", {**nets.CONV, **nets.CONV_STATES, "batches": batches})
    trainer = Trainer(models.convnet(), learning_rate=facts["rate"])
    close([trainer.step({"data": batch}, nets.MLP_LABELS) for batch in batches], facts["losses"], rtol=1e-3)
    close_by_name(trainer.parameters, facts["parameters"], rtol=1e-3, atol=1e-4)
    close_by_name(trainer.states, facts["states"], rtol=1e-3, atol=1e-4)


class AdamW:
    """Updates like ONNX Runtime's AdamWOptimizer: epsilon is added before the bias correction, and there is no weight decay."""

    def __init__(self, parameters, rate, betas=(0.9, 0.999), epsilon=1e-6):
        self._parameters, self._rate, self._betas, self._epsilon = parameters, rate, betas, epsilon
        self._moments = {name: (np.zeros_like(value), np.zeros_like(value)) for name, value in parameters.items()}
        self._step = 0

    def step(self, gradients):
        self._step += 1
        first_correction, second_correction = (1 - beta**self._step for beta in self._betas)
        for name, parameter in self._parameters.items():
            for moment, beta, value in zip(self._moments[name], self._betas, (gradients[name], gradients[name] ** 2), strict=True):
                moment[:] = beta * moment + (1 - beta) * value
            first, second = self._moments[name]
            parameter -= self._rate * np.sqrt(second_correction) / first_correction * first / (np.sqrt(second) + self._epsilon)


def test_training_by_adamw():
    """The trainer of artifacts only has SGD, so AdamW updates a joint module's parameters in place."""
    facts = ORT("training_adamw", {**nets.MLP, "batches": BATCHES, "targets": TARGETS})
    module = JointModule(models.mlp())
    optimiser = AdamW(module.parameters, facts["rate"])
    rows, losses = np.arange(4), []
    for batch in BATCHES:
        run = module.forward({"data": batch})
        scores = run.outputs[0]
        chances = np.exp(scores - scores.max(1, keepdims=True))
        chances /= chances.sum(1, keepdims=True)
        losses.append(-np.log(chances[rows, nets.MLP_LABELS]).mean())
        chances[rows, nets.MLP_LABELS] -= 1
        optimiser.step(run.backward([chances / 4]))
    close(losses, facts["losses"], rtol=1e-3)
    close_by_name(module.parameters, facts["parameters"], rtol=1e-3, atol=1e-4)
    outputs = treadle.InferenceSession(module.to_bytes()).run(None, {"data": DATA})[0]
    close(outputs, facts["exported_outputs"], rtol=1e-3, atol=1e-4)


def test_gradients_accumulate():
    """ONNX Runtime adds gradients until they are reset. In Treadle the request "add" does this. The loss is a part of the model."""
    facts = ORT("gradient_accumulation", {**nets.MLP, "batches": BATCHES})
    model = onnx.load_from_string(models.mlp())
    model.graph.node.append(models.node("LogSoftmax", ["fc2_output"], ["chances"], axis=1))
    model.graph.output.pop()
    model.graph.output.append(models.value("chances", ["N", 3]))
    requests = {"data": "null", **dict.fromkeys(nets.MLP, "add")}
    executor = treadle.simple_bind(model, requests, data=(4, 5))
    head = np.zeros((4, 3), np.float32)
    head[np.arange(4), nets.MLP_LABELS] = -0.25  # the gradient of the mean of -chances[label] by the chances

    def step(batch):
        executor.forward(is_train=True, data=batch)
        executor.backward(head)

    step(BATCHES[0])
    close_by_name(executor.grad_dict, facts["one"])
    step(BATCHES[1])
    close_by_name(executor.grad_dict, facts["both"])
    for gradient in executor.grad_dict.values():
        gradient[:] = 0
    step(BATCHES[1])
    close_by_name(executor.grad_dict, facts["second_after_reset"])


def test_every_recorded_scenario_is_replayed():
    assert ORT.unread == []
    assert set(ORT("gradients_of_operators")["operators"]) == set(operator_cases.CASES)
