"""A target server: answers every request, and remembers when it came, by the one clock of this one process.

`python3 -m tests.target`: prints its port, serves until its standard input ends, then prints the arrivals as JSON:
`[[arrived_ns, started_ns or null, path], …]`. A worker on the same machine may say in the header `x-started-ns` when it
started, by the monotonic clock that all processes share.
"""

import asyncio
import json
import os
import subprocess
import sys
import time

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\ncontent-type: text/plain\r\n\r\nok\n"


async def serve():
    arrivals = []

    async def connection(reader, writer):
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                arrived = time.monotonic_ns()
                lines = head.decode("latin-1").split("\r\n")
                started = [line.split(":")[1] for line in lines if line.lower().startswith("x-started-ns:")]
                arrivals.append([arrived, int(started[0]) if started else None, lines[0].split(" ")[1]])
                writer.write(ANSWER)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(connection, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
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
    asyncio.run(serve())
