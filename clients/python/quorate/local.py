"""The local limiter of `on_unavailable="local"`: this process alone, at a fraction of the rate, while the cluster is gone.

It promises nothing about other processes: with `n` of them and a fraction of `1/n` their sum is the rate, but not its
spacing. The first permit of a key comes at a random moment of its first interval, so that workers that lose the cluster
together do not start together.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Callable, Tuple

KEYS_MAX = 4096


class LocalLimiter:
    """One slot every `interval / fraction` for each key."""

    def __init__(self, fraction: float, random: Callable[[], float]) -> None:
        self._fraction = fraction
        self._random = random
        self._lock = threading.Lock()
        self._next: "OrderedDict[str, int]" = OrderedDict()

    def take(self, key: str, interval_ns: int, cost: int, now_ns: int) -> "Tuple[int, bool]":
        """The next slot of the key, and whether it was taken: only if it has come. Nothing is held for those who wait."""
        unit = int(interval_ns / self._fraction) + 1
        with self._lock:
            known = self._next.get(key)
            slot = now_ns + int(unit * self._random()) if known is None else max(known, now_ns)
            taken = slot <= now_ns
            self._next[key] = slot + unit * cost if taken else slot
            self._next.move_to_end(key)
            while len(self._next) > KEYS_MAX:
                self._next.popitem(last=False)
        return slot, taken

    def renew_locks(self) -> None:
        """After a fork."""
        self._lock = threading.Lock()
