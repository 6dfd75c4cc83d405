"""Calls all functions of treadle.h with right and wrong arguments, in sequences on live objects (docs/fuzzing.md).

    python tests/fuzz/c_interface.py --seed 1 --count 100000
    python tests/fuzz/c_interface.py --replay 17          # prints the calls of one sequence

Declarations and callers' duties are read from the header itself. Each sequence runs in a separate process. Failures are crashes, calls that do not
return, internal errors, and wrong arguments that are not refused by name.
"""

from __future__ import annotations

import argparse
import ast
import collections
import ctypes
import faulthandler
import mmap
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import c_header
import c_objects
from c_arguments import ROOM, Argument, Arguments

LIBRARY = Path(os.environ.get("TREADLE_LIBRARY", Path(__file__).parents[2] / "build/release/libtreadle.so"))
CALLS = 200  # number of calls in a sequence
SECONDS = 300  # time limit of a sequence, long enough for a busy machine
_LIMIT_BYTES = 16 << 30  # limit of the address space, so that huge tensors are refused or cost nothing
INVALID_ARGUMENT, INTERNAL = 1, 9


class _Heap(ctypes.Structure):
    """The struct that mallinfo2() returns."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
    ]


_mallinfo2 = ctypes.CDLL(None).mallinfo2
_mallinfo2.restype = _Heap


def _bytes_in_use() -> int:
    """Returns the bytes in the main arena and in mapped blocks: one thread makes all calls."""
    heap = _mallinfo2()
    return heap.uordblks + heap.hblkhd


class Failure(Exception):
    """The library violated the header."""


def load(header: c_header.Header, path: Path) -> ctypes.CDLL:
    library = ctypes.CDLL(str(path))
    types = Arguments(header, random.Random(0), {}, (), lambda kind: 0)
    returns = {"void": None, "double": ctypes.c_double, "int": ctypes.c_int, "int64_t": ctypes.c_int64, "uint64_t": ctypes.c_uint64}
    returns |= {"uint32_t": ctypes.c_uint32, "size_t": ctypes.c_size_t}
    for function in header.functions.values():
        entry = getattr(library, function.name)
        entry.argtypes = [types.c_type(parameter) for parameter in function.parameters]
        entry.restype = ctypes.c_void_p if "*" in function.returns else returns.get(function.returns, ctypes.c_int32)
    return library


class Sequence:
    """A sequence of calls on live objects, determined by its seed."""

    def __init__(self, header: c_header.Header, library: ctypes.CDLL, seed: int, tell: Any, succeeded: Any) -> None:
        self.header, self.library, self.tell, self.succeeded = header, library, tell, succeeded
        self.random = random.Random(seed)
        self.objects = c_objects.Objects(header, library, self.random)
        self.arguments = self.objects.arguments

    def call(self, function: c_header.Function, wrong: dict[str, str]) -> None:
        self.objects.trim()
        given = {p.name: self.arguments.make(p, wrong.get(p.name, "")) for p in function.parameters}
        for parameter in function.parameters:  # NULL is used often where the header allows it
            if parameter.depth and parameter.name not in wrong and function.may_be_null(parameter) and self.random.random() < 0.5:
                given[parameter.name] = Argument(None, "NULL", "null")
        if not self.is_allowed(function, given):
            return
        self.tell(f"{function.name}({', '.join(f'{name} = {argument.text}' for name, argument in given.items())})", function.name)
        result = getattr(self.library, function.name)(*[argument.value for argument in given.values()])
        if c_objects.makes_status(function):
            self.objects.add("treadle_status", result)
        elif function.returns == "treadle_status*":
            self.judge(function, given, result)
        elif function.returns == "const char*" and result:
            ctypes.string_at(result)
        is_status = function.returns == "treadle_status*" and not c_objects.makes_status(function)
        if not result if is_status else not any(argument.wrong for argument in given.values()):
            self.succeeded(function.name)
        self.settle(function, given, result)
        if len(self.arguments.kept) > 3000:  # old arguments are no longer needed, except borrowed memory and names
            self.objects.release_all()
            self.arguments.kept.clear()

    def is_allowed(self, function: c_header.Function, given: dict[str, Argument]) -> bool:
        """True if the call keeps the callers' duties: a handle is released once, and not before objects that need it."""
        released = c_objects.released_by(function)
        return not released or given[released].wrong != "" or self.objects.may_be_released(given[released].value)

    def judge(self, function: c_header.Function, given: dict[str, Argument], status: int | None) -> None:
        code, message = 0, ""
        if status:
            code, message = (
                self.library.treadle_status_code(status),
                ctypes.string_at(self.library.treadle_status_message(status)).decode("utf-8", "replace"),
            )
        self.objects.add("treadle_status", status)
        if status and not 1 <= code <= INTERNAL:
            raise Failure(f"the status has the code {code}")
        if code == INTERNAL:
            raise Failure(f"an internal error: {message}")
        for parameter in function.parameters:
            if not self.is_owed(function, parameter, given) or (code == INVALID_ARGUMENT and message.startswith(f"{function.name}: ")):
                continue
            raise Failure(f"{parameter.name} is wrong ({given[parameter.name].text}), and that is {code}: {message}")

    def is_owed(self, function: c_header.Function, parameter: c_header.Parameter, given: dict[str, Argument]) -> bool:
        """True if the library must refuse the argument by name."""
        argument = given[parameter.name]
        if argument.wrong != "null":
            return argument.wrong != ""
        return not function.may_be_null(parameter) and not (parameter.count and given[parameter.count].value == 0)

    def settle(self, function: c_header.Function, given: dict[str, Argument], result: Any) -> None:
        """Updates the sets of live and released objects after a call."""
        made = []
        for parameter in function.parameters:
            cell = given[parameter.name].cell
            if cell is None or parameter.depth != 2 or parameter.base not in self.header.handles:
                continue
            for k in range(min(given[parameter.count].value, ROOM) if parameter.count else 1):
                made += self.objects.add(parameter.base, cell[k])
        if not any(argument.wrong == "kind" for argument in given.values()):
            keepers = [given[p.name].value for p in function.outlived_by() if self.header.is_handle(p)]
            for thing in made or [argument.value for argument in list(given.values())[:1]]:
                self.objects.needs(thing, keepers)
        released = c_objects.released_by(function)
        if released and not given[released].wrong:
            self.objects.forget(given[released].value)
        if function.name == "treadle_job_set_suspended" and not given["job"].wrong:
            self.library.treadle_job_set_suspended(given["job"].value, 0)  # otherwise the job's runs would wait for ever


def sweep(header: c_header.Header) -> list[tuple[str, dict[str, str]]]:
    """Calls every function without faults, and with each possible fault, one at a time."""
    types = Arguments(header, random.Random(0), {}, (), lambda kind: 0)
    cases: list[tuple[str, dict[str, str]]] = []
    for function in header.functions.values():
        cases += [(function.name, {})] * 2
        cases += [(function.name, {p.name: wrong}) for p in function.parameters for wrong in types.wrongs(p)]
        cases += [(function.name, {p.name: "null" for p in function.parameters if "null" in types.wrongs(p)})]
    return cases


def _random_case(sequence: Sequence) -> tuple[str, dict[str, str]]:
    function = sequence.random.choice(list(sequence.header.functions.values()))
    wrong = {}
    if sequence.random.random() < 0.4:
        for parameter in function.parameters:
            wrongs = sequence.arguments.wrongs(parameter)
            if wrongs and sequence.random.random() < 0.4:
                wrong[parameter.name] = sequence.random.choice(wrongs)
    return function.name, wrong


class Fuzzer:
    """Runs sequences in child processes."""

    def __init__(self, library: Path = LIBRARY) -> None:
        self.header = c_header.parse()
        self.library = load(self.header, library)
        self.calls: collections.Counter[str] = collections.Counter()
        self.successes: collections.Counter[str] = collections.Counter()
        self.failures: list[str] = []
        self.told = mmap.mmap(-1, 1 << 16)  # shared memory that contains the current call and the numbers of calls
        self.names = list(self.header.functions)

    def run(self, seed: int, cases: list[tuple[str, dict[str, str]]] | None = None, verbose: bool = False) -> int:
        """Runs one sequence, random or with these cases. Returns the number of calls that were made before a failure."""
        self.told[:] = bytes(len(self.told))
        folder = tempfile.mkdtemp(prefix="treadle-c-fuzz-")
        child = os.fork()
        if child == 0:
            os._exit(self.run_here(seed, cases, folder, verbose))
        _, status = os.waitpid(child, 0)
        shutil.rmtree(folder, ignore_errors=True)
        made = self.counts(0)
        self.calls.update(made)
        self.successes.update(self.counts(1))
        if status:
            how = (
                "did not end"
                if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM
                else f"signal {os.WTERMSIG(status)}"
                if os.WIFSIGNALED(status)
                else ""
            )
            text = self.told[:8192].split(b"\0")[0].decode("utf-8", "replace")
            self.failures.append(f"seed {seed}: {how} {text}")
        return sum(made.values())

    def count(self, name: str, table: int) -> None:
        """Counts a call in shared memory, which survives a crash. Table 0: all calls; 1: successful ones."""
        at = 8192 + 4 * (table * len(self.names) + self.names.index(name))
        self.told[at : at + 4] = (int.from_bytes(self.told[at : at + 4], sys.byteorder) + 1).to_bytes(4, sys.byteorder)

    def counts(self, table: int) -> dict[str, int]:
        with memoryview(self.told)[8192:].cast("I") as numbers:
            return {name: numbers[table * len(self.names) + k] for k, name in enumerate(self.names) if numbers[table * len(self.names) + k]}

    def run_here(self, seed: int, cases: list[tuple[str, dict[str, str]]] | None, folder: str, verbose: bool) -> int:
        faulthandler.disable()
        os.chdir(folder)
        os.environ["TREADLE_SHARING_DIR"] = folder
        resource.setrlimit(resource.RLIMIT_AS, (_LIMIT_BYTES, _LIMIT_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.alarm(SECONDS)

        def tell(text: str, name: str = "") -> None:
            if verbose:
                print(text, flush=True)
            data = text.encode()[:8000]
            self.told[: len(data) + 1] = data + b"\0"
            if name:
                self.count(name, 0)

        try:
            sequence = Sequence(self.header, self.library, seed, tell, lambda name: self.count(name, 1))
            for k in range(len(cases) if cases is not None else CALLS):
                name, wrong = cases[k] if cases is not None else _random_case(sequence)
                sequence.call(self.header.functions[name], wrong)
            tell("the end: all objects are released")
            sequence.objects.release_all()
        except Failure as failure:
            tell(f"{failure}, in {self.told[:8192].split(bytes(1))[0].decode('utf-8', 'replace')}")
            return 1
        return 0

    def find_leaks(self, times: int = 100) -> None:
        """Calls without memory for results must not make any: bytes that stay allocated are a failure."""
        makers = [f for f in self.header.functions.values() if f.parameters and f.parameters[-1].depth == 2 and not f.parameters[-1].count]
        cases = [(f.name, {f.parameters[-1].name: "null"}) for f in makers]

        def measure(sequence: Sequence) -> str:
            found = {}
            for name, wrong in cases:
                function = self.header.functions[name]
                given = {p.name: sequence.arguments.make(p, wrong.get(p.name, "")) for p in function.parameters}
                before = 0
                for k in range(2 * times):
                    if k == times:
                        before = _bytes_in_use()  # at this point everything has been allocated that is allocated only once
                    self.library.treadle_status_release(getattr(self.library, name)(*[argument.value for argument in given.values()]))
                if (left := _bytes_in_use() - before) >= 16 * times:
                    found[name] = left
            return repr(found)

        for name, left in ast.literal_eval(self.told_by(measure)).items():
            self.failures.append(f"{name} without room for its result leaves {left // times} bytes behind")

    def told_by(self, act: Any) -> str:
        """Runs the function in a child process, and returns its result."""
        reads, writes = os.pipe()
        folder = tempfile.mkdtemp(prefix="treadle-c-fuzz-")
        child = os.fork()
        if child == 0:
            os.chdir(folder)
            os.environ["TREADLE_SHARING_DIR"] = folder
            sequence = Sequence(self.header, self.library, 1, lambda *_: None, lambda _: None)
            os.write(writes, act(sequence).encode())
            os._exit(0)
        os.close(writes)
        with os.fdopen(reads) as answer:
            text = answer.read()
        os.waitpid(child, 0)
        shutil.rmtree(folder, ignore_errors=True)
        return text

    def run_sweep(self, seed: int) -> None:
        cases = sweep(self.header)
        while cases:
            done = self.run(seed, cases[:CALLS])
            cases = cases[min(done, CALLS) or CALLS :] if self.failures and "seed" in self.failures[-1] and done < CALLS else cases[CALLS:]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=100_000, help="calls, more or less")
    parser.add_argument("--library", type=Path, default=LIBRARY)
    parser.add_argument("--replay", type=int, help="the seed of one sequence, whose calls are printed")
    options = parser.parse_args()
    fuzzer = Fuzzer(options.library)
    if options.replay is not None:
        fuzzer.run(options.replay, verbose=True)
    else:
        fuzzer.run_sweep(options.seed)
        fuzzer.find_leaks()
        seed = options.seed
        while fuzzer.calls.total() < options.count:
            fuzzer.run(seed)
            seed += 1
    for failure in fuzzer.failures:
        print(failure)
    print(f"{fuzzer.calls.total()} calls of {len(fuzzer.calls)} functions, {fuzzer.successes.total()} succeeded, {len(fuzzer.failures)} failures")
    for what, counts in (("was not called", fuzzer.calls), ("never succeeded", fuzzer.successes)):
        print(*(f"{name} {what}" for name in fuzzer.header.functions if not counts[name] and options.replay is None), sep="\n")
    return 1 if fuzzer.failures else 0


if __name__ == "__main__":
    sys.exit(main())
