"""A dependency engine, which orders operations by the variables that they read and write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from . import _treadle
from ._treadle import RunOptions
from .session import Session

if TYPE_CHECKING:
    import concurrent.futures

Variable = _treadle.Engine.Variable


class Engine(_treadle.Engine):
    """Orders operations, such as runs, updates of parameters and copies, by the variables that they read and write.

    Operations that write a variable run one at a time, in the order of pushing; operations between them that only read it may run at the same
    time. An error of an operation is stored in the variables that it writes: operations that read these do not run, and wait_for() or
    wait_all() raises the error once.
    """

    def run_async(
        self,
        session: Session,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        reads: Sequence[Variable] = (),
        writes: Sequence[Variable] = (),
        priority: int = 0,
        run_options: RunOptions | None = None,
    ) -> concurrent.futures.Future[list[Any]]:
        """Pushes a run. Returns a future with its outputs; if a variable that it reads holds an error, the future is cancelled."""
        import concurrent.futures  # imported here, because it takes half a megabyte

        future: concurrent.futures.Future[list[Any]] = concurrent.futures.Future()

        def work() -> None:
            future.set_running_or_notify_cancel()
            try:
                future.set_result(session._sess.run(output_names, dict(input_feed), run_options))
            except BaseException as error:
                future.set_exception(error)
                raise

        self.push(_Work(work, future), list(reads), list(writes), priority)
        return future


class _Work:
    """Calls the function, and cancels the future if the engine drops the function without calling it."""

    def __init__(self, function: Any, future: concurrent.futures.Future[list[Any]]) -> None:
        self._function = function
        self._future = future

    def __call__(self) -> None:
        self._function()

    def __del__(self) -> None:
        if not self._future.running() and not self._future.done():
            self._future.cancel()
            self._future.set_running_or_notify_cancel()
