"""Names in the package: its own in dir(), those of ONNX Runtime and MXNet in separate modules, and old names that still work."""

import ast
import inspect
import pathlib
import re
import subprocess
import sys

import pytest

import treadle

# Names that programs imported from `treadle` before there were modules of their own for these names.
OF_ONNXRUNTIME = ("IOBinding", "LoraAdapter", "ModelCompiler", "NodeArg", "OrtDevice", "OrtMemoryInfo", "copy_tensors", "get_available_providers", "get_device", "onnxruntime_library", "set_default_logger_severity", "set_seed")
OF_MXNET = ("Executor", "bind", "simple_bind")
OF_RESULTS = ("CacheStatistics", "Explanation", "HookedRun", "MemoryReport", "NodeCounter", "NodeExplanation", "PartialRun", "PrecisionChoice", "ProfiledNode", "RunMetadata", "StatefulRun", "UnfinishedRun", "ValueCache")


def test_a_newcomer_sees_what_treadle_does():
    shown = dir(treadle)
    assert {"Session", "Trainer", "Model", "profile", "quantize", "explain", "Job", "onnxruntime", "mxnet", "torch"} <= set(shown)
    assert not [name for name in shown if name.startswith("Ort") and name != "OrtValue"]
    assert not [name for name in shown if name.startswith("_") and name != "__version__"]
    assert len(shown) < 50


def test_everything_shown_is_there_and_says_what_it_is():
    for name in treadle.__all__:
        value = getattr(treadle, name)
        assert inspect.getdoc(value) or name.endswith("Options"), name  # each option has a docstring


@pytest.mark.parametrize(("module", "names"), [("onnxruntime", OF_ONNXRUNTIME), ("mxnet", OF_MXNET)])
def test_names_of_others_are_in_their_module_and_found_here(module, names):
    owner = getattr(treadle, module)
    for name in names:
        assert name in owner.__all__
        assert getattr(treadle, name) is getattr(owner, name)


def test_types_of_results_are_found():
    for name in OF_RESULTS:
        assert inspect.isclass(getattr(treadle, name)), name


def test_other_names_are_errors():
    with pytest.raises(AttributeError, match="module 'treadle' has no attribute 'Sesion'"):
        treadle.Sesion
    with pytest.raises(ImportError):
        exec("from treadle import no_such_name")


def test_onnxruntimes_module_has_its_version_and_treadle_its_own():
    assert treadle.onnxruntime.__version__ == treadle.onnxruntime.get_version_string() != treadle.__version__
    assert treadle.get_version_string() == treadle.__version__


def test_importing_treadle_imports_neither_torch_nor_onnx():
    program = "import sys, treadle; dir(treadle); print(sorted({'torch', 'onnx'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_torch_comes_when_it_is_named():
    pytest.importorskip("torch")
    program = "import treadle; print(treadle.torch.Module.__name__)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip() == "Module"


def public_names(tree):
    """Returns names of classes and functions, of parameters and of fields."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        if isinstance(node, ast.arg):
            yield node.arg
        if isinstance(node, ast.AnnAssign):
            yield ast.unparse(node.target)


def test_names_are_spelled_as_the_field_spells_them():
    """Identifiers are spelled optimize, quantize, maximize ...; -ise is for prose only."""
    for path in sorted(pathlib.Path(treadle.__file__).parent.rglob("*.py")):
        for name in public_names(ast.parse(path.read_text())):
            assert name == "normalise" or not re.search(r"(im|al|nt|og)is(e|ed|er|ing|ation)(_|$)", name), f"{path.name}: {name}"  # for the extension


def test_the_folders_for_c_and_cpp_are_found(tmp_path):
    include = pathlib.Path(treadle.include_dir())
    assert (include / "treadle/treadle.h").exists() and (include / "treadle/treadle.hpp").exists()
    flags = subprocess.run([sys.executable, "-m", "treadle", "--cflags"], capture_output=True, text=True, check=True).stdout
    assert flags == f"-I{include}\n"
    try:
        library = treadle.library_dir()
    except FileNotFoundError:
        pytest.skip("the shared library is not built")
    both = subprocess.run([sys.executable, "-m", "treadle", "--cflags", "--libs"], capture_output=True, text=True, check=True).stdout
    assert both == f"-I{include} -L{library} -ltreadle -Wl,-rpath,{library}\n"
    program = tmp_path / "program.c"
    program.write_text("#include <treadle/treadle.h>\n#include <stdio.h>\nint main(void) { return puts(treadle_version()) < 0; }\n")
    subprocess.run(["cc", "-Wall", "-Werror", program, "-o", tmp_path / "program", *both.split()], check=True)
    assert subprocess.run([tmp_path / "program"], capture_output=True, text=True, check=True).stdout == f"{treadle.__version__}\n"


def test_flags_and_commands_do_not_mix():
    done = subprocess.run([sys.executable, "-m", "treadle", "--cflags", "run"], capture_output=True, text=True)
    assert done.returncode > 0 and done.stdout == ""


def test_the_table_of_interfaces_is_up_to_date():
    script = pathlib.Path(__file__).resolve().parents[2] / "scripts/interfaces.py"
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
