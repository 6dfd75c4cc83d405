"""Makes random sequences of calls of ONNX Runtime's C interface on two libraries, and compares codes, values, names and numbers.

    python interface_calls.py OURS THEIRS --seed 1 --count 100000      # prints differences without a known reason, and progress

A sequence is drawn as it runs, in a separate process, from the functions of one subject or from all. Arguments are drawn by type and name
(interface_arguments.py, interface_groups.py), handles from those that exist by then. Both libraries get the same calls as long as they answer the
same. Results of calls become arguments of later calls. Functions of kernels are called within a custom operator's kernel. If a process dies, the
report names the call that killed it.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import ctypes
import gc
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from ctypes import byref, c_char_p, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from pathlib import Path
from typing import Any

import interface_material as material
from interface_arguments import LOG, Argument, Arguments, Handle, bare
from interface_differences import DIES, LEFT_OUT, reason_for
from interface_groups import FITTING, GROUPS, plan
from interface_reading import described
from onnxruntime_c import PLACES, Api, StatusError, type_of
from test_onnxruntime_statuses import EnvironmentOptions

RESULTS = {"bool": ctypes.c_bool, "size_t": c_size_t, "int64_t": c_int64, "uint32_t": c_uint32, "uint64_t": c_uint64, "int32_t": c_int32, "const char*": c_char_p, "void": None}
MOST_BYTES = 4000  # longest text that a call's report keeps

# Subjects of sequences: patterns of functions' names. A name that matches several alternatives is drawn more often.
SUBJECTS: dict[str, str] = {
    "all": r".",
    "values": r"Value|Tensor|String|Allocator|MemoryInfo|TypeInfo|^Fill|^Get(Dimen|Symbol)|^Set(Dimen|Symbol)|^HasValue",
    "sparse": r"Sparse|Indices|^GetTypeInfo|^GetValueType|^GetTensor|^IsTensor|^ReleaseValue|StringTensor",
    "types": r"TypeInfo|TensorType|Dimension|Shape|Map|Sequence|Optional|OnnxType|ElementType|Denotation",
    "memory": r"MemoryInfo|Allocator|Arena|^Create(Tensor|Session)|^Run",
    "sessions": r"Session|Run|Initializer|FreeDim|Profiling|Metadata|Level|Threads|Prepacked|Cancel|Lora|Graph|Config",
    "bindings": r"Bind|Bound|^CreateTensor|^ReleaseValue|^CreateSession$|^Run$|^GetTensor",
    "editor": r"^editor|CreateOpAttr|ReadOpAttr|OpAttr|ValueInfo|^Create(Tensor|SessionFrom)|^Run$|^Release(Node|Graph|Model|Value)|^SetDimensions|^SetTensorElementType|^SetSymbolic",
    "graphs": r"^editor|Graph_|Node_|ValueInfo|OpAttr|^Create(Tensor)",
    "compiler": r"^compiler|^CreateSessionOptions|SessionGraphOpt|ConfigEntry|^Release",
    "devices": r"Device|Provider|KeyValue|Ep|Hardware|^CreateSession|Compatib|Assign",
    "environment": r"Env|Thread|Logg|Telemetry|Allocator|Arena|Global|^CreateSession$|^Run",
    "custom operators": r"CustomOp|^CreateSession|^Run|SessionOptions$|^RegisterCustom",
}
WEIGHTS = [(r"^(CreateSession|Run|RunAsync|RunWithBinding|CreateSessionFromModel|CompileModel)$", 5), (r"^CreateSessionFromArray$|^BindInput|^BindOutput", 3),
           (r"^(CreateNode|AddNodeToGraph|CreateValueInfo|SetGraphInputs|SetGraphOutputs|AddGraphToModel|CreateModel|CreateGraph)$", 4), (r"AppendExecutionProvider_|ProviderOptions", 0.2)]
KERNEL_CALLS = 6
HANDLES = re.compile(r"Ort\w+\[\d+\]")
FIRST = 100  # each sequence whose number is a multiple of this makes its own environment
OF_KERNELS = ("OrtKernelInfo", "OrtKernelContext", "OrtShapeInferContext")


class Function:
    def __init__(self, table: str, name: str, result: str, parameters: list[material.Parameter]) -> None:
        self.table, self.name, self.result, self.parameters = table, name, result, parameters
        self.full = name if table == "main" else f"{table} {name}"
        self.plan = plan(name, parameters)
        self.fitting = plan(name, parameters, FITTING + GROUPS) if any(re.search(pattern, name) for pattern, _, _ in FITTING) else None
        self.deadly = [pattern for of, pattern, _ in DIES if re.search(of, self.full)]
        is_status = result == "OrtStatus*" and name != "CreateStatus"
        is_pointer = is_status or result.endswith(("*", "Ptr"))
        self.is_status, self.result_type = is_status, RESULTS.get(result, c_void_p if is_pointer else c_int)
        self.weight = next((weight for pattern, weight in WEIGHTS if re.search(pattern, name)), 1.0)
        self.kernel = next((bare(kind)[:-1] for kind, _ in parameters if bare(kind)[:-1] in OF_KERNELS), None)


FUNCTIONS = [Function(*each) for each in material.functions()]
CALLED = [each for each in FUNCTIONS if not any(re.search(pattern, each.full) for pattern in LEFT_OUT)]
OF_SUBJECT = {subject: [each for each in CALLED if not each.kernel and re.search(pattern, each.full)] for subject, pattern in SUBJECTS.items()}
OF_KERNEL = {kind: [each for each in CALLED if each.kernel == kind] for kind in OF_KERNELS}


class Library:
    """One of the two libraries, with the handles that each sequence starts with."""

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)
        self.prototypes: dict[str, Any] = {}

    def prepare(self, make_env: Callable[[Api], c_void_p] | None = None) -> None:
        self.machine: Machine | None = None
        self.api = Api(self.path, version=32, make_env=make_env)
        self.probe = material.Probe(self.api, lambda kind, handle: self.machine.look(kind, handle) if self.machine else None)
        self.start = material.starting(self.api, self.probe)
        self.tables = {"main": self.api.table}
        for kind, getter in (("editor", "GetModelEditorApi"), ("compiler", "GetCompileApi")):
            count = sum(each.table == kind for each in FUNCTIONS)
            self.tables[kind] = (c_void_p * count).from_address(self.api.call(getter, result=c_void_p))
        places = collections.Counter()
        for each in FUNCTIONS:
            place = PLACES[each.name] if each.table == "main" else places[each.table]
            places[each.table] += 1
            self.prototypes[each.full] = self.tables[each.table][place]


def environment(api: Api, draw: Any, tell: Callable[[Any], None]) -> c_void_p:
    """Creates the first environment of a process, in a random way."""
    how = draw.choice(["plain", "pools", "logger", "logger and pools", "options"])
    log, level = LOG(lambda *_: None), draw.choice([4, 4, 3, 2])
    threads = api.made("CreateThreadingOptions")
    said: list[Any] = [how, level]
    for name in ("SetGlobalIntraOpNumThreads", "SetGlobalInterOpNumThreads"):
        said.append(draw.choice([0, 1, 2]))
        api.call(name, threads, said[-1])
    if draw.random() < 0.2:
        said.append(draw.choice(material.TEXTS["affinity_string"]).decode()[:20])
        try:
            api.call("SetGlobalIntraOpThreadAffinity", threads, said[-1].encode())
        except StatusError as error:
            said.append(error.code)
    KEPT.append(log)
    calls: dict[str, Callable[[], c_void_p]] = {
        "plain": lambda: api.made("CreateEnv", level, b"test"),
        "pools": lambda: api.made("CreateEnvWithGlobalThreadPools", level, b"test", threads),
        "logger": lambda: api.made("CreateEnvWithCustomLogger", log, c_void_p(), level, b"test"),
        "logger and pools": lambda: api.made("CreateEnvWithCustomLoggerAndGlobalThreadPools", log, c_void_p(), level, b"test", threads),
        "options": lambda: api.made("CreateEnvWithOptions", byref(EnvironmentOptions(32, level, b"test", None, None, threads.value if draw.random() < 0.5 else None, None))),
    }
    tell(["call", "the environment", said])
    try:
        made = calls[how]()
    except StatusError as error:
        tell(["gave", ["failed", error.code, error.message[:600]]])
        return api.made("CreateEnv", level, b"test")
    tell(["gave", ["ok"]])
    return made


KEPT: list[Any] = []


class Machine:
    """Executes a sequence, and reports what the calls return."""

    def __init__(self, library: Library, draw: random.Random, tell: Callable[[Any], None]) -> None:
        self.library, self.api, self.draw, self.tell = library, library.api, draw, tell
        self.handles: dict[str, list[Handle]] = collections.defaultdict(list)
        self.counts: collections.Counter = collections.Counter()
        self.kept: list[Any] = []  # keeps arguments of calls alive
        self.looked: set[str] = set()
        self.seed = draw.random()
        for kind, pointers in library.start.items():
            for pointer in pointers:
                # True for objects that all sequences share.
                is_apis = kind in ("OrtEnv", "OrtAllocator", "OrtCustomOpDomain") or pointer is self.api.memory
                self.add(kind, pointer.value or 0, keep=is_apis)
        library.machine = self

    def add(self, kind: str, pointer: int, parents: tuple[Handle, ...] = (), owned: bool = True, keep: bool = False) -> str:
        handle = Handle(kind, self.counts[kind], pointer, parents, owned, keep)
        self.counts[kind] += 1
        self.handles[kind].append(handle)
        return handle.name

    def forget(self, handle: Handle) -> None:
        """Forgets a handle and all handles that belong to it."""
        gone = {id(handle)}
        while True:
            more = {id(each) for all_of in self.handles.values() for each in all_of if any(id(parent) in gone for parent in each.parents)} - gone
            if not more:
                break
            gone |= more
        for kind, all_of in self.handles.items():
            self.handles[kind] = [each for each in all_of if id(each) not in gone]

    def make(self, function: Function, fixed: Handle | None = None) -> None:
        arguments = Arguments(self, function, fixed).drawn()
        if arguments is None:
            return
        said = [argument.said for argument in arguments]
        if function.deadly and any(re.search(pattern, json.dumps(said)) for pattern in function.deadly):
            return
        self.tell(["call", function.full, said])
        self.tell(["gave", self._outcome(function, arguments)])

    def _outcome(self, function: Function, arguments: list[Argument]) -> Any:
        is_status = function.is_status
        prototype = ctypes.CFUNCTYPE(function.result_type, *[type_of(a.value) for a in arguments])
        result = prototype(self.library.prototypes[function.full])(*[a.value for a in arguments])
        if is_status:
            try:
                self.api.check(result)
            except StatusError as error:
                return ["failed", error.code, error.message[:600]]
        given: list[Any] = []
        parents = tuple(argument.handle for argument in arguments if argument.handle and argument.handle.kind != "OrtEnv")
        if not is_status and function.result != "void":
            given.append(self._result(function, result, parents))
        for argument in arguments:
            if argument.read:
                with contextlib.suppress(StatusError):
                    given.append(argument.read(parents))
        for argument in arguments:
            if argument.after:
                argument.after()
        return ["ok", *given]

    def _result(self, function: Function, result: Any, parents: tuple[Handle, ...]) -> Any:
        if isinstance(result, bytes):
            return result.decode(errors="replace")
        if function.result.endswith("*"):
            kind = bare(function.result)[:-1]
            if not result:
                return None
            name = self.add(kind, result, parents, owned=False) if kind.startswith("Ort") and function.name != "CreateStatus" else kind
            if function.name == "CreateStatus":
                name = ["a status", self.api.call("GetErrorCode", c_void_p(result), result=c_int), self.api.call("GetErrorMessage", c_void_p(result), result=c_char_p).decode()]
            return [name, described(self.api, kind, c_void_p(result))]
        return bool(result) if function.result.endswith("Ptr") else result

    def look(self, kind: str, pointer: int) -> None:
        """Draws calls within a custom operator, the first time that its kernel gets a handle of this kind."""
        if kind in self.looked:
            return
        self.looked.add(kind)
        outside, self.draw = self.draw, random.Random(f"{self.seed} {kind}")
        handle = Handle(kind, 0, pointer, (), False, True)
        before = {each: list(all_of) for each, all_of in self.handles.items()}
        self.handles[kind] = [handle]
        for _ in range(KERNEL_CALLS):
            self.make(self.draw.choice(OF_KERNEL[kind]), handle)
        before["OrtOp"] = self.handles["OrtOp"]
        self.handles = collections.defaultdict(list, before)  # handles that a kernel gets are only valid during its call
        self.draw = outside

    def sequence(self, length: int, subject: str) -> None:
        functions = OF_SUBJECT[subject]
        for function in self.draw.choices(functions, [each.weight for each in functions], k=length):
            self.make(function)


def apart(body: Callable[[Callable[[Any], None]], None], folder: str) -> list:
    """Runs a sequence in a child process, which may die, and returns its report."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(20)
            os.chdir(folder)
            quiet = os.open(os.devnull, os.O_WRONLY)
            os.dup2(quiet, 1), os.dup2(quiet, 2)

            def tell(said: Any) -> None:
                os.write(writer, json.dumps(said, default=str)[:MOST_BYTES].encode() + b"\n")

            try:
                body(tell)
            except BaseException as error:  # noqa: BLE001
                import traceback

                tell(["error", f"{type(error).__name__}: {error}", traceback.format_exc()[-800:]])
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        said = [line.decode(errors="replace") for line in file.read().splitlines()]
    _, status = os.waitpid(child, 0)
    return [*said, f'["died", {status & 0x7F}]'] if status & 0x7F else said


class Folder:
    """A folder with the files that sequences read. Files that they write are removed."""

    def __init__(self) -> None:
        self.path = tempfile.mkdtemp(prefix="interface_calls_", dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
        material.write_files(self.path)
        self.own: dict[str, bytes | None] = {}  # contents of the files that the sequence made; None for a folder
        for name in os.listdir(self.path):
            path = os.path.join(self.path, name)
            self.own[name] = None if os.path.isdir(path) else Path(path).read_bytes()
        self.written = self._times()

    def _times(self) -> dict[str, int]:
        return {each.name: each.stat().st_mtime_ns for each in os.scandir(self.path) if self.own.get(each.name) is not None}

    def new_files(self) -> list[str]:
        """Returns the names of new files, with numbers replaced, and of files that were overwritten; removes or restores these."""
        made = []
        for name in sorted(set(os.listdir(self.path)) - self.own.keys()):
            path = os.path.join(self.path, name)
            shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)
            made.append(re.sub(r"\d+", "0", name))
        for inner in os.listdir(os.path.join(self.path, "folder")):
            os.remove(os.path.join(self.path, "folder", inner))
            made.append(f"folder/{inner}")
        if (now := self._times()) != self.written:
            for name in self.own.keys() - {"folder"}:
                if now.get(name) != self.written[name]:
                    Path(self.path, name).write_bytes(self.own[name] or b"")
                    made.append(f"{name} written over")
            self.written = self._times()
        return made


def told_by(library: Library, seed: int, number: int, length: int, folder: Folder, subject: str | None, is_first: bool = False) -> list:
    """Returns the report of a sequence. `is_first`: the sequence makes the process's first environment, in one of several ways."""
    draw = random.Random(f"{seed} {number}")
    drawn = draw.choice(list(SUBJECTS))

    def body(tell: Callable[[Any], None]) -> None:
        gc.disable()
        if is_first:
            library.prepare(lambda api: environment(api, draw, tell))
        machine = Machine(library, draw, tell)
        machine.sequence(length, subject or drawn)

    said = apart(body, folder.path)
    return [*said, json.dumps(["files", sorted(set(folder.new_files()))])]


Difference = tuple[str, Any, Any, Any]  # tuple of function, arguments, Treadle's answer and onnxruntime's answer


def differences(ours: list[str], theirs: list[str]) -> Iterator[Difference]:
    """Yields differences, as long as both sequences are comparable."""
    function, said = "", None
    outer: list[tuple[str, Any]] = []  # calls that have not ended: a custom operator makes calls within a call
    died = '["died"'
    for have, want in zip(ours, theirs):
        if have.startswith('["call"') or want.startswith('["call"'):
            if have != want:
                if outer and '["gave"' in (have[:7], want[:7]):
                    function, said = outer[-1]  # only one of the libraries ends this call
                if want.startswith('["gave"'):
                    yield function, said, ["ok", "calls of a kernel"], json.loads(want)[1]
                elif have.startswith('["gave"'):
                    yield function, said, json.loads(have)[1], ["ok", "calls of a kernel"]
                elif not want.startswith(died):
                    yield function if have.startswith(died) else "the sequence", said, have, want
                return
            try:
                _, function, said = json.loads(have)
            except ValueError:
                function, said = have.split('"')[3], have
            outer.append((function, said))
            continue
        if outer and have.startswith('["gave"'):
            function, said = outer.pop()
        if have.startswith('["error"') and want.startswith('["error"'):
            if "StatusError" not in want and "MemoryError" not in want:  # an argument could not be reported
                yield "the test", said, have, want
            return
        if want.startswith(died):
            return  # answers after this one cannot be compared
        if have.startswith(died):
            yield function, said, have, want
            return
        if have != want:
            try:
                a, b = json.loads(have)[1], json.loads(want)[1]
            except ValueError:
                a, b = have, want
            if a[:2] == ["failed", b[1]] if isinstance(a, list) and isinstance(b, list) and a and b and b[0] == "failed" else a == b:
                continue  # only the messages differ
            yield function, said, a, b
            if HANDLES.findall(have) != HANDLES.findall(want):
                return  # the libraries have different handles from here on
            if isinstance(a, list) and isinstance(b, list) and a and b and a[0] != b[0]:
                return  # one library has one handle more


class Report:
    def __init__(self) -> None:
        self.sequences = self.calls = self.unexplained = 0
        self.explained: collections.Counter = collections.Counter()
        self.succeeded: collections.Counter = collections.Counter()
        self.failed: collections.Counter = collections.Counter()
        self.deaths: collections.Counter = collections.Counter()

    def add(self, number: int, ours: list, theirs: list) -> list[str]:
        self.sequences += 1
        function = ""
        for line in theirs:
            if line.startswith('["call"'):
                self.calls += 1
                function = line.split('"')[3]
            elif line.startswith('["gave", ["ok"'):
                self.succeeded[function] += 1
            elif line.startswith('["gave", ["failed"'):
                self.failed[function] += 1
            elif line.startswith('["died"'):
                self.deaths[function] += 1
        texts = []
        for found in differences(ours, theirs):
            if reason := reason_for(*found):
                self.explained[f"{found[0]}: {reason}"] += 1
            else:
                self.unexplained += 1
                texts.append(f"{number}: {found[0]}{json.dumps(found[1])[:400]}\n    have {json.dumps(found[2])[:400]}\n    want {json.dumps(found[3])[:400]}")
        return texts


def compare(paths: tuple[str, str], seed: int, numbers: range, length: int, subject: str | None = None) -> Iterator[tuple[int, list, list]]:
    libraries = [Library(path) for path in paths]
    folder = Folder()
    try:
        # onnxruntime has one environment in a process. Sequences that create the environment in other ways run first, each in a process of
        # its own.
        for number in (each for each in numbers if each % FIRST == 0):
            yield (number, *[told_by(library, seed, number, length, folder, subject, is_first=True) for library in libraries])
        for library in libraries:
            library.prepare()
        gc.collect()
        gc.freeze()  # without this, garbage collections would copy the pages of each forked process
        for number in (each for each in numbers if each % FIRST != 0):
            yield (number, *[told_by(library, seed, number, length, folder, subject) for library in libraries])
    finally:
        shutil.rmtree(folder.path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ours")
    parser.add_argument("theirs")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--length", type=int, default=16)
    parser.add_argument("--subject", choices=list(SUBJECTS))
    parser.add_argument("--coverage", action="store_true", help="how often each function succeeded and failed")
    parser.add_argument("--show", action="store_true", help="the sequences")
    arguments = parser.parse_args()
    report, start = Report(), time.perf_counter()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # an interrupted campaign still reports how far it came
    with contextlib.suppress(KeyboardInterrupt):
        for number, ours, theirs in compare((arguments.ours, arguments.theirs), arguments.seed, range(arguments.first, arguments.first + arguments.count), arguments.length, arguments.subject):
            if arguments.show:
                print(*ours, "---", *theirs, sep="\n")
            for text in report.add(number, ours, theirs):
                print(text, flush=True)
    print(f"{report.sequences} sequences, {report.calls} calls, {report.unexplained} differences without a reason, {time.perf_counter() - start:.0f} s")
    print("with a reason:", *[f"  {count} {what}" for what, count in report.explained.most_common()], sep="\n")
    print("ended onnxruntime's process:", dict(report.deaths.most_common()))
    if arguments.coverage:
        for each in CALLED:
            print(f"  {each.full}: {report.succeeded[each.full]} / {report.failed[each.full]}")
    sys.exit(report.unexplained > 0)


if __name__ == "__main__":
    main()
