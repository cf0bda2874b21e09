"""A target server: answers every request, and remembers when it came: when the kernel took it in where that can be known (Linux),
or else when it was read. A target that gets no processor for a while reads two requests together that came far apart.

`python3 -m tests.target`: prints its port, serves until its standard input ends, then prints the arrivals as JSON:
`[[arrived_ns, started_ns or null, path], …]`. A worker on the same machine may say in the header `x-started-ns` when it
started, by the monotonic clock that all processes share.
"""

import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\ncontent-type: text/plain\r\n\r\nok\n"


#: SO_TIMESTAMPNS of Linux: every read tells when what was read had come.
_STAMPS = 35


def read(connection):
    """What there is to read, and when it came, on the monotonic clock."""
    data, extra, _, _ = connection.recvmsg(65_536, 256)
    now, wall = time.monotonic_ns(), time.time_ns()
    for level, kind, stamp in extra:
        if (level, kind, len(stamp)) == (socket.SOL_SOCKET, _STAMPS, 16):
            seconds, nanos = struct.unpack("qq", stamp)
            return data, now - max(0, wall - seconds * 1_000_000_000 - nanos)
    return data, now


def serve():
    arrivals, lock = [], threading.Lock()

    def serve_one(connection):
        head = b""
        with connection:
            while True:
                try:
                    data, arrived = read(connection)
                except OSError:
                    return
                if not data:
                    return
                head += data
                if not head.endswith(b"\r\n\r\n"):
                    continue
                lines = head.decode("latin-1").split("\r\n")
                started = [line.split(":")[1] for line in lines if line.lower().startswith("x-started-ns:")]
                with lock:
                    arrivals.append([arrived, int(started[0]) if started else None, lines[0].split(" ")[1]])
                head = b""
                connection.sendall(ANSWER)

    def accept(listener):
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=serve_one, args=(connection,), daemon=True).start()

    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    if sys.platform == "linux":
        # Connections inherit it, so that nothing is missed that comes before they are accepted.
        listener.setsockopt(socket.SOL_SOCKET, _STAMPS, 1)
    threading.Thread(target=accept, args=(listener,), daemon=True).start()
    print(listener.getsockname()[1], flush=True)
    sys.stdin.read()
    with lock:
        print(json.dumps(arrivals), flush=True)
    # The connections that are still open end with the process.
    os._exit(0)


class Target:
    """`with Target() as target:` is such a server in a process of its own."""

    def __enter__(self):
        home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.target"], cwd=home, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.port = int(self.process.stdout.readline())
        self.url = f"http://127.0.0.1:{self.port}"
        return self

    def arrivals(self):
        """Ends the server; what came, in the order it came."""
        out, _ = self.process.communicate(timeout=60)
        return sorted(json.loads(out))

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()


def gaps_ms(arrivals, column=0):
    """The times between successive arrivals (0) or starts (1), in milliseconds."""
    instants = sorted(arrival[column] for arrival in arrivals)
    return [(b - a) / 1e6 for a, b in zip(instants, instants[1:])]


if __name__ == "__main__":
    serve()
