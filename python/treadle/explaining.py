"""Explains how the optimiser changed a model, without running it: `treadle explain` as a function.

    explanation = treadle.explain("model.onnx", dimensions={"batch": 8})
    print(explanation)
    print(explanation.node("conv1"))
"""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

from . import _notebook, _treadle
from ._models import ModelLike, load_model
from .profiling import UnusedKernel

__all__ = ["Explanation", "NodeExplanation", "Refusal", "explain"]


@dataclass(frozen=True)
class Refusal:
    """The reason for which a pass left a node unchanged after it had examined it."""

    pass_name: str
    why: str


@dataclass(frozen=True)
class NodeExplanation:
    """Says what passes did with a node of the model, or from which nodes of the model a node of the optimised graph was made."""

    name: str
    steps: tuple[tuple[str, str], ...]
    """Pairs: the name of a pass, and what the pass did to the node."""
    runs_as: tuple[str, ...]
    """Names of the nodes that compute this node in a run. Empty if it was folded or removed, or if it is a view."""
    refusals: tuple[Refusal, ...]
    """Refusals of passes to change the nodes in `runs_as`."""
    unused_kernels: tuple[UnusedKernel, ...]
    """Kernels that could compute the nodes in `runs_as` but are not used, and why."""
    data: dict[str, Any]
    """The explanation as JSON, as `treadle explain --node NAME --json` prints it."""
    text: str = field(default="", repr=False, compare=False)
    """The explanation as text, as `treadle explain --node NAME` prints it."""

    def __str__(self) -> str:
        return self.text


class Explanation:
    """The result of `treadle.explain`. Its text lists the passes, the nodes with their minimum times on this machine, and the planned memory."""

    def __init__(self, native: _treadle.NativeExplanation) -> None:
        self._native = native

    @property
    def data(self) -> dict[str, Any]:
        """The whole explanation, as `treadle explain --json` prints it."""
        return dict(json.loads(self._native.json))

    @property
    def assumed_extents(self) -> str:
        """Extents assumed for memory and times because neither the model nor `dimensions` or `shapes` gives them: "N=1, images axis 2=1"."""
        return self._native.assumed_extents

    @property
    def passes(self) -> list[str]:
        """Passes that changed the graph, in order; a pass may occur several times."""
        return list(self._native.passes)

    @property
    def nodes(self) -> list[str]:
        """Names of the optimised graph's nodes, in the order in which they run."""
        return list(self._native.nodes)

    def node(self, name: str) -> NodeExplanation:
        """Returns the history of a node of the model or of the optimised graph. Raises treadle.Error for another name."""
        native = self._native.node(name)
        history = json.loads(native.json)
        return NodeExplanation(
            name=name,
            steps=tuple((step["pass"], step["what"]) for step in history["steps"]),
            runs_as=tuple(node["name"] for node in history["runs_as"]),
            refusals=tuple(Refusal(item["pass"], item["why"]) for node in history["runs_as"] for item in node.get("left_alone", [])),
            unused_kernels=tuple(
                UnusedKernel(item["kernel"], item["why"]) for node in history["runs_as"] for item in node.get("unused_kernels", [])
            ),
            data=history,
            text=native.text,
        )

    def table(self, top: int = 25) -> str:
        """Formats the explanation for the terminal. `top`: number of nodes shown, 0 for all."""
        return self._native.table(top)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a page with the drawn graph (.html), which needs no network, or `data` (.json)."""
        target = pathlib.Path(path)
        target.write_bytes(self._native.contents(str(target)))

    def __str__(self) -> str:
        return self.table()

    def _repr_html_(self) -> str:
        return _notebook.shown(self.table(), self._native.contents("plan.html"))


@overload
def explain(
    model: ModelLike,
    node: None = None,
    *,
    sess_options: _treadle.SessionOptions | None = None,
    dimensions: Mapping[str, int] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    default_extent: int = 1,
) -> Explanation: ...
@overload
def explain(
    model: ModelLike,
    node: str,
    *,
    sess_options: _treadle.SessionOptions | None = None,
    dimensions: Mapping[str, int] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    default_extent: int = 1,
) -> NodeExplanation: ...
def explain(
    model: ModelLike,
    node: str | None = None,
    *,
    sess_options: _treadle.SessionOptions | None = None,
    dimensions: Mapping[str, int] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    default_extent: int = 1,
) -> Explanation | NodeExplanation:
    """Explains what each pass did, which nodes remain, and the planned memory. The model is optimised and planned; no node runs.

    `model`: a path, the bytes of a file, an onnx.ModelProto or a treadle.Model. `node`: explain only this node, and why passes left the nodes
    after it unchanged. `sess_options`: options of the session that is planned. `dimensions`: extents of the inputs' symbols; `shapes`: shapes of
    inputs; all other extents are `default_extent`. Raises treadle.Error for a node, symbol or input that does not exist.
    """
    options = sess_options or _treadle.SessionOptions()
    native = _treadle.explain_model(
        load_model(model, options),
        options,
        os.fspath(model) if isinstance(model, (str, os.PathLike)) else "model",
        [f"{symbol}={extent}" for symbol, extent in (dimensions or {}).items()],
        [f"{input_name}:{'x'.join(map(str, extents))}" for input_name, extents in (shapes or {}).items()],
        default_extent,
    )
    explanation = Explanation(native)
    return explanation if node is None else explanation.node(node)
