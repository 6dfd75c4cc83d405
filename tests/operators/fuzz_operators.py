#!/usr/bin/env python3
"""Fuzzes operators: draws random cases of every operator, and compares Treadle's results with those of onnxruntime and ONNX's reference.

    tests/operators/fuzz_operators.py [--cases 10000] [--seed 0] [--ops Gather,Slice] [--vary] [--bad] [--shrink] [--reference 4]

A case is a node of a random opset, with operands and attributes that its maker draws (the files *_makers.py in this folder). Treadle must agree
with both judges. The reference is slow, so of the cases on which onnxruntime agrees it is asked about only one in four (--reference). If Treadle
agrees with one judge only, disagreements.py must say which judge is right and why; if it agrees with none, Treadle is wrong. Models declare all
extents of an operand, symbols, only the rank, or nothing, and are optimised or not.

With `--vary`, cases are changed within the operators' contracts (varying.py): some stay valid and some do not, and Treadle must accept the same
ones as the judges. With `--bad`, attributes, indices and shapes become invalid (breaking.py): such a case may end in an error or in a value, but
never in the death of the process.

Cases run in child processes. If a child dies, the case that killed it is printed.
"""

from __future__ import annotations

import argparse
import collections
import functools
import multiprocessing
import re
import resource
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from onnx import defs

import classical_makers
import contrib_makers
import control_makers
import elementwise_makers
import movement_makers
import neural_makers
import sequence_makers
from breaking import broken
from contract import contracts
from disagreements import REFUSED, TAKEN, heard, is_float8, meant
from draft import Case, Choices, Draft, Rejected
from judges import Result, all_same, can_widen, explained_by_rounding, no_kernel, only_cut, onnxruntime_run, reference_run, same_as_either, same_distributions, treadle_run
from varying import varied

TRAINING = "ai.onnx.preview.training"
MAKERS = {
    **{("", op): make for makers in (elementwise_makers, movement_makers, neural_makers, sequence_makers, control_makers) for op, make in makers.MAKERS.items()},
    **{("ai.onnx.ml", op): make for op, make in classical_makers.MAKERS.items()},
    **{(TRAINING, op): make for op, make in sequence_makers.TRAINING_MAKERS.items()},
    **{(contrib_makers.DOMAIN, op): contrib_makers.make_case for op in contrib_makers.NAMES},
}
NEWEST = {"": defs.onnx_opset_version(), "ai.onnx.ml": 5, TRAINING: 1, contrib_makers.DOMAIN: 1}
BATCH = 12
reference_every = 4
MEMORY_LIMIT = 4 << 30  # limit of the address space of a child in bytes, except in plain mode
# Errors that say that a judge has no kernel. They do not count as disagreements.
_MISSING = ("not known to onnxruntime", "NOT_IMPLEMENTED", "INVALID_GRAPH", "Type Error", "No Op registered", "not implemented", "ImplementationError")
# Treadle's errors for a dtype that the operator does not support.
_LACKING = re.compile(r"no kernel|not implemented|no implementation for|; allowed: ")


@dataclass
class Finding:
    """A case on which Treadle and the judges do not agree, or that killed a process."""

    verdict: str  # "wrong", "disputed", "refused", "accepted", "lacking" or "crashed"
    case: Case
    text: str


@dataclass
class Tally:
    """Counts verdicts and operators of many cases, and collects findings."""

    verdicts: collections.Counter = field(default_factory=collections.Counter)
    findings: list[Finding] = field(default_factory=list)
    ops: collections.Counter = field(default_factory=collections.Counter)

    def merge(self, other: Tally) -> None:
        self.verdicts += other.verdicts
        self.ops += other.ops
        self.findings += other.findings


def make_case(op: str, domain: str, opset: int, seed: int, replay: Sequence[int] | None = None, mode: str = "plain") -> Case | None:
    """Makes the case of a seed, or of recorded choices. None if the choices make no valid case."""
    choices = Choices(seed, replay)
    try:
        if domain == contrib_makers.DOMAIN:
            case = contrib_makers.make_case(op, choices)
        else:
            draft = Draft(defs.get_schema(op, opset, domain), choices, opset)
            MAKERS[domain, op](draft)
            case = draft.finish(opset)
    except Rejected:
        return None
    case.seed = seed
    if mode == "bad":
        return broken(case, choices)
    if mode == "vary" and case.compared is None and not case.captured:
        varied(case, choices, contracts()[domain, op])
    case.choices = list(choices.made)
    return case


@functools.lru_cache
def names_of(domain: str, opset: int, chosen: frozenset[str]) -> list[str]:
    """Returns the operators of an opset that have a maker."""

    def known(op: str) -> bool:
        return domain == contrib_makers.DOMAIN or (defs.has(op, opset, domain) and not defs.get_schema(op, opset, domain).deprecated)

    return [op for maker_domain, op in sorted(MAKERS) if maker_domain == domain and (not chosen or op in chosen) and known(op)]


@functools.lru_cache
def choices_of_domain(chosen: frozenset[str]) -> list[str]:
    return [domain for domain, op in sorted(MAKERS) if not chosen or op in chosen]


def batch_of(seed: int, chosen: frozenset[str], mode: str) -> list[Case]:
    """Draws the cases of a batch: all of one opset, which is the newest one in half of the batches, and all optimised or none."""
    choices = Choices(seed)
    # A domain is chosen with a probability that is proportional to its number of operators with makers.
    domain = choices_of_domain(chosen)[choices.below(len(choices_of_domain(chosen)))]
    newest = NEWEST[domain]
    opset = newest if choices.below(2) else 1 + choices.below(newest)
    names = names_of(domain, opset, chosen)
    cases = []
    for i in range(BATCH if names else 0):
        case = make_case(names[choices.below(len(names))], domain, opset, seed * 1000 + i, mode=mode)
        if case is not None:
            case.optimised = seed % 3 != 0
            cases.append(case)
    return cases


def missing(result: Result) -> bool:
    return any(text in result.error for text in _MISSING)


def is_bytes(value) -> bool:
    return isinstance(value, np.ndarray) and value.dtype == np.uint8


def compared(case: Case, ours: list, theirs: list, judge_name: str) -> str:
    if case.is_random:
        return same_distributions(ours, theirs)
    if case.compared is not None:
        try:
            ours, theirs = case.compared(ours), case.compared(theirs)
        except (AssertionError, IndexError) as error:
            return f"not the shapes of the operator's definition {error}"
    if judge_name == "onnxruntime":  # onnxruntime's Python binding returns 8-bit floats as bytes
        ours = [a.view(np.uint8) if is_float8(a) and is_bytes(b) else a for a, b in zip(ours, theirs)]
    return all_same(ours, theirs, case.tolerance, any_float=judge_name == "reference", steps=case.steps)


def judge(case: Case, ours: Result, theirs: Result) -> tuple[str, str]:
    """Returns the verdict on a case, and the reason. The reference takes longest: of the cases on which onnxruntime agrees, it is asked about
    only one in `reference_every`."""
    agree = ours.outputs is not None and theirs.outputs is not None and not compared(case, ours.outputs, theirs.outputs, "onnxruntime")
    if agree and case.seed % reference_every != 0:
        return "same", ""
    if case.changes and ours.outputs is None and theirs.outputs is None:
        return "error everywhere", ""
    reference = reference_run(case)
    judges = {"onnxruntime": theirs, "reference": reference}
    given = {name: r.outputs for name, r in judges.items() if r.outputs is not None}
    if ours.outputs is None:
        if not given:
            return "error everywhere", ""
        if meant(case, REFUSED, ours.error):
            return "meant", ""
        return ("lacking" if _LACKING.search(ours.error) else "refused"), f"{', '.join(given)} ran it: {ours.error}"
    if not given:
        why = "; ".join(f"{name}: {r.error[:200]}" for name, r in judges.items())
        refusing = [name for name, r in judges.items() if not missing(r) and heard(case, name)]
        asked = ["onnxruntime"] if case.domain == contrib_makers.DOMAIN else list(judges)  # the reference has no operators of this domain
        if not all(name in refusing for name in asked):
            return "unjudged", why
        return ("meant" if meant(case, TAKEN, judges["onnxruntime"].error) else "accepted"), why
    # The reference may return floats of another width than the outputs declare.
    against = {name: compared(case, ours.outputs, outputs, name) for name, outputs in given.items()}
    if against.get("onnxruntime") and only_cut(case, ours.outputs, given["onnxruntime"]):
        against["onnxruntime"] = ""
    if any(against.values()) and can_widen(case):
        wide = reference_run(case, widen=True)
        if wide.outputs is not None and not all_same(ours.outputs, wide.outputs, case.tolerance, any_float=True):
            return "same", "in more bits"
        narrow = next(outputs for name, outputs in given.items() if against[name])
        if wide.outputs is not None and same_as_either(ours.outputs, narrow, wide.outputs, case.tolerance):
            return "same", "in more bits, or in as many"
        if wide.outputs is not None and case.tolerance > 1 and explained_by_rounding(case, ours.outputs, wide.outputs):
            return "same", "within what rounding of the operands does"
    # A single sample that deviates may be chance; wrong numbers would deviate from both judges.
    if case.is_random and not all(against.values()):
        against = {name: "" if text.endswith("apart") else text for name, text in against.items()}
    differing = "; ".join(f"{name}: {text}" for name, text in against.items() if text and heard(case, name))
    if not differing:
        return ("justified" if any(against.values()) else "same"), ""
    return ("disputed" if not all(against.values()) else "wrong"), differing


def run_batch(cases: Sequence[Case], mode: str) -> Tally:
    tally = Tally()
    if not cases:
        return tally
    if mode == "bad":  # in this mode, only the death of the process is a failure
        tally.verdicts.update("error" if treadle_run([case])[0].outputs is None else "value" for case in cases)
        return tally
    together = [cases] if mode == "plain" else [[case] for case in cases]  # a refused case makes its whole batch run again
    mine = [result for some in together for result in treadle_run(some)]
    theirs = [result for some in together for result in onnxruntime_run(some)]
    for case, ours, other in zip(cases, mine, theirs):
        verdict, text = judge(case, ours, other)
        tally.verdicts[verdict] += 1
        tally.ops[case.op] += 1
        if verdict in ("wrong", "disputed", "refused", "accepted", "lacking"):
            case.compared = None  # a function cannot be sent through a pipe
            tally.findings.append(Finding(verdict, case, text))
    return tally


def worker(seeds: Iterable[int], chosen: frozenset[str], mode: str, results, until: float) -> None:
    """Runs batches. Sends the seed of each batch before it begins, so that the parent knows which batch killed the child."""
    if mode != "plain":
        limit_memory()
    for seed in seeds:
        if time.time() > until:
            break
        results.send(("begin", seed))
        try:
            known = set(no_kernel)
            results.send(("done", (run_batch(batch_of(seed, chosen, mode), mode), no_kernel - known)))
        except Exception:
            results.send(("broken", f"batch {seed}\n{traceback.format_exc()}"))
    results.send(("end", None))


def limit_memory() -> None:
    """Limits the memory of this process: invalid extents may need gigabytes, which must end in an error."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))


def dies(run: Callable[[Sequence[Case]], list[Result]], cases: Sequence[Case]) -> str:
    """Runs the cases in a child, and says how the child died; an empty string if it lived."""

    def limited() -> None:
        limit_memory()
        run(cases)

    child = multiprocessing.get_context("fork").Process(target=limited)
    child.start()
    child.join(60)
    if child.is_alive():
        child.kill()
        return "did not end within 60 s"
    return f"exit status {child.exitcode}" if child.exitcode else ""


def crash_of(seed: int, chosen: frozenset[str], mode: str) -> list[Finding]:
    """Returns the cases of a batch with which Treadle kills a process, alone or, failing that, together. Empty if a judge died."""
    cases = batch_of(seed, chosen, mode)
    found = [Finding("crashed", case, how) for case in cases if (how := dies(treadle_run, [case]))]
    if not found and mode == "plain" and (how := dies(treadle_run, cases)):
        found.append(Finding("crashed", cases[0], f"the whole batch {seed}: {how}"))
    return found


def fuzz(seeds: range, chosen: frozenset[str] = frozenset(), mode: str = "plain", seconds: float = 1e9) -> Tally:
    """Runs the batches of these seeds in a child. If it dies, a new child continues with the next batch."""
    tally, done, until = Tally(), seeds.start, time.time() + seconds
    context = multiprocessing.get_context("fork")
    while done < seeds.stop and time.time() < until:
        receiver, sender = context.Pipe(False)
        child = context.Process(target=worker, args=(range(done, seeds.stop), chosen, mode, sender, until))
        child.start()
        sender.close()
        ended = False
        try:
            while not ended:
                if not receiver.poll(60):
                    child.kill()
                kind, value = receiver.recv()
                if kind == "begin":
                    done = value
                elif kind == "done":
                    tally.merge(value[0])
                    no_kernel.update(value[1])
                elif kind == "broken":
                    tally.verdicts["fuzzer broken"] += 1
                    print(value, file=sys.stderr)
                else:
                    ended = True
        except EOFError:
            print(f"batch {done} ended its process", file=sys.stderr)
            found = crash_of(done, chosen, mode)
            tally.verdicts["crashed" if found else "a judge died"] += max(1, len(found))
            tally.findings += found
            done += 1
        child.join()
        if ended:
            break
    return tally


def verdict_of(case: Case) -> tuple[str, str]:
    return judge(case, treadle_run([case])[0], onnxruntime_run([case])[0])


def shrunk(finding: Finding, mode: str = "plain") -> Finding:
    """Finds the same verdict with smaller choices: tries each choice at 0, halved, and one less."""
    best, choices = finding, list(finding.case.choices)
    improved = True
    while improved:
        improved = False
        for i in range(len(choices)):
            for smaller in dict.fromkeys((0, choices[i] // 2, choices[i] - 1)):
                if not 0 <= smaller < choices[i]:
                    continue
                attempt = [*choices[:i], smaller, *choices[i + 1 :]]
                case = make_case(best.case.op, best.case.domain, best.case.opset, finding.case.seed, attempt, mode)
                if case is None:
                    continue
                case.optimised = finding.case.optimised
                verdict, text = verdict_of(case)
                if verdict == finding.verdict:
                    best, choices, improved = Finding(verdict, case, text), case.choices, True
                    break
            if i >= len(choices) - 1:
                break
    return best


def report(tally: Tally, shrink: bool, per_group: int, mode: str) -> None:
    groups = collections.defaultdict(list)
    for finding in tally.findings:
        groups[finding.verdict, finding.case.op].append(finding)
    for (verdict, op), found in sorted(groups.items()):
        print(f"\n{verdict} {op}: {len(found)}")
        for finding in found[:per_group]:
            best = shrunk(finding, mode) if shrink and verdict != "crashed" else finding
            print(f"  {best.case} seed {finding.case.seed}\n    {best.text}")
            if sum(x.size for x in best.case.arrays()) <= 24:
                print("    " + "; ".join(str(x.tolist()) for x in best.case.arrays()))
    print(f"\n{sum(tally.verdicts.values())} cases of {len(tally.ops)} operators: " + ", ".join(f"{v} {k}" for k, v in tally.verdicts.most_common()))


def main() -> int:
    global reference_every
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=10000)
    parser.add_argument("--seed", type=int, default=0, help="of the first batch")
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--ops", default="", help="only these operators, separated by commas")
    parser.add_argument("--vary", action="store_const", dest="mode", const="vary", default="plain", help="cases changed within the operators' contracts")
    parser.add_argument("--bad", action="store_const", dest="mode", const="bad", help="broken cases: the process has to survive them")
    parser.add_argument("--shrink", action="store_true", help="show failing cases in their smallest form")
    parser.add_argument("--show", type=int, default=2, help="cases shown of each operator and verdict")
    parser.add_argument("--reference", type=int, default=reference_every, metavar="N", help="ask the reference about one in N of the cases on which onnxruntime agrees")
    options = parser.parse_args()
    reference_every = options.reference
    chosen = frozenset(options.ops.split(",")) - {""}
    started = time.time()
    tally = fuzz(range(options.seed, options.seed + -(-options.cases // BATCH)), chosen, options.mode, options.seconds)
    report(tally, options.shrink, options.show, options.mode)
    print(f"{time.time() - started:.0f} s")
    return 1 if any(f.verdict in ("wrong", "disputed", "refused", "accepted", "crashed") for f in tally.findings) else 0


if __name__ == "__main__":
    sys.exit(main())
