"""How long a question takes, for `lead_ms`: a slot that lies nearer than the answer's way is half used up on arrival."""

from __future__ import annotations

import threading
from collections import deque
from typing import Deque, Optional

SAMPLES = 15
#: Past this a slot is not worth delaying.
LEAD_NS_MAX = 1_000_000_000


class RoundTrip:
    """The median of the last few, which one election or one lost packet does not move."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._samples: Deque[int] = deque(maxlen=SAMPLES)

    def measured(self, took_ns: int) -> None:
        """One more."""
        with self._lock:
            self._samples.append(took_ns)

    def lead_ms(self) -> Optional[float]:
        """What to send; `None` while nothing is known."""
        with self._lock:
            if not self._samples:
                return None
            median = sorted(self._samples)[len(self._samples) // 2]
        return round(min(median, LEAD_NS_MAX) / 1e6, 3)

    def renew_locks(self) -> None:
        """After a fork."""
        self._lock = threading.Lock()
