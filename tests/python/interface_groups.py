"""Groups of parameters of ONNX Runtime's C interface that are drawn together: shapes, lists with their counts, arguments of runs."""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Callable
from ctypes import byref, c_char_p, c_float, c_int, c_int32, c_int64, c_size_t, c_void_p
from typing import Any

import interface_material as material
import numpy as np
from interface_arguments import ROOM, RUN_ENDS, Argument, Arguments, bare
from interface_reading import described
from onnxruntime_c import StatusError, handles, strings

# A row for each group: a pattern of functions' names, the names of parameters, and the function that makes arguments for them.


def _memory(a: Arguments) -> list[Argument]:
    if a.function.name == "CreateTensorWithDataAndDeleterAsOrtValue":  # this function frees the memory itself
        length, out = a.draw.choice([0, 24, 24, 48, 4096]), c_void_p()
        a.api.call("AllocatorAlloc", a.api.allocator, c_size_t(4096), byref(out))
        ctypes.memset(out.value, 0, 4096)
        return [Argument(c_void_p(out.value), "data of the allocator"), Argument(c_size_t(length), length)]
    length = a.draw.choice([0, 4, 16, 24, 24, 48, 4096])
    data = np.resize(np.arange(5, dtype=np.float32), ROOM // 4)
    a.kept.append(data)
    pointer = c_void_p() if a.is_null() else c_void_p(data.ctypes.data)
    return [Argument(pointer, "data" if pointer.value else None), Argument(c_size_t(length), length)]


def _values(a: Arguments) -> list[Argument]:
    chosen, said = a.some_values()
    return [Argument(a.array_of(chosen), said), Argument(c_size_t(len(chosen)), len(chosen))]


def _values_of_int(a: Arguments) -> list[Argument]:
    made = _values(a)
    return [made[0], Argument(c_int(made[1].said), made[1].said)]


def _texts_in(a: Arguments) -> list[Argument]:
    made = a.texts([each for each in material.STRINGS if each is not None], a.draw.choice([0, 1, 2, 2, 2, 3]))
    return [made, Argument(c_size_t(len(made.said)), len(made.said))]


def _pairs_in(a: Arguments) -> list[Argument]:
    count = a.draw.choice([0, 0, 1, 2])
    return [a.texts([b"a", b"nosuch", b""], count), a.texts([b"1", b""], count), Argument(c_size_t(count), count)]


def _named_values(a: Arguments) -> list[Argument]:
    chosen, said = a.some_values()
    names = a.texts([b"w", b"w", b"x", b"nosuch", b""], len(chosen))
    return [names, Argument(a.array_of(chosen), said), Argument(c_size_t(len(chosen)), len(chosen))]


def _model_bytes(a: Arguments) -> list[Argument]:
    name = a.draw.choice([*material.MODELS, *["plain", "described", "relu", "probe"] * 4])
    data = material.MODELS[name]
    if a.is_null():
        return [Argument(c_void_p(), None), Argument(c_size_t(len(data)), len(data))]
    return [Argument(c_char_p(data), name), Argument(c_size_t(len(data)), len(data))]


def _adapter_bytes(a: Arguments) -> list[Argument]:
    data = a.draw.choice([material.ADAPTER, b"no adapter", b""])
    return [Argument(c_char_p(data), len(data)), Argument(c_size_t(len(data)), len(data))]


def _run(a: Arguments) -> list[Argument]:
    session = a.handle("OrtSession")
    options = a.handle("OrtRunOptions") if a.draw.random() < 0.5 else Argument(c_void_p(), None)
    names, chosen = a.feeds(session.handle)
    outputs = a.outputs(session.handle)
    given = [a.some("OrtValue") if a.draw.random() < 0.08 else None for _ in outputs]
    results = a.array_of(given)

    def read(_: Any) -> Any:
        made = []
        for place, before in enumerate(given):
            pointer = results[place]
            if pointer and before is None:
                made.append([a.machine.add("OrtValue", pointer), described(a.api, "OrtValue", c_void_p(pointer))])
            elif pointer:
                made.append(described(a.api, "OrtValue", c_void_p(pointer)))
        return made

    said = [each.decode() for each in names]
    made = [session, options, Argument(strings(*names), said), Argument(a.array_of(chosen), [each.name if each else None for each in chosen]), Argument(c_size_t(len(names)), len(names)),
            Argument(strings(*outputs), [each.decode() for each in outputs]), Argument(c_size_t(len(outputs)), len(outputs))]
    if a.function.name == "Run":
        return [*made, Argument(results, [each.name if each else None for each in given], read=read)]
    ended, status = threading.Event(), []

    def ends(_data: Any, _outputs: Any, count: int, failed: int | None) -> None:
        try:
            a.api.check(failed)
            status.append(["ok", count])
        except StatusError as error:
            status.append([error.code, count])
        ended.set()

    def waited(parents: Any) -> Any:
        came = ended.wait(10)
        return [came, status, read(parents) if came and status[0][0] == "ok" else None]

    callback = RUN_ENDS(ends)
    a.kept.append(callback)
    return [*made, Argument(results, [each.name if each else None for each in given]), Argument(ctypes.cast(callback, c_void_p), "callback()", read=waited), Argument(c_void_p(), None)]


def _devices_in(a: Arguments) -> list[Argument]:
    chosen = [a.some("OrtEpDevice") for _ in range(a.draw.choice([0, 1, 1, 2]))]
    if None in chosen:
        chosen = []
    return [Argument(a.array_of(chosen), [each.name for each in chosen if each]), Argument(c_size_t(len(chosen)), len(chosen))]


def _devices_out(a: Arguments) -> list[Argument]:
    room, count = c_void_p(), c_size_t()

    def read(_: Any) -> Any:
        table = (c_void_p * count.value).from_address(room.value or 0) if count.value else []
        kind = "OrtEpDevice" if a.function.name == "GetEpDevices" else "OrtEpAssignedSubgraph" if a.function.name.startswith("Session_") else "OrtEpAssignedNode"
        return [a.machine.add(kind, each, (a.owner,) if a.owner else (), owned=False) for each in list(table)[:3]]

    return [Argument(byref(room), "&out", read=read), Argument(byref(count), "&count", read=lambda _: count.value)]


def _handles_out(a: Arguments) -> list[Argument]:
    count = a.draw.choice([0, 1, 2, 2, 3, 8])
    room = (c_void_p * 16)()
    kind = next(bare(kind)[:-2] for kind, name in a.function.parameters if "Ort" in kind and bare(kind).endswith("**"))

    def read(parents: Any) -> Any:
        return [a.machine.add(kind, each, parents, owned=False) if each else None for each in list(room)[:count]]

    return [Argument(room, "&out", read=read), Argument(c_size_t(count), count)]


def _consumers(a: Arguments) -> list[Argument]:
    nodes, count = _handles_out(a)
    return [nodes, Argument((c_int64 * 16)(), "&indices"), count]


def _dims_out(a: Arguments) -> list[Argument]:
    count = a.draw.choice([0, 1, 2, 2, 3])
    room = (c_int64 * 8)()
    return [Argument(room, "&dims", read=lambda _: list(room)), Argument(c_size_t(count), count)]


def _symbols_out(a: Arguments) -> list[Argument]:
    count = a.draw.choice([0, 1, 2, 2, 3])
    room = (c_char_p * 8)()
    return [Argument(room, "&names", read=lambda _: [each.decode() if each is not None else None for each in room]), Argument(c_size_t(count), count)]


def _symbols_in(a: Arguments) -> list[Argument]:
    made = a.texts([b"rows", b"", b"n"], a.draw.choice([0, 1, 2]))
    return [made, Argument(c_size_t(len(made.said)), len(made.said))]


def _fitting_coo(a: Arguments) -> list[Argument]:
    count = a.draw.choice([1, 2, 3])
    indices = a.draw.choice([[0, 4, 8], [1, 2, 5], [0, 0, 1, 1, 2, 2], [0, 9, 1]])
    indices = indices[: count * (2 if len(indices) == 6 else 1)]
    return [Argument((c_int64 * 1)(count), [count]), Argument(c_size_t(1), 1), *_data(a), Argument((c_int64 * 8)(*indices), indices), Argument(c_size_t(len(indices)), len(indices))]


def _fitting_csr(a: Arguments) -> list[Argument]:
    outer = a.draw.choice([[0, 1, 2, 2], [0, 0, 1, 2], [0, 2, 1, 2]])
    return [Argument((c_int64 * 1)(2), [2]), Argument(c_size_t(1), 1), *_data(a), Argument((c_int64 * 2)(0, 1), [0, 1]), Argument(c_size_t(2), 2),
            Argument((c_int64 * 4)(*outer), outer), Argument(c_size_t(4), 4)]


def _fitting_blocks(a: Arguments) -> list[Argument]:
    array = (c_int32 * 4)(0, 1, 1, 2)
    a.kept.append(array)
    return [Argument((c_int64 * 3)(2, 2, 2), [2, 2, 2]), Argument(c_size_t(3), 3), *_data(a), Argument((c_int64 * 2)(2, 2), [2, 2]), Argument(c_size_t(2), 2), Argument(array, "indices")]


def _values_in_memory(a: Arguments) -> list[Argument]:
    """Draws data that are large enough for the indices of _fitting_indices()."""
    return [*_data(a), Argument((c_int64 * 2)(3, 3), [3, 3]), Argument(c_size_t(2), 2), Argument((c_int64 * 1)(3), [3]), Argument(c_size_t(1), 1), Argument(c_int(1), 1)]


def _fitting_indices(a: Arguments) -> list[Argument]:
    array = (c_int64 * 3)(0, 4, 8)
    a.kept.append(array)
    return [Argument(array, [0, 4, 8]), Argument(c_size_t(3), 3)]


def _fitting_rows(a: Arguments) -> list[Argument]:
    arrays = (c_int64 * 3)(0, 1, 2), (c_int64 * 4)(0, 1, 2, 3)
    a.kept.append(arrays)
    return [Argument(arrays[0], [0, 1, 2]), Argument(c_size_t(3), 3), Argument(arrays[1], [0, 1, 2, 3]), Argument(c_size_t(4), 4)]


def _binding_of(a: Arguments) -> list[Argument]:
    binding = a.handle("OrtIoBinding")
    sessions = [each for each in (binding.handle.parents if binding.handle else ()) if each.kind == "OrtSession"]
    session = Argument(c_void_p(sessions[0].pointer), sessions[0].name, handle=sessions[0]) if sessions and a.draw.random() < 0.9 else a.handle("OrtSession")
    return [session, a.handle("OrtRunOptions") if a.draw.random() < 0.3 else Argument(c_void_p(), None), binding]


def _bound_input(a: Arguments) -> list[Argument]:
    value = next((each for each in a.machine.handles["OrtValue"] if each.number == 0), None)
    return [Argument(c_char_p(b"x"), "x"), Argument(c_void_p(value.pointer), value.name, handle=value) if value else a.handle("OrtValue")]


def _bound_output(a: Arguments) -> list[Argument]:
    return [Argument(c_char_p(b"y"), "y"), a.handle("OrtMemoryInfo")]


def _no_allocator(a: Arguments) -> list[Argument]:
    return [Argument(c_void_p(), None)]


def _ints(a: Arguments, kind: Any = c_int64, most: int = 9) -> tuple[Any, list[int]]:
    chosen = [a.draw.choice([0, 1, 1, 2, 5, most, -1]) if a.draw.random() < 0.4 else place for place in range(a.draw.choice([0, 1, 2, 2, 3, 4]))]
    return (kind * max(len(chosen), 1))(*chosen), chosen


def _indices(a: Arguments) -> list[Argument]:
    array, chosen = _ints(a)
    a.kept.append(array)
    return [Argument(array, chosen), Argument(c_size_t(len(chosen)), len(chosen))]


_LETTERS = [ctypes.create_string_buffer(bytes([97 + i % 26])) for i in range(64)]
_POINTERS = (c_void_p * 64)(*[ctypes.addressof(each) for each in _LETTERS])  # pointers to texts; as plain bytes they are as good as any others


def _data(a: Arguments) -> list[Argument]:
    return [Argument(c_void_p(), None) if a.is_null() else Argument(_POINTERS, "data")]


def _block_indices(a: Arguments) -> list[Argument]:
    array = (c_int32 * 64)(*([0, 1] * 32))
    a.kept.append(array)
    return [*a.shape(), Argument(array, "indices")]


def _arena(a: Arguments) -> list[Argument]:
    keys = [b"max_mem", b"arena_extend_strategy", b"initial_chunk_size_bytes", b"max_dead_bytes_per_chunk", b"initial_growth_chunk_size_bytes", b"nosuch"]
    made = a.texts(keys, a.draw.choice([0, 1, 2]))
    chosen = [a.draw.choice([0, 1, 2, 1024, 2**64 - 1]) for _ in made.said]
    return [made, Argument((c_size_t * 4)(*chosen), chosen), Argument(c_size_t(len(chosen)), len(chosen))]


def _files_in_memory(a: Arguments) -> list[Argument]:
    names = a.texts([b"w.bin", b"absent.bin", b"./w.bin", b""], a.draw.choice([0, 1, 1, 2]))
    lengths = [a.draw.choice([24, 24, 12, 0, 64]) for _ in names.said]
    data = ctypes.create_string_buffer(bytes(range(64)))
    a.kept.append(data)
    return [names, Argument((c_void_p * 4)(*[ctypes.addressof(data)] * len(lengths)), "bytes"), Argument((c_size_t * 4)(*lengths), lengths), Argument(c_size_t(len(lengths)), len(lengths))]


def _attribute(a: Arguments) -> list[Argument]:
    kind = a.draw.choice([0, 1, 2, 3, 4, 5, 6, 7, 8, 99])
    length = a.draw.choice([0, 1, 1, 2, 3])
    if kind in (3, 4):
        data: Any = (c_float * 4)(0.5, 1, 2, 3)
    elif kind == 5:
        data = ctypes.create_string_buffer(b"abc")
    elif kind == 6:
        data = strings(b"a", b"bc", b"d")
    elif kind == 8:
        value = a.some("OrtValue")
        data = c_void_p(value.pointer if value else 0)
    else:
        data = (c_int64 * 4)(1, 2, 3, 4)
    if isinstance(data, ctypes.Array):
        a.kept.append(data)
    return [Argument(data, f"of {kind}"), Argument(c_int(length), length), Argument(c_int(kind), kind)]


def _read_attribute(a: Arguments) -> list[Argument]:
    room, count = ctypes.create_string_buffer(ROOM), c_size_t()
    kind, length = a.draw.choice([0, 1, 2, 3, 4, 5, 6, 8, 99]), a.draw.choice([0, 4, 8, 16, 64])
    return [Argument(c_int(kind), kind), Argument(room, "&data"), Argument(c_size_t(length), length), Argument(byref(count), "&out", read=lambda _: count.value)]


def _texts_content(a: Arguments) -> list[Argument]:
    room, offsets = ctypes.create_string_buffer(ROOM), (c_size_t * 16)()
    size, count = a.draw.choice([0, 2, 3, 3, 64]), a.draw.choice([0, 1, 2, 2, 3])
    return [Argument(room, "&s", read=lambda _: room.raw[:16].hex()), Argument(c_size_t(size), size), Argument(offsets, "&offsets", read=lambda _: list(offsets)[:4]), Argument(c_size_t(count), count)]


def _text_element(a: Arguments) -> list[Argument]:
    room = ctypes.create_string_buffer(ROOM)
    size, index = a.draw.choice([0, 1, 2, 8]), a.draw.choice([0, 1, 2])
    return [Argument(c_size_t(size), size), Argument(c_size_t(index), index), Argument(room, "&s", read=lambda _: room.raw[:8].hex())]


def _copies(a: Arguments) -> list[Argument]:
    count = a.draw.choice([0, 1, 1, 2])
    both = [[a.some("OrtValue") for _ in range(count)] for _ in range(2)]
    return [*[Argument(a.array_of(each), [value.name if value else None for value in each]) for each in both], Argument(c_void_p(), None), Argument(c_size_t(count), count)]


def _taken_values(a: Arguments) -> list[Argument]:
    there = [each for each in a.machine.handles["OrtValueInfo"] if each.owned]
    chosen = a.draw.sample(there, min(len(there), a.draw.choice([0, 1, 1, 1, 2])))

    def after() -> None:
        role = a.function.name
        for each in [each for each in a.machine.handles["OrtValueInfo"] if each.role == role and a.owner in each.parents]:
            a.machine.forget(each)  # the new objects replace it
        for each in chosen:
            a.take_over(each)
            each.role = role

    return [Argument(a.array_of(chosen), [each.name for each in chosen], after=after), Argument(c_size_t(len(chosen)), len(chosen))]


def _node_parts(a: Arguments) -> list[Argument]:
    made = []
    for choices in ([b"x", b"x", b"w", b"z", b""], [b"y", b"y", b"z"]):
        texts = a.texts(choices, a.draw.choice([0, 1, 1, 1, 2]))
        made += [texts, Argument(c_size_t(len(texts.said)), len(texts.said))]
    there = [each for each in a.machine.handles["OrtOpAttr"] if each.owned]
    chosen = a.draw.sample(there, min(len(there), a.draw.choice([0, 0, 0, 1])))

    def after() -> None:
        for each in chosen:
            a.machine.forget(each)

    return [*made, Argument(a.array_of(chosen), [each.name for each in chosen], after=after), Argument(c_size_t(len(chosen)), len(chosen))]


def _opsets(a: Arguments) -> list[Argument]:
    domains = a.texts([b"", b"", b"ai.onnx", b"com.microsoft", b"nosuch"], a.draw.choice([0, 1, 1, 1, 2]))
    versions = [a.draw.choice([21, 21, 21, 1, 0, 99, 22]) for _ in domains.said]
    return [domains, Argument((c_int * 4)(*versions), versions), Argument(c_size_t(len(versions)), len(versions))]


def _constraints(a: Arguments) -> list[Argument]:
    there = a.draw.random() < 0.8
    return [Argument(strings(b"T"), there), Argument((c_int * 1)(a.draw.choice([1, 1, 7])), "types"), Argument(c_int(int(there)), int(there)), Argument(handles(), []), Argument(c_int(0), 0)]


def _buffer(a: Arguments) -> list[Argument]:
    room, size = c_void_p(), c_size_t()
    a.kept.append((room, size))
    return [Argument(ctypes.pointer(room), "&data"), Argument(ctypes.pointer(size), "&size")]


def _view(a: Arguments) -> list[Argument]:
    chosen = [a.some("OrtNode") for _ in range(a.draw.choice([0, 1, 2]))]
    chosen = [each for each in chosen if each]
    return [Argument(a.array_of(chosen), [each.name for each in chosen]), Argument(c_size_t(len(chosen)), len(chosen))]


def _bound_names(a: Arguments) -> list[Argument]:
    texts, lengths, count = c_void_p(), c_void_p(), c_size_t()

    def read(_: Any) -> Any:
        sizes = list((c_size_t * count.value).from_address(lengths.value)) if count.value and lengths.value else []
        return [count.value, sizes, ctypes.string_at(texts.value, sum(sizes)).decode() if sum(sizes) else ""]

    return [Argument(byref(texts), "&buffer", read=read), Argument(byref(lengths), "&lengths"), Argument(byref(count), "&count")]


def _bound_values(a: Arguments) -> list[Argument]:
    values, count = c_void_p(), c_size_t()

    def read(parents: Any) -> Any:
        given = list((c_void_p * count.value).from_address(values.value)) if count.value and values.value else []
        return [[a.machine.add("OrtValue", each, parents), described(a.api, "OrtValue", c_void_p(each))] for each in given]

    return [Argument(byref(values), "&output", read=read), Argument(byref(count), "&count")]


# Groups of arguments that fit together. Half of the calls use them, so that some succeed.
FITTING: list[tuple[str, str, Callable[[Arguments], list[Argument]]]] = [
    (r"^FillSparseTensorCoo$", "values_shape values_shape_len values indices_data indices_num", _fitting_coo),
    (r"^FillSparseTensorCsr$", "values_shape values_shape_len values inner_indices_data inner_indices_num outer_indices_data outer_indices_num", _fitting_csr),
    (r"^FillSparseTensorBlockSparse$", "values_shape values_shape_len values indices_shape_data indices_shape_len indices_data", _fitting_blocks),
    (r"^CreateSparseTensorWithValues", "p_data dense_shape dense_shape_len values_shape values_shape_len type", _values_in_memory),
    (r"^UseCooIndices$", "indices_data indices_num", _fitting_indices),
    (r"^UseCsrIndices$", "inner_data inner_num outer_data outer_num", _fitting_rows),
    (r"^BindInput$", "name val_ptr", _bound_input),
    (r"^BindOutputToDevice$", "name mem_info_ptr", _bound_output),
    (r"^CreateLoraAdapter", "allocator", _no_allocator),
]
GROUPS: list[tuple[str, str, Callable[[Arguments], list[Argument]]]] = [
    (r"^RunWithBinding$", "session run_options binding_ptr", _binding_of),
    (r"^Run$", "session run_options input_names inputs input_len output_names output_names_len outputs", _run),
    (r"^RunAsync$", "session run_options input_names input input_len output_names output_names_len output run_async_callback user_data", _run),
    (r"Fill.*Block|UseBlock", "indices_shape_data indices_shape_len indices_data", _block_indices),
    (r"UseBlock", "indices_shape indices_shape_len indices_data", _block_indices),
    (r"", "shape shape_len", Arguments.shape),
    (r"", "dense_shape dense_shape_len", Arguments.shape),
    (r"", "values_shape values_shape_len", Arguments.shape),
    (r"^(?!Get)", "dim_values dim_count", Arguments.shape),
    (r"", "location_values location_values_count", lambda a: _indices(a)),
    (r"^Fill", "values", _data),
    (r"", "p_data p_data_len", _memory),
    (r"^CreateSparse", "p_data", _data),
    (r"", "indices_data indices_num", _indices),
    (r"", "inner_indices_data inner_indices_num", _indices),
    (r"", "outer_indices_data outer_indices_num", _indices),
    (r"", "inner_data inner_num", _indices),
    (r"", "outer_data outer_num", _indices),
    (r"^CreateValue$", "in num_values", _values),
    (r"^FillStringTensor$", "s s_len", _texts_in),
    (r"^GetStringTensorContent$", "s s_len offsets offsets_len", _texts_content),
    (r"^GetStringTensorElement$", "s_len index s", _text_element),
    (r"", "provider_options_keys provider_options_values num_keys", _pairs_in),
    (r"", "ep_option_keys ep_option_vals num_ep_options", _pairs_in),
    (r"", "keys values kv_len", _pairs_in),
    (r"", "initializer_names initializers num_initializers", _named_values),
    (r"", "external_initializer_file_names external_initializer_file_buffer_array external_initializer_file_lengths num_external_initializer_files", _files_in_memory),
    (r"", "arena_config_keys arena_config_values num_keys", _arena),
    (r"", "model_data model_data_length", _model_bytes),
    (r"FromArray|FromBuffer", "data size", _model_bytes),
    (r"", "bytes num_bytes", _adapter_bytes),
    (r"^(SessionOptionsAppend|GetModelCompat)", "ep_devices num_ep_devices", _devices_in),
    (r"^GetEpDevices$", "ep_devices num_ep_devices", _devices_out),
    (r"", "ep_subgraphs num_ep_subgraphs", _devices_out),
    (r"", "ep_nodes num_ep_nodes", _devices_out),
    (r"^GetDimensions$", "dim_values dim_values_length", _dims_out),
    (r"^GetSymbolicDimensions$", "dim_params dim_params_length", _symbols_out),
    (r"^SetSymbolicDimensions$", "dim_params dim_params_length", _symbols_in),
    (r"^CreateOpAttr$", "data len type", _attribute),
    (r"^ReadOpAttr$", "type data len out", _read_attribute),
    (r"^CopyTensors$", "src_tensors dst_tensors stream num_tensors", _copies),
    (r"SetGraphInputs", "inputs count", _taken_values),
    (r"SetGraphOutputs", "outputs count", _taken_values),
    (r"CreateNode", "input_names num_inputs output_names num_outputs attributes num_attributes", _node_parts),
    (r"CreateModel$", "domain_names opset_versions count", _opsets),
    (r"^CreateOp$", "type_constraint_names type_constraint_values type_constraint_count attr_values attr_count", _constraints),
    (r"^InvokeOp$", "input_values input_count", _values_of_int),
    (r"^InvokeOp$", "output_values output_count", _values_of_int),
    (r"", "buffer lengths count", _bound_names),
    (r"^GetBoundOutputValues$", "output output_count", _bound_values),
    (r"SetOutputModelBuffer", "data size", _buffer),
    (r"^Graph_GetGraphView$", "nodes num_nodes", _view),
    (r"^ValueInfo_GetValueConsumers$", "nodes input_indices num_consumers", _consumers),
    (r"^(Graph|Node)_Get|^SessionGet(Memory|EpDevice)|^GetHardwareDevices", "* num_*", _handles_out),
]


def _matches(names: list[str], wanted: list[str]) -> bool:
    return len(names) >= len(wanted) and all(re.fullmatch(want.replace("*", r"\w*"), have) for have, want in zip(names, wanted))


def _together(name: str, parameters: list[tuple[str, str]], groups: list) -> tuple[int, Callable[[Arguments], list[Argument]] | None]:
    """Returns the number of parameters that form a group, and the function that makes their arguments. Returns None if the first parameter
    is in no group, so that its type decides."""
    for pattern, wanted, make in groups:
        words = wanted.split()
        if re.search(pattern, name) and _matches([each for _, each in parameters], words) and ("*" not in wanted or bare(parameters[0][0]).endswith("**")):
            return len(words), make
    return 1, None


def plan(name: str, parameters: list[tuple[str, str]], groups: list = GROUPS) -> list[Callable[[Arguments], list[Argument]]]:  # noqa: B006
    """Returns the functions that make the arguments of a function, in order."""
    made, place = [], 0
    while place < len(parameters):
        count, make = _together(name, parameters[place:], groups)
        made.append(make or (lambda a, parameter=parameters[place]: [a.single(*parameter)]))
        place += count
    return made
