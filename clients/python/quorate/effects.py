"""What a flow asks its driver to do.

Everything that a client decides is written once, as generators that yield these and get the results; `sync_client.py` carries
them out on threads, `async_client.py` on an event loop. So the two cannot differ in what they send, believe or retry.

An interruption (a cancelled task, Ctrl-C) is raised at the `yield` that was waiting, and the flow may still yield effects to
give back what it holds. The one exception is :class:`Send` after its first byte: what was sent may have been applied, so the
interruption comes as `Reply.stop`, together with the answer if it still came.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generator, Optional, TypeVar, Union

from .http1 import Answer, Request
from .line import Ticket

T = TypeVar("T")


@dataclass(frozen=True)
class Send:
    """One request to one node. The result is a :class:`Reply`."""

    node: str
    request: Request
    #: From the moment that there is a connection to use, or room to open one.
    timeout_ns: int
    #: Until when to wait for that room; `None`: as long as it takes.
    room_until_ns: Optional[int]


@dataclass(frozen=True)
class Sleep:
    """Comes back at this instant and never before."""

    until_ns: int


@dataclass(frozen=True)
class Turn:
    """Waits for the head of the line; the result is whether it came in time."""

    ticket: Ticket
    until_ns: Optional[int]


Effect = Union[Send, Sleep, Turn]
Flow = Generator[Effect, Any, T]


@dataclass(frozen=True)
class Reply:
    """What came of one request."""

    #: The whole answer, or why there is none.
    answer: Optional[Answer]
    why: str = ""
    #: Read before the first byte was written; `None`: nothing was, and that is certain.
    sent_ns: Optional[int] = None
    #: Read after the last byte had come.
    received_ns: int = 0
    #: How long it waited for room.
    queued_ns: int = 0
    #: Whether it never got as far as the node: all connections stayed in use.
    no_room: bool = False
    #: The interruption that came meanwhile.
    stop: Optional[BaseException] = None
