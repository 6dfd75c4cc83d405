"""Runs that can stop before their end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from . import _treadle
from ._treadle import OrtValue, ValueCache


class PartialRun:
    """A run that stops at every treadle.Yield node. Threads may use it in turn, but only one at a time. It may be dropped at any point."""

    def __init__(self, native: _treadle.PartialRun) -> None:
        self._native = native

    def advance(self, until: str | None = None, feeds: Mapping[str, Any] | None = None) -> bool:
        """Runs to the next Yield, to the first node that reads a missing input, or to the end; with `until`, only until that node has run.
        Returns True at the end.

        :param feeds: inputs that were omitted when the run began. Their extents must be declared, or known from other inputs.
        :raises NotFound: the optimised graph has no such node.
        :raises InvalidArgument: a feed is unknown, was fed before, or is of another type; or the run waits for an input already.
        """
        for name, value in (feeds or {}).items():
            self._native.feed(name, value)
        return self._native.advance() if until is None else self._native.advance_until(until)

    def fetch(self, names: Sequence[str]) -> list[Any]:
        """Returns outputs of the session, or targets of the run's options, that have been computed; the run need not have ended.

        :raises InvalidArgument: the value has not been computed yet, or the run has no such output.
        """
        return self._native.fetch(list(names))

    def step(self, count: int = 1) -> int:
        """Runs `count` nodes of the optimised graph, or fewer up to the next Yield or the end. Returns how many nodes are left before that. On
        devices, copies count as nodes.
        """
        return self._native.advance_steps(count)

    @property
    def steps_left(self) -> int:
        """The number of nodes that will run before the next Yield, the first node that reads a missing input, or the end."""
        return self._native.steps_left

    @property
    def yielded(self) -> dict[str, OrtValue]:
        """The values that the Yield returns at which the run has stopped, by name. They are shared by DLPack, not copied."""
        return self._native.yielded()

    def resume(self, values: Sequence[Any]) -> list[Any] | None:
        """Gives the Yield at which the run has stopped a value for each of its outputs, and continues. Returns the run's outputs, or None
        if the run stops at a further Yield.
        """
        return self.outputs() if self._native.resume(list(values)) else None

    @property
    def finished(self) -> bool:
        """True if the run has ended."""
        return self._native.finished

    def outputs(self) -> list[Any]:
        """The run's outputs, in the session's order; only after the end."""
        return self._native.outputs()

    @property
    def cache(self) -> ValueCache:
        """Values of nodes with one output, by name. A value in the cache replaces the computation of its node, also in other runs that are given
        this cache. `cache[name] = None` requests that the value is stored here when it is computed.
        """
        return self._native.cache
