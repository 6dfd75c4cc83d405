"""Actions before and after every run of every session of the process.

hook = treadle.hooks.register("post_run", 0, lambda run: print(run.run_id, run.duration_ns))
...
hook.remove()
"""

from __future__ import annotations

from collections.abc import Callable

from . import _treadle
from ._treadle import HookedRun

__all__ = ["Hook", "HookedRun", "register"]


class Hook:
    """A registered action. As a context manager, it removes the action at the end of the block."""

    def __init__(self, identifier: int) -> None:
        self._identifier = identifier

    def remove(self) -> bool:
        """Removes the action. Running runs may still call it. Returns False if it was removed before."""
        return _treadle.unregister_hook(self._identifier)

    def __repr__(self) -> str:
        return f"Hook({self._identifier})"

    def __enter__(self) -> Hook:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def register(point: str, group: int, function: Callable[[HookedRun], None]) -> Hook:
    """Registers an action.

    :param point: "pre_run" or "post_run".
    :param group: groups run in ascending order, actions of a group in the order of registration, on the thread of the run.
    :param function: called with an object that has run_id, graph_id, tag and, after the run, duration_ns and error. If it raises, the run fails:
        before the run, nothing is computed; after the run, the results are dropped.
    """
    return Hook(_treadle.register_hook(point, group, function))
