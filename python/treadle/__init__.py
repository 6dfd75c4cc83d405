"""Treadle: runs, trains and explains ONNX models.

    import treadle

    session = treadle.Session("model.onnx", num_threads=4)
    scores = session(image)

`treadle.onnxruntime` and `treadle.mxnet` have the interfaces of ONNX Runtime and MXNet; their names are found here, too.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from . import _treadle, errors, hooks, memory, metrics, mxnet, onnxruntime, train
from ._repr import describe_all as _describe_all
from ._treadle import (
    CancelToken,
    Job,
    JobStatus,
    Model,
    OrtValue,
    RunOptions,
    SessionOptions,
    SparseTensor,
    ThreadPool,
    get_available_backends,
    list_jobs,
    load_plugin,
    register_operator,
    set_job,
    set_log_callback,
    sharing_folder,
)
from .communicator import Communicator
from .development import include_dir, library_dir
from .engine import Engine
from .enums import ExecutionMode, GraphOptimizationLevel
from .environment import get_version_string
from .errors import Error
from .explaining import explain
from .onnxruntime import InferenceSession
from .precision import choose_precision
from .profiling import Profile, ProfileSchedule, profile
from .quantization import quantize
from .session import Outputs, Session
from .train import Trainer

if TYPE_CHECKING:
    from .environment import *
    from .explaining import *
    from .memory import *
    from .mxnet import *
    from .onnxruntime import *
    from .precision import *
    from .profiling import *
    from .session import *

__version__ = get_version_string()
_describe_all([vars(module) for name, module in list(sys.modules.items()) if name.startswith(f"{__name__}.")])

__all__ = [
    "CancelToken",
    "Communicator",
    "Engine",
    "Error",
    "ExecutionMode",
    "GraphOptimizationLevel",
    "InferenceSession",
    "Job",
    "JobStatus",
    "Model",
    "OrtValue",
    "Outputs",
    "Profile",
    "ProfileSchedule",
    "RunOptions",
    "Session",
    "SessionOptions",
    "SparseTensor",
    "ThreadPool",
    "Trainer",
    "choose_precision",
    "errors",
    "explain",
    "get_available_backends",
    "hooks",
    "include_dir",
    "library_dir",
    "list_jobs",
    "load_plugin",
    "memory",
    "metrics",
    "mxnet",
    "onnxruntime",
    "profile",
    "quantize",
    "register_operator",
    "set_job",
    "set_log_callback",
    "sharing_folder",
    "train",
]

# Modules that this package imports only at their first use, because they need other packages.
_MODULES = ("backend", "torch")
# Modules whose public names programs can also use as treadle.NAME: types of results, and the names of ONNX Runtime and MXNet.
_ELSEWHERE = ("session", "memory", "profiling", "explaining", "precision", "hooks", "environment", "onnxruntime", "mxnet")


if not TYPE_CHECKING:  # type checkers find the names in the imports above

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            return importlib.import_module(f"{__name__}.{name}")
        for module in (importlib.import_module(f"{__name__}.{place}") for place in _ELSEWHERE):
            if name in module.__all__ and not name.startswith("_"):
                return getattr(module, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted([*__all__, *_MODULES, "__version__"])
