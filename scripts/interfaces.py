#!/usr/bin/env python3
"""Writes docs/reference/interfaces.md: which functions of the C++ interface C and Python have as well.

    PYTHONPATH=build/release/python scripts/interfaces.py    # writes the page; --check: exit status 1 if it is out of date

Names are read from the headers and from the Python package. Where an interface gives a function another name, OTHERS says so.
"""

import inspect
import pathlib
import re
import sys
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/reference/interfaces.md"

# Classes of C++, their prefix in C, and their name in Python; empty: the interface has no such class.
CLASSES = {
    "Model": ("model", "Model"), "Session": ("session", "Session"), "IoBinding": ("io_binding", "IOBinding"), "PartialRun": ("partial_run", "PartialRun"),
    "StatefulRun": ("stateful_run", "StatefulRun"), "Datum": ("", ""), "Profiler": ("profiler", ""), "Job": ("job", "Job"), "Engine": ("engine", "Engine"),
    "Trainer": ("trainer", "Trainer"), "CheckpointFolder": ("checkpoint_folder", "train.CheckpointFolder"), "DataLoader": ("data_loader", "train.DataLoader"),
    "JointModule": ("joint_module", "train.JointModule"), "Executor": ("executor", "Executor"), "EventFile": ("", "train.EventFile"),
    "Communicator": ("", "Communicator"),
}  # fmt: skip
# Other names of what C++ calls Class::function: the C function without "treadle_", and what stands behind "treadle." in Python.
OTHERS = {
    "Model::Model": ("", ""), "Model::inputs": ("session_input_name", "Model.inputs"), "Model::outputs": ("session_output_name", "Model.outputs"),
    "Session::inputs": ("session_input_name", "Session.inputs"), "Session::outputs": ("session_output_name", "Session.outputs"),
    "Session::run_async": ("session_run_async", "InferenceSession.run_async"), "Session::memory": ("", "Session.memory"),
    "Session::partial_run": ("partial_run_create_with_options", "Session.partial_run"), "Session::stored": ("", "session.ValueHandle"),
    "Session::memory_statistics": ("session_memory", "Session.memory"), "Session::memory_peak": ("", "Session.memory"),
    "Session::profiler": ("profiler_start", "profile"), "Session::profile": ("session_save_profile", "profile"),
    "Session::pause_profiling": ("profiler_set_recording", "profile"), "Session::resume_profiling": ("profiler_set_recording", "profile"),
    "Session::start_profiling": ("session_start_profiling", "profile"), "Session::optimized_model": ("", "SessionOptions.optimized_model_filepath"),
    "Session::end_profiling": ("session_end_profiling", "InferenceSession.end_profiling"),
    "Session::profiling_start_ns": ("", "InferenceSession.get_profiling_start_time_ns"),
    "Session::node_counters": ("session_save_node_counters", "Session.node_counters"),
    "IoBinding::bind_output_to_device": ("io_binding_bind_output_to_device", "IOBinding.bind_output"),
    "IoBinding::clear_inputs": ("io_binding_clear_inputs", "IOBinding.clear_binding_inputs"),
    "IoBinding::clear_outputs": ("io_binding_clear_outputs", "IOBinding.clear_binding_outputs"),
    "IoBinding::outputs": ("io_binding_output", "IOBinding.get_outputs"), "IoBinding::output_names": ("io_binding_num_outputs", "IOBinding.output_names"),
    "PartialRun::PartialRun": ("partial_run_create", "Session.partial_run"), "PartialRun::feed": ("partial_run_feed", "PartialRun.advance"),
    "PartialRun::advance_until": ("partial_run_advance_until", "PartialRun.advance"), "PartialRun::advance_steps": ("partial_run_advance_steps", "PartialRun.step"),
    "PartialRun::at_yield": ("partial_run_num_yielded", "PartialRun.yielded"),
    "PartialRun::finished": ("partial_run_advance", "PartialRun.finished"), "PartialRun::steps_left": ("partial_run_advance_steps", "PartialRun.steps_left"),
    "StatefulRun::StatefulRun": ("stateful_run_create", "Session.stateful"), "StatefulRun::run": ("stateful_run_run", "StatefulRun.run"),
    "StatefulRun::state": ("stateful_run_state", "StatefulRun.state"),
    "Profiler::pause": ("profiler_set_recording", "profile"), "Profiler::resume": ("profiler_set_recording", "profile"),
    "Profiler::profile": ("profiler_save", "Profile"), "Profiler::Profiler": ("profiler_start", "profile"),
    "Job::status": ("job_get_status", "Job.status"), "Job::suspend": ("job_set_suspended", "Job.suspend"), "Job::resume": ("job_set_suspended", "Job.resume"),
    "Job::set_share": ("job_set_share", "Job.share"), "Job::set_class": ("", "Job.job_class"), "Job::set": ("", "set_job"),
    "Job::set_memory_limit": ("job_set_memory_limit", "Job.memory_limit"), "Job::set_host_limit": ("job_set_host_limit", "Job.host_limit"),
    "Job::id": ("job_get_status", "Job.id"),
    "Datum::kind": ("value_get_kind", "OrtValue.data_type"), "Datum::defined": ("value_get_kind", "OrtValue.has_value"),
    "Datum::is_tensor": ("value_get_kind", "OrtValue.is_tensor"), "Datum::tensor": ("tensor_data", "OrtValue.numpy"),
    "Datum::sparse_tensor": ("sparse_tensor_values", "OrtValue.as_sparse_tensor"), "Datum::sequence": ("sequence_get", "OrtValue.to_object"),
    "Datum::optional": ("optional_get", "OrtValue.to_object"), "Datum::map": ("map_keys", "OrtValue.to_object"), "Datum::Datum": ("tensor_create", "OrtValue"),
    "DataLoader::position": ("data_loader_epoch", ""), "DataLoader::to_metadata": ("data_loader_position", ""),
    "Executor::Executor": ("executor_bind", "bind"), "Executor::simple_bind": ("executor_simple_bind", "simple_bind"),
    "Executor::outputs": ("executor_output", "Executor.outputs"), "Executor::arguments": ("executor_argument", "Executor.arg_dict"),
    "Executor::states": ("executor_state", "Executor.aux_dict"), "Executor::gradients": ("executor_gradient", "Executor.grad_dict"),
    "Executor::requests": ("executor_request", ""), "Executor::output_names": ("executor_output_name", "Executor.output_dict"),
    "Executor::copy_from": ("", "Executor.copy_params_from"), "Executor::set_argument": ("executor_set_argument", "Executor.arg_dict"),
    "Trainer::output_names": ("trainer_output_name", "Trainer.output_names"), "Trainer::parameter_views": ("trainer_parameter", "Trainer.parameters"),
    "Trainer::parameters": ("trainer_parameter", "Trainer.parameters"), "Trainer::use_averages": ("trainer_use_averages", "Trainer.averaged"),
    "Trainer::set_learning_rate": ("trainer_set_learning_rate", "Trainer.learning_rate"), "Trainer::memory_statistics": ("", "Trainer.memory"),
    "Trainer::profiler": ("trainer_start_profiler", "profile"), "Trainer::position": ("", "Trainer.num_steps"),
    "Trainer::start_profiling": ("trainer_start_profiler", "profile"), "Trainer::pause_profiling": ("profiler_set_recording", "profile"),
    "Trainer::resume_profiling": ("profiler_set_recording", "profile"), "Trainer::profile": ("profiler_save", "profile"),
    "JointModule::input_names": ("joint_module_input_name", ""),
    "JointModule::output_names": ("joint_module_output_name", "train.JointModule.output_names"),
    "JointModule::gradient_names": ("joint_module_gradient_name", ""),
    "JointModule::parameters": ("joint_module_parameter", "train.JointModule.parameters"),
    "JointModule::profiler": ("joint_module_start_profiler", "profile"), "JointModule::start_profiling": ("joint_module_start_profiler", "profile"),
    "JointModule::pause_profiling": ("profiler_set_recording", "profile"), "JointModule::resume_profiling": ("profiler_set_recording", "profile"),
    "JointModule::profile": ("profiler_save", "profile"),
}  # fmt: skip
# Functions outside of classes, with their names in C and Python.
FUNCTIONS = {
    "quantize": ("model_quantize", "quantize"), "choose_precision": ("choose_precision", "choose_precision"), "register_hook": ("register_hook", "hooks.register"),
    "unregister_hook": ("unregister_hook", "hooks.Hook"), "set_log_callback": ("set_log_callback", "set_log_callback"), "list_jobs": ("jobs_list", "list_jobs"),
    "set_job": ("jobs_set_share", "set_job"), "sharing_folder": ("", "sharing_folder"), "to_device": ("tensor_to_device", "OrtValue"),
    "device_of": ("tensor_device", "OrtValue.device_name"), "version": ("version", "__version__"), "mark_profile": ("profile_mark", ""),
    "read_profile_recording": ("profile_convert", "profiling.Profile.load"), "compare_profiles": ("", "profiling.Profile.compare"),
    "open_data": ("dataset_open", "train.Trainer.fit"), "split": ("dataset_split", "train.Trainer.fit"), "read_csv": ("", "data.read_csv"),
    "plan_arena_exactly": ("", "memory.plan_arena"), "make_allocator": ("allocator_create", "memory.Allocator"), "from_dlpack": ("", "OrtValue.from_dlpack"),
    "to_dlpack": ("", "OrtValue.to_dlpack"), "untied": ("", "train.untied"), "connect_communicator": ("", "communicator.find"),
}  # fmt: skip
# What looks like a function, but is none of the interface.
SKIPPED = {"impl", "operator", "state", "void", "move", "content_"}


def headers() -> str:
    return "\n".join(path.read_text() for path in sorted((ROOT / "include/treadle").glob("*.h")) if path.name not in ("treadle.h", "plugin.h"))


def without_comments(text: str) -> str:
    return re.sub(r"//[^\n]*", "", text)


def public_functions(text: str, name: str) -> list[str]:
    """Returns the public functions of a class of C++, in the header's order."""
    start = re.search(rf"^class TREADLE_API {name}\b[^;{{]*\{{", text, re.MULTILINE)
    if not start:
        return []
    depth, at, body = 1, start.end(), ""
    while depth:
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        body += text[at] if depth == 1 or text[at] in "{}" else ""
        at += 1
    public = re.split(r"^ (?:private|protected):", body, flags=re.MULTILINE)[0]
    found = re.findall(r"(?:^|[\s*&])(~?[A-Za-z_]\w*)\s*\((?=[^()]*(?:\([^()]*\)[^()]*)*\))", re.sub(r"=\s*\w+\([^()]*\)|\([^()]*\)\s*:\s*[^{;]*", "(", public))
    functions = re.findall(r"\b([a-z]\w*)\s*\(", public)
    constructors = [name] if any(one == name for one in found) else []
    unique = dict.fromkeys(constructors + functions)
    return [function for function in unique if function not in SKIPPED and not function.startswith("operator")]


def c_functions() -> set[str]:
    text = re.sub(r"/\*.*?\*/", " ", (ROOT / "include/treadle/treadle.h").read_text(), flags=re.DOTALL)
    return {name.removeprefix("treadle_") for name in re.findall(r"\b(treadle_\w+)\(", text)}


def in_python(name: str) -> bool:
    """True if the package has treadle.NAME."""
    import treadle
    import treadle.data

    found: Any = treadle
    for part in name.split("."):
        if not hasattr(found, part):
            return getattr(found, "__module__", "") == "treadle.executor" and re.search(rf"self\.{part}\b.* = ", inspect.getsource(found)) is not None  # an attribute of its objects
        found = getattr(found, part)
    return True


def row(name: str, c: str, python: str) -> str:
    return f"| `{name}` | {f'`treadle_{c}`' if c else ''} | {f'`treadle.{python}`' if python else ''} |"


def page() -> str:
    text, in_c = without_comments(headers()), c_functions()
    lines = [
        "# The three interfaces",
        "",
        "What the C++ interface has, and its names in C and Python. An empty cell: that interface lacks it, or does it in another way.",
        "`scripts/interfaces.py` makes this page of the headers and the package.",
        "",
    ]
    counts = [0, 0, 0]

    def add(name: str, c: str, python: str) -> None:
        lines.append(row(name, c, python))
        for i, cell in enumerate((name, c, python)):
            counts[i] += bool(cell)

    for name, (c_class, python_class) in CLASSES.items():
        functions = public_functions(text, name)
        if not functions:
            continue
        lines += [f"## {name}", "", "| C++ | C | Python |", "|---|---|---|"]
        for function in functions:
            key = f"{name}::{function}"
            c, python = OTHERS.get(key, ("", ""))
            if not c and c_class and key not in OTHERS:
                own = "create" if function == name else function
                c = next((one for one in (f"{c_class}_{own}", f"{c_class}_open" if function == name else "") if one in in_c), "")
            assert not c or c in in_c, f"{key}: C has no treadle_{c}"
            if not python and python_class and key not in OTHERS:
                own = python_class if function == name else f"{python_class}.{function}"
                python = own if in_python(own) else ""
            assert not python or in_python(python), f"{key}: Python has no treadle.{python}"
            add(key, c, python)
        lines.append("")
    lines += ["## Functions", "", "| C++ | C | Python |", "|---|---|---|"]
    for name, (c, python) in FUNCTIONS.items():
        assert re.search(rf"\b{name}\(", text) and (not c or c in in_c), name
        assert not python or in_python(python), f"{name}: Python has no treadle.{python}"
        add(name, c, python)
    lines += ["", f"Of {counts[0]} functions of C++, C has {counts[1]} and Python {counts[2]}.", ""]
    return "\n".join(lines)


def main() -> None:
    made = page()
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(made)
    elif not PAGE.exists() or PAGE.read_text() != made:
        sys.exit(f"{PAGE.relative_to(ROOT)} is out of date: run scripts/interfaces.py")


if __name__ == "__main__":
    main()
