"""Selects the interpreter's hook that reports Python calls to the profiler: sys.monitoring from Python 3.12 on, sys.setprofile before."""

from __future__ import annotations

import sys
import threading
from typing import Any

from . import _treadle
from .errors import InvalidArgument

_lock = threading.Lock()
_users = 0
_hook: _Monitoring | _SetProfile | None = None


class _Monitoring:
    """Records calls on all threads, including those that run already."""

    def __init__(self, monitoring: Any) -> None:
        self._monitoring = monitoring
        events = monitoring.events
        # Each piece of a generator's execution, from its start or a resumption to the next yield, is recorded as a call.
        self._callbacks = {
            events.PY_START: _treadle.calls_on_start,
            events.PY_RESUME: _treadle.calls_on_start,
            events.PY_THROW: _treadle.calls_on_start,
            events.PY_RETURN: _treadle.calls_on_end,
            events.PY_YIELD: _treadle.calls_on_end,
            events.PY_UNWIND: _treadle.calls_on_end,
            events.CALL: _treadle.calls_on_call,
            events.C_RETURN: _treadle.calls_on_c_end,
            events.C_RAISE: _treadle.calls_on_c_end,
        }
        free = [tool for tool in (monitoring.PROFILER_ID, 3, 4) if monitoring.get_tool(tool) is None]
        if not free:
            raise InvalidArgument("python_calls: all of sys.monitoring's tools for profilers are in use", code="invalid_argument")
        self._tool = free[0]
        monitoring.use_tool_id(self._tool, "treadle")
        for event, callback in self._callbacks.items():
            monitoring.register_callback(self._tool, event, callback)
        # The event CALL also enables the events C_RETURN and C_RAISE.
        monitoring.set_events(self._tool, sum({event for event in self._callbacks if event not in (events.C_RETURN, events.C_RAISE)}))

    def stop(self) -> None:
        self._monitoring.set_events(self._tool, 0)
        for event in self._callbacks:
            self._monitoring.register_callback(self._tool, event, None)
        self._monitoring.free_tool_id(self._tool)


class _SetProfile:
    """Records calls on this thread and on threads that begin later. Before Python 3.12, other threads cannot be reached."""

    def __init__(self) -> None:
        if sys.getprofile() is not None:
            raise InvalidArgument("python_calls: another profiler is set (sys.setprofile)", code="invalid_argument")
        self._threads_before = threading.getprofile()
        threading.setprofile(_treadle.calls_on_profile)
        sys.setprofile(_treadle.calls_on_profile)

    def stop(self) -> None:
        if sys.getprofile() is _treadle.calls_on_profile:
            sys.setprofile(None)
        threading.setprofile(self._threads_before)


def are_on() -> bool:
    """Returns True if any profile records Python calls."""
    return _users > 0


def start() -> None:
    """Starts recording calls. Each start() needs a stop()."""
    global _users, _hook
    with _lock:
        if _users == 0:
            monitoring = getattr(sys, "monitoring", None)
            _treadle.hide_rest_of_call(start.__code__)  # otherwise, the end of this call, which releases the lock, would be recorded
            try:
                _hook = _SetProfile() if monitoring is None else _Monitoring(monitoring)
            except BaseException:
                _treadle.hide_rest_of_call(None)
                raise
        _users += 1


def hide(function: Any) -> None:
    """Excludes calls of the function, and calls that it makes, from the recording."""
    _treadle.hide_calls(function.__code__)


def stop() -> None:
    """Stops recording for one profile. With the last profile, calls that are still open end in the recording."""
    global _users, _hook
    with _lock:
        _users -= 1
        if _users == 0 and _hook is not None:
            _hook.stop()
            _hook = None
            _treadle.end_python_calls()
        else:
            _treadle.tell_open_python_calls()
