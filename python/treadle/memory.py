"""Reports the memory of sessions, trainers and joint modules, and offers the memory planner as a library.

>>> from treadle.memory import plan_arena
>>> plan_arena([100, 200, 100], first=[0, 1, 2], last=[2, 3, 4], alignment=1).size_bytes
300
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ._treadle import Allocator, ArenaPlan, plan_arena, shared_weights

__all__ = ["Allocator", "ArenaPlan", "HeldMemory", "MemoryReport", "SessionMemory", "plan_arena", "shared_weights"]


@dataclass(frozen=True)
class HeldMemory:
    """The bytes of one memory class, and how many allocations there were."""

    bytes: int
    """Bytes that are held now."""
    peak_bytes: int
    """The most bytes that have been held since the beginning, or since `reset_memory_peaks()`."""
    num_allocations: int
    """Number of allocations since the beginning."""


@dataclass(frozen=True)
class MemoryReport:
    """The memory of a session, a trainer or a joint module: `report.bytes`, `report.peak_bytes`, `report["activations"].peak_bytes`."""

    classes: Mapping[str, HeldMemory]
    """Bytes by purpose: "weights", "packed", "activations", "scratch", "io", "other", of trainers and joint modules also "parameters",
    "gradients" and "optimizer_state"; and "total", the sum."""

    @property
    def bytes(self) -> int:
        """The bytes of all classes at present."""
        return self.classes["total"].bytes

    @property
    def peak_bytes(self) -> int:
        """The most bytes that all classes have held at one time, since the beginning or since `reset_memory_peaks()`."""
        return self.classes["total"].peak_bytes

    def __getitem__(self, name: str) -> HeldMemory:
        return self.classes[name]

    def __str__(self) -> str:
        rows = [(name, f"{held.bytes:,}", f"{held.peak_bytes:,}") for name, held in self.classes.items() if held.num_allocations]
        return "\n".join(f"{name:15} {now:>15} {peak:>15}" for name, now, peak in [("class", "bytes", "peak_bytes"), *rows])


@dataclass(frozen=True)
class SessionMemory(MemoryReport):
    """The memory of a session, and the sizes that it has planned for the extents of the last run (0 before the first run)."""

    weight_bytes: int
    """Initializers and constants, including those mapped from the model's file."""
    packed_bytes: int
    """Copies of weights in the layout that a kernel reads."""
    arena_bytes: int
    """Bytes planned for activations and scratch memory."""
    arena_lower_bound_bytes: int
    """A lower bound: no arena that runs the nodes in this order can have fewer bytes."""
    arena_sum_bytes: int
    """Bytes of the arena if no two values shared memory."""
    arena_in_order_bytes: int
    """Bytes of the arena if values were placed in the order of execution, by best fit."""
    largest_node_bytes: int
    """Bytes of the operands and the scratch memory of the largest node, as far as they are in the arena: no run can need fewer."""


def report_of(statistics: Mapping[str, Mapping[str, int]]) -> MemoryReport:
    """Makes a report from the core's counts."""
    return MemoryReport({name: HeldMemory(**held) for name, held in statistics.items()})
