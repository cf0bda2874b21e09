"""Connections for threads: reused, bounded in number, and never shared with a forked child."""

from __future__ import annotations

import socket
import threading
import time
from typing import Dict, List, Optional, Tuple

from .effects import Reply, Send
from .http1 import AnswerReader, ProtocolError
from .nodes import address
from .permit import NS

#: A node closes connections that rest for 90 s; one that rested nearly as long is not worth the doubt.
IDLE_NS_MAX = 60 * NS
#: Longest wait for a connection: past it the next node is more likely to answer.
CONNECT_NS_MAX = 1 * NS
_READ_BYTES = 64 * 1024
_OWN_FRAMES = (__name__, "socket", "encodings.idna", __name__.rpartition(".")[0] + ".http1")

Idle = Tuple[socket.socket, int]


class SyncWire:
    """The connections of one client."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._room = threading.Condition()
        self._busy = 0
        self._idle: Dict[str, List[Idle]] = {}
        self._closed = False
        #: Opened so far.
        self.opened = 0

    def exchange(self, send: Send) -> Reply:
        """Carries out one :class:`Send`. An interruption after the first byte is in the reply, one before it is raised."""
        begun = time.monotonic_ns()
        if not self._enter(send.room_until_ns):
            return Reply(None, f"all {self._most} connections stayed in use", no_room=True)
        queued = time.monotonic_ns() - begun
        sent: List[int] = []
        try:
            return self._exchange(send, queued, sent)
        except BaseException as stop:
            # Ctrl-C, or whatever a handler of signals raises, such as the time limit of a task.
            if not sent:
                raise
            return Reply(None, "interrupted", sent[0], time.monotonic_ns(), queued, stop=stop)
        finally:
            self._leave()

    def close(self) -> None:
        """Closes what rests; what is in use is closed when it is done."""
        with self._room:
            self._closed = True
            resting, self._idle = self._idle, {}
        for idle in resting.values():
            for connection, _ in idle:
                connection.close()

    def abandon(self) -> None:
        """In a forked child: closes its copies of what rests. The connections themselves are the parent's and stay open there."""
        for idle in self._idle.values():
            for connection, _ in idle:
                connection.close()

    def _enter(self, until_ns: Optional[int]) -> bool:
        with self._room:
            if self._closed:
                raise RuntimeError("this client is closed")
            while self._busy >= self._most:
                left = None if until_ns is None else (until_ns - time.monotonic_ns()) / NS
                if left is not None and left <= 0:
                    return False
                self._room.wait(left)
            self._busy += 1
            return True

    def _leave(self) -> None:
        with self._room:
            self._busy -= 1
            self._room.notify()

    def _exchange(self, send: Send, queued: int, sent_at: List[int]) -> Reply:
        """`sent_at` gets the instant of the send before anything is sent: then an interruption may leave a permit behind."""
        deadline = time.monotonic_ns() + send.timeout_ns
        host, port = address(send.node)
        connection = self._resting(send.node)
        if connection is None:
            self._make_room()
            try:
                patience = min(send.timeout_ns // 2, CONNECT_NS_MAX)
                connection = socket.create_connection((host, port), patience / NS)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            except (OSError, UnicodeError) as error:
                # The latter is a name that no resolver takes.
                if _is_raised_by_handler(error):
                    raise
                return Reply(None, _why(error, "no connection in time"), queued_ns=queued)
            with self._room:
                self.opened += 1
        keep = False
        try:
            sent = time.monotonic_ns()
            sent_at.append(sent)
            reader = AnswerReader()
            _write(connection, send.request.encode(send.node[len("http://") :]), deadline)
            while reader.answer is None:
                _read(connection, reader, deadline)
            received = time.monotonic_ns()
            keep = reader.answer.keep
            return Reply(reader.answer, "", sent, received, queued)
        except (OSError, ProtocolError) as error:
            if _is_raised_by_handler(error):
                raise
            return Reply(None, _why(error, "no answer in time"), sent, time.monotonic_ns(), queued)
        finally:
            if keep:
                self._rest(send.node, connection)
            else:
                connection.close()

    def _resting(self, node: str) -> Optional[socket.socket]:
        oldest = time.monotonic_ns() - IDLE_NS_MAX
        while True:
            with self._room:
                idle = self._idle.get(node)
                if not idle:
                    return None
                connection, since = idle.pop()
            if since > oldest and _is_open(connection):
                return connection
            connection.close()

    def _make_room(self) -> None:
        """Closes one that rests if the next one would be one too many: the bound is on descriptors."""
        with self._room:
            idle = max(self._idle.values(), key=len, default=[])
            if not idle or self._busy + sum(map(len, self._idle.values())) <= self._most:
                return
            connection, _ = idle.pop(0)
        connection.close()

    def _rest(self, node: str, connection: socket.socket) -> None:
        with self._room:
            if not self._closed:
                self._idle.setdefault(node, []).append((connection, time.monotonic_ns()))
                return
        connection.close()


def _left(deadline: int) -> float:
    left = (deadline - time.monotonic_ns()) / NS
    if left <= 0:
        raise socket.timeout("no answer in time")
    return left


def _write(connection: socket.socket, data: bytes, deadline: int) -> None:
    view = memoryview(data)
    while view:
        connection.settimeout(_left(deadline))
        view = view[connection.send(view) :]


def _read(connection: socket.socket, reader: AnswerReader, deadline: int) -> None:
    connection.settimeout(_left(deadline))
    data = connection.recv(_READ_BYTES)
    if data:
        reader.feed(data)
    else:
        reader.eof()


def _is_open(connection: socket.socket) -> bool:
    """Whether a resting connection has nothing to say: an end, or bytes that nobody asked for, make it useless."""
    try:
        connection.settimeout(0)
        connection.recv(1, socket.MSG_PEEK)
        return False
    except (BlockingIOError, InterruptedError):
        return True
    except OSError:
        return False


def _is_raised_by_handler(error: BaseException) -> bool:
    """Whether a handler of signals raised it while a call on the socket was waiting: then it is no error of the socket, though it may
    be of the same kind (`TimeoutError`). Its innermost frame is not one of those that work on sockets.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_globals.get("__name__") not in _OWN_FRAMES


def _why(error: Exception, when_late: str) -> str:
    if isinstance(error, socket.timeout):
        return when_late
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
