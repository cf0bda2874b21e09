"""The local denial cache: who was denied need not ask again before `retry_after`.

Only what a denial really says is remembered. "Reservations are full" holds for everybody who asks for as much; "not free
now" holds only for those who want a permit that is free now; "you would wait too long" holds for nobody else; and a place
in flight comes back whenever somebody is done, so nothing is known of it a moment later.

A cached denial may be too strict: a permit that was given back meanwhile, or a limit that was raised, is not seen before
`retry_after`. It is never too loose.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any, Mapping, Optional, Tuple

ENTRIES_MAX = 4096
_FOR_ALL = ("reservations_full", "window_full")
_FOR_NOW = (*_FOR_ALL, "not_free_now")

Name = Tuple[str, str, int]


class Denials:
    """Denials by key, limit and cost, each with the instant until which it holds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: "OrderedDict[Tuple[Name, bool], Tuple[int, Mapping[str, Any]]]" = OrderedDict()

    def remember(self, name: Name, problem: Mapping[str, Any], until_ns: int) -> None:
        """Keeps a denial that says something about later requests."""
        reason = problem.get("reason")
        with self._lock:
            for now_only, reasons in ((True, _FOR_NOW), (False, _FOR_ALL)):
                if reason in reasons:
                    self._entries[(name, now_only)] = (until_ns, problem)
                    self._entries.move_to_end((name, now_only))
            while len(self._entries) > ENTRIES_MAX:
                self._entries.popitem(last=False)

    def denied(self, name: Name, now_ns: int, *, now_only: bool) -> Optional[Tuple[int, Mapping[str, Any]]]:
        """The denial that still holds, and until when."""
        with self._lock:
            entry = self._entries.get((name, now_only))
            if entry is not None and entry[0] <= now_ns:
                del self._entries[(name, now_only)]
                entry = None
            return entry

    def renew_locks(self) -> None:
        """After a fork."""
        self._lock = threading.Lock()
