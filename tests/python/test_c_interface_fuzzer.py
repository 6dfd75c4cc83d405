"""Tests that the fuzzer of the C interface covers every function of the header, and a fixed part of its calls finds no fault
(docs/fuzzing.md)."""

import ctypes
import pathlib
import re
import subprocess
import sys

import pytest

FUZZ = pathlib.Path(__file__).resolve().parents[1] / "fuzz"
sys.path.insert(0, str(FUZZ))

import c_header  # noqa: E402
import c_interface  # noqa: E402
import c_objects  # noqa: E402

pytestmark = pytest.mark.skipif(not c_interface.LIBRARY.exists(), reason="the shared library is not built")


def test_every_declaration_of_the_header_is_known():
    header = c_header.parse()
    plain = re.sub(r"/\*.*?\*/", " ", c_header.HEADER.read_text(), flags=re.DOTALL)
    assert set(re.findall(r"\b(treadle_\w+)\(", plain)) == set(header.functions)
    assert header.handles == set(c_objects.RECIPES), "the fuzzer makes handles of every kind"
    for kind in header.handles:
        assert c_objects.release_function(header, kind)


def test_what_the_header_says_of_null_and_of_lifetimes_is_read():
    functions = c_header.parse().functions

    def nullable(name):
        return [p.name for p in functions[name].parameters if p.depth and functions[name].may_be_null(p)]

    assert nullable("treadle_model_from_bytes") == ["model_dir"]
    assert nullable("treadle_tensor_create") == []
    # The comment says that "outputs" may be NULL after an error.
    assert nullable("treadle_session_run") == ["options", "output_names", "outputs"]
    assert [p.name for p in functions["treadle_partial_run_create_with_options"].outlived_by()] == ["options"]
    assert "trainer" in [p.name for p in functions["treadle_trainer_start_profiler"].outlived_by()]


def test_a_slice_is_clean():
    """Runs in another process, since the fuzzer forks and this one has threads."""
    ran = subprocess.run(
        [sys.executable, FUZZ / "c_interface.py", "--seed", "1", "--count", "4000"], capture_output=True, text=True, timeout=600, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"calls of {len(c_header.parse().functions)} functions" in ran.stdout
    assert "was not called" not in ran.stdout


def test_a_fault_is_found_and_named():
    """The fuzzer finds a crash, and a wrong argument that is accepted."""
    fuzzer = c_interface.Fuzzer()

    class Faulty:
        """A library that removes wrong arguments before the real one can check them."""

        def __init__(self, library):
            self.library = library

        def __getattr__(self, name):
            if name == "treadle_run_options_set_tag":
                return lambda options, tag: ctypes.string_at(tag or 1) and None
            return getattr(self.library, name)

    fuzzer.library = Faulty(fuzzer.library)
    fuzzer.run(1, [("treadle_run_options_set_tag", {"tag": "null"})])
    fuzzer.run(2, [("treadle_run_options_set_tag", {"options": "kind"})])
    assert "signal 11 treadle_run_options_set_tag" in fuzzer.failures[0]
    assert "options is wrong" in fuzzer.failures[1]
