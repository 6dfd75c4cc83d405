"""Keeps a list of the sessions, trainers and modules of the process, so that one profile can record them all."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

_Observer = Callable[[Any], None]

# Functions release this lock before they call other code: a module holds its own lock when it reports its graphs here, so that two threads
# could otherwise wait for each other.
_lock = threading.Lock()
# Weak references to clients, by their id(). add() removes the references to deleted clients from time to time, because a callback for each
# reference would take a twentieth of the time that making a small session takes.
_known: dict[int, weakref.ref[Any]] = {}
_crowded = 64  # when _known has this many entries, add() removes those of deleted clients
_watchers: list[_Observer] = []


def add(client: Any) -> None:
    """Registers the client until nothing else refers to it."""
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
    if hasattr(client, "watch"):  # a module calls the watcher with each of its graphs
        client.watch(watcher)
    else:
        watcher(client)


class Process:
    """Represents all clients of the process in a profile. Observers of it get each client, including those that are made later."""

    def __init__(self) -> None:
        self._manager = self
        self._tellers: dict[_Observer, _Observer] = {}

    def watch(self, observer: _Observer) -> None:
        """Calls the observer with every client that runs."""
        told: list[Any] = []

        def tell(client: Any) -> None:  # a client may come twice: one made just now, or a module's graph that is also a session
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
        """Stops calls of the observer."""
        with _lock:
            tell = self._tellers.pop(observer)
            _watchers.remove(tell)
            clients = _all()
        for client in clients:
            while tell in getattr(client, "observers", ()):
                client.unwatch(tell)
