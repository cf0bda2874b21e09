"""The line of those in one client who wait for the same key: only its head asks the cluster.

Without it a thousand tasks that were all denied would all ask again. Whoever is denied joins; newcomers join behind; the head
leaves when it has a permit, and the next asks at once.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Callable, Deque, Dict, Protocol, Tuple

Name = Tuple[str, str, int]


class Event(Protocol):
    """What a driver waits on; set from any thread."""

    def set(self) -> None:
        """Wakes whoever waits."""


class Ticket:
    """A place in a line."""

    def __init__(self, name: Name, event: Event) -> None:
        self.name = name
        self.event = event


class Lines:
    """All lines of one client."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lines: Dict[Name, Deque[Ticket]] = {}

    def exists(self, name: Name) -> bool:
        """Whether anybody waits for this."""
        with self._lock:
            return name in self._lines

    def join(self, name: Name, new_event: Callable[[], Event]) -> Ticket:
        """A place at the end; its event is set when it is the first."""
        ticket = Ticket(name, new_event())
        with self._lock:
            line = self._lines.setdefault(name, deque())
            line.append(ticket)
            if len(line) == 1:
                ticket.event.set()
        return ticket

    def leave(self, ticket: Ticket) -> None:
        """Gives the place up, wherever it is; again does no harm."""
        with self._lock:
            line = self._lines.get(ticket.name)
            if line is None or ticket not in line:
                return
            first = line[0] is ticket
            if first:
                line.popleft()
            else:
                line.remove(ticket)
            if not line:
                del self._lines[ticket.name]
            elif first:
                line[0].event.set()

    def renew_locks(self) -> None:
        """After a fork: nobody of the parent waits here."""
        self._lock = threading.Lock()
        self._lines = {}
