"""Connections for one event loop: reused, and bounded in number so that thousands of tasks share a few of them."""

from __future__ import annotations

import asyncio
import select
import socket
import time
from collections import deque
from typing import Deque, Dict, List, Optional, Tuple, cast

from .effects import Reply, Send
from .http1 import Answer, AnswerReader, ProtocolError
from .nodes import address
from .permit import NS
from .sync_wire import CONNECT_NS_MAX, IDLE_NS_MAX

#: What an exchange ends with: the answer or why there is none, and when.
Outcome = Tuple[Optional[Answer], str, int]


class Connection(asyncio.Protocol):
    """One connection, which carries one exchange at a time."""

    def __init__(self, sock: socket.socket) -> None:
        #: Held here as well: a transport can close it only while its loop runs.
        self.socket = sock
        self.transport: Optional[asyncio.Transport] = None
        self.usable = False
        self.since_ns = 0
        self._reader: Optional[AnswerReader] = None
        self._outcome: "Optional[asyncio.Future[Outcome]]" = None
        self._timer: Optional[asyncio.TimerHandle] = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.usable = True
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def is_quiet(self) -> bool:
        """Whether a resting connection is good for another exchange. The loop may not have come round to hear of its end yet, so
        the socket itself is asked: an end, or bytes that nobody asked for, make it useless.
        """
        if not self.usable or self.transport is None or self.transport.is_closing() or self.socket.fileno() < 0:
            return False
        if hasattr(select, "poll"):
            poll = select.poll()
            poll.register(self.socket, select.POLLIN)
            return not poll.poll(0)
        return not any(select.select([self.socket], [], [self.socket], 0))

    def start(self, data: bytes, timeout_ns: int) -> "asyncio.Future[Outcome]":
        """Sends a request. The future ends in time whatever happens, and whoever stops waiting for it."""
        assert self.transport is not None
        loop = asyncio.get_running_loop()
        self._reader = AnswerReader()
        self._outcome = loop.create_future()
        self._timer = loop.call_later(timeout_ns / NS, self._lost, "no answer in time")
        self.transport.write(data)
        return self._outcome

    def data_received(self, data: bytes) -> None:
        if self._reader is None:
            # Bytes that nobody asked for.
            self.abort()
            return
        try:
            self._reader.feed(data)
        except ProtocolError as error:
            self._lost(str(error))
            return
        if self._reader.answer is not None:
            self._answered(self._reader.answer)

    def eof_received(self) -> bool:
        self.usable = False
        if self._reader is not None:
            try:
                self._reader.eof()
            except ProtocolError as error:
                self._lost(str(error))
            else:
                assert self._reader.answer is not None
                self._answered(self._reader.answer)
        return False

    def connection_lost(self, error: Optional[Exception]) -> None:
        self.usable = False
        if self._reader is not None:
            why = getattr(error, "strerror", None) or str(error or "") or "the connection was closed without an answer"
            self._lost(why)

    def abort(self) -> None:
        """Closes it at once."""
        self.usable = False
        if self.transport is not None:
            self.transport.abort()

    def _answered(self, answer: Answer) -> None:
        self.usable = self.usable and answer.keep
        self._end((answer, "", time.monotonic_ns()))

    def _lost(self, why: str) -> None:
        self.usable = False
        self._end((None, why, time.monotonic_ns()))
        self.abort()

    def _end(self, outcome: Outcome) -> None:
        self._reader = None
        if self._timer is not None:
            self._timer.cancel()
        if self._outcome is not None and not self._outcome.done():
            self._outcome.set_result(outcome)


class AsyncWire:
    """The connections of one client on one loop."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._busy = 0
        self._waiting: "Deque[asyncio.Future[None]]" = deque()
        self._idle: Dict[str, List[Connection]] = {}
        self.opened = 0
        self.closed = False

    async def enter(self, until_ns: Optional[int]) -> bool:
        """Waits for room, first come, first served; `False` if there was none in time."""
        if self.closed:
            raise RuntimeError("this client is closed")
        if self._busy < self._most:
            self._busy += 1
            return True
        loop = asyncio.get_running_loop()
        place: "asyncio.Future[None]" = loop.create_future()
        self._waiting.append(place)
        timer = None
        if until_ns is not None:
            timer = loop.call_later(max(0, until_ns - time.monotonic_ns()) / NS, _give_up, place)
        try:
            await place
            return True
        except asyncio.CancelledError:
            if place.done() and not place.cancelled() and place.exception() is None:
                # Room was made for us just before: it is somebody else's now.
                self.leave()
            raise
        except TimeoutError:
            return False
        finally:
            if timer is not None:
                timer.cancel()

    def leave(self) -> None:
        """Makes room for the next."""
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(None)
                return
        self._busy -= 1

    async def connection(self, send: Send) -> "Connection | Reply":
        """A connection to the node, or the reply that says why there is none."""
        idle = self._idle.get(send.node)
        oldest = time.monotonic_ns() - IDLE_NS_MAX
        while idle:
            resting = idle.pop()
            if resting.since_ns > oldest and resting.is_quiet():
                return resting
            resting.abort()
        self._make_room()
        loop = asyncio.get_running_loop()
        host, port = address(send.node)
        opening = loop.create_task(_open(loop, host, port))
        try:
            await asyncio.wait({opening}, timeout=min(send.timeout_ns // 2, CONNECT_NS_MAX) / NS)
        finally:
            if not opening.done():
                opening.add_done_callback(_drop)
                opening.cancel()
        if not opening.done() or opening.cancelled():
            return Reply(None, "no connection in time")
        error = opening.exception()
        if isinstance(error, (OSError, UnicodeError)):
            # The latter is a name that no resolver takes.
            return Reply(None, getattr(error, "strerror", None) or str(error))
        self.opened += 1
        return opening.result()

    def _make_room(self) -> None:
        """Closes one that rests if the next one would be one too many: the bound is on descriptors."""
        idle = max(self._idle.values(), key=len, default=[])
        if idle and self._busy + sum(map(len, self._idle.values())) > self._most:
            idle.pop(0).abort()

    def rest(self, node: str, connection: Connection) -> None:
        """Keeps a connection for the next exchange if it is good for one."""
        if connection.usable and not self.closed:
            connection.since_ns = time.monotonic_ns()
            self._idle.setdefault(node, []).append(connection)
        else:
            connection.abort()

    def abandon(self) -> None:
        """Closes the sockets of a loop that does not run, here or any more: its transports cannot."""
        for idle in self._idle.values():
            for connection in idle:
                connection.usable = False
                connection.socket.close()
        self._idle = {}

    def close(self) -> None:
        """Closes what rests; what is in use is closed when it is done."""
        self.closed = True
        resting, self._idle = self._idle, {}
        for idle in resting.values():
            for connection in idle:
                connection.abort()


def _give_up(place: "asyncio.Future[None]") -> None:
    if not place.done():
        place.set_exception(TimeoutError())


async def _open(loop: asyncio.AbstractEventLoop, host: str, port: int) -> Connection:
    """A new connection: the first address of the host that takes one."""
    failed: OSError = OSError(f"{host} has no address")
    for family, kind, protocol, _, there in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            await loop.sock_connect(sock, there)
            return (await loop.create_connection(lambda: Connection(sock), sock=sock))[1]
        except OSError as error:
            sock.close()
            failed = error
        except BaseException:
            sock.close()
            raise
    raise failed


def _drop(opening: "asyncio.Task[Connection]") -> None:
    """Closes a connection that came about after nobody wanted it any more."""
    if not opening.cancelled() and opening.exception() is None:
        opening.result().abort()
