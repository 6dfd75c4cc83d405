"""Ranks that train one model together: processes that `mpirun` or `torchrun` has started, or threads."""

from __future__ import annotations

from typing import Any

from . import _treadle
from ._treadle import Communicator

__all__ = ["Communicator", "connect", "connect_threads", "find"]

DEADLINE_S = 300.0


def connect(name: str = "mpi", *, deadline_s: float = DEADLINE_S) -> Communicator:
    """Joins the processes that a launcher has started: "mpi", or a name that a plugin has registered.

    :param deadline_s: seconds that a call waits for the other ranks; after that it raises an error that names the missing ranks.
    """
    return _treadle.connect_communicator(name, deadline_s)


def connect_threads(size: int, *, deadline_s: float = DEADLINE_S) -> list[Communicator]:
    """Ranks of this process, for a thread each."""
    return _treadle.make_thread_communicators(size, deadline_s)


def find(*, deadline_s: float = DEADLINE_S) -> Communicator | None:
    """Returns how the process was started: torch.distributed if that is initialised, else "mpi" under `mpirun`; None for a single process."""
    import sys

    if distributed := sys.modules.get("torch.distributed"):
        if distributed.is_available() and distributed.is_initialized():
            from .torch import communicator

            return communicator()
    name = _treadle.launched_communicator()
    return connect(name, deadline_s=deadline_s) if name else None


def of(communicator: Any, deadline_s: float) -> Communicator | None:
    """Returns the communicator that a trainer's argument `communicator` means."""
    if communicator is None or isinstance(communicator, Communicator):
        return communicator
    if isinstance(communicator, str):
        return find(deadline_s=deadline_s) if communicator == "auto" else connect(communicator, deadline_s=deadline_s)
    return _treadle.communicator_of(communicator)
