"""Tests graph executors in MXNet's style. Gradients are compared with gradients computed by hand and with PyTorch's."""

import json
import pathlib

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import treadle

import small_models as small

RNG = np.random.default_rng(0)
W = RNG.standard_normal((3, 2)).astype(np.float32)
B = RNG.standard_normal(2).astype(np.float32)
X = RNG.standard_normal((4, 3)).astype(np.float32)
G = RNG.standard_normal((4, 2)).astype(np.float32)


def linear():
    """Returns a model y = x w + b."""
    return small.model(
        [small.node("MatMul", ["x", "w"], ["product"]), small.node("Add", ["product", "b"], ["y"])],
        [small.tensor("x", ["N", 3])],
        [small.tensor("y", ["N", 2])],
        [numpy_helper.from_array(W, "w"), numpy_helper.from_array(B, "b")],
    )


def test_forward_and_backward_work_on_the_bound_arrays():
    x, w = X.copy(), W * 2
    grads = {"x": np.full_like(X, 9), "w": np.full_like(W, 9)}
    executor = treadle.bind(linear(), {"x": x, "w": w}, grads)
    (y,) = executor.forward()
    np.testing.assert_allclose(y, X @ (2 * W) + B, rtol=1e-5)
    w[:] = W  # this changes the bound array
    (y,) = executor.forward(is_train=True, x=X + 1)
    np.testing.assert_allclose(y, (X + 1) @ W + B, rtol=1e-5)
    np.testing.assert_array_equal(x, X + 1)
    executor.backward([G])
    assert executor.grad_dict["x"] is grads["x"]
    np.testing.assert_allclose(grads["x"], G @ W.T, rtol=1e-5)
    np.testing.assert_allclose(grads["w"], (X + 1).T @ G, rtol=1e-4)
    np.testing.assert_allclose(executor.grad_dict["b"], G.sum(0), rtol=1e-5)
    assert list(executor.output_dict) == ["y"]
    with pytest.raises(RuntimeError, match="is_train"):
        executor.backward([G])


# In opset 10, which elements Resize takes depends on whether an axis shrinks.
@pytest.mark.parametrize(
    ("op_type", "scales"),
    [("Resize", (0.7, 0.5)), ("Resize", (0.7, 2.0)), ("Resize", (1.6, 0.6)), ("Resize", (1.0, 1.7)), ("Resize", (1.0, 1.0)), ("Upsample", (1.0, 1.7))],
)
def test_training_takes_the_elements_that_a_session_takes(op_type, scales, ort):
    x = RNG.standard_normal((1, 1, 5, 7)).astype(np.float32)
    model = small.model(
        [small.node(op_type, ["x", "scales"], ["y"], mode="nearest")],
        [small.tensor("x", ["N", 1, 5, 7])],
        [small.tensor("y", None)],
        [numpy_helper.from_array(np.array([1, 1, *scales], np.float32), "scales")],
        opset=10 if op_type == "Resize" else 9,
    )
    expected = ort.InferenceSession(model).run(None, {"x": x})[0]
    executor = treadle.bind(model, {"x": x.copy()}, {"x": np.zeros_like(x)})
    for y in (treadle.InferenceSession(model).run(None, {"x": x})[0], executor.forward(is_train=True)[0]):
        np.testing.assert_array_equal(y, expected)
    executor.backward([np.ones_like(expected)])
    counts = np.array([(expected == value).sum() for value in x.flat], np.float32).reshape(x.shape)
    np.testing.assert_array_equal(executor.grad_dict["x"], counts)


def test_scales_that_are_fed_choose_elements_by_their_axis(ort):
    model = small.model(
        [small.node("Resize", ["x", "scales"], ["y"], mode="nearest")],
        [small.tensor("x", [1, 1, 5, 7]), small.tensor("scales", [4])],
        [small.tensor("y", None)],
        [],
        opset=10,
    )
    x = RNG.standard_normal((1, 1, 5, 7)).astype(np.float32)
    ours, theirs = treadle.InferenceSession(model), ort.InferenceSession(model)
    for scales in ((0.7, 0.5), (0.7, 2.0), (1.6, 0.6), (3.0, 1.5)):
        feeds = {"x": x, "scales": np.array([1, 1, *scales], np.float32)}
        np.testing.assert_array_equal(ours.run(None, feeds)[0], theirs.run(None, feeds)[0])


# A constant that determines extents stays a constant, and is never a parameter.
def test_settings_are_no_parameters():
    model = small.model(
        [
            small.node("Tile", ["x", "tiles", "axis"], ["t"]),
            small.node("Mul", ["t", "w"], ["y"]),
        ],
        [small.tensor("x", [2, 3])],
        [small.tensor("y", None)],
        [numpy_helper.from_array(np.array([2], np.float32), "tiles"), numpy_helper.from_array(np.array([1], np.float32), "axis"),
         numpy_helper.from_array(np.ones((2, 6), np.float32), "w")],
        opset=5,
    )
    assert set(treadle.train.JointModule(model).parameters) == {"w"}
    with pytest.raises(treadle.Error, match='"tiles" has no gradient: nodes read it as a setting'):
        treadle.train.JointModule(model, parameters=["tiles"])


def test_evaluation_follows_the_bound_arrays():
    x, w, b = X.copy(), W.copy(), B.copy()
    executor = treadle.bind(linear(), {"x": x, "w": w, "b": b}, grad_req="null")
    for step in range(4):
        for _ in range(2):
            np.testing.assert_allclose(executor.forward()[0], x @ w + b, rtol=1e-5)
        w[step % 3] += 1  # this write is not notified
        b *= 0.5
    other = RNG.standard_normal((3, 2)).astype(np.float32)
    executor.arg_dict["w"] = other  # the test binds another array
    np.testing.assert_allclose(executor.forward()[0], x @ other + b, rtol=1e-5)
    executor.arg_dict["w"] = np.asfortranarray(other)  # no kernel can read this array in place
    np.testing.assert_allclose(executor.forward()[0], x @ other + b, rtol=1e-5)
    seen = []
    executor.set_monitor_callback(lambda name, array: seen.append(name))
    np.testing.assert_allclose(executor.forward()[0], x @ other + b, rtol=1e-5)
    assert seen
    executor.set_monitor_callback(None)
    w = executor.arg_dict["w"] = W.copy()
    np.testing.assert_allclose(executor.forward()[0], x @ w + b, rtol=1e-5)


def test_gradients_are_written_added_or_left_alone():
    executor = treadle.simple_bind(linear(), {"x": "null", "w": "add", "b": "write"}, x=(4, 3))
    executor.grad_dict["w"][:] = 1
    for _ in range(2):
        executor.forward(is_train=True, x=X)
        executor.backward(G)
    assert "x" not in executor.grad_dict
    np.testing.assert_allclose(executor.grad_dict["w"], 1 + 2 * X.T @ G, rtol=1e-4)
    np.testing.assert_allclose(executor.grad_dict["b"], G.sum(0), rtol=1e-5)
    executor.forward(is_train=True)
    executor.backward()  # the head gradient is an array of ones
    np.testing.assert_allclose(executor.grad_dict["b"], [4, 4])
    with pytest.raises(ValueError, match='"sometimes"'):
        treadle.simple_bind(linear(), "sometimes", x=(4, 3))


def test_what_simple_bind_and_reshape_do_not_know_is_refused():
    with pytest.raises(ValueError, match="a dtype is given for .y., which the model does not have; is it x"):
        treadle.simple_bind(linear(), dtypes={"y": np.float32}, x=(4, 3))
    with pytest.raises(ValueError, match="a dtype is given for .w., which is a parameter"):
        treadle.simple_bind(linear(), dtypes={"w": np.float64}, x=(4, 3))
    assert treadle.simple_bind(linear(), dtypes={"x": np.float32}, x=(4, 3)).arg_dict["x"].dtype == np.float32
    with pytest.raises(ValueError, match="a shape is given for .y., which the model does not have"):
        treadle.simple_bind(linear(), x=(4, 3), y=(4, 2))
    with pytest.raises(ValueError, match="a shape is given for .w., which is a parameter"):
        treadle.simple_bind(linear(), x=(4, 3), w=(3, 2))
    executor = treadle.simple_bind(linear(), x=(4, 3))
    with pytest.raises(TypeError, match="partial_shaping is True or False, got dict; shapes are given by name"):
        executor.reshape({"x": (2, 3)})
    with pytest.raises(TypeError, match="allow_up_sizing is True or False, got tuple"):
        executor.reshape(True, (2, 3))
    for call in (executor.forward, lambda inputs: executor.partial_forward(0, inputs)):
        with pytest.raises(TypeError, match="is_train is True or False, got dict; inputs are given by name"):
            call({"x": X})
    assert executor.reshape(**{"x": (2, 3)}).forward()[0].shape == (2, 2)


@pytest.mark.parametrize("request_", ["write", "add"])
def test_gradients_reach_arrays_that_the_library_cannot_write_to(request_):
    to_w, own_x = np.ones((2, 3), np.float32).T, np.asfortranarray(X)  # arrays with unusual strides
    executor = treadle.bind(linear(), {"x": own_x}, {"w": to_w}, request_)
    for _ in range(2):
        executor.forward(is_train=True)
        executor.backward(G)
    assert executor.grad_dict["w"] is to_w
    np.testing.assert_allclose(to_w, 1 + 2 * X.T @ G if request_ == "add" else X.T @ G, rtol=1e-4)
    replaced = executor.grad_dict["w"] = np.zeros((3, 2), np.float32)  # the array is used from the next pass on
    own_x *= 2
    executor.forward(is_train=True)
    executor.backward(G)
    np.testing.assert_allclose(replaced, 2 * X.T @ G, rtol=1e-4)


def test_inputs_without_a_gradient_are_left_out_of_the_backward_pass():
    """An input that no output depends on has no gradient. If its request is "null", the others are computed."""
    model = onnx.load_from_string(linear())
    model.graph.input.append(small.tensor("beside", [2]))
    executor = treadle.simple_bind(model, {"x": "null", "w": "write", "b": "write"}, x=(4, 3))
    executor.forward(is_train=True, x=X)
    executor.backward(G)
    assert set(executor.grad_dict) == {"w", "b"}
    np.testing.assert_allclose(executor.grad_dict["w"], X.T @ G, rtol=1e-4)


def test_reshaping_shares_memory():
    executor = treadle.simple_bind(linear(), x=(4, 3))
    executor.arg_dict["x"][:] = X
    smaller = executor.reshape(x=(2, 3))
    assert np.shares_memory(smaller.arg_dict["x"], executor.arg_dict["x"])
    assert smaller.arg_dict["w"] is executor.arg_dict["w"]
    np.testing.assert_allclose(smaller.forward()[0], X[:2] @ W + B, rtol=1e-5)
    with pytest.raises(ValueError, match="allow_up_sizing"):
        executor.reshape(x=(8, 3))
    assert executor.reshape(allow_up_sizing=True, x=(8, 3)).forward()[0].shape == (8, 2)
    with pytest.raises(ValueError, match="partial_shaping"):
        executor.reshape()
    assert executor.reshape(partial_shaping=True).forward()[0].shape == (4, 2)


def product():
    """Returns a model y = x z, whose shapes share a symbol, with an additional input w."""
    return small.model(
        [small.node("Mul", ["x", "z"], ["p"]), small.node("Mul", ["p", "w"], ["y"])],
        [small.tensor("x", ["N", 3]), small.tensor("z", ["N", 3]), small.tensor("w", ["M", 1])],
        [small.tensor("y", ["K", 3])],
    )


def test_inputs_that_are_not_named_follow_by_their_symbols():
    executor = treadle.simple_bind(product(), "null", x=(4, 3), w=(1, 1))  # there is nothing to train in this model
    assert executor.arg_dict["z"].shape == (4, 3)
    with pytest.raises(ValueError, match=r'"z" would change from \[4,3\] to \[2,3\], and partial_shaping is off'):
        executor.reshape(x=(2, 3), w=(1, 1))
    with pytest.raises(ValueError, match='the shape of "w" is not given'):
        executor.reshape(x=(4, 3))
    assert executor.reshape(x=(4, 3), w=(1, 1)).arg_dict["z"] is executor.arg_dict["z"]
    smaller = executor.reshape(partial_shaping=True, x=(2, 3))
    assert {name: array.shape for name, array in smaller.arg_dict.items()} == {"x": (2, 3), "z": (2, 3), "w": (1, 1)}
    assert smaller.forward()[0].shape == (2, 3)
    with pytest.raises(ValueError, match='the shape of "w" is'):
        treadle.simple_bind(product(), "null", x=(4, 3))


def test_an_executor_shares_the_parameters_of_another():
    first = treadle.simple_bind(linear(), x=(4, 3))
    second = treadle.bind(linear(), {"x": X[:1].copy()}, shared_exec=first)
    first.copy_params_from({"w": W * 3})
    np.testing.assert_allclose(second.forward()[0], X[:1] @ (3 * W) + B, rtol=1e-5)
    for own in ({"options": treadle.SessionOptions()}, {"device": "sim"}, {"group2ctx": {"a": "sim"}}, {"argument_devices": {"x": "sim"}}, {"storage": {"x": "csr"}}):
        with pytest.raises(ValueError, match=f"its own {next(iter(own))}"):
            treadle.bind(linear(), {"x": X}, shared_exec=first, **own)


def unrolled(steps):
    """Returns h = tanh(x[t] w + h u) for sequences of one length, like one of MXNet's buckets."""
    lines = [f"g{t} = Constant <value_int = {t}> () x{t} = Gather <axis = 1> (x, g{t}) a{t} = MatMul(x{t}, w)" for t in range(steps)]
    lines.append("h0 = Tanh(a0)")
    lines += [f"b{t} = MatMul(h{t - 1}, u) c{t} = Add(a{t}, b{t}) h{t} = Tanh(c{t})" for t in range(1, steps)]
    text = f"""<ir_version: 10, opset_import: ["" : 21]>
    agraph (float[2, {steps}, 3] x) => (float[2, 4] y) <float[3, 4] w, float[4, 4] u> {{ {" ".join(lines)} y = Identity(h{steps - 1}) }}"""
    model = onnx.parser.parse_model(text)
    random = np.random.default_rng(0)
    for value, shape in (("w", (3, 4)), ("u", (4, 4))):
        kept = [i for i in model.graph.initializer if i.name != value]
        del model.graph.initializer[:]
        model.graph.initializer.extend([*kept, onnx.numpy_helper.from_array(random.normal(size=shape).astype(np.float32), value)])
    return model


def test_executors_of_different_lengths_share_parameters_and_memory():
    buffer = {}
    long = treadle.simple_bind(unrolled(5), shared_buffer=buffer, x=(2, 5, 3))
    short = treadle.simple_bind(unrolled(2), shared_exec=long, shared_arg_names=["w", "u"], shared_buffer=buffer, x=(2, 2, 3))
    assert set(buffer) == {"x", "grad of x"}
    for name in ("w", "u"):
        assert short.arg_dict[name] is long.arg_dict[name]
    assert np.shares_memory(short.arg_dict["x"], long.arg_dict["x"])
    assert np.shares_memory(short.grad_dict["x"], long.grad_dict["x"])
    x = np.random.default_rng(1).normal(size=(2, 2, 3)).astype(np.float32)
    for scale in (1, 0.5):
        long.arg_dict["w"] *= scale  # this updates the parameters that both executors share
        w, u = long.arg_dict["w"], long.arg_dict["u"]
        first = np.tanh(x[:, 0] @ w)
        np.testing.assert_allclose(short.forward(is_train=True, x=x)[0], np.tanh(x[:, 1] @ w + first @ u), rtol=1e-5, atol=1e-6)
    only = treadle.simple_bind(unrolled(3), shared_exec=long, shared_arg_names=["u"], x=(2, 3, 3))
    assert only.arg_dict["u"] is long.arg_dict["u"] and only.arg_dict["w"] is not long.arg_dict["w"]


def test_what_cannot_be_shared_is_an_error():
    first = treadle.simple_bind(unrolled(2), x=(2, 2, 3))
    with pytest.raises(ValueError, match="no parameter of this model"):
        treadle.bind(small.affine(), {"x": X}, shared_exec=first)
    with pytest.raises(ValueError, match='"v" is no parameter of both'):
        treadle.simple_bind(unrolled(3), shared_exec=first, shared_arg_names=["v"], x=(2, 3, 3))
    with pytest.raises(ValueError, match="needs the shared_exec"):
        treadle.simple_bind(unrolled(3), shared_arg_names=["w"], x=(2, 3, 3))
    with pytest.raises(ValueError, match=r'"w" is \[3,4\] in the shared executor and \[3,2\]'):
        treadle.simple_bind(linear(), shared_exec=first, x=(4, 3))


def test_options_hold_for_training_too():
    options = treadle.SessionOptions()
    options.add_free_dimension_override_by_name("N", 4)
    executor = treadle.simple_bind(linear(), options=options, x=(4, 3))
    np.testing.assert_allclose(executor.forward(x=X)[0], X @ W + B, rtol=1e-5)
    with pytest.raises(treadle.Error, match="training has no free_dimension_overrides"):
        executor.forward(is_train=True, x=X)
    options = treadle.SessionOptions()
    options.graph_optimization_level = treadle.GraphOptimizationLevel.ORT_DISABLE_ALL
    executor = treadle.simple_bind(linear(), options=options, x=(4, 3))
    np.testing.assert_allclose(executor.forward(is_train=True, x=X)[0], X @ W + B, rtol=1e-5)


def test_monitors_and_the_optimised_graph():
    executor = treadle.simple_bind(linear(), x=(4, 3))
    seen = {}
    executor.set_monitor_callback(seen.__setitem__)
    executor.forward(x=X)
    np.testing.assert_allclose(seen["product"], X @ W, rtol=1e-5)
    executor.set_monitor_callback(None)
    assert executor.memory_bytes > 0
    model = onnx.load_from_string(linear())
    model.graph.node[0].input[0] = "copy"
    model.graph.node.insert(0, small.node("Identity", ["x"], ["copy"]))
    options = treadle.SessionOptions()
    for level, expected in (("ORT_DISABLE_ALL", ["Identity", "MatMul", "Add"]), ("ORT_ENABLE_ALL", ["MatMul", "Add"])):
        options.graph_optimization_level = getattr(treadle.GraphOptimizationLevel, level)
        optimized = onnx.load_from_string(treadle.simple_bind(model.SerializeToString(), options=options, x=(4, 3)).optimized_model())
        onnx.checker.check_model(optimized)
        assert [node.op_type for node in optimized.graph.node] == expected


def test_monitors_see_training_passes_too():
    """The test sets the monitor before the training graph is made, and after it. The monitor must see gradients too."""
    executor = treadle.simple_bind(linear(), x=(4, 3))
    for made_before in (False, True):
        seen = {}
        executor.set_monitor_callback(lambda name, array: seen.setdefault(name, np.array(array)))
        executor.forward(is_train=True, x=X)
        np.testing.assert_allclose(seen["product"], X @ W, rtol=1e-5)
        forward = set(seen)
        executor.backward([G])
        new = [array for name, array in seen.items() if name not in forward]
        for expected in (G @ W.T, X.T @ G, G.sum(0)):
            assert any(array.shape == expected.shape and np.allclose(array, expected, rtol=1e-4) for array in new), made_before
        executor.set_monitor_callback(None)
        count = len(seen)
        executor.forward(is_train=True, x=X)
        executor.backward([G])
        assert len(seen) == count


def test_a_monitor_of_a_trainer_sees_gradients_and_may_end_a_step():
    trainer = treadle.train.Trainer(linear(), loss="mean_squared_error", learning_rate=0.5)
    seen = {}
    trainer.set_monitor(lambda event: seen.setdefault(event.value, (event.op_type, np.array(event.array))))
    trainer.step({"x": X}, G)
    np.testing.assert_allclose(seen["product"][1], X @ W, rtol=1e-5)
    gradient = X.T @ (X @ W + B - G) * 2 / G.size
    assert any(array.shape == W.shape and np.allclose(array, gradient, rtol=1e-4) for _, array in seen.values())
    before = trainer.parameters["w"].copy()

    def stop(event):
        raise RuntimeError("seen enough")

    trainer.set_monitor(stop, "product")
    with pytest.raises(Exception, match="seen enough"):
        trainer.step({"x": X}, G)
    np.testing.assert_array_equal(trainer.parameters["w"], before)
    trainer.set_monitor(None)
    trainer.step({"x": X}, G)
    module = treadle.train.JointModule(linear())
    names = []
    module.set_monitor(lambda event: names.append(event.value), "produc?")
    module.forward({"x": X}).backward([G])
    assert names == ["product"]


def test_profiles_tell_forward_passes_from_training(tmp_path):
    options = treadle.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "profile_")
    executor = treadle.simple_bind(linear(), options=options, x=(4, 3))
    executor.forward(x=X)
    executor.forward(x=X)
    executor.forward(is_train=True, x=X)
    executor.backward([G])
    inference, training = executor.end_profiling()

    def operators(path):
        events = json.loads(pathlib.Path(path).read_text())
        return [event["args"]["op_name"] for event in events if event["cat"] == "Node" and event["name"].endswith("_kernel_time")]

    assert inference != training
    assert len(operators(inference)) in (2, 4)  # each of the two runs has a product and a sum, or one node in which they are fused
    # The events have the names that PyTorch's profiler uses, as in profiles of trainers.
    trained = json.loads(pathlib.Path(training).read_text())["traceEvents"]
    assert sum(event.get("cat") == "cpu_op" for event in trained) >= 3, trained  # the forward node, and the gradients of x, w and b
    with pytest.raises(treadle.errors.InvalidArgument, match="profiling is not on"):
        executor.end_profiling()
    assert treadle.simple_bind(linear(), x=(4, 3)).end_profiling() == []


def test_running_statistics_are_auxiliary_states():
    torch = pytest.importorskip("torch")
    names = ["scale", "bias", "mean", "variance"]
    values = [np.float32([1.5, 0.5]), np.float32([0.1, -0.1]), np.float32([0, 0]), np.float32([1, 1])]
    model = small.model(
        [small.node("BatchNormalization", ["x", *names], ["y"], momentum=0.9)],
        [small.tensor("x", ["N", 2, 3])],
        [small.tensor("y", ["N", 2, 3])],
        [numpy_helper.from_array(value, name) for name, value in zip(names, values, strict=True)],
    )
    x = RNG.standard_normal((5, 2, 3)).astype(np.float32)
    executor = treadle.simple_bind(model, x=(5, 2, 3))
    assert set(executor.aux_dict) == {"mean", "variance"}
    head = RNG.standard_normal(x.shape).astype(np.float32)
    executor.forward(is_train=True, x=x)
    executor.backward([head])
    module = torch.nn.BatchNorm1d(2, momentum=0.1)
    module.weight.data, module.bias.data = torch.tensor(values[0]), torch.tensor(values[1])
    image = torch.tensor(x, requires_grad=True)
    y = module(image)
    y.backward(torch.tensor(head))
    np.testing.assert_allclose(executor.outputs[0], y.detach(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(executor.grad_dict["x"], image.grad, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(executor.grad_dict["scale"], module.weight.grad, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(executor.aux_dict["mean"], module.running_mean, rtol=1e-4, atol=1e-6)
    mean, variance = executor.aux_dict["mean"], executor.aux_dict["variance"]
    expected = (x - mean[:, None]) / np.sqrt(variance[:, None] + 1e-5) * values[0][:, None] + values[1][:, None]
    np.testing.assert_allclose(executor.forward(x=x)[0], expected, rtol=1e-4, atol=1e-5)


def grouped():
    """Returns y = relu(x w) + b, with the product in the group "left" and the rest in "right"."""
    nodes = [small.node("MatMul", ["x", "w"], ["product"]), small.node("Relu", ["product"], ["r"]), small.node("Add", ["r", "b"], ["y"])]
    for made, group in zip(nodes, ["left", "right", "right"], strict=True):
        made.name = "make_" + made.output[0]
        made.metadata_props.append(onnx.StringStringEntryProto(key="ctx_group", value=group))
    return small.model(
        nodes,
        [small.tensor("x", ["N", 3])],
        [small.tensor("y", ["N", 2])],
        [numpy_helper.from_array(W, "w"), numpy_helper.from_array(B, "b")],
    )


@pytest.mark.parametrize(
    ("where", "crossing"),
    [
        ({"group2ctx": {"left": "sim:0", "right": "sim:1"}}, "product: sim:0 to sim:1"),
        ({"device": "sim:0", "group2ctx": {"left": "cpu"}}, "yield_out: cpu to sim:0"),
        ({"group2ctx": {"right": "sim"}, "argument_devices": {"x": "sim:1"}}, "product: sim:1 to sim"),
    ],
)
def test_groups_run_on_their_devices_and_give_the_same_bits(where, crossing):
    host = treadle.simple_bind(grouped(), x=(4, 3))
    placed = treadle.simple_bind(grouped(), x=(4, 3), **where)
    np.testing.assert_array_equal(placed.forward(x=X), host.forward(x=X))
    for _ in range(2):
        np.testing.assert_array_equal(placed.forward(is_train=True, x=X), host.forward(is_train=True, x=X))
        placed.backward(G)
        host.backward(G)
        for name, gradient in host.grad_dict.items():
            np.testing.assert_array_equal(placed.grad_dict[name], gradient)
    active = X @ W > 0
    np.testing.assert_allclose(placed.grad_dict["w"], X.T @ (G * active), rtol=1e-4)
    with treadle.profile(placed._core.training(placed._requests)) as profile:
        placed.forward(is_train=True, x=X)
        placed.backward(G)
    assert crossing in {node.name for node in profile.nodes if node.op_type == "Memcpy"}


def test_profiles_are_of_all_graphs_of_an_executor():
    executor = treadle.bind(linear(), {"x": X, "w": W.copy()})
    for around in (lambda: treadle.profile(executor), treadle.profile):  # profiles the executor, and then the process
        with around() as profile:
            for _ in range(3):
                executor.forward(is_train=True)  # the first time, this makes the graph
                executor.backward(G)
            executor.forward()
            executor.partial_forward(0)
        runs = sorted(graph.data["runs"]["recorded"] for graph in profile.graphs if graph.nodes)
        assert runs[-1] == 6, "forward and backward passes"
        assert len(runs) == 2 and runs[0] >= 1, "and passes that are not for training"


def test_the_plan_shows_copies_and_fences():
    options = treadle.SessionOptions()
    options.group2ctx = {"left": "sim:0", "right": "sim:1"}
    options.graph_optimization_level = treadle.GraphOptimizationLevel.ORT_DISABLE_ALL
    text = treadle.InferenceSession(grouped(), options).to_text("planned")
    assert "copy %product on sim:0 -> %product on sim:1" in text
    assert "copy %y on sim:1 -> %y on cpu" in text


def test_a_device_that_is_not_there_is_named():
    with pytest.raises(Exception, match="abacus.*cpu, .*sim"):
        treadle.simple_bind(grouped(), x=(4, 3), group2ctx={"left": "abacus"})


@pytest.mark.parametrize("is_train", [False, True])
def test_a_forward_pass_goes_step_by_step(is_train):
    executor = treadle.simple_bind(linear(), x=(4, 3))
    executor.arg_dict["w"] *= 2
    left = executor.partial_forward(0, is_train, x=X)
    steps = [left]
    while steps[-1] > 0:
        steps.append(executor.partial_forward(len(steps), is_train))
    assert steps == list(range(left, -1, -1))
    np.testing.assert_allclose(executor.outputs[0], X @ (2 * W) + B, rtol=1e-5)
    assert executor.partial_forward(len(steps)) == 0  # as in MXNet, nothing happens after the last step
    if is_train:
        executor.backward([G])
        np.testing.assert_allclose(executor.grad_dict["w"], X.T @ G, rtol=1e-4)
    if not is_train:  # the whole graph is one node, so no step is left after the first one
        return
    executor.partial_forward(0, is_train, x=X)
    with pytest.raises(ValueError, match="step 3 does not follow"):
        executor.partial_forward(3, is_train)


def test_steps_are_nodes_of_the_optimised_graph():
    options = treadle.SessionOptions()
    options.graph_optimization_level = treadle.GraphOptimizationLevel.ORT_DISABLE_ALL
    executor = treadle.simple_bind(linear(), options=options, x=(4, 3))
    assert executor.partial_forward(0, x=X) == 1  # the product has run, the sum has not
    assert executor.partial_forward(1) == 0


SPARSE = np.where(RNG.random((4, 3)) < 0.4, X, 0).astype(np.float32)


@pytest.mark.parametrize("form", ["array", "scipy", "tensor"])
def test_a_sparse_argument_stays_sparse_where_it_can(form, caplog):
    executor = treadle.simple_bind(linear(), storage={"x": "csr"}, x=(4, 3))
    assert executor.arg_dict["x"].storage == "csr"
    x = SPARSE
    if form == "scipy":
        x = pytest.importorskip("scipy.sparse").csr_matrix(SPARSE)
    elif form == "tensor":
        rows, columns = np.nonzero(SPARSE)
        offsets = np.searchsorted(rows, np.arange(5)).astype(np.int64)
        x = treadle.SparseTensor.sparse_csr_from_numpy(np.array([4, 3]), SPARSE[rows, columns], columns.astype(np.int64), offsets)
    (y,) = executor.forward(x=x)
    np.testing.assert_allclose(y, SPARSE @ W + B, rtol=1e-5)
    assert not caplog.records
    (y,) = executor.forward(is_train=True)
    np.testing.assert_allclose(y, SPARSE @ W + B, rtol=1e-5)
    executor.backward([G])
    np.testing.assert_allclose(executor.grad_dict["w"], SPARSE.T @ G, rtol=1e-4, atol=1e-6)
    assert "made dense for training" in caplog.text


def test_a_node_that_takes_no_sparse_operand_gets_a_dense_one_and_the_log_says_so(caplog):
    model = small.model(
        [small.node("Softmax", ["x"], ["s"], axis=1), small.node("Add", ["s", "b"], ["y"])],
        [small.tensor("x", ["N", 3])],
        [small.tensor("y", ["N", 3])],
        [numpy_helper.from_array(np.ones(3, np.float32), "b")],
    )
    executor = treadle.simple_bind(model, "null", storage={"x": "row_sparse"}, x=(4, 3))
    (y,) = executor.forward(x=SPARSE)
    expected = np.exp(SPARSE) / np.exp(SPARSE).sum(1, keepdims=True)
    np.testing.assert_allclose(y, expected + 1, rtol=1e-5)
    larger = executor.reshape(allow_up_sizing=True, x=(8, 3))
    np.testing.assert_allclose(larger.forward(x=np.tile(SPARSE, (2, 1)))[0], np.tile(expected + 1, (2, 1)), rtol=1e-5)
    assert '"x" (row_sparse) is made dense for Softmax' in caplog.text


def test_rows_of_a_row_sparse_table_are_gathered():
    table = np.zeros((6, 2), np.float32)
    table[[1, 4]] = [[1, 2], [3, 4]]
    model = small.model(
        [small.node("Gather", ["table", "i"], ["y"])],
        [small.tensor("i", [3], onnx.TensorProto.INT64)],
        [small.tensor("y", [3, 2])],
        [numpy_helper.from_array(table, "table")],
    )
    executor = treadle.bind(model, {"i": np.array([4, 0, 1])}, grad_req="null", storage={"table": "row_sparse"})
    assert executor.arg_dict["table"].values().shape == (2, 2)
    np.testing.assert_array_equal(executor.forward()[0], table[[4, 0, 1]])
    with pytest.raises(ValueError, match="storage type of 'i' is 'dense-ish'"):
        treadle.bind(model, {"i": np.array([4, 0, 1])}, grad_req="null", storage={"i": "dense-ish"})


def test_a_scalar_output_is_differentiated():
    from onnx import parser

    model = parser.parse_model('<ir_version: 10, opset_import: ["" : 21]> agraph (float[3] x) => (float y) { q = Mul(x, x) y = ReduceSum <keepdims = 0> (q) }')
    x = np.array([1, 2, 3], np.float32)
    executor = treadle.executor.bind(model, {"x": x})
    for gradient in (None, np.float32(1), [np.ones((), np.float32)]):
        executor.forward(is_train=True)
        executor.backward(gradient)
        np.testing.assert_allclose(executor.grad_dict["x"], 2 * x)


def test_training_reads_parameters_where_they_are_bound():
    w = W.copy()
    executor = treadle.bind(linear(), {"x": X, "w": w})
    executor.forward(is_train=True)
    joint = executor._core.training(executor._requests)
    assert np.shares_memory(joint.parameters["w"], w)
    executor.backward(G)
    w *= 2  # this write comes after the backward pass, like that of an optimizer's step
    np.testing.assert_allclose(executor.forward(is_train=True)[0], X @ w + B, rtol=1e-5)
    executor.backward(G)
    np.testing.assert_allclose(executor.grad_dict["x"], G @ w.T, rtol=1e-5)
    # Arrays that kernels cannot read in place are copied, and so are arrays that another executor has bound.
    for other in (np.asfortranarray(W * 3), np.repeat(W, 2, axis=0)[::2]):
        executor.arg_dict["w"] = other
        np.testing.assert_allclose(executor.forward(is_train=True)[0], X @ other + B, rtol=1e-5)
        executor.backward(G)
        np.testing.assert_allclose(executor.grad_dict["x"], G @ other.T, rtol=1e-5)
    second = treadle.bind(linear(), {"x": X, "w": W * 5}, shared_exec=executor)
    first_run = executor.forward(is_train=True)[0]
    np.testing.assert_allclose(second.forward(is_train=True)[0], X @ (W * 5) + B, rtol=1e-5)
    executor.backward(G)  # uses the parameters that were current when its pass began
    np.testing.assert_allclose(executor.grad_dict["x"], G @ executor.arg_dict["w"].T, rtol=1e-5)
    np.testing.assert_allclose(first_run, X @ executor.arg_dict["w"] + B, rtol=1e-5)


def test_a_joint_module_holds_what_it_is_given():
    module = treadle.train.JointModule(linear(), inputs=["x"])
    w = W.copy()
    module.hold({"w": w})
    run = module.forward({"x": X})
    np.testing.assert_allclose(run.outputs[0], X @ w + B, rtol=1e-5)
    np.testing.assert_allclose(run.backward([G])["x"], G @ w.T, rtol=1e-5)
    w += 1
    np.testing.assert_allclose(module.forward({"x": X}).outputs[0], X @ w + B, rtol=1e-5)
    assert np.shares_memory(module.parameters["w"], w)
    for wrong, message in (({"v": w}, 'no "v"; is it'), ({"w": W[:2]}, "the module holds"), ({"b": np.zeros(4, np.float32)[::2]}, "contiguous float32")):
        with pytest.raises((treadle.Error, ValueError), match=message):
            module.hold({"w": W * 7, **wrong})
    np.testing.assert_allclose(module.forward({"x": X}).outputs[0], X @ w + B, rtol=1e-5)  # a failed call changes nothing


def test_gradients_are_not_written_to_read_only_arrays():
    frozen = np.frombuffer(np.zeros_like(W).tobytes(), np.float32).reshape(W.shape)
    with pytest.raises(ValueError, match="'w'.*read-only"):
        treadle.bind(linear(), {"x": X}, {"w": frozen}, {"w": "write"})
    executor = treadle.bind(linear(), {"x": X}, {"w": np.zeros_like(W)}, {"w": "write"})
    executor.grad_dict["w"] = frozen
    with pytest.raises(ValueError, match="'w'.*read-only"):
        executor.forward(is_train=True)
    np.testing.assert_array_equal(frozen, 0)


def test_read_only_arguments_and_states_are_read():
    x, mean = (np.frombuffer(value.tobytes(), np.float32).reshape(value.shape) for value in (X[:, :2], B))
    variance = np.full(2, 4, np.float32)
    normalised = small.model(
        [small.node("BatchNormalization", ["x", "scale", "bias", "mean", "variance"], ["y"], epsilon=0.0)],
        [small.tensor("x", ["N", 2])],
        [small.tensor("y", ["N", 2])],
        [numpy_helper.from_array(np.full(2, value, np.float32), name) for name, value in (("scale", 1), ("bias", 0), ("mean", 0), ("variance", 1))],
    )
    executor = treadle.bind(normalised, {"x": x}, aux_states={"mean": mean, "variance": variance})
    (y,) = executor.forward()
    np.testing.assert_allclose(y, (x - B) / 2, rtol=1e-5)
    with pytest.raises(ValueError, match="'mean'.*read-only"):
        executor.forward(is_train=True)
    np.testing.assert_array_equal(mean, B)
