"""The operator fuzzer's cases, the drafts from which makers build them, and the choices from which they are drawn, which can be replayed."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import defs

# The dtypes of NumPy arrays, by the element types' names in TensorProto.
DTYPES: dict[str, Any] = {
    "float": np.float32,
    "double": np.float64,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "int8": np.int8,
    "int16": np.int16,
    "int32": np.int32,
    "int64": np.int64,
    "uint8": np.uint8,
    "uint16": np.uint16,
    "uint32": np.uint32,
    "uint64": np.uint64,
    "bool": np.bool_,
    "string": np.object_,
    "float8e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "float8e5m2": ml_dtypes.float8_e5m2,
    "float8e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
    "float8e8m0": ml_dtypes.float8_e8m0fnu,
    "float4e2m1": ml_dtypes.float4_e2m1fn,
    "int4": ml_dtypes.int4,
    "uint4": ml_dtypes.uint4,
    "int2": ml_dtypes.int2,
    "uint2": ml_dtypes.uint2,
}
NUMPY_FLOATS = (np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.float16))
WORDS = ["a", "bc", "", "Ab 1", "the", "a b", "é", "x1,y2", "中文", "0"]

# The extents from which shapes are drawn; an extent that occurs more often in the list is drawn more often. Shrinking ends at the first one.
# Extents above 8 exercise whole vectors and their remainders.
EXTENTS = [1, 2, 3, 2, 3, 4, 5, 1, 2, 3, 4, 6, 7, 8, 0, 9, 16, 17, 33]


# How much the model declares about an operand's shape: all extents, extents as symbols, only the rank, or nothing.
DECLARED = ["all", "symbols", "rank", "nothing"]


class Rejected(Exception):
    """Raised if the choices lead to no valid case."""


class Choices:
    """Draws numbers from a seed, or replays recorded ones. By convention, 0 is the simplest choice."""

    def __init__(self, seed: int, replay: Sequence[int] | None = None) -> None:
        self._random = random.Random(seed)
        self._replay = replay
        self.made: list[int] = []

    def below(self, bound: int) -> int:
        """Returns a number in [0, bound), and records it."""
        if self._replay is None:
            number = int(self._random.random() * bound)
        elif len(self.made) < len(self._replay):
            number = min(self._replay[len(self.made)], bound - 1)
        else:
            number = 0
        self.made.append(number)
        return number


@dataclass
class Case:
    """One node with its operands. `constant` tells which operands are initializers of the model; the others are its inputs."""

    op: str
    domain: str
    opset: int
    since: int
    inputs: list[Any]  # arrays; lists of arrays for sequences; None for absent operands
    attributes: dict[str, Any]
    num_outputs: int
    constant: list[bool]
    choices: list[int] = field(default_factory=list)
    seed: int = 0
    tolerance: float = 1.0  # factor by which the usual tolerance of comparisons is multiplied
    captured: list[np.ndarray] = field(default_factory=list)  # the values @c0, @c1 … that bodies capture from the graph around the node
    is_random: bool = False  # true if the outputs are random, so that their distributions are compared
    declared: list[str] = field(default_factory=list)  # an element of DECLARED for each operand; an empty list means "all" for each
    unwanted: frozenset[int] = frozenset()  # numbers of the outputs that the node omits
    optimised: bool = True
    steps: int = 0  # the largest allowed difference of integer outputs
    compared: Callable[[list[Any]], list[Any]] | None = None  # a function that returns the parts of the outputs that are defined
    changes: list[str] = field(default_factory=list)  # the changes that varying.py has made

    def declared_of(self, operand: int) -> str:
        return self.declared[operand] if operand < len(self.declared) else "all"

    def arrays(self) -> list[np.ndarray]:
        """Returns all arrays that the node reads, including the elements of sequences."""
        found = list(self.captured)
        for x in self.inputs:
            found += x if isinstance(x, list) else [] if x is None else [x]
        return found

    def __str__(self) -> str:
        def text(x: Any) -> str:
            return "-" if x is None else f"seq({', '.join(map(text, x))})" if isinstance(x, list) else f"{x.dtype}{list(x.shape)}"

        def known(i: int) -> str:
            return "c" if self.constant[i] else "" if self.inputs[i] is None or self.declared_of(i) == "all" else f" known: {self.declared_of(i)}"

        operands = ", ".join(text(x) + known(i) for i, x in enumerate(self.inputs))
        attributes = ", ".join(f"{k}={onnx.printer.to_text(v) if isinstance(v, onnx.GraphProto) else v}" for k, v in self.attributes.items())
        outputs = ", ".join("-" if i in self.unwanted else f"y{i}" for i in range(self.num_outputs))
        more = ("" if self.optimised else " not optimised") + (f" varied: {', '.join(self.changes)}" if self.changes else "")
        return f"{self.domain or 'ai.onnx'}.{self.op} opset {self.opset} ({operands}) {{{attributes}}} -> {outputs}{more}"


class Draft:
    """Builds a case from choices; its makers add operands and attributes."""

    def __init__(self, schema: defs.OpSchema, choices: Choices, opset: int) -> None:
        self.schema = schema
        self.since = schema.since_version
        self.opset = opset
        self.choices = choices
        self.inputs: list[Any] = []
        self.captured: list[np.ndarray] = []
        self.is_random = False
        self.attributes: dict[str, Any] = {}
        self.num_outputs = max(1, schema.min_output)
        self.tolerance = 1.0
        self.edges = choices.below(4) == 3  # true if arrays contain NaN, infinities and denormals, among other values
        self._dtypes: dict[str, Any] = {}
        self._allowed = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}

    # Random choices.

    def below(self, bound: int) -> int:
        return self.choices.below(bound)

    def number(self, low: int, high: int) -> int:
        """Draws a number in [low, high]; low is the simplest."""
        return low + self.below(high - low + 1)

    def flip(self, chance: float = 0.5) -> bool:
        return self.below(100) >= 100 - round(100 * chance)

    def pick(self, options: Sequence[Any]) -> Any:
        return options[self.below(len(options))]

    def fraction(self, low: float, high: float) -> float:
        return float(np.float32(low + (high - low) * self.below(41) / 40))

    def reject_if(self, condition: Any) -> None:
        if condition:
            raise Rejected

    # Element types.

    def has_input(self, name: str) -> bool:
        return any(i.name == name for i in self.schema.inputs)

    def has_attribute(self, name: str) -> bool:
        return name in self.schema.attributes

    def dtype(self, of: int | str, only: Sequence[Any] | None = None) -> Any:
        """Draws the element type of an operand, given by its number, or of a type parameter. All operands with the same parameter get the same
        type."""
        parameter = of if isinstance(of, str) else self.schema.inputs[min(of, len(self.schema.inputs) - 1)].type_str
        if parameter not in self._dtypes:
            names = [t[7:-1] for t in self._allowed.get(parameter, [parameter]) if t.startswith("tensor(")]
            found = [np.dtype(DTYPES[n]) for n in names if n in DTYPES]
            if only is not None:
                found = [t for t in found if t in [np.dtype(o) for o in only]]
            self.reject_if(not found)
            usual = [t for t in NUMPY_FLOATS if t in found]
            found = usual + sorted((t for t in found if t not in usual), key=lambda t: t.name)
            self._dtypes[parameter] = self.pick(found) if self.flip(0.6) else found[0]
        return self._dtypes[parameter]

    def set_dtype(self, parameter: str, dtype: Any) -> None:
        self._dtypes[parameter] = np.dtype(dtype)

    # Shapes and axes.

    def extent(self, empty: bool = True) -> int:
        found = EXTENTS[self.below(len(EXTENTS))]
        return found if found or empty else 1

    def shape(self, low: int = 0, high: int = 4, empty: bool = True) -> tuple[int, ...]:
        rank = self.number(low, high)
        found = [self.extent(empty) for _ in range(rank)]
        while np.prod(found, dtype=np.int64) > 20000:
            found[found.index(max(found))] //= 2
        return tuple(found)

    def partner(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Draws a shape that can be broadcast with this one."""
        found = list(shape)
        for i in range(len(found)):
            if found[i] == 1:
                found[i] = self.pick([1, 1, 1, 2, 3, 0])
            elif self.flip(0.3):
                found[i] = 1
        found = found[self.below(len(found) + 1) :]
        return tuple(found) if len(found) != len(shape) or not self.flip(0.1) else (self.pick([1, 2]), *found)

    def narrower(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Draws a shape that can be broadcast to this one."""
        found = [1 if self.flip(0.3) else n for n in shape]
        return tuple(found[self.below(len(found) + 1) :])

    def axis(self, rank: int, negative: bool = True) -> int:
        axis = self.below(rank)
        return axis - rank if negative and self.flip(0.4) else axis

    def axes(self, rank: int, low: int = 1, negative: bool = True) -> list[int]:
        count = self.number(min(low, rank), rank)
        found, rest = [], list(range(rank))
        for _ in range(count):
            axis = rest.pop(self.below(len(rest)))
            found.append(axis - rank if negative and self.flip(0.4) else axis)
        return found

    # Elements of operands.

    def array(self, dtype: Any, shape: Sequence[int], low: float = -4, high: float = 4, edges: bool | None = None) -> np.ndarray:
        """Draws an array. Floats are multiples of a half, or any numbers from low to high, or numbers of very different magnitudes. With
        `edges`, some elements are the type's extreme and special values."""
        dtype = np.dtype(dtype)
        random_values = np.random.default_rng(self.below(1 << 16))
        kind = self.below(4)
        if dtype == np.bool_:
            return random_values.random(shape) < 0.5
        if dtype == np.object_:
            words = np.array(WORDS, object)
            return np.asarray(words[random_values.integers(0, len(words), shape)], object).reshape(shape)
        integral = dtype.kind in "iu" or dtype.name in ("int4", "uint4", "int2", "uint2")
        if integral:
            info = np.iinfo(dtype) if dtype.kind in "iu" else ml_dtypes.iinfo(dtype)
            low, high = max(low, info.min), min(high, info.max)
            values = random_values.integers(int(np.ceil(low)), int(np.floor(high)) + 1, shape)
            found = np.asarray(values).astype(dtype)
            return self._with_edges(found, [info.min, info.max, 0, 1], random_values) if (self.edges if edges is None else edges) else found
        if kind in (0, 3):
            values = np.round(random_values.uniform(low, high, shape) * 2) / 2
            values = np.clip(values, low, high)
        else:
            values = random_values.uniform(low, high, shape)
        if kind == 2 and edges is not False and low < 0:
            values = values * 10.0 ** random_values.integers(-4, 3, shape)
        found = np.asarray(values).astype(dtype)
        if (self.edges if edges is None else edges) and dtype.name != "float4_e2m1fn":
            info = ml_dtypes.finfo(dtype)
            special = [np.nan, np.inf, -np.inf, 0.0, -0.0, float(info.smallest_subnormal), -float(info.tiny), float(info.max), float(info.min), 1.0]
            return self._with_edges(found, special, random_values)
        return found

    @staticmethod
    def _with_edges(values: np.ndarray, special: Sequence[float], random_values: np.random.Generator) -> np.ndarray:
        flat = np.array(values).reshape(-1)
        ends = np.array([np.array(s).astype(values.dtype) for s in special])
        where = random_values.random(flat.shape) < 0.3
        flat[where] = ends[random_values.integers(0, len(ends), int(where.sum()))]
        return flat.reshape(values.shape)

    def indices(self, dtype: Any, shape: Sequence[int], extent: int, negative: bool = True) -> np.ndarray:
        """Draws indices into an axis, in some arrays also negative ones, which count from its end."""
        self.reject_if(extent == 0 and np.prod(shape, dtype=np.int64) > 0)
        random_values = np.random.default_rng(self.below(1 << 16))
        low = -extent if negative and self.flip(0.5) else 0
        return np.asarray(random_values.integers(low, max(extent, low + 1), shape)).astype(dtype)

    # The node that is drawn.

    def add(self, value: np.ndarray | None) -> np.ndarray | None:
        self.inputs.append(value)
        return value

    def add_sequence(self, elements: list[np.ndarray]) -> None:
        self.inputs.append(elements)

    def ints(self, values: Sequence[int], dtype: Any = np.int64) -> np.ndarray:
        return np.array(values, dtype).reshape(len(values))

    def maybe(self, name: str, make: Callable[[], Any] | Any, chance: float = 0.7) -> Any:
        """Sets an attribute, if the schema has it, or leaves it at its default. Returns the value that the node then uses."""
        if not self.has_attribute(name):
            return None
        if self.flip(chance):
            self.attributes[name] = make() if callable(make) else make
            return self.attributes[name]
        default = self.schema.attributes[name].default_value
        return onnx.helper.get_attribute_value(default) if default.type else None

    def finish(self, opset: int) -> Case:
        while self.inputs and self.inputs[-1] is None:
            self.inputs.pop()
        kind = self.below(4)  # selects the constant operands: none, all but the first, random ones, or all
        constant = [isinstance(x, np.ndarray) and (kind == 3 or (kind == 1 and i > 0) or (kind == 2 and self.flip())) for i, x in enumerate(self.inputs)]
        declared = draw_declared(self.choices, len(self.inputs))
        return Case(
            self.schema.name, self.schema.domain, opset, self.since, self.inputs, self.attributes, self.num_outputs, constant,
            list(self.choices.made), tolerance=self.tolerance, captured=self.captured, is_random=self.is_random, declared=declared,
        )


def draw_declared(choices: Choices, count: int) -> list[str]:
    """Draws how much is declared about each operand: in a third of the cases all shapes, in a third the same for every operand, otherwise a
    separate choice for each."""
    kind = choices.below(3)
    if kind == 0:
        return []
    if kind == 1:
        return [DECLARED[1 + choices.below(3)]] * count
    return [DECLARED[choices.below(4)] for _ in range(count)]
