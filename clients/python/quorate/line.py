"""The line of those in one client who wait for the same key: only its front asks the cluster.

Without it a thousand tasks that were all denied would all ask again. Whoever is denied joins; newcomers join behind. The front is
one at first; every grant calls two in place of the one that leaves, so that a fast limit is not held to one permit a round
trip, and a denial shrinks it to one again. When nobody decides, those behind need not find out one after the other.
"""

from __future__ import annotations

import threading
from collections import deque
from itertools import islice
from typing import Callable, Deque, Dict, Optional, Protocol, Tuple

from .errors import QuorateError

#: Those of one line that ask at once, at most.
WIDTH_MAX = 64

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
        #: Whether it may ask now.
        self.called = False
        #: What those in front of it met with, where that is an answer for all.
        self.error: Optional[QuorateError] = None


class _Line:
    def __init__(self) -> None:
        self.tickets: Deque[Ticket] = deque()
        #: How many at the front may ask at once.
        self.width = 1

    def call(self) -> None:
        for ticket in islice(self.tickets, self.width):
            if not ticket.called:
                ticket.called = True
                ticket.event.set()


class Lines:
    """All lines of one client."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lines: Dict[Name, _Line] = {}

    def exists(self, name: Name) -> bool:
        """Whether anybody waits for this."""
        with self._lock:
            return name in self._lines

    def join(self, name: Name, new_event: Callable[[], Event]) -> Ticket:
        """A place at the end; its event is set when it may ask."""
        ticket = Ticket(name, new_event())
        with self._lock:
            line = self._lines.setdefault(name, _Line())
            line.tickets.append(ticket)
            line.call()
        return ticket

    def leave(self, ticket: Ticket, *, granted: bool = False) -> None:
        """Gives the place up, wherever it is; again does no harm. After a grant two are called in its place."""
        with self._lock:
            line = self._lines.get(ticket.name)
            if line is None or ticket not in line.tickets:
                return
            line.tickets.remove(ticket)
            if granted:
                line.width = min(line.width + 1, WIDTH_MAX)
            if line.tickets:
                line.call()
            else:
                del self._lines[ticket.name]

    def denied(self, ticket: Ticket, new_event: Callable[[], Event]) -> None:
        """One of them was denied: from now on only the head asks, and the others wait to be called again."""
        with self._lock:
            line = self._lines.get(ticket.name)
            if line is None:
                return
            line.width = 1
            if ticket.called and line.tickets[0] is not ticket:
                ticket.called = False
                ticket.event = new_event()
            line.call()

    def fail(self, name: Name, error: QuorateError) -> None:
        """Nobody decided, and nobody will for those behind either: all who have not asked yet are told, and leave."""
        with self._lock:
            line = self._lines.get(name)
            if line is None:
                return
            told = [ticket for ticket in line.tickets if not ticket.called]
            line.tickets = deque(ticket for ticket in line.tickets if ticket.called)
            line.width = 1
            if not line.tickets:
                del self._lines[name]
        for ticket in told:
            ticket.error = error
            ticket.event.set()

    def renew_locks(self) -> None:
        """After a fork: nobody of the parent waits here."""
        self._lock = threading.Lock()
        self._lines = {}
