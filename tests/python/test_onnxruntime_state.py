"""Names in onnxruntime's extension module, under the shim and in onnxruntime itself: the same code gives the same answers."""

import numpy as np
import pytest
from test_onnxruntime_shim import on_both, shimmed

pytest.importorskip("onnxruntime")

UNPACK = """
    import hashlib, json
    import numpy as np
    from onnxruntime.capi import _pybind_state as C

    def codes_of(packed, bits):
        packed = packed.reshape(packed.shape[0], -1)
        return np.stack([packed >> bits * i & (1 << bits) - 1 for i in range(8 // bits)], axis=-1).reshape(packed.shape[0], -1)

    def digest(*arrays):
        return [hashlib.sha1(np.ascontiguousarray(a).tobytes()).hexdigest()[:8] for a in arrays]

    def weights(k, n, dtype, seed):
        w = np.random.default_rng(seed).normal(size=(k, n)).astype(dtype)
        w[:, 0], w[:, 1] = 0, abs(w[:, 1])
        return w
"""


def test_weights_are_cut_into_the_same_blocks():
    """Codes beyond K are arbitrary in onnxruntime, so they are not compared."""
    ours, theirs = on_both(
        UNPACK
        + """
    said = []
    for bits in (2, 4, 8):
        for dtype in ("float32", "float16"):
            for block in (16, 32, 256):
                for k, n in ((640, 100), (300, 7), (33, 8)):
                    for symmetric in (False, True):
                        w, blocks = weights(k, n, dtype, block + k), -(-k // block)
                        packed = np.zeros((n, blocks, block * bits // 8), np.uint8)
                        scales, zeros = np.zeros((n, blocks), dtype), np.zeros((n, -(-blocks * bits // 8)), np.uint8)
                        getattr(C, f"quantize_matmul_{bits}bits")(packed, w, scales, zeros, block, n, k, symmetric)
                        said.append([bits, dtype, block, k, symmetric, *digest(codes_of(packed, bits)[:, :k], scales, zeros)])
    print(json.dumps(said))
    """
    )
    assert ours == theirs


def test_weights_are_cut_for_dequantize_linear_alike():
    ours, theirs = on_both(
        UNPACK
        + """
    said = []
    for dtype in ("float32", "float16"):
        for block in (16, 100, 640):
            for k, n in ((640, 50), (300, 7), (33, 8)):
                for symmetric in (False, True):
                    w, blocks = weights(k, n, dtype, block + k), -(-k // block)
                    packed, scales, zeros = np.zeros((k * n + 1) // 2, np.uint8), np.zeros((blocks, n), dtype), np.zeros((blocks * n + 1) // 2, np.uint8)
                    signed = C.quantize_qdq_matmul_4bits(packed, w, scales, zeros, block, n, k, symmetric)
                    said.append([dtype, block, k, symmetric, bool(signed), *digest(packed, scales, zeros)])
    print(json.dumps(said))
    """
    )
    assert ours == theirs


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("symmetric", [False, True])
def test_weights_are_cut_for_dequantize_linear_in_2_bits(dtype, symmetric):
    """Compares with onnx's reference of DequantizeLinear, since onnxruntime writes 4-bit codes beyond the end of its array here."""
    k, n, block = 100, 7, 32
    worst, bound, signed = shimmed(
        f"""
        import json
        import numpy as np
        from onnx import TensorProto, helper
        from onnx.reference import ReferenceEvaluator
        from onnxruntime.capi import _pybind_state as C
        k, n, block, symmetric = {k}, {n}, {block}, {symmetric}
        w = np.random.default_rng(0).normal(size=(k, n)).astype("{dtype}")
        w[:, 0], w[:, 1] = 0, abs(w[:, 1])
        blocks = -(-k // block)
        codes, scales, zeros = np.zeros(-(-k * n // 4), np.uint8), np.zeros((blocks, n), w.dtype), np.zeros(-(-blocks * n // 4), np.uint8)
        signed = C.quantize_qdq_matmul_2bits(codes, w, scales, zeros, block, n, k, symmetric)
        kind = TensorProto.INT2 if signed else TensorProto.UINT2
        tensors = [
            helper.make_tensor("codes", kind, [k, n], codes.tobytes(), raw=True),
            helper.make_tensor("scales", helper.np_dtype_to_tensor_dtype(w.dtype), [blocks, n], scales.tobytes(), raw=True),
            helper.make_tensor("zeros", kind, [blocks, n], zeros.tobytes(), raw=True),
        ]
        node = helper.make_node("DequantizeLinear", ["codes", "scales"] + ([] if signed else ["zeros"]), ["y"], axis=0, block_size=block)
        graph = helper.make_graph([node], "graph", [], [helper.make_tensor_value_info("y", helper.np_dtype_to_tensor_dtype(w.dtype), [k, n])], tensors)
        y = ReferenceEvaluator(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)])).run(None, {{}})[0]
        steps = np.repeat(np.abs(scales.astype(np.float64)), block, axis=0)[:k]
        # Symmetric codes go from -2 to 1: what would be 2 is cut off, a whole step away.
        print(json.dumps([float(np.max(np.abs(y.astype(np.float64) - w) - (1 if symmetric else 0.5) * steps)), float(steps.max()), bool(signed)]))
        """
    )
    assert worst < 2e-3 * bound
    assert signed == symmetric


# ONNX withdrew its experimental operators in opset 10. The last two names copy between devices.
def test_kernels_are_listed_by_operator_and_versions():
    """Each of onnxruntime's kernels has a counterpart, except those for its blocked layout and for copies between devices."""
    ours, theirs = on_both(
        """
        import json
        from onnxruntime.capi import _pybind_state as C
        print(json.dumps([[d.domain, d.op_name, list(d.version_range), d.type_constraints, d.provider] for d in C.get_all_opkernel_def()]))
        """
    )
    here = {}
    for domain, name, versions, types, provider in ours:
        here.setdefault((domain, name), []).append((versions, types))
        assert provider == "CPUExecutionProvider"
    for ranges in here.values():
        assert all(earlier[0][1] + 1 == later[0][0] for earlier, later in zip(ranges, ranges[1:], strict=False))
        assert ranges[-1][0][1] == 2**31 - 1
    missing, uncovered = set(), set()
    for domain, name, (first, _), types, _ in theirs:
        if domain == "com.microsoft.nchwc":
            continue
        if (domain, name) not in here:
            missing.add(f"{domain}::{name}")
        elif not any(begin <= first <= end for (begin, end), _ in here[domain, name]):
            uncovered.add(f"{domain}::{name} {first}")
    # Operators that exist since version 1.32; docs/onnxruntime.md lists them.
    newer = {f"com.microsoft::{name}" for name in ("GatedDeltaNet", "GatherPacked", "MoEGroupRouter")}
    assert (missing - newer, uncovered) == ({"::MemcpyFromHost", "::MemcpyToHost"}, set())


def test_sessions_behind_the_python_class_are_called_alike():
    """onnx-diagnostic and others call `session._sess`, the session of the extension module."""
    ours, theirs = on_both(
        """
        import json
        import numpy as np
        import onnxruntime as ort
        from onnx import helper
        from onnxruntime.capi import _pybind_state as C
        of = lambda name: helper.make_tensor_value_info(name, 1, [2])
        graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Neg", ["x"], ["z"])], "graph", [of("x")], [of("y"), of("z")])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()
        session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
        x = np.array([-1, 2], np.float32)
        cpu = C.OrtDevice(C.OrtDevice.cpu(), C.OrtDevice.default_memory(), 0)
        value = C.OrtValue.ortvalue_from_numpy(x, cpu)
        said = [[y.tolist() for y in session._sess.run(["z", "y"], {"x": x}, None)]]
        said.append([y.numpy().tolist() for y in session._sess.run_with_ort_values({"x": value}, ["z", "y"], None)])
        feeds, fetches = C.OrtValueVector(), C.OrtValueVector()
        feeds.push_back(value)
        session._sess.run_with_ortvaluevector(ort.RunOptions(), ["x"], feeds, ["z"], fetches, [cpu])
        said.append([y.numpy().tolist() for y in fetches])
        print(json.dumps(said))
        """
    )
    assert ours == theirs


def test_the_modules_own_sessions_are_called_alike():
    ours, theirs = on_both(
        """
        import json, tempfile
        import numpy as np
        import onnxruntime as ort
        from onnx import helper
        from onnxruntime.capi import _pybind_state as C
        of = lambda name: helper.make_tensor_value_info(name, 1, ["N"])
        graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Neg", ["x"], ["z"])], "graph", [of("x")], [of("y"), of("z")])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()
        file = tempfile.NamedTemporaryFile(suffix=".onnx")
        file.write(model)
        file.flush()
        said = []
        x = np.array([-1, 2], np.float32)
        for source, from_file in ((model, False), (file.name, True)):
            session = C.InferenceSession(ort.SessionOptions(), source, from_file, False)
            session.initialize_session(["CPUExecutionProvider"], [{}], set())
            said.append([y.tolist() for y in session.run(["z", "y"], {"x": x}, None)])
            said.append([[i.name, i.shape, i.type] for i in [*session.inputs_meta, *session.outputs_meta]])
            said.append([session.get_providers(), session.model_meta.graph_name, len(session.overridable_initializers)])
            said.append(session.session_options.execution_mode.name)
        for source, from_file in ((b"no model", False), ("no_file.onnx", True)):
            try:
                C.InferenceSession(ort.SessionOptions(), source, from_file, False)
            except Exception as error:
                said.append(type(error).__name__)
        print(json.dumps(said))
        """
    )
    assert ours == theirs


def test_what_other_devices_have_is_refused():
    said = shimmed(
        """
        import json
        import numpy as np
        from onnxruntime.capi import _pybind_state as C
        def text(call):
            try:
                call()
            except (C.NotImplemented, C.RuntimeException) as error:
                return str(error)
        sparse = C.SparseTensor.sparse_coo_from_numpy([4], np.ones(1, np.float32), np.zeros(1, np.int64))
        print(json.dumps([
            len(C.get_registered_ep_kernel_defs("CPUExecutionProvider")) == len(C.get_all_opkernel_def()),
            text(lambda: C.get_registered_ep_kernel_defs("CUDAExecutionProvider")),
            text(lambda: C.pack_fp4_weights_for_cuda_moe_gemm(np.zeros(4, np.uint8), 2, 4)),
            text(lambda: C.SparseTensor.blocksparse_from_numpy([4, 4], np.ones(4), np.zeros((2, 1), np.int32), None)),
            text(sparse.get_blocksparse_data),
        ]))
        """
    )
    assert said[0]
    for text, part in zip(said[1:], ["CUDAExecutionProvider", "pack_fp4_weights_for_cuda_moe_gemm", "in blocks", "in blocks"], strict=True):
        assert part in text


def test_weights_are_cut_for_fp4_and_nf4_alike():
    ours, theirs = on_both(
        UNPACK
        + """
    said = []
    for dtype in ("float32", "float16"):
        for kind in (0, 1):
            for block in (16, 64, 256):
                for n, k in ((200, 640), (7, 33)):
                    w = weights(n, k, dtype, block + k)
                    packed, largest = np.zeros((n * k + 1) // 2, np.uint8), np.zeros(-(-n * k // block), dtype)
                    C.quantize_matmul_bnb4(packed, w, largest, block, kind, n, k)
                    said.append([dtype, kind, block, k, *digest(packed, largest)])
    print(json.dumps(said))
    """
    )
    assert ours == theirs


@pytest.mark.parametrize(
    "call",
    [
        "C.quantize_matmul_4bits(np.zeros((3, 2, 16), np.uint8), w, scales, zeros, 33, 3, 64, False)",
        "C.quantize_matmul_4bits(np.zeros((3, 1, 16), np.uint8), w, scales, zeros, 32, 3, 64, False)",
        "C.quantize_matmul_4bits(np.zeros((3, 2, 16), np.uint8), w[:8], scales, zeros, 32, 3, 64, False)",
        "C.quantize_matmul_4bits(np.zeros((3, 2, 32), np.uint8)[..., ::2], w, scales, zeros, 32, 3, 64, False)",
        "C.quantize_matmul_4bits(np.zeros((3, 2, 16), np.uint8), w, scales.astype(np.float16), zeros, 32, 3, 64, False)",
        "C.quantize_matmul_4bits(np.zeros((3, 2, 16), np.uint8), w, scales, zeros, 32, 2**40, 2**40, False)",
        "C.quantize_matmul_bnb4(np.zeros(96, np.uint8), w, np.zeros(6, np.float32), 32, 2, 3, 64)",
        "C.quantize_matmul_bnb4(np.zeros(95, np.uint8), w, np.zeros(6, np.float32), 32, 0, 3, 64)",
    ],
)
def test_arrays_that_do_not_fit_are_refused(call):
    assert shimmed(
        f"""
        import json
        import numpy as np
        from onnxruntime.capi import _pybind_state as C
        w, scales, zeros = np.ones((64, 3), np.float32), np.zeros((3, 2), np.float32), np.zeros((3, 1), np.uint8)
        try:
            {call}
        except C.InvalidArgument as error:
            print(json.dumps(str(error)[:26]))
        """
    ) == "[ONNXRuntimeError] : 2 : I"


def test_the_quantization_package_writes_the_same_models():
    ours, theirs = on_both(
        """
        import hashlib, json
        import numpy as np
        from onnx import helper, numpy_helper
        from onnxruntime.quantization.matmul_bnb4_quantizer import MatMulBnb4Quantizer
        from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer, DefaultWeightOnlyQuantConfig
        from onnxruntime.quantization.quant_utils import QuantFormat
        w = numpy_helper.from_array(np.random.default_rng(0).normal(size=(96, 40)).astype(np.float32), "w")
        x, y = helper.make_tensor_value_info("x", 1, ["n", 96]), helper.make_tensor_value_info("y", 1, ["n", 40])
        graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"], "product")], "graph", [x], [y], [w])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
        said = []
        for bits in (4, 8):
            for symmetric in (True, False):
                for format in (QuantFormat.QOperator, QuantFormat.QDQ)[: 2 if bits == 4 else 1]:
                    config = DefaultWeightOnlyQuantConfig(block_size=32, is_symmetric=symmetric, bits=bits, quant_format=format)
                    quantizer = MatMulNBitsQuantizer(type(model).FromString(model.SerializeToString()), bits=bits, algo_config=config)
                    quantizer.process()
                    said.append(hashlib.sha1(quantizer.model.model.SerializeToString()).hexdigest())
        for kind in (0, 1):
            quantizer = MatMulBnb4Quantizer(type(model).FromString(model.SerializeToString()), kind, 64)
            quantizer.process()
            said.append(hashlib.sha1(quantizer.model.model.SerializeToString()).hexdigest())
        print(json.dumps(said))
        """
    )
    assert ours == theirs


def test_values_are_made_for_devices():
    ours, theirs = on_both(
        """
        import json
        import numpy as np
        from onnxruntime.capi import _pybind_state as C
        cpu = C.OrtDevice(C.OrtDevice.cpu(), C.OrtDevice.default_memory(), 0)
        x = np.arange(6, dtype=np.float32).reshape(2, 3)
        value = C.OrtValue.ortvalue_from_numpy(x, cpu)
        said = [value.shape(), value.data_type(), value.device_name().lower(), value.numpy().tolist(), value.is_tensor()]
        for made in (
            C.OrtValue.ortvalue_from_shape_and_type([2, 3], np.float32, cpu),
            C.OrtValue.ortvalue_from_shape_and_onnx_type([4], 7, cpu),
        ):
            said.append([made.shape(), made.data_type(), made.device_name().lower()])
        back = C.OrtValue.from_dlpack(value.to_dlpack())
        said += [back.numpy().tolist(), back.data_ptr() == value.data_ptr()]
        print(json.dumps(said))
        """
    )
    assert ours == theirs


def test_values_are_made_in_the_memory_of_the_cpu():
    """In onnxruntime, an allocator must be registered first."""
    assert shimmed(
        """
        import json
        import numpy as np
        from onnxruntime.capi import _pybind_state as C
        memory = C.OrtMemoryInfo("Cpu", C.OrtAllocatorType.ORT_DEVICE_ALLOCATOR, 0, C.OrtMemType.DEFAULT)
        made = [C.OrtValue.ortvalue_from_shape_and_type_for_memory_info([1, 2], np.int32, memory), C.OrtValue.ortvalue_from_shape_and_onnx_type_for_memory_info([0], 16, memory)]
        print(json.dumps([[value.shape(), value.data_type(), value.device_name()] for value in made]))
        """
    ) == [[[1, 2], "tensor(int32)", "cpu"], [[0], "tensor(bfloat16)", "cpu"]]


def test_providers_are_added_for_devices():
    ours, theirs = on_both(
        """
        import json
        import numpy as np
        import onnxruntime as ort
        from onnx import helper
        x, y = helper.make_tensor_value_info("x", 1, [2]), helper.make_tensor_value_info("y", 1, [2])
        graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "graph", [x], [y])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()
        options = ort.SessionOptions()
        said = []
        try:
            options.add_provider_for_devices([], {})
        except ort.capi.onnxruntime_pybind11_state.InvalidArgument as error:
            said.append(str(error))
        try:
            options.add_provider("NoExecutionProvider", {})
        except RuntimeError as error:
            said.append(str(error)[:42])
        options.add_provider_for_devices(ort.get_ep_devices(), {})
        session = ort.InferenceSession(model, sess_options=options)
        said += [session.get_providers(), session.run(None, {"x": np.array([-1, 2], np.float32)})[0].tolist()]
        print(json.dumps(said))
        """
    )
    assert ours == theirs


def test_compatibility_is_told_alike():
    ours, theirs = on_both(
        """
        import json, os, tempfile
        from onnx import helper
        from onnxruntime.capi import _pybind_state as C
        x, y = helper.make_tensor_value_info("x", 1, [2]), helper.make_tensor_value_info("y", 1, [2])
        graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "graph", [x], [y])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
        helper.set_model_props(model, {"ep_compatibility_info.AnyExecutionProvider": "what it was made for"})
        said = []
        for provider in ("AnyExecutionProvider", "CPUExecutionProvider"):
            said.append(C.get_compatibility_info_from_model_bytes(model.SerializeToString(), provider))
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "model.onnx")
                open(path, "wb").write(model.SerializeToString())
                said.append(C.get_compatibility_info_from_model(path, provider))
        said.append(str(C.get_model_compatibility_for_ep_devices(C.get_ep_devices(), "any")))
        said.append(C.get_hardware_device_ep_incompatibility_details("CPUExecutionProvider", C.get_hardware_devices()[0]))
        for name in ("OrtCompiledModelCompatibility", "OrtDeviceEpIncompatibilityReason", "ArenaExtendStrategy"):
            said.append({key: int(value) for key, value in getattr(C, name).__members__.items()})
        print(json.dumps(said))
        """
    )
    assert ours == theirs


def schemas():
    return on_both(
        """
        import json
        from onnxruntime.capi import _pybind_state as C
        newest = {}
        for s in C.get_all_operator_schema():
            if s.domain in ("", "ai.onnx.ml", "com.microsoft") and not s.deprecated:
                key = f"{s.domain}::{s.name}"
                if key not in newest or newest[key].since_version < s.since_version:
                    newest[key] = s
        said = {}
        for key, s in newest.items():
            said[key] = {
                "since": s.since_version,
                "inputs": [[p.name, str(p.option).split(".")[1], sorted(p.types)] for p in s.inputs],
                "outputs": [[p.name, str(p.option).split(".")[1], sorted(p.types)] for p in s.outputs],
                "counts": [s.min_input, s.max_input, s.min_output, s.max_output],
                "attributes": {name: [int(a.type), a.required] for name, a in s.attributes.items()},
            }
        print(json.dumps(said))
        """
    )


# Operators for which Treadle accepts more or requires less than onnxruntime: optional inputs and outputs, or an attribute that it does not
# read.
OTHER_COUNTS = {
    "::CausalConvWithState", "::LinearAttention", "com.microsoft::CausalConvWithState", "com.microsoft::QEmbedLayerNormalization",
    "com.microsoft::QLinearConcat", "com.microsoft::QLinearGlobalAveragePool", "com.microsoft::QLinearSoftmax", "com.microsoft::QLinearWhere",
    "com.microsoft::VarlenCausalConvWithState",
}
OTHER_ATTRIBUTES = {
    "ai.onnx.ml::LabelEncoder", "com.microsoft::DequantizeLinear", "com.microsoft::QuantizeLinear",
    "com.microsoft::TransposeMatMul", "com.microsoft::WhisperBeamSearch",
}


def test_operators_have_the_schemas_that_they_have_in_onnxruntime():
    """Compares operators with equal versions; Treadle also has newer ones. Names of inputs may differ."""
    ours, theirs = schemas()
    common = {key for key in ours.keys() & theirs.keys() if ours[key]["since"] == theirs[key]["since"]}
    assert len(common) > 280

    def differing(part):
        return {key for key in common if part(ours[key]) != part(theirs[key])}

    assert differing(lambda schema: schema["counts"]) == OTHER_COUNTS
    assert differing(lambda schema: set(schema["attributes"])) == OTHER_ATTRIBUTES
    assert differing(lambda schema: [option for _, option, _ in schema["inputs"]]) <= OTHER_COUNTS
    assert differing(lambda schema: [option for _, option, _ in schema["outputs"]]) <= OTHER_COUNTS
    asked_for = set()
    for key in common - OTHER_ATTRIBUTES:
        for name, (kind, required) in ours[key]["attributes"].items():
            assert kind in (0, theirs[key]["attributes"][name][0]), f"{key} {name}"
            if required and not theirs[key]["attributes"][name][1]:
                asked_for.add(f"{key} {name}")
    assert asked_for == {"com.microsoft::MaxpoolWithMask kernel_shape"}
    for key in ("::Conv", "::Softmax", "::Gather", "com.microsoft::FusedMatMul"):
        assert [name for name, _, _ in ours[key]["inputs"]] == [name for name, _, _ in theirs[key]["inputs"]]
    assert "tensor(float)" in ours["::Conv"]["inputs"][0][2]


def test_initializers_of_a_compiled_model_go_where_the_function_says():
    ours, theirs = on_both(
        """
        import json, os, tempfile
        import numpy as np
        import onnx
        import onnxruntime as ort
        from onnx import helper, numpy_helper
        os.chdir(tempfile.mkdtemp())
        rng = np.random.default_rng(0)
        of = lambda name, *shape: numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), name)
        bodies = [helper.make_graph([helper.make_node("Neg", [f"{n}_w"], [f"{n}_y"])], n, [], [helper.make_tensor_value_info(f"{n}_y", 1, [300])], [of(f"{n}_w", 300)]) for n in ("then", "else")]
        nodes = [
            helper.make_node("MatMul", ["x", "w"], ["xw"]),
            helper.make_node("Add", ["xw", "b"], ["y"]),
            helper.make_node("If", ["c"], ["z"], then_branch=bodies[0], else_branch=bodies[1]),
        ]
        graph = helper.make_graph(nodes, "graph", [helper.make_tensor_value_info("x", 1, ["n", 3]), helper.make_tensor_value_info("c", 9, [])],
            [helper.make_tensor_value_info("y", 1, ["n", 400]), helper.make_tensor_value_info("z", 1, [300])], [of("w", 3, 400), of("b", 400)])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
        onnx.save(model, "model.onnx", save_as_external_data=True, location="weights.bin", size_threshold=2000)
        feeds = {"x": rng.normal(size=(2, 3)).astype(np.float32), "c": np.array(True)}
        said = []
        for level in (ort.GraphOptimizationLevel.ORT_DISABLE_ALL, ort.GraphOptimizationLevel.ORT_ENABLE_BASIC):
            for to_file in (True, False):
                asked = {}
                def place(name, value, info):
                    asked[f"{name[:2]}{value.shape()}"] = info and [info.filepath, info.file_offset, info.byte_size]
                    if name == "b":
                        return None
                    file = f"part{len(asked)}.bin"
                    open(file, "wb").write(b"12345678" + value.numpy().tobytes())
                    return ort.OrtExternalInitializerInfo(file, 8, value.tensor_size_in_bytes())
                compiler = ort.ModelCompiler(ort.SessionOptions(), "model.onnx", graph_optimization_level=level, get_initializer_location_func=place)
                if to_file:
                    compiler.compile_to_file("compiled.onnx")
                else:
                    open("compiled.onnx", "wb").write(compiler.compile_to_bytes())
                if level == ort.GraphOptimizationLevel.ORT_DISABLE_ALL:
                    said.append(asked)
                written = onnx.load("compiled.onnx", load_external_data=False)
                said.append(sorted([i.name, i.data_location] for i in written.graph.initializer))
                outputs = ort.InferenceSession("compiled.onnx").run(None, feeds)
                for have, want in zip(outputs, ort.InferenceSession("model.onnx").run(None, feeds)):
                    np.testing.assert_array_equal(have, want)
        def fails(name, value, info):
            raise KeyError("no such place")
        for keywords in ({"get_initializer_location_func": fails}, {"get_initializer_location_func": fails, "external_initializers_file_path": "x"}):
            try:
                ort.ModelCompiler(ort.SessionOptions(), "model.onnx", **keywords).compile_to_bytes()
            except Exception as error:
                said.append([type(error).__name__, "no such place" in str(error)])
        print(json.dumps(said))
        """
    )
    assert ours == theirs


@pytest.mark.parametrize("info", ['ort.OrtExternalInitializerInfo("", 0, 16)', 'ort.OrtExternalInitializerInfo("x", -1, 16)', 'ort.OrtExternalInitializerInfo("x", 0, 15)'])
def test_places_that_cannot_be_are_refused(info):
    text = shimmed(
        f"""
        import json
        import numpy as np
        import onnxruntime as ort
        from onnx import helper, numpy_helper
        x = helper.make_tensor_value_info("x", 1, [4])
        graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "graph", [x], [helper.make_tensor_value_info("y", 1, [4])], [numpy_helper.from_array(np.ones(4, np.float32), "w")])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10).SerializeToString()
        try:
            ort.ModelCompiler(ort.SessionOptions(), model, get_initializer_location_func=lambda *_: {info}).compile_to_bytes()
        except ort.capi.onnxruntime_pybind11_state.InvalidArgument as error:
            print(json.dumps(str(error)))
        """
    )
    assert 'the location of initializer "w"' in text


def test_the_public_value_is_made_from_the_extension_modules():
    """onnxruntime-easy calls `onnxruntime.OrtValue(value of the extension module, object that holds its memory)`."""
    ours, theirs = on_both(
        """
        import json
        import numpy as np
        import onnxruntime as ort
        from onnxruntime.capi import _pybind_state as C
        numbers = np.arange(6, dtype=np.float32).reshape(2, 3)
        said = []
        for value in (ort.OrtValue(C.OrtValue.from_dlpack(numbers.__dlpack__()), numbers), ort.OrtValue(ortvalue=ort.OrtValue.ortvalue_from_numpy(numbers)._ortvalue)):
            said.append([value.shape(), value.data_type(), value.numpy().tolist(), value.data_ptr() == numbers.ctypes.data])
        numbers[0, 0] = 9
        said.append(value.numpy()[0, 0].item())
        try:
            ort.OrtValue(numbers)
        except Exception as error:
            said.append(isinstance(error, (ValueError, TypeError)))
        print(json.dumps(said))
        """
    )
    assert ours == theirs


def test_an_input_declared_without_axes_takes_any_rank():
    """Writers that do not know a shape write an empty one (onnx-array-api's light interface). onnxruntime then does not check the rank."""
    ours, theirs = on_both(
        """
        import json
        import numpy as np
        import onnxruntime as ort
        from onnx import helper
        scalars = [helper.make_tensor_value_info(name, 1, []) for name in ("x", "y")]
        graph = helper.make_graph([helper.make_node("Add", ["x", "y"], ["s"]), helper.make_node("Tanh", ["s"], ["z"])], "graph", scalars, [helper.make_tensor_value_info("z", 1, [])])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
        session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
        numbers = np.arange(12, dtype=np.float32).reshape(4, 3)
        feeds = ({"x": numbers, "y": numbers}, {"x": numbers, "y": numbers[:1]}, {"x": numbers, "y": np.array(0.5, np.float32)}, {"x": np.array(1, np.float32), "y": np.array(0.5, np.float32)})
        print(json.dumps([session.run(None, feed)[0].round(5).tolist() for feed in feeds]))
        """
    )
    for mine, expected in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(mine, expected, atol=1e-5)
