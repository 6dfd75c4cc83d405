"""The sessions, trainers and modules that a process has, for profiles of all of them."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

_Observer = Callable[[Any], None]

# Callers release the lock before they call other code: a module has a lock of its own, and reports its graphs under it.
_lock = threading.Lock()
# By id. What is gone is taken out now and then, not as it goes: callbacks would be a twentieth of the start of a small session.
_known: dict[int, weakref.ref[Any]] = {}
_crowded = 64  # so many entries, and those that are gone are taken out
_watchers: list[_Observer] = []


def add(client: Any) -> None:
    """Registers the client as one of the process's, for as long as something else refers to it."""
    global _crowded
    with _lock:
        if len(_known) >= _crowded:
            for number in [number for number, known in _known.items() if known() is None]:
                del _known[number]
            _crowded = max(64, 2 * len(_known))
        _known[id(client)] = weakref.ref(client)
        watchers = list(_watchers)
    for watcher in watchers:
        _tell_of(client, watcher)


def _all() -> list[Any]:
    """Returns the clients that still exist. The caller holds the lock."""
    return [client for known in _known.values() if (client := known()) is not None]


def _tell_of(client: Any, watcher: _Observer) -> None:
    if hasattr(client, "watch"):  # a module: it tells of each of its graphs
        client.watch(watcher)
    else:
        watcher(client)


class Process:
    """All clients of the process, as one client of profiles: it tells of each, and of those that are made meanwhile."""

    def __init__(self) -> None:
        self._manager = self
        self._tellers: dict[_Observer, _Observer] = {}

    def watch(self, observer: _Observer) -> None:
        """Calls the observer with every client that runs."""
        told: list[Any] = []

        def tell(client: Any) -> None:  # some are told of twice: made just now, or a module's graph that is a session of the process
            with _lock:
                if any(client is other for other in told):
                    return
                told.append(client)
            observer(client)

        with _lock:
            self._tellers[observer] = tell
            _watchers.append(tell)
            clients = _all()
        for client in clients:
            _tell_of(client, tell)

    def unwatch(self, observer: _Observer) -> None:
        """Ends watch()."""
        with _lock:
            tell = self._tellers.pop(observer)
            _watchers.remove(tell)
            clients = _all()
        for client in clients:
            while tell in getattr(client, "observers", ()):
                client.unwatch(tell)
