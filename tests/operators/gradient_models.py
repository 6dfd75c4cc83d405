"""Joint graphs of several cases: each graph computes the forward and backward pass of all its cases, with inputs by which the operands are
moved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import treadle
from onnx import TensorProto, helper
from treadle import _treadle

from draft import Case, Choices
from gradient_cases import FLOATS, differentiable, eps, narrow_dtypes, operands
from judges import _KINDS, _node, _tensor

_OPTIONS = treadle.SessionOptions()
_OPTIONS.intra_op_num_threads = 1
_SEQUENCES = {
    "SequenceConstruct": lambda case: len(case.inputs),
    "SequenceInsert": lambda case: len(case.inputs[0]) + 1,
    "SequenceErase": lambda case: len(case.inputs[0]) - 1,
    "SplitToSequence": lambda case: _parts(case),
    "SequenceMap": lambda case: len(case.inputs[0]),
}


def _parts(case: Case) -> int:
    """Returns the number of parts that a SplitToSequence makes."""
    extent, split = case.inputs[0].shape[case.attributes.get("axis", 0)], case.inputs[1] if len(case.inputs) > 1 else None
    if split is None:
        return int(extent)
    return len(split) if split.ndim else -(-int(extent) // int(split))


@dataclass
class Trial:
    """A case, how its gradients are asked for, and the results."""

    case: Case
    number: int
    symbolic: bool = False  # true if the extents of float operands are declared as symbols
    fed: bool = False  # true if operands without a gradient are inputs instead of constants
    narrow: Any = None  # the dtype of a second node, which has operands of its own; None if there is no second node
    parameters: bool = False  # true if the operands of a float32 second node are parameters instead of inputs
    wanted: list[str] = field(default_factory=list)
    weights: list[np.ndarray | None] = field(default_factory=list)  # weights of the outputs; None for an output that is not differentiated
    values: list[np.ndarray] = field(default_factory=list)  # the outputs of the run that gave the gradients
    single: bool = False  # true if finite differences have only single precision
    grads: dict[str, np.ndarray] = field(default_factory=dict)
    narrow_grads: dict[str, np.ndarray] = field(default_factory=dict)
    narrow_is_finite: bool = False

    @property
    def prefix(self) -> str:
        return f"n{self.number}_"


def plan(case: Case, number: int, choices: Choices) -> Trial:
    trial = Trial(case, number, symbolic=choices.below(3) == 0, fed=choices.below(4) == 0)
    trial.wanted = differentiable(case)
    if len(trial.wanted) > 1 and choices.below(5) == 0:
        trial.wanted.pop(choices.below(len(trial.wanted)))
    if choices.below(2) and (found := narrow_dtypes(case)):
        trial.narrow = found[choices.below(len(found))] if choices.below(3) == 0 else found[0]
        trial.parameters = trial.narrow is np.float32 and choices.below(3) == 0
    return trial


class JointGraph:
    """One joint module for all trials. Each differentiated operand is a float32 input plus a float64 step, another input, which the graph
    adds."""

    def __init__(self, trials: Sequence[Trial]) -> None:
        self.trials = trials
        self.graph = onnx.GraphProto(name="cases")
        self.feeds: dict[str, np.ndarray] = {}
        self.steps: dict[str, np.ndarray] = {}
        self.by: list[str] = []  # names of the inputs for which gradients are computed
        self.parameters: list[str] = []
        self.frozen: list[str] = []
        self.outputs: list[tuple[Trial, list[str], list[str]]] = []
        for trial in trials:
            outputs = self._add(trial, trial.prefix, None)
            self.outputs.append((trial, outputs, self._add(trial, trial.prefix + "m_", trial.narrow) if trial.narrow else []))
        self._hand_out()

    def _input(self, trial: Trial, name: str, value: np.ndarray, kind: int) -> None:
        shape = [f"{name}_{a}" if trial.symbolic and value.dtype in FLOATS else n for a, n in enumerate(value.shape)]
        self.graph.input.append(helper.make_tensor_value_info(name, kind, shape))
        self.feeds[name] = value

    def _op(self, op: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        self.graph.node.append(helper.make_node(op, inputs, [output], **attributes))
        return output

    def _operand(self, trial: Trial, name: str, value: np.ndarray, wanted: bool, narrow: Any) -> None:
        if narrow and value.dtype == np.float64:
            self._narrow_operand(trial, name, value, wanted, narrow)
        elif wanted:
            self.by.append(name + "_32")
            self._input(trial, name + "_32", value.astype(np.float32), TensorProto.FLOAT)
            self._op("Cast", [name + "_32"], name + "_64", to=TensorProto.DOUBLE)
            if narrow:  # the case has float32 operands beside those of a narrow dtype
                self._op("Cast", [name + "_64"], name, to=TensorProto.FLOAT)
                return
            step = np.zeros(value.shape)
            self._input(trial, name + "_d", step, TensorProto.DOUBLE)
            self.steps[name + "_d"] = step
            moved = self._op("Add", [name + "_64", name + "_d"], name if value.dtype == np.float64 else name + "_s")
            if value.dtype == np.float32:
                self._op("Cast", [moved], name, to=TensorProto.FLOAT)
        elif trial.fed and value.dtype not in FLOATS and value.dtype != np.object_:
            self._input(trial, name, value, _KINDS[value.dtype])
        else:
            self.graph.initializer.append(_tensor(value, name))

    def _narrow_operand(self, trial: Trial, name: str, value: np.ndarray, wanted: bool, narrow: Any) -> None:
        if not wanted:
            self.graph.initializer.append(_tensor(value.astype(narrow), name))
        elif trial.parameters and value.ndim:
            self.graph.initializer.append(_tensor(value.astype(np.float32), name))
            self.parameters.append(name)
        else:
            source = name if narrow is np.float32 else name + "_32"
            self.by.append(source)
            self._input(trial, source, value.astype(np.float32), TensorProto.FLOAT)
            if source != name:
                self._op("Cast", [source], name, to=_KINDS[np.dtype(narrow)])

    def _add(self, trial: Trial, prefix: str, narrow: Any) -> list[str]:
        """Adds the node with its operands, and returns its outputs, where sequences are replaced by their elements."""
        case = trial.case
        for name, _, value in operands(case):
            self._operand(trial, prefix + name, value, name in trial.wanted, narrow)
        for i, value in enumerate(case.inputs):
            if isinstance(value, list):
                self._op("SequenceConstruct", [f"{prefix}x{i}_{j}" for j in range(len(value))], f"{prefix}x{i}")
        node, names = _node(case, prefix)
        self.graph.node.append(node)
        count = _SEQUENCES.get(case.op)
        if count is None:
            return names
        found = []
        for name in names:
            for j in range(count(case)):
                self.graph.initializer.append(_tensor(np.array(j), f"{name}_{j}_at"))
                found.append(self._op("SequenceAt", [name, f"{name}_{j}_at"], f"{name}_{j}"))
        return found

    def _hand_out(self) -> None:
        """Makes every float output a plain output of the model, and its float32 copy an output with a gradient."""
        opset = self.trials[0].case.opset
        imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in {t.case.domain for t in self.trials} - {""})]
        model = onnx.ModelProto(ir_version=13, graph=self.graph, opset_import=imports)
        inferred = onnx.shape_inference.infer_shapes(model)
        kinds = {v.name: v.type.tensor_type.elem_type for v in inferred.graph.value_info}
        for trial, outputs, narrow in self.outputs:  # onnx infers no types for com.microsoft, and not for all functions
            dtypes = [x.dtype for _, _, x in operands(trial.case) if x.dtype in FLOATS]
            kinds.update({name: _KINDS[dtypes[0]] for name in outputs[:1] if name not in kinds and dtypes})
            kinds.update({name: _KINDS[np.dtype(trial.narrow)] for name in narrow[:1] if name not in kinds})
        differentiated = {TensorProto.FLOAT, TensorProto.DOUBLE}
        floats = {TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16}
        self.plain: list[str] = []
        self.flowing: list[str] = []
        for trial, *kept in self.outputs:
            for k, names in enumerate(kept):
                names[:] = [name for name in names if kinds.get(name) in (floats if k else differentiated)]
                if k == 0 and any(kinds[name] == TensorProto.DOUBLE for name in names):  # differences in float32 are inexact
                    dropped = [name for name in names if kinds[name] != TensorProto.DOUBLE]
                    names[:] = [name for name in names if name not in dropped]
                    kept[1][:] = [name for name in kept[1] if name.replace("_m_", "_", 1) not in dropped]
                self.plain += names
            trial.single = all(kinds[name] == TensorProto.FLOAT for name in kept[0])
            for name in [*kept[0], *kept[1]]:
                self.flowing.append(self._op("Cast", [name], name + "_f", to=TensorProto.FLOAT))
        model.graph.CopyFrom(self.graph)
        model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in [*self.flowing, *self.plain])
        if not self.flowing:
            raise ValueError("no output is of floats")
        constants = [i.name for i in self.graph.initializer if i.name not in self.parameters]
        self.model = model.SerializeToString()
        loaded = _treadle.Model.from_bytes(self.model)
        self.module = _treadle.JointModule(
            loaded, self.flowing, self.by, self.parameters, constants, 1, session=_OPTIONS, plain_outputs=self.plain
        )

    def run(self, changed: Mapping[str, np.ndarray]):
        run = self.module.forward({**self.feeds, **changed}, None)
        return run, dict(zip(self.plain, run.outputs[len(self.flowing) :], strict=True))

    def differentiate(self, changed: Mapping[str, np.ndarray] | None = None) -> dict[str, np.ndarray]:
        """Computes the gradients of the weighted sum of all outputs."""
        run, values = self.run(changed or {})
        if changed is None:
            self._weigh(values)
        flows = []
        for trial, outputs, narrow in self.outputs:
            for names in (outputs, narrow):
                flows += [np.zeros(values[n].shape, np.float32) if w is None else w for n, w in zip(names, trial.weights)]
        return {name: np.array(value, np.float64) for name, value in run.backward(flows).items() if value is not None}

    def _weigh(self, values: Mapping[str, np.ndarray]) -> None:
        """Draws the weights of outputs that are finite. They are numbers that bfloat16 represents exactly."""
        for trial, outputs, narrow in self.outputs:
            random = np.random.default_rng(trial.case.seed)
            trial.weights, trial.values = [], [np.array(values[name]) for name in outputs]
            for value in trial.values:
                drawn = (0.5 + random.integers(0, 64, value.shape) / 64).astype(np.float32)
                trial.weights.append(np.asarray(drawn, np.float32) if value.size and np.isfinite(value).all() else None)
            trial.narrow_is_finite = bool(narrow) and all(np.isfinite(np.asarray(values[n], np.float64)).all() for n in narrow)

    def objectives(self, steps: Mapping[str, np.ndarray]) -> list[float]:
        """Returns the weighted sum of each trial's outputs, after the operands are moved by the steps."""
        _, values = self.run(steps)
        found = []
        for trial, outputs, _ in self.outputs:
            pairs = [(np.asarray(values[n], np.float64), w) for n, w in zip(outputs, trial.weights) if w is not None]
            # The sum is NaN if the step changes the number of elements (Unique).
            found.append(sum(float(np.vdot(y, w)) if y.shape == w.shape else np.nan for y, w in pairs))
        return found


def read_gradients(graph: JointGraph, grads: Mapping[str, np.ndarray]) -> None:
    """Stores each trial's gradients; a gradient that does not exist is zeros."""
    for trial in graph.trials:
        for name, _, value in operands(trial.case):
            if name in trial.wanted:
                trial.grads[name] = grads.get(trial.prefix + name + "_32", np.zeros(value.shape))
                if trial.narrow:
                    narrow = trial.prefix + "m_" + name
                    trial.narrow_grads[name] = grads.get(narrow, grads.get(narrow + "_32", np.zeros(value.shape)))


def nudged(graph: JointGraph, trial: Trial, random: np.random.Generator) -> dict[str, np.ndarray]:
    """Returns random steps of all float64 operands, as large as a rounding error of the narrow dtype."""
    steps = {}
    for name, _, value in operands(trial.case):
        key = trial.prefix + name + "_d"
        if key in graph.steps:
            steps[key] = np.asarray(np.asarray(value, np.float64) * eps(trial.narrow) * random.uniform(-1, 1, value.shape))
    return steps
