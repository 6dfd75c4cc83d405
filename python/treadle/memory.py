"""Memory planning as a library: offsets of buffers with lifetimes in one arena.

>>> from treadle.memory import plan_arena
>>> plan_arena([100, 200, 100], first=[0, 1, 2], last=[2, 3, 4], alignment=1).size_bytes
300
"""

from __future__ import annotations

from ._treadle import Allocator, ArenaPlan, plan_arena, shared_weights

__all__ = ["Allocator", "ArenaPlan", "plan_arena", "shared_weights"]
