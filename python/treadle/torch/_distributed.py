"""Lets Treadle's trainers communicate by torch.distributed."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from .. import _treadle

_GRACE_S = 3.0


class _TorchRanks:
    """The ranks of a process group. When a call fails, each remaining rank writes to the group's store, and the error names a rank that does not."""

    def __init__(self, group: Any) -> None:
        self._group = group
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)
        self._store = dist.distributed_c10d.PrefixStore("treadle", dist.distributed_c10d._get_default_store())
        self._failure = ""

    def all_reduce(self, data: np.ndarray, dtype: str) -> None:
        tensor = torch.from_numpy(data).view(getattr(torch, dtype))
        self._call(lambda: dist.all_reduce(tensor, group=self._group))

    def broadcast(self, data: np.ndarray, root: int) -> None:
        tensor = torch.from_numpy(data)
        source = dist.get_global_rank(self._group, root) if self._group is not None else root
        self._call(lambda: dist.broadcast(tensor, source, group=self._group))

    def fail(self, reason: str) -> None:
        self._failure = reason
        thread = threading.Thread(target=self._tell, args=(reason,), daemon=True)
        thread.start()
        thread.join(_GRACE_S)

    def _tell(self, reason: str) -> None:
        try:
            self._store.set(f"failed/{self.rank}", reason)
        except RuntimeError:  # the store's host has exited; the other ranks notice this when they ask the store
            pass

    def _call(self, work: Any) -> None:
        if self._failure:
            raise RuntimeError(self._failure)
        try:
            work()
        except RuntimeError as error:
            self._failure = self._explain(error)
            raise RuntimeError(self._failure) from error

    def _explain(self, error: RuntimeError) -> str:
        """Asks the store which other ranks still exist. A store whose host is gone may never answer, so a thread asks."""
        answer: list[str] = []
        thread = threading.Thread(target=lambda: answer.append(self._ask(error)), daemon=True)
        thread.start()
        thread.join(2 * _GRACE_S)
        return answer[0] if answer else f"rank 0 is gone, or does not answer: it keeps the store of torch.distributed: {error}"

    def _ask(self, error: RuntimeError) -> str:
        try:
            self._store.set(f"here/{self.rank}", "1")
            end = time.monotonic() + _GRACE_S
            missing = [rank for rank in range(self.size) if rank != self.rank]
            while missing and time.monotonic() < end:
                for rank in list(missing):
                    if self._store.check([f"failed/{rank}"]):
                        return f"rank {rank} failed: {self._store.get(f'failed/{rank}').decode(errors='replace')}"
                    if self._store.check([f"here/{rank}"]):
                        missing.remove(rank)
                time.sleep(0.05)
        except RuntimeError:  # also catches dist.DistNetworkError
            return f"rank 0 is gone, or does not answer: it keeps the store of torch.distributed: {error}"
        if not missing:
            return str(error)
        return f"rank {', '.join(map(str, missing))} is gone, or has not come within the group's timeout: {error}"


def communicator(group: Any = None) -> _treadle.Communicator:
    """Makes a trainer's `communicator` of a process group of torch.distributed (Gloo).

    Calls wait for other ranks as long as the group's timeout says (`init_process_group(timeout=...)`).
    """
    if not dist.is_available() or not dist.is_initialized():
        raise RuntimeError("torch.distributed is not initialised: call torch.distributed.init_process_group first")
    backend = dist.get_backend(group)
    if "gloo" not in backend:
        raise RuntimeError(f"the process group's backend is {backend}, which has no CPU tensors; gloo is expected")
    return _treadle.communicator_of(_TorchRanks(group))
