"""HTTP/1.1 as far as it is needed, without a socket: bytes of a request out, bytes of an answer in.

Both clients use it, so that they read the same answer in the same way. Whatever is not HTTP, breaks off or is too large is
a :class:`ProtocolError`, and never an answer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, Optional, Tuple

from .version import VERSION

HEAD_BYTES_MAX = 64 * 1024
#: Room for ten thousand policies.
BODY_BYTES_MAX = 32 * 1024 * 1024
_CHUNK_LINE_MAX = 1024


class ProtocolError(Exception):
    """What came is no answer."""


@dataclass(frozen=True)
class Request:
    """A request, ready to be sent to whichever node, as often as need be."""

    method: str
    path: str
    body: Optional[bytes] = None
    headers: Tuple[Tuple[str, str], ...] = ()

    def encode(self, host: str) -> bytes:
        """All its bytes."""
        lines = [f"{self.method} {self.path} HTTP/1.1", f"host: {host}", f"user-agent: quorate-python/{VERSION}"]
        lines += [f"{name}: {value}" for name, value in self.headers]
        if self.body is not None:
            lines += ["content-type: application/json", f"content-length: {len(self.body)}"]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("ascii") + (self.body or b"")


@dataclass
class Answer:
    """A whole answer. Names of headers are in lower case."""

    status: int
    headers: Dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    #: Whether the connection may be used again.
    keep: bool = True


class AnswerReader:
    """Takes the bytes of one answer as they come. `answer` is there when it is whole."""

    def __init__(self) -> None:
        self.answer: Optional[Answer] = None
        self._buffer = bytearray()
        self._head: Optional[Answer] = None
        self._chunks = bytearray()
        #: Bytes of body to come, or `None`: in chunks, or up to the end of the connection.
        self._length: Optional[int] = None
        self._chunked = False
        #: In chunks: bytes of the current one and its line end; -1 while the trailers are read.
        self._chunk: Optional[int] = None

    def feed(self, data: bytes) -> None:
        """More bytes."""
        if self.answer is not None:
            # More than was asked for: whatever it belongs to, this connection is of no more use.
            self.answer.keep = False
            return
        self._buffer += data
        if self._head is None and not self._read_head():
            return
        if self._chunked:
            self._read_chunks()
        elif self._length is None:
            _bounded(len(self._buffer))
        elif len(self._buffer) >= self._length:
            self._finish(bytes(self._buffer[: self._length]), len(self._buffer) > self._length)

    def eof(self) -> None:
        """The other side has closed: that is the end of an answer, or one too early."""
        if self.answer is not None:
            self.answer.keep = False
        elif self._head is not None and not self._chunked and self._length is None:
            self._head.keep = False
            self._finish(bytes(self._buffer), False)
        elif self._head is None and not self._buffer:
            raise ProtocolError("the connection was closed without an answer")
        else:
            raise ProtocolError("the connection was closed in the middle of an answer")

    def _read_head(self) -> bool:
        while True:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                if len(self._buffer) > HEAD_BYTES_MAX:
                    raise ProtocolError(f"headers of more than {HEAD_BYTES_MAX} bytes")
                if not b"HTTP/1.".startswith(bytes(self._buffer[:7])):
                    raise ProtocolError("that is not HTTP")
                return False
            head = _parse_head(bytes(self._buffer[:end]))
            del self._buffer[: end + 4]
            if head.status >= 200:
                self._head = head
                self._prepare(head)
                return True
            # "100 Continue" and its like announce the answer and are none.

    def _prepare(self, head: Answer) -> None:
        coding = head.headers.get("transfer-encoding")
        length = head.headers.get("content-length")
        if head.status in (204, 304):
            self._length = 0
        elif coding is not None:
            if coding.strip().lower() != "chunked":
                raise ProtocolError(f"a transfer coding that nobody asked for: {coding[:40]!r}")
            self._chunked = True
        elif length is not None:
            if not (length.isascii() and length.isdigit() and len(length) < 16):
                raise ProtocolError(f"a length that is none: {length[:40]!r}")
            self._length = int(length)
            _bounded(self._length)

    def _read_chunks(self) -> None:
        while True:
            if self._chunk is None or self._chunk < 0:
                end = self._buffer.find(b"\r\n")
                if end < 0:
                    if len(self._buffer) > _CHUNK_LINE_MAX:
                        raise ProtocolError("a line of more than 1024 bytes between chunks")
                    return
                line = bytes(self._buffer[:end])
                del self._buffer[: end + 2]
                if self._chunk is None:
                    self._chunk = _chunk_size(line) or -1
                    _bounded(len(self._chunks) + max(self._chunk, 0))
                elif not line:
                    self._finish(bytes(self._chunks), bool(self._buffer))
                    return
            else:
                if len(self._buffer) < self._chunk + 2:
                    return
                if self._buffer[self._chunk : self._chunk + 2] != b"\r\n":
                    raise ProtocolError("a chunk that is longer than it says")
                self._chunks += self._buffer[: self._chunk]
                del self._buffer[: self._chunk + 2]
                self._chunk = None

    def _finish(self, body: bytes, more: bool) -> None:
        assert self._head is not None
        self._head.body = body
        self._head.keep = self._head.keep and not more
        self.answer = self._head


def _bounded(size: int) -> None:
    if size > BODY_BYTES_MAX:
        raise ProtocolError(f"an answer of more than {BODY_BYTES_MAX} bytes")


def _chunk_size(line: bytes) -> int:
    digits = line.split(b";", 1)[0].strip()
    if not 1 <= len(digits) <= 12 or digits.translate(None, b"0123456789abcdefABCDEF"):
        raise ProtocolError(f"a chunk of no size: {line[:40]!r}")
    return int(digits, 16)


def _parse_head(head: bytes) -> Answer:
    lines = head.decode("latin-1").split("\r\n")
    parts = lines[0].split(" ", 2)
    good = len(parts) >= 2 and parts[0] in ("HTTP/1.1", "HTTP/1.0") and len(parts[1]) == 3
    if not good or not (parts[1].isascii() and parts[1].isdigit()) or parts[1] < "100":
        raise ProtocolError(f"that is not HTTP: {lines[0][:40]!r}")
    answer = Answer(int(parts[1]))
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            raise ProtocolError(f"that is no header: {line[:40]!r}")
        name = name.lower()
        if name == "content-length" and answer.headers.get(name, value.strip()) != value.strip():
            raise ProtocolError("two lengths of one answer")
        answer.headers[name] = value.strip()
    connection = answer.headers.get("connection", "").lower()
    answer.keep = "close" not in connection and (parts[0] == "HTTP/1.1" or "keep-alive" in connection)
    return answer
