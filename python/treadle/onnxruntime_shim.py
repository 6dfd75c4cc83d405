"""Lets programs that use onnxruntime run on Treadle, unchanged.

    import treadle.onnxruntime_shim  # before anything imports onnxruntime

From then on `import onnxruntime` gives the names of `treadle.onnxruntime`, in the whole process, and so do the modules of `onnxruntime.capi`. Where the package
onnxruntime is installed, its parts that are plain Python (quantization, tools, transformers, datasets) are still found, and use Treadle.
A program can also be started on Treadle from outside:

    python -m treadle.onnxruntime_shim program.py arguments…
    python -m treadle.onnxruntime_shim -m module arguments…

Packages that load onnxruntime's library from its folder (onnxruntime-genai) find Treadle's (`treadle.onnxruntime_library()`).
`onnxruntime.__version__` is the version of ONNX Runtime whose interface is offered; `treadle.__version__` is Treadle's.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from types import ModuleType

import treadle
from treadle import enums, errors, onnxruntime
from treadle.onnxruntime import _devices, _session, _state

#: The version of ONNX Runtime whose interface Treadle follows.
ONNXRUNTIME_VERSION = onnxruntime.__version__

_PYBIND_MODULES = ("onnxruntime_pybind11_state", "_pybind_state")
_NAMES = (
    "onnxruntime",
    "onnxruntime.capi",
    "onnxruntime.capi.onnxruntime_inference_collection",
    "onnxruntime.capi.onnxruntime_validation",
    *(f"onnxruntime.capi.{name}" for name in _PYBIND_MODULES),
)


# Packages in onnxruntime that are plain Python. They exist only if onnxruntime is installed.
_PLAIN_PYTHON = ("quantization", "tools", "datasets", "transformers")


def _public(module: ModuleType) -> dict[str, object]:
    return {name: value for name, value in vars(module).items() if not name.startswith("_")}


def _exceptions() -> dict[str, type]:
    return {
        name: value
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.Error) and value is not errors.Error
    }


def _offered() -> dict[str, object]:
    """Returns the objects of onnxruntime's package, by name."""
    return {name: getattr(onnxruntime, name) for name in onnxruntime.__all__}


def _state_contents() -> dict[str, object]:
    """Returns the objects of onnxruntime's extension module, by name."""
    contents = _offered() | _exceptions() | _state.contents()
    contents.update(
        OrtValueVector=_session.OrtValueVector,
        get_default_session_options=onnxruntime.SessionOptions,
        get_hardware_devices=lambda: [device.device for device in onnxruntime.get_ep_devices()],
        is_dlpack_uint8_tensor=lambda capsule: onnxruntime.OrtValue.from_dlpack(capsule).data_type() == "tensor(uint8)",
    )
    for name in ("IOBinding", "preload_dlls", "print_debug_info"):
        contents.pop(name)
    return contents


def _contents(name: str) -> dict[str, object]:
    """Returns the attributes of one of the modules."""
    leaf = name.rpartition(".")[2]
    if name == "onnxruntime":
        about = {"version": ONNXRUNTIME_VERSION, "__author__": "Treadle", "package_name": "onnxruntime", "cuda_version": ""}
        return _offered() | about | {"import_capi_exception": None}
    if name == "onnxruntime.backend":
        from treadle import backend

        return {"is_compatible": backend.is_compatible, "prepare": backend.prepare, "run": backend.run_model, "supports_device": backend.supports_device}
    if leaf in _PYBIND_MODULES:
        return _state_contents()
    if leaf == "onnxruntime_inference_collection":
        names = ("SparseTensor", "OrtValue", "copy_tensors", "AdapterFormat", "ModelCompiler")
        own = {name: getattr(onnxruntime, name) for name in names}
        return _public(_devices) | _public(enums) | _public(_session) | own
    if leaf == "onnxruntime_validation":
        return {
            "get_package_name_and_version_info": lambda: ("onnxruntime", ONNXRUNTIME_VERSION, ""),
            "check_distro_info": lambda: None,
            "has_ortmodule": False,
        }
    return {}


def _plain_python_folders() -> list[str]:
    """Returns the folder of an installed onnxruntime, whose modules in plain Python can still be used."""
    try:
        spec = importlib.machinery.PathFinder.find_spec("onnxruntime")
    except (ImportError, ValueError):
        return []
    return list(spec.submodule_search_locations or []) if spec else []


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds and makes the modules that stand for onnxruntime's."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in _NAMES:
            return self._find_plain_python(fullname)
        is_package = fullname in ("onnxruntime", "onnxruntime.capi")
        spec = importlib.machinery.ModuleSpec(fullname, self, origin=__file__, is_package=is_package)
        if fullname == "onnxruntime":
            # The first folder contains capi/libonnxruntime.so.1, because compiled packages search for the library there.
            spec.submodule_search_locations = [os.path.join(os.path.dirname(__file__), "onnxruntime"), *_plain_python_folders()]
        return spec

    def _find_plain_python(self, fullname: str) -> importlib.machinery.ModuleSpec | None:
        """Handles modules in plain Python. Returns None if an installed onnxruntime has them; otherwise only onnxruntime.backend exists."""
        package, _, name = fullname.partition(".")
        if package != "onnxruntime" or _plain_python_folders():
            return None
        if name in _PLAIN_PYTHON:
            raise ModuleNotFoundError(
                f"{fullname} is a part of the package onnxruntime in plain Python, which Treadle uses and does not have: `pip install onnxruntime`",
                name=fullname,
            )
        return importlib.machinery.ModuleSpec(fullname, self, origin=__file__) if name == "backend" else None

    def exec_module(self, module: ModuleType) -> None:
        vars(module).update(_contents(module.__name__))
        module.__doc__ = f"{module.__name__}, provided by Treadle {treadle.__version__}."
        module.__file__ = os.path.abspath(__file__)
        if module.__name__ == "onnxruntime":
            for name in _NAMES[1:]:
                importlib.import_module(name)


_finder = _Finder()


def _forget() -> None:
    for name in [name for name in sys.modules if name == "onnxruntime" or name.startswith("onnxruntime.")]:
        del sys.modules[name]


def install() -> None:
    """Makes later imports of onnxruntime give Treadle. Importing this module calls it."""
    if _finder in sys.meta_path:
        return
    _forget()
    sys.meta_path.insert(0, _finder)
    errors._are_onnxruntimes = True


def uninstall() -> None:
    """Makes later imports of onnxruntime give what is installed under that name."""
    if _finder in sys.meta_path:
        sys.meta_path.remove(_finder)
        errors._are_onnxruntimes = False
        _forget()


def is_installed() -> bool:
    """Returns True if imports of onnxruntime give Treadle."""
    return _finder in sys.meta_path


def _main(arguments: list[str]) -> None:
    import runpy

    if not arguments or arguments[0] in ("-h", "--help"):
        print(__doc__)
        return
    # Python runs this file as the module __main__, which is not the module that programs import. The import below installs the finder.
    importlib.import_module("treadle.onnxruntime_shim")
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path.insert(0, os.path.dirname(os.path.abspath(arguments[0])))
        runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    _main(sys.argv[1:])
else:
    install()
