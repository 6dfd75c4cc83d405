#!/usr/bin/env python3
"""Fuzzes gradient rules: draws random cases of every operator that has a maker, and compares their gradients with finite differences in float64
and, for operators that PyTorch has too, with PyTorch's gradients.

    tests/operators/fuzz_gradients.py [--batches 1000] [--seed 0] [--ops Gather,Slice] [--seconds 600]

A case is a node with operands and attributes that the operator fuzzer's makers draw; all floats are float64. The gradients are those of a
weighted sum of the node's outputs, with random weights. For every float operand, the derivative along a random direction must equal the central
difference. If differences with two steps disagree, the point is a kink or a pole, and is counted but not judged. Half of the cases have a second
node in float32, float16 or bfloat16, whose gradients may differ from those in float64 only by rounding. All cases of a batch have the same opset
and are computed by one joint graph.
"""

from __future__ import annotations

import argparse
import collections
import functools
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np
import treadle

import torch_gradients
from draft import Case, Choices
from gradient_cases import LIMIT, NEWEST, eps, make_case, name_of, operands, operators, settle
from judges import treadle_run
from gradient_models import JointGraph, Trial, nudged, plan, read_gradients

BATCH = 16
ERRORS = (treadle.Error, ValueError)
RANDOM = {"Dropout"}  # operators whose results differ from run to run


@dataclass
class Tally:
    verdicts: collections.Counter = field(default_factory=collections.Counter)
    ops: dict[str, collections.Counter] = field(default_factory=lambda: collections.defaultdict(collections.Counter))
    findings: list[str] = field(default_factory=list)
    shows: bool = False  # true if findings are printed as soon as they are made
    shown: tuple[str, ...] = ("wrong",)

    def count(self, case: Case, verdict: str) -> None:
        self.verdicts[verdict] += 1
        self.ops[name_of(case)][verdict] += 1

    def add(self, case: Case, verdict: str, text: str = "") -> None:
        self.count(case, verdict)
        if verdict in ("wrong", "refused"):
            self.findings.append(f"{verdict}: {case} seed {case.seed}\n    {text[:600]}")
            if self.shows and verdict in self.shown:
                print(self.findings[-1], flush=True)


@functools.lru_cache
def names_of(opset: int, chosen: frozenset[str]) -> list[str]:
    return [op for op in operators(opset) if not chosen or op in chosen]


def batch_of(seed: int, chosen: frozenset[str]) -> list[Trial]:
    """Draws the trials of a batch, all of one opset, which is the newest one in two thirds of the batches."""
    choices = Choices(seed)
    opset = NEWEST[""] if choices.below(3) else 7 + choices.below(NEWEST[""] - 6)
    names, trials = names_of(opset, chosen), []
    for i in range(BATCH if names else 0):
        case = make_case(names[choices.below(len(names))], opset, seed * 1000 + i)
        if case is None or any(value.size == 0 and value.dtype.kind == "f" for _, _, value in operands(case)):
            continue
        trial = plan(case, i, choices)
        if trial.wanted and sum(value.size for name, _, value in operands(case) if name in trial.wanted) <= LIMIT:
            settle(case, trial.narrow)
            trials.append(trial)
    return trials


def judge(trials: Sequence[Trial], tally: Tally) -> None:
    """Judges all trials by one graph. If the graph fails, judges its two halves separately."""
    if not trials:
        return
    try:
        graph = JointGraph(trials)
        read_gradients(graph, graph.differentiate())
    except ERRORS as error:
        if len(trials) > 1:
            middle = len(trials) // 2
            judge(trials[:middle], tally)
            judge(trials[middle:], tally)
        else:
            judge_failure(trials[0], error, tally)
        return
    verdicts = by_differences(graph)
    for n, trial in enumerate(trials):
        if trial.case.op in RANDOM and verdicts[n][0] == "same":
            verdicts[n] = by_proportion(trial)
    for trial, (verdict, text) in zip(trials, verdicts):
        if verdict != "invalid" and (found := by_torch(graph, trial, tally)):
            verdict, text = "wrong", found
        tally.add(trial.case, verdict, text)
    by_rounding(graph, tally)


def judge_failure(trial: Trial, error: Exception, tally: Tally) -> None:
    """Judges a trial whose graph failed although it has no other: the node is invalid, or it has no gradient."""
    if trial.narrow is not None:  # the narrow node may be the only one that fails
        trial.narrow = None
        return judge([trial], tally)
    try:
        forward_only(trial.case)
    except ERRORS:
        return tally.add(trial.case, "invalid")
    if "no output is of floats" in str(error):
        return tally.add(trial.case, "invalid")
    tally.add(trial.case, "refused", str(error))


def forward_only(case: Case) -> None:
    if treadle_run([case])[0].outputs is None:
        raise ValueError("the node does not run")


def by_differences(graph: JointGraph) -> list[tuple[str, str]]:
    """Returns a verdict for each trial. The operands of a trial are moved one after the other, but all trials are moved in the same
    runs."""
    trials = graph.trials
    found = [("invalid", "") if all(w is None for w in trial.weights) else ("same", "") for trial in trials]
    kinks = [0] * len(trials)
    values = graph.objectives({})
    for slot in range(max(len(trial.wanted) for trial in trials)):
        moves = [Move(n, trial, slot, values[n]) for n, trial in enumerate(trials) if slot < len(trial.wanted) and found[n][0] == "same" and trial.case.op not in RANDOM]
        measure(graph, moves, 1)
        doubted = [move for move in moves if not move.agrees()]
        measure(graph, doubted, 0.25)
        measure(graph, [move for move in doubted if not move.is_kink() and not move.agrees()], 0.01)
        for move in doubted:
            if move.is_kink() or (not move.agrees() and is_at_kink(graph, trials[move.number], slot)):
                kinks[move.number] += 1
            elif not move.agrees():
                found[move.number] = ("wrong", f"operand {move.name}: {move.expected} along a direction, by differences {move.slopes}")
    return [("kink", "") if f[0] == "same" and kinks[n] == len(trials[n].wanted) else f for n, f in enumerate(found)]


class Move:
    """Measures how a trial's sum of outputs changes when one operand is moved along a random direction."""

    def __init__(self, number: int, trial: Trial, slot: int, value: float, turn: int = 0) -> None:
        self.number, self.name, self.single = number, trial.wanted[slot], trial.single
        grad = trial.grads[self.name]
        self.direction = np.random.default_rng([trial.case.seed, slot, *[turn] * (turn > 0)]).uniform(-1, 1, grad.shape)
        self.step_name = f"{trial.prefix}{self.name}_d"
        self.expected = float(np.vdot(grad, self.direction))
        self.scale = float(np.abs(grad * self.direction).sum()) + abs(value) * 1e-5 + 1e-3
        self.value = value
        self.slopes: list[float] = []
        self.bend = 0.0  # the difference of the slopes before and after the point, with the last step

    def step(self, factor: float) -> float:
        return (2e-2 if self.single else 1e-5) * factor  # in single precision a smaller step would be lost in rounding

    def agrees(self) -> bool:
        slope = self.slopes[:2][-1]
        return abs(self.expected - slope) <= (5e-3 if self.single else 5e-5) * (self.scale + abs(slope))

    def is_kink(self) -> bool:
        """True if differences cannot tell the gradient at this point: the slope depends on the step, or it differs before and behind the
        point."""
        one, two = self.slopes[:2]
        if len(self.slopes) > 2 and not abs(self.slopes[2] - two) <= 0.1 * abs(self.expected - two):
            return True  # a sawtooth function whose teeth are shorter than the steps
        if not np.isfinite([one, two]).all() or abs(one - two) > (2e-3 if self.single else 2e-5) * (self.scale + abs(one)):
            return True
        return self.bend > max(0.5 * abs(self.expected - two), (0.2 if self.single else 1e-4) * (self.scale + abs(one)) if self.agrees() else 0)


def measure(graph: JointGraph, moves: Sequence[Move], factor: float) -> None:
    """Measures central differences of all moves in the same runs, as trials do not depend on one another."""
    if moves:
        ends = [graph.objectives({m.step_name: np.asarray(m.direction * (sign * m.step(factor))) for m in moves}) for sign in (1, -1)]
        for m in moves:
            high, low = (end[m.number] for end in ends)
            m.slopes.append((high - low) / (2 * m.step(factor)))
            m.bend = abs(high - 2 * m.value + low) / m.step(factor)


def by_proportion(trial: Trial) -> tuple[str, str]:
    """Judges a Dropout: each output is the operand's element times a factor, which is also the derivative."""
    x, y, weights, got = trial.case.inputs[0], trial.values[0], trial.weights[0], trial.grads["x0"]
    if not np.allclose(got * x, y * weights, rtol=1e-5, atol=1e-6):
        return "wrong", f"gradients times elements {(got * x).ravel()[:6]}, outputs times weights {(y * weights).ravel()[:6]}"
    return "same", ""


def by_torch(graph: JointGraph, trial: Trial, tally: Tally) -> str:
    """Compares the gradients with PyTorch's. Returns how they differ, or an empty string; at a kink, PyTorch may choose another slope."""
    expected = torch_gradients.gradients(trial)
    if expected is None:
        return ""
    for name, want in expected.items():
        got, scale, near = trial.grads[name], np.abs(want).max(initial=0) + 1e-3, 5e-5 if trial.single else 2e-6
        if not np.allclose(got, want, rtol=near, atol=near * scale):
            if is_at_kink(graph, trial, trial.wanted.index(name)):
                return ""
            return f"operand {name} by PyTorch: {got.ravel()[:6]} for {want.ravel()[:6]}, off by {np.abs(got - want).max() / scale}"
    tally.count(trial.case, "torch")
    return ""


def is_at_kink(graph: JointGraph, trial: Trial, slot: int) -> bool:
    number = next(n for n, other in enumerate(graph.trials) if other is trial)
    value = graph.objectives({})[number]
    for turn in range(3):  # several directions, because along a single one, equal elements may move alike
        move = Move(number, trial, slot, value, turn)
        measure(graph, [move], 1)
        measure(graph, [move], 0.25)
        if move.is_kink():
            return True
    return False


def by_rounding(graph: JointGraph, tally: Tally) -> None:
    """Compares the gradients in narrow dtypes with those in float64. If they differ by more than rounding, the difference must not exceed the
    effect of changing the operands by a rounding error."""
    doubted = []
    for trial in graph.trials:
        if trial.narrow is not None and trial.narrow_is_finite and trial.case.op not in RANDOM and all(w is not None for w in trial.weights):
            if rounding_of(trial, {}) > 1:
                doubted.append(trial)
            else:
                tally.count(trial.case, np.dtype(trial.narrow).name)
    if not doubted:
        return
    spreads: dict[int, dict[str, np.ndarray]] = {trial.number: {} for trial in doubted}
    for seed in range(4):
        random = np.random.default_rng(seed)
        steps = {name: step for trial in doubted for name, step in nudged(graph, trial, random).items()}
        moved = graph.differentiate(steps)
        for trial in doubted:
            for name, grad in trial.grads.items():
                off = np.abs(moved.get(f"{trial.prefix}{name}_32", grad) - grad)
                spreads[trial.number][name] = np.fmax(spreads[trial.number].get(name, 0), off)
    for trial in doubted:
        dtype = np.dtype(trial.narrow).name
        if (off := rounding_of(trial, spreads[trial.number])) > 1:
            name = max(trial.grads, key=lambda k: float(np.abs(trial.grads[k] - trial.narrow_grads[k]).max(initial=0)))
            text = f"{dtype}, {off:.3g} of what is allowed; {name}: {trial.narrow_grads[name].ravel()[:6]} for {trial.grads[name].ravel()[:6]}"
            tally.add(trial.case, "wrong", text)
        else:
            tally.count(trial.case, dtype)


def rounding_of(trial: Trial, spreads: dict[str, np.ndarray]) -> float:
    """Returns the largest difference between narrow and float64 gradients, as a multiple of the allowed difference."""
    worst = 0.0
    for name, exact in trial.grads.items():
        scale = np.abs(exact).max(initial=0) + 1  # terms of size 1 may cancel, and normalisations divide the rest by deviations
        within = np.abs(exact) < 0.1 * float(ml_dtypes.finfo(trial.narrow).max)
        allowed = (1e4 if trial.case.op.endswith("Normalization") else 40) * eps(trial.narrow) * (scale + np.abs(exact)) + 30 * spreads.get(name, np.zeros(exact.shape))
        off = np.abs(trial.narrow_grads[name] - exact) / allowed
        worst = max(worst, float(np.nan_to_num(off, nan=np.inf)[within].max(initial=0)))
    return worst


def fuzz(seeds: Iterable[int], chosen: frozenset[str] = frozenset(), tally: Tally | None = None) -> Tally:
    """Judges a batch for each seed."""
    tally = tally or Tally()
    for seed in seeds:
        judge(batch_of(seed, chosen), tally)
    return tally


def until(deadline: float, first: int, count: int) -> Iterable[int]:
    seed = first
    while time.monotonic() < deadline and seed < first + count:
        yield seed
        seed += 1


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batches", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="of the first batch")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no batch begins later")
    parser.add_argument("--ops", default="")
    parser.add_argument("--refused", action="store_true", help="shows those that have no gradient")
    arguments = parser.parse_args()
    tally, begin, done = Tally(shows=True), time.monotonic(), 0
    tally.shown += ("refused",) if arguments.refused else ()
    chosen = frozenset(filter(None, arguments.ops.split(",")))
    for seed in until(begin + arguments.seconds, arguments.seed, arguments.batches):
        fuzz([seed], chosen, tally)
        done += 1
        if done % 1000 == 0:
            print(f"{done} batches, {dict(tally.verdicts)}, {time.monotonic() - begin:.0f} s", flush=True)
    print(dict(tally.verdicts), f"{time.monotonic() - begin:.1f} s, next seed {arguments.seed + done}")
    print({op: dict(found) for op, found in sorted(tally.ops.items()) if set(found) & {"wrong", "refused", "invalid"}})
    print("not judged:", sorted(op for op in operators(NEWEST[""]) if op not in tally.ops and (not chosen or op in chosen)))
    return 1 if tally.verdicts["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
