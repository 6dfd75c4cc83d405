"""Runs the scenarios on MXNet's graph executor, in MXNet's environment (see README.md), and writes recorded/mxnet.json."""

from __future__ import annotations

import ctypes
import os
import pathlib
import tempfile

os.environ["MXNET_SUBGRAPH_BACKEND"] = "NONE"  # fused nodes would hide values from the monitor
os.environ["MXNET_STORAGE_FALLBACK_LOG_VERBOSE"] = "0"

import mxnet as mx
import numpy as np
from mxnet.base import _LIB, NDArrayHandle, c_str, check_call, mx_uint

import networks as nets
import random_graphs
from recording import Recording, error_of

record = Recording("mxnet", mx.__version__)
HOST = mx.cpu()


def numbers(array):
    """Returns an array's contents after all pushed operations: otherwise auxiliary states may be read before the forward pass has ended."""
    mx.nd.waitall()
    return array.asnumpy()


def all_of(arrays):
    return {name: numbers(array) for name, array in arrays.items() if array is not None}


def put(arrays, values):
    for name, value in values.items():
        if name in arrays:
            arrays[name][:] = value


def nd(values):
    return mx.nd.array(values, dtype=values.dtype)


def shares(one, other):
    """Returns True if writing to one array changes the first elements of the other."""
    mark = np.float32(12345)
    before = numbers(one)
    one[:] = mark
    shown = bool(numbers(other).reshape(-1)[0] == mark)
    one[:] = before
    mx.nd.waitall()
    return shown


def mlp(activation="tanh"):
    hidden = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=6, name="fc1")
    return mx.sym.FullyConnected(mx.sym.Activation(hidden, act_type=activation, name="act"), num_hidden=3, name="fc2")


def bound_mlp(grad_req="write", **options):
    executor = mlp().simple_bind(HOST, grad_req=grad_req, data=(4, 5), **options)
    put(executor.arg_dict, {**nets.MLP, "data": nets.MLP_DATA["data"]})
    return executor


def convnet():
    image = mx.sym.Convolution(mx.sym.Variable("data"), kernel=(3, 3), pad=(1, 1), num_filter=4, name="conv")
    image = mx.sym.BatchNorm(image, fix_gamma=False, eps=nets.EPSILON, momentum=nets.MOMENTUM, name="bn")
    image = mx.sym.Pooling(mx.sym.Activation(image, act_type="relu"), kernel=(2, 2), stride=(2, 2), pool_type="max")
    return mx.sym.FullyConnected(mx.sym.Flatten(image), num_hidden=3, name="fc")


def record_forward_and_backward():
    executor = bound_mlp()
    (scores,) = executor.forward(is_train=False)
    scores = numbers(scores)
    executor.forward(is_train=True)
    trained = numbers(executor.outputs[0])
    executor.backward([nd(nets.MLP_DATA["head"])])
    record.add(
        "mlp",
        {**nets.MLP, **nets.MLP_DATA},
        arguments=mlp().list_arguments(),
        outputs=mlp().list_outputs(),
        inference=scores,
        training=trained,
        gradients=all_of(executor.grad_dict),
    )


def record_gradient_requests():
    requests = {"data": "write", "fc1_weight": "add", "fc1_bias": "null", "fc2_weight": "add", "fc2_bias": "write"}
    executor = bound_mlp(requests)
    for array in executor.grad_dict.values():
        if array is not None:
            array[:] = 1
    for _ in range(2):
        executor.forward(is_train=True)
        executor.backward([nd(nets.MLP_DATA["head"])])
    record.add("gradient_requests", {**nets.MLP, **nets.MLP_DATA}, requests=requests, gradients=all_of(executor.grad_dict))


def record_added_gradients_of_a_sum():
    """Records two passes of a + b. MXNet gives the second operand the accumulated gradient of the first."""
    facts = {}
    for requests in ("write write", "add write", "write add", "add add"):
        a, b = requests.split()
        executor = (mx.sym.Variable("a") + mx.sym.Variable("b")).simple_bind(HOST, grad_req={"a": a, "b": b}, a=(2,), b=(2,))
        for _ in range(2):
            executor.forward(is_train=True)
            executor.backward([mx.nd.ones(2)])
        facts[requests] = [int(numbers(executor.grad_dict[name])[0]) for name in ("a", "b")]
    record.add("added_gradients_of_a_sum", gradients=facts)


def record_order_of_calls():
    head = [nd(nets.MLP_DATA["head"])]
    executor = bound_mlp("add")
    executor.forward(is_train=True)
    executor.backward(head)
    once = numbers(executor.grad_dict["fc2_weight"])
    again = error_of(executor.backward, head)
    twice = numbers(executor.grad_dict["fc2_weight"])
    executor.forward(is_train=False)
    untrained = error_of(executor.backward, head)
    executor.forward(is_train=True)
    record.add(
        "order_of_calls",
        {**nets.MLP, **nets.MLP_DATA},
        second_backward_error=again,
        second_backward_adds_the_same=bool(np.allclose(twice, 2 * once, rtol=1e-6)),
        backward_without_training_error=untrained,
        backward_without_head_gradients_error=error_of(executor.backward),
    )
    executor.forward(is_train=True)
    first = executor.outputs[0]
    before = numbers(first)
    executor.arg_dict["fc2_bias"][:] = 100
    executor.forward(is_train=True)
    record.add("outputs_of_two_passes", later_pass_overwrites_earlier_outputs=not np.array_equal(numbers(first), before))


def record_names_and_shapes():
    executor = bound_mlp()
    arrays = dict(executor.arg_dict)
    without = {name: array for name, array in arrays.items() if name != "fc1_bias"}
    record.add(
        "errors",
        forward_unknown_argument=error_of(executor.forward, bogus=arrays["data"]),
        forward_wrong_shape=error_of(executor.forward, data=mx.nd.ones((2, 5))),
        bind_missing_parameter=error_of(mlp().bind, HOST, without),
        bind_unknown_argument=error_of(mlp().bind, HOST, {**arrays, "bogus": arrays["data"]}),
        bind_too_few_in_a_list=error_of(mlp().bind, HOST, list(arrays.values())[:3]),
        unknown_request=error_of(mlp().simple_bind, HOST, grad_req="sometimes", data=(4, 5)),
        no_shape=error_of(mlp().simple_bind, HOST),
        copy_unknown_parameter=error_of(executor.copy_params_from, {"bogus": arrays["data"]}),
        copy_unknown_parameter_allowed=error_of(executor.copy_params_from, {"bogus": arrays["data"]}, allow_extra_params=True),
    )
    values = [nd({**nets.MLP, "data": nets.MLP_DATA["data"]}[name]) for name in mlp().list_arguments()]
    record.add("arguments_in_a_list", {**nets.MLP, **nets.MLP_DATA}, outputs=numbers(mlp().bind(HOST, values).forward()[0]))


def record_reshaping():
    executor = bound_mlp()
    smaller = executor.reshape(data=(2, 5))
    kept = np.array_equal(numbers(smaller.arg_dict["data"]), nets.MLP_DATA["data"][:2])
    smaller.forward(is_train=True)
    outputs = numbers(smaller.outputs[0])
    smaller.backward([nd(nets.MLP_DATA["head"][:2])])
    larger = executor.reshape(allow_up_sizing=True, data=(7, 5))
    larger.forward(is_train=True, data=nd(nets.MLP_DATA["more"]))
    record.add(
        "reshape",
        {**nets.MLP, **nets.MLP_DATA},
        smaller_begins_with_the_same_rows=kept,
        smaller_outputs=outputs,
        smaller_gradients=all_of(smaller.grad_dict),
        smaller_shares={name: shares(smaller.arg_dict[name], executor.arg_dict[name]) for name in ("data", "fc1_weight")},
        smaller_shares_gradients={name: shares(smaller.grad_dict[name], executor.grad_dict[name]) for name in ("data", "fc1_weight")},
        growing_without_leave_error=error_of(executor.reshape, data=(7, 5)),
        larger_outputs=numbers(larger.outputs[0]),
        larger_shares={name: shares(larger.arg_dict[name], executor.arg_dict[name]) for name in ("data", "fc1_weight")},
    )
    data, gate = mx.sym.Variable("data"), mx.sym.Variable("gate")
    pair = mx.sym.elemwise_mul(data, gate)  # the shape of either operand determines the other's
    executor = pair.simple_bind(HOST, data=(4, 5))
    partial = executor.reshape(partial_shaping=True, data=(2, 5))
    column = mx.sym.Variable("column")
    # The shape of `column` does not follow from that of `data`.
    loose = mx.sym.broadcast_mul(data, column).simple_bind(HOST, data=(4, 5), column=(4, 1))
    record.add(
        "reshape_of_several_inputs",
        bound=[list(array.shape) for array in executor.arg_dict.values()],
        unnamed_changes_error=error_of(executor.reshape, data=(2, 5)),
        unnamed_stays_error=error_of(executor.reshape, data=(4, 5)),
        partial={name: list(array.shape) for name, array in partial.arg_dict.items()},
        undetermined_error=error_of(loose.reshape, data=(4, 5)),
        undetermined_partial_error=error_of(loose.reshape, partial_shaping=True, data=(4, 5)),
        all_named={name: list(array.shape) for name, array in loose.reshape(data=(2, 5), column=(2, 1)).arg_dict.items()},
    )


def record_sharing():
    first = bound_mlp()
    names = list(nets.MLP)
    second = mlp().simple_bind(HOST, data=(2, 5), shared_exec=first, shared_arg_names=names, shared_buffer={})
    second.arg_dict["data"][:] = nets.MLP_DATA["data"][:2]
    put(first.arg_dict, {"fc2_bias": nets.MLP["fc2_bias"] + 1})
    mx.nd.waitall()
    record.add(
        "shared_executor",
        {**nets.MLP, **nets.MLP_DATA},
        parameters_are_shared=all(shares(second.arg_dict[name], first.arg_dict[name]) for name in names),
        outputs=numbers(second.forward()[0]),
    )


def record_monitor():
    def names_and_values(is_train, monitor_all, values=False):
        seen = []

        def see(name, handle):
            array = mx.nd.NDArray(ctypes.cast(handle, NDArrayHandle), writable=False)
            name = name.decode() if isinstance(name, bytes) else name
            seen.append([name, array.asnumpy()] if values else name)

        executor = bound_mlp()
        executor.set_monitor_callback(see, monitor_all=monitor_all)
        executor.forward(is_train=is_train)
        mx.nd.waitall()
        forward = list(seen)
        seen.clear()
        if is_train:
            executor.backward([nd(nets.MLP_DATA["head"])])
            mx.nd.waitall()
        return forward, seen

    training, backward = names_and_values(True, False)
    record.add(
        "monitor",
        {**nets.MLP, **nets.MLP_DATA},
        values=names_and_values(False, False, values=True)[0],
        with_inputs=names_and_values(False, True)[0],
        training=training,
        backward=backward,
    )


def record_partial_forward():
    """Uses the prediction interface, as the C interface lacks the executor's partial forward pass."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(pathlib.Path(folder) / "params")
        mx.nd.save(path, {"arg:" + name: nd(array) for name, array in nets.MLP.items()})
        blob = pathlib.Path(path).read_bytes()
    handle, left = ctypes.c_void_p(), ctypes.c_int()
    key, ends, shape = (ctypes.c_char_p * 1)(b"data"), (mx_uint * 2)(0, 2), (mx_uint * 2)(4, 5)
    check_call(_LIB.MXPredCreate(c_str(mlp().tojson()), blob, len(blob), 1, 0, mx_uint(1), key, ends, shape, ctypes.byref(handle)))
    data = np.ascontiguousarray(nets.MLP_DATA["data"])
    floats = ctypes.POINTER(ctypes.c_float)
    check_call(_LIB.MXPredSetInput(handle, b"data", data.ctypes.data_as(floats), mx_uint(data.size)))

    def step(number):
        check_call(_LIB.MXPredPartialForward(handle, ctypes.c_int(number), ctypes.byref(left)))
        return left.value

    lefts = [step(0)]
    while lefts[-1] > 0:
        lefts.append(step(len(lefts)))
    scores = np.zeros((4, 3), np.float32)
    check_call(_LIB.MXPredGetOutput(handle, mx_uint(0), scores.ctypes.data_as(floats), mx_uint(scores.size)))
    behind, repeated = step(len(lefts) + 3), step(2)
    check_call(_LIB.MXPredFree(handle))
    record.add(
        "partial_forward",
        {**nets.MLP, **nets.MLP_DATA},
        steps_left=lefts,
        nodes_and_variables=len(mlp().get_internals().list_outputs()),
        outputs=scores,
        left_behind_the_last=behind,
        left_when_a_step_is_repeated=repeated,
    )


def record_convolution_network():
    executor = convnet().simple_bind(HOST, data=(2, 2, 6, 6))
    put(executor.arg_dict, {**nets.CONV, "data": nets.CONV_DATA["data"]})
    put(executor.aux_dict, nets.CONV_STATES)
    inference = numbers(executor.forward()[0])
    untouched = all(np.array_equal(numbers(executor.aux_dict[name]), value) for name, value in nets.CONV_STATES.items())
    steps = []
    for name in ("data", "data_2"):
        executor.forward(is_train=True, data=nd(nets.CONV_DATA[name]))
        outputs, states = numbers(executor.outputs[0]), all_of(executor.aux_dict)
        executor.backward([nd(nets.CONV_DATA["head"])])
        steps.append(
            {
                "outputs": outputs,
                "states": states,
                "states_after_backward": all_of(executor.aux_dict),
                "gradients": all_of(executor.grad_dict),
            }
        )
    record.add(
        "convolution_network",
        {**nets.CONV, **nets.CONV_STATES, **nets.CONV_DATA},
        auxiliary=convnet().list_auxiliary_states(),
        inference=inference,
        inference_leaves_the_states=untouched,
        steps=steps,
        inference_afterwards=numbers(executor.forward(data=nd(nets.CONV_DATA["data"]))[0]),
    )


def record_dropout():
    ones, p = mx.nd.ones((100, 100)), 0.25
    executor = mx.sym.Dropout(mx.sym.Variable("data"), p=p).simple_bind(HOST, data=ones.shape)
    inference = numbers(executor.forward(is_train=False, data=ones)[0])
    executor.forward(is_train=True)
    first = numbers(executor.outputs[0])
    executor.backward([ones])
    gradient = numbers(executor.grad_dict["data"])
    executor.forward(is_train=True)
    record.add(
        "dropout",
        ratio=p,
        inference_is_the_identity=bool((inference == 1).all()),
        values_in_training=np.unique(first),
        dropped_share_is_near_the_ratio=bool(abs((first == 0).mean() - p) < 0.02),
        gradient_has_the_same_mask=bool(np.array_equal(gradient, first)),
        every_pass_has_its_own_mask=not np.array_equal(numbers(executor.outputs[0]), first),
    )


def record_several_outputs_and_uses():
    """Records y = a + a·b and z = sin(a). The gradient of a is a sum over three uses of a, and over the gradients of both outputs."""
    a, b = mx.sym.Variable("a"), mx.sym.Variable("b")
    executor = mx.sym.Group([a + a * b, mx.sym.sin(a)]).simple_bind(HOST, a=(8,), b=(8,))
    executor.forward(is_train=True, a=nd(nets.POINTS), b=nd(nets.OTHER))
    outputs = [numbers(output) for output in executor.outputs]
    executor.backward([nd(nets.HEAD), nd(nets.POSITIVE)])
    record.add("several_outputs_and_uses", outputs=outputs, gradients=all_of(executor.grad_dict))


def record_training():
    """Records gradient descent, written by hand, on softmax and cross-entropy, whose gradient MXNet's SoftmaxOutput computes."""
    rate, batches = 0.1, nets.chain(12)["batches"]
    symbol = mx.sym.SoftmaxOutput(mlp(), mx.sym.Variable("label"), name="softmax")
    requests = {name: "write" if name in nets.MLP else "null" for name in symbol.list_arguments()}
    executor = symbol.simple_bind(HOST, grad_req=requests, data=(4, 5), label=(4,))
    put(executor.arg_dict, nets.MLP)
    losses = []
    for batch in batches:
        executor.forward(is_train=True, data=nd(batch), label=nd(nets.MLP_LABELS.astype(np.float32)))
        losses.append(float(-np.log(numbers(executor.outputs[0])[np.arange(4), nets.MLP_LABELS]).sum()))
        executor.backward()
        for name in nets.MLP:
            executor.arg_dict[name][:] -= rate * executor.grad_dict[name]
    record.add(
        "training",
        {**nets.MLP, "batches": batches},
        rate=rate,
        losses=losses,
        parameters=all_of({name: executor.arg_dict[name] for name in nets.MLP}),
    )


def record_groups():
    with mx.AttrScope(ctx_group="left"):
        hidden = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=6, name="fc1")
    with mx.AttrScope(ctx_group="right"):
        symbol = mx.sym.FullyConnected(mx.sym.Activation(hidden, act_type="tanh", name="act"), num_hidden=3, name="fc2")
    executor = symbol.simple_bind(HOST, group2ctx={"left": mx.cpu(1), "right": mx.cpu(2)}, data=(4, 5))
    put(executor.arg_dict, nets.MLP)
    executor.forward(is_train=True, data=nd(nets.MLP_DATA["data"]))
    output = executor.outputs[0]
    executor.backward([mx.nd.array(nets.MLP_DATA["head"], ctx=output.context)])
    record.add(
        "groups_on_devices",
        {**nets.MLP, **nets.MLP_DATA},
        devices={name: array.context.device_id for name, array in executor.arg_dict.items()},
        copies=sum("CrossDeviceCopy" in line for line in executor.debug_str().splitlines()),
        outputs=numbers(output),
        gradients=all_of(executor.grad_dict),
    )


def record_storage():
    x, w = mx.sym.Variable("matrix", stype="csr"), mx.sym.Variable("dense")
    executor = mx.sym.sparse.dot(x, w).simple_bind(HOST, grad_req={"matrix": "null", "dense": "write"}, matrix=(5, 4), dense=(4, 3))
    put(executor.arg_dict, {"dense": nets.SPARSE["dense"]})
    executor.forward(is_train=True, matrix=mx.nd.sparse.csr_matrix(nets.SPARSE["matrix"]))
    executor.backward([nd(nets.SPARSE["head"])])
    record.add(
        "product_of_csr",
        nets.SPARSE,
        argument_storage=executor.arg_dict["matrix"].stype,
        output_storage=executor.outputs[0].stype,
        outputs=numbers(executor.outputs[0]),
        gradient_storage=executor.grad_dict["dense"].stype,
        gradient=numbers(executor.grad_dict["dense"]),
    )
    table, rows = mx.sym.Variable("table"), mx.sym.Variable("rows")
    lookup = mx.sym.Embedding(rows, table, input_dim=6, output_dim=3, sparse_grad=True)
    executor = lookup.simple_bind(HOST, grad_req={"table": "write", "rows": "null"}, table=(6, 3), rows=(4,))
    put(executor.arg_dict, {"table": nets.TABLE["table"]})
    executor.forward(is_train=True, rows=nd(nets.ROWS.astype(np.float32)))
    executor.backward([nd(nets.TABLE["head"])])
    gradient = executor.grad_dict["table"]
    record.add(
        "row_sparse_gradient_of_a_table",
        nets.TABLE,
        outputs=numbers(executor.outputs[0]),
        storage=gradient.stype,
        rows=numbers(gradient.indices),
        values=numbers(gradient.data),
    )
    functions = {
        "Relu": mx.sym.relu,
        "Abs": mx.sym.abs,
        "Sqrt": lambda v: mx.sym.sqrt(mx.sym.abs(v)),
        "Sin": mx.sym.sin,
        "Tanh": mx.sym.tanh,
        "Neg": mx.sym.negative,
        "Sign": mx.sym.sign,
        "Exp": mx.sym.exp,
        "Cos": mx.sym.cos,
        "Sigmoid": mx.sym.sigmoid,
        "Softmax": lambda v: mx.sym.softmax(v, axis=1),
        "times 2": lambda v: v * 2,
        "plus 2": lambda v: v + 2,
        "plus itself": lambda v: mx.sym.elemwise_add(v, v),
        "times itself": lambda v: mx.sym.elemwise_mul(v, v),
    }
    facts = {}
    for name, function in functions.items():
        storages, values = {}, None
        for storage in ("csr", "row_sparse"):
            symbol = function(mx.sym.Variable("matrix", stype=storage))
            executor = symbol.simple_bind(HOST, grad_req="null", matrix=(5, 4))
            (output,) = executor.forward(matrix=nd(nets.SPARSE["matrix"]).tostype(storage))
            storages[storage], values = output.stype, numbers(output)
        facts[name] = {**storages, "outputs": values}
    record.add("storage_of_functions", nets.SPARSE, functions=facts)


def record_gradients_of_operators():
    """Records gradients of functions with one and two operands, also at points where the derivative jumps. Frameworks then use one side, or
    a value between."""
    unary = {
        "Relu": mx.sym.relu,
        "Abs": mx.sym.abs,
        "Tanh": mx.sym.tanh,
        "Sigmoid": mx.sym.sigmoid,
        "Exp": mx.sym.exp,
        "Sin": mx.sym.sin,
        "Cos": mx.sym.cos,
        "Erf": mx.sym.erf,
        "Softsign": mx.sym.softsign,
        "Clip": lambda a: mx.sym.clip(a, a_min=-0.5, a_max=1),
        "LeakyRelu": lambda a: mx.sym.LeakyReLU(a, act_type="leaky", slope=0.1),
        "Elu": lambda a: mx.sym.LeakyReLU(a, act_type="elu", slope=0.7),
        "Selu": lambda a: mx.sym.LeakyReLU(a, act_type="selu"),
        "Gelu": lambda a: mx.sym.LeakyReLU(a, act_type="gelu"),
        "Softplus": lambda a: mx.sym.Activation(a, act_type="softrelu"),
        "HardSigmoid": lambda a: mx.sym.hard_sigmoid(a, alpha=0.5, beta=0.5),
        "Softmax": mx.sym.softmax,
        "LogSoftmax": mx.sym.log_softmax,
        "ReduceMean": lambda a: mx.sym.broadcast_mul(mx.sym.mean(a, keepdims=True), mx.sym.ones((8,))),
        "ReduceMax": lambda a: mx.sym.broadcast_mul(mx.sym.max(a, keepdims=True), mx.sym.ones((8,))),
    }
    of_positive = {"Log": mx.sym.log, "Sqrt": mx.sym.sqrt, "Reciprocal": mx.sym.reciprocal}
    binary = {
        "Add": lambda a, b: a + b,
        "Sub": lambda a, b: a - b,
        "Mul": lambda a, b: a * b,
        "Div": lambda a, b: a / b,
        "Pow": lambda a, b: mx.sym.broadcast_power(a, b),
        "Max": mx.sym.broadcast_maximum,
        "Min": mx.sym.broadcast_minimum,
    }
    facts = {}
    for names, points in ((unary, nets.POINTS), (of_positive, nets.POSITIVE)):
        for name, function in names.items():
            executor = function(mx.sym.Variable("a")).simple_bind(HOST, a=(8,))
            executor.forward(is_train=True, a=nd(points))
            value = numbers(executor.outputs[0])
            executor.backward([nd(nets.HEAD)])
            facts[name] = {"y": value, "a": numbers(executor.grad_dict["a"])}
    for name, function in binary.items():
        a, b = (nets.POSITIVE, nets.OTHER) if name == "Pow" else (nets.OTHER, nets.POSITIVE) if name == "Div" else (nets.POINTS, nets.OTHER)
        executor = function(mx.sym.Variable("a"), mx.sym.Variable("b")).simple_bind(HOST, a=(8,), b=(8,))
        executor.forward(is_train=True, a=nd(a), b=nd(b))
        value = numbers(executor.outputs[0])
        executor.backward([nd(nets.HEAD)])
        facts[name] = {"y": value, "a": numbers(executor.grad_dict["a"]), "b": numbers(executor.grad_dict["b"])}
    record.add(
        "gradients_of_operators",
        {"points": nets.POINTS, "positive": nets.POSITIVE, "other": nets.OTHER, "head": nets.HEAD},
        operators=facts,
    )
    ties = np.zeros((1, 1, 4, 4), np.float32)
    ties[0, 0, 1, 1:3] = 1
    facts = {}
    for name in ("max", "avg"):
        pool = mx.sym.Pooling(mx.sym.Variable("a"), kernel=(3, 3), stride=(1, 1), pad=(1, 1), pool_type=name, count_include_pad=False)
        executor = pool.simple_bind(HOST, a=ties.shape)
        executor.forward(is_train=True, a=nd(ties))
        value = numbers(executor.outputs[0])
        executor.backward([nd(np.arange(16, dtype=np.float32).reshape(ties.shape))])
        facts[name] = {"y": value, "a": numbers(executor.grad_dict["a"])}
    record.add("pools_with_ties", {"a": ties}, pools=facts)


def record_gradients_of_inputs():
    """Records gradients of a network without parameters, and of inputs through which no gradient flows."""
    x, w = mx.sym.Variable("x"), mx.sym.Variable("w")
    facts = {}
    for name, symbol in (
        ("tanh of x", mx.sym.tanh(x)),
        ("w times sign of x", w * mx.sym.sign(x)),
        ("x times floor of x", x * mx.sym.floor(x)),
    ):
        shapes = {argument: (8,) for argument in symbol.list_arguments()}
        executor = symbol.simple_bind(HOST, **shapes)
        put(executor.arg_dict, {"x": nets.POINTS, "w": nets.OTHER})
        for array in executor.grad_dict.values():
            array[:] = 9
        executor.forward(is_train=True)
        executor.backward([nd(nets.HEAD)])
        facts[name] = all_of(executor.grad_dict)
    record.add("gradients_of_inputs", gradients=facts)


def record_random_graphs():
    functions = {
        "tanh": mx.sym.tanh,
        "sigmoid": mx.sym.sigmoid,
        "relu": mx.sym.relu,
        "negative": mx.sym.negative,
        "sine": mx.sym.sin,
        "transpose": mx.sym.transpose,
        "softmax": lambda a: mx.sym.softmax(a, axis=-1),
        "halve": lambda a: a * 0.5,
        "add": lambda a, b: a + b,
        "subtract": lambda a, b: a - b,
        "multiply": lambda a, b: a * b,
        "product": mx.sym.dot,
        "join": lambda a, b: mx.sym.concat(
            mx.sym.slice_axis(a, axis=1, begin=2, end=4), mx.sym.slice_axis(b, axis=1, begin=0, end=2), dim=1
        ),
    }
    facts = []
    for seed in range(random_graphs.COUNT):
        graph = random_graphs.random_graph(seed)
        values = {name: mx.sym.Variable(name) for name in graph.arrays}
        for step in graph.steps:
            values[step.value] = functions[step.op](*(values[name] for name in step.operands))
        symbol = mx.sym.Group([values[name] for name in graph.outputs])
        used = symbol.list_arguments()
        requests = {name: graph.requests[name] for name in used}
        executor = symbol.simple_bind(HOST, grad_req=requests, **{name: (4, 4) for name in used})
        put(executor.arg_dict, graph.arrays)
        executor.forward(is_train=True)
        outputs = [numbers(output) for output in executor.outputs]
        executor.backward([nd(head) for head in graph.heads])
        facts.append(
            {"outputs": [output.ravel() for output in outputs], "gradients": {n: a.ravel() for n, a in all_of(executor.grad_dict).items()}}
        )
    record.add("random_graphs", graphs=facts)


record_forward_and_backward()
record_gradient_requests()
record_added_gradients_of_a_sum()
record_order_of_calls()
record_names_and_shapes()
record_reshaping()
record_sharing()
record_monitor()
record_partial_forward()
record_convolution_network()
record_dropout()
record_several_outputs_and_uses()
record_training()
record_groups()
record_storage()
record_gradients_of_operators()
record_gradients_of_inputs()
record_random_graphs()
record.write()
