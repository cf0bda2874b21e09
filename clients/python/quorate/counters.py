"""What a client has done, in numbers. Everything that was not decided by the cluster is counted by name."""

from __future__ import annotations

import threading
from dataclasses import dataclass, fields, replace
from typing import Dict


@dataclass
class Stats:
    """A moment's copy of a client's counters."""

    #: Requests sent to nodes, of all kinds, and connections opened for them.
    requests: int = 0
    connections: int = 0
    #: Attempts that followed another one of the same call.
    retries: int = 0
    #: Permits that were handed out, decided by the cluster.
    granted: int = 0
    #: Denials by the cluster.
    denied: int = 0
    #: Denials, and waits, from the local denial cache: nobody was asked.
    denials_cached: int = 0
    #: Permits dropped because their start window was over before they could be used, and decisions that came too late (409).
    dropped: int = 0
    #: Permits given back by `release`.
    released: int = 0
    #: Permits given back because the wait for them was cancelled or interrupted, and those where that failed.
    given_back: int = 0
    not_given_back: int = 0
    #: Calls that ended with nobody deciding, and calls that ended in doubt; also where a degraded mode took over.
    unavailable: int = 0
    outcome_unknown: int = 0
    #: Permits handed out because `on_unavailable="open"`.
    degraded_open: int = 0
    #: Permits handed out, and denied, by the local limiter of `on_unavailable="local"`.
    degraded_local: int = 0
    degraded_local_denied: int = 0

    def as_dict(self) -> Dict[str, int]:
        """By name, for exporters of metrics."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


class Counters:
    """The counters themselves; any thread may count."""

    def __init__(self) -> None:
        self._stats = Stats()
        self._lock = threading.Lock()

    def count(self, name: str, by: int = 1) -> None:
        """One more."""
        with self._lock:
            setattr(self._stats, name, getattr(self._stats, name) + by)

    def snapshot(self) -> Stats:
        """All of them at one moment."""
        with self._lock:
            return replace(self._stats)

    def renew_locks(self) -> None:
        """After a fork: the child has done nothing yet."""
        self._lock = threading.Lock()
        self._stats = Stats()
