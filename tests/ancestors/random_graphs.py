"""Random graphs of 4 by 4 matrices, described as data. Each ancestor builds them with its own interface, and Treadle from ONNX."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

import networks as nets

UNARY = ("tanh", "sigmoid", "relu", "negative", "sine", "transpose", "softmax", "halve")
BINARY = ("add", "subtract", "multiply", "product", "join")


@dataclass(frozen=True)
class Step:
    """value = op(operands…). "join" puts the right half of the first operand beside the left half of the second; "product" is a matrix product."""

    value: str
    op: str
    operands: tuple[str, ...]


@dataclass(frozen=True)
class RandomGraph:
    """A graph with inputs x0, x1, parameters p0 … p2 and steps v0 …. Some values are used often, some never."""

    arrays: dict[str, np.ndarray]
    steps: list[Step]
    outputs: list[str]
    requests: dict[str, str]  # for each array, the gradient request
    heads: list[np.ndarray]
    fed: list[str]  # values that a session is fed; they may not suffice
    fetched: list[str]

    @property
    def used(self) -> set[str]:
        """Returns the arrays that the outputs depend on."""
        needed, operands = set(self.outputs), {step.value: step.operands for step in self.steps}
        for step in reversed(self.steps):
            if step.value in needed:
                needed.update(operands[step.value])
        return needed & set(self.arrays)


def random_graph(seed: int) -> RandomGraph:
    rng = np.random.RandomState(nets.SEED + 1000 + seed)
    names = ["x0", "x1", "p0", "p1", "p2"]
    arrays = {name: rng.standard_normal((4, 4)).astype(np.float32) for name in names}
    steps: list[Step] = []
    for i in range(rng.randint(5, 14)):
        op = (UNARY + BINARY * 2)[rng.randint(len(UNARY) + 2 * len(BINARY))]
        operands = tuple(names[rng.randint(max(0, len(names) - 7), len(names))] for _ in range(1 if op in UNARY else 2))
        steps.append(Step(f"v{i}", op, operands))
        names.append(f"v{i}")
    values = [step.value for step in steps]
    outputs = [values[-1], *(value for value in values[:-1] if rng.rand() < 0.2)]
    requests = {name: ("null", "write", "add")[rng.randint(3)] for name in arrays}
    heads = [rng.standard_normal((4, 4)).astype(np.float32) for _ in outputs]
    fed = [name for name in [*arrays, *values] if rng.rand() < (0.9 if name in arrays else 0.15)]
    fetched = [value for value in values if rng.rand() < 0.4] or [values[-1]]
    return RandomGraph(arrays, steps, outputs, requests, heads, fed, fetched)


def fed_value(name: str) -> np.ndarray:
    """Returns the array fed for a value that the graph would compute; it differs for each value."""
    return np.full((4, 4), 0.25 + 0.125 * int(name[1:]), np.float32)


COUNT = 24
