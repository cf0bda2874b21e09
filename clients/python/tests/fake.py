"""A node that does as it is told: one step of its script for every request."""

import json
import socket
import threading
import time

from tests.world import grant, problem

#: Steps besides answers.
CLOSE, HANG = object(), object()


def answer(status, content, headers=""):
    """The bytes of an answer."""
    body = json.dumps(content).encode()
    head = f"HTTP/1.1 {status} X\r\ncontent-length: {len(body)}\r\ncontent-type: application/json\r\n{headers}\r\n"
    return head.encode() + body


def granted(**members):
    """Grants whatever is asked for."""
    return lambda request: answer(*grant(request, **members))


def refused(code, status, **members):
    """A problem."""
    return lambda _: answer(*problem(code, status, **members))


_bound = []


def unreachable():
    """The URL of a port that nobody listens on, and that nobody else gets: it stays bound."""
    holder = socket.socket()
    holder.bind(("127.0.0.1", 0))
    _bound.append(holder)
    return f"http://127.0.0.1:{holder.getsockname()[1]}"


class FakeNode:
    """`with FakeNode(step, …) as node:`. A step is CLOSE, HANG, bytes to send before closing, or a callable from the request's
    content to bytes of an answer. When the script is over, `otherwise` answers."""

    def __init__(self, *script, otherwise=None):
        self.script = list(script)
        self.otherwise = otherwise or granted()
        self.requests = []
        self.connections = 0
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self._open = set()
        self._stopped = threading.Event()
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self):
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def stop(self):
        """Ends the node and all its connections; again does no harm."""
        self._stopped.set()
        with self._lock:
            if self._listener.fileno() >= 0:
                # A thread in accept() is woken by a shutdown, not by a close.
                self._listener.shutdown(socket.SHUT_RDWR)
                self._listener.close()
            for connection in self._open:
                try:
                    # A close alone would leave it open as long as a thread reads from it.
                    connection.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass

    def __exit__(self, *_):
        self.stop()

    def _accept(self):
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                self.connections += 1
                self._open.add(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection):
        try:
            with connection, connection.makefile("rb") as stream:
                while self._one(connection, stream):
                    pass
        except (OSError, ValueError):
            pass
        finally:
            with self._lock:
                self._open.discard(connection)

    def _one(self, connection, stream):
        line = stream.readline()
        if not line:
            return False
        length = 0
        while True:
            header = stream.readline().strip().lower()
            if not header:
                break
            if header.startswith(b"content-length:"):
                length = int(header.split(b":")[1])
        content = json.loads(stream.read(length)) if length else {}
        with self._lock:
            self.requests.append((line.decode().split(" ")[0:2], content, time.monotonic_ns()))
            step = self.script.pop(0) if self.script else self.otherwise
        if step is CLOSE:
            return False
        if step is HANG:
            self._stopped.wait()
            return False
        if isinstance(step, bytes):
            connection.sendall(step)
            return False
        connection.sendall(step(content))
        return True
