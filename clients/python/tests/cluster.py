"""A real cluster of `quorate node` processes on loopback, started from the binary in the environment variable QUORATE_BIN."""

import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import unittest
import urllib.request

#: How long a condition may take before a test gives up: generous, because it only bounds failures.
PATIENCE = 60.0

# Ports of nodes that are killed and come back must be nobody else's meanwhile: blocks below the range that outgoing connections
# draw from, each held by whoever listens on its first port. The same blocks as those of the Rust tests.
_FIRST, _BLOCK, _BLOCKS = 12_000, 32, 500
_guards = []
_left = []


def free_port():
    """A port on loopback that no other process gets from here, and that nobody listens on now."""
    while True:
        while _left:
            port = _left.pop(0)
            try:
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue
        for block in range(_BLOCKS):
            first = _FIRST + (os.getpid() + block) % _BLOCKS * _BLOCK
            guard = socket.socket()
            try:
                guard.bind(("127.0.0.1", first))
                guard.listen(1)
            except OSError:
                guard.close()
                continue
            _guards.append(guard)
            _left.extend(range(first + 1, first + _BLOCK))
            break
        else:
            raise AssertionError("no block of ports that is nobody's")


def binary():
    """The program under test, or a visible skip; where nothing may be skipped (NO_SKIP=1), a failure."""
    found = os.environ.get("QUORATE_BIN")
    if found:
        return found
    if os.environ.get("NO_SKIP"):
        raise AssertionError("QUORATE_BIN is not set, and nothing may be skipped here")
    raise unittest.SkipTest("QUORATE_BIN is not set: no cluster to test against")


def wait_until(condition, what):
    """Polls a condition until patience runs out."""
    until = time.monotonic() + PATIENCE
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > until:
            raise AssertionError(f"gave up waiting: {what() if callable(what) else what}")
        time.sleep(0.02)


def get(url):
    """A JSON answer, or None."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return json.loads(answer.read())
    except (OSError, ValueError):
        return None


class Node:
    """One node: its addresses stay, its process comes and goes."""

    def __init__(self, number, arguments, url, log):
        self.number, self.arguments, self.url, self.log = number, arguments, url, log
        self.process = None

    def start(self):
        assert self.process is None
        environment = {name: value for name, value in os.environ.items() if not name.startswith("QUORATE_")}
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [binary(), *self.arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )

    def kill(self):
        """kill -9."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def pause(self):
        self.process.send_signal(signal.SIGSTOP)

    def tail(self):
        try:
            with open(self.log, encoding="utf-8", errors="replace") as log:
                return "".join(log.readlines()[-20:])
        except OSError:
            return ""


class Cluster:
    """`with Cluster() as cluster:` is a cluster that is ready. `advertise` maps nodes to the addresses that they announce."""

    def __init__(self, count=3, listen=None, advertise=None):
        binary()
        self.directory = tempfile.mkdtemp(prefix="quorate-python-")
        ports = {number: (listen or {}).get(number) or free_port() for number in range(1, count + 1)}
        peers = {number: free_port() for number in ports}
        members = ",".join(f"{number}=127.0.0.1:{peer}" for number, peer in peers.items())
        self.nodes = []
        for number, port in ports.items():
            arguments = ["node", "--id", str(number), "--data", os.path.join(self.directory, f"node{number}")]
            arguments += ["--listen", f"127.0.0.1:{port}", "--peer-listen", f"127.0.0.1:{peers[number]}"]
            arguments += ["--members", members]
            if advertise and number in advertise:
                arguments += ["--advertise", advertise[number]]
            log = os.path.join(self.directory, f"node{number}.log")
            self.nodes.append(Node(number, arguments, f"http://127.0.0.1:{port}", log))

    def __enter__(self):
        try:
            for node in self.nodes:
                node.start()
            self.ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for node in self.nodes:
            node.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def urls(self):
        return [node.url for node in self.nodes]

    def ready(self):
        """Waits until every running node is ready."""
        for node in self.nodes:
            if node.process is not None:
                wait_until(lambda: self._is_ready(node), lambda: f"node {node.number} is not ready:\n{node.tail()}")

    def _is_ready(self, node):
        for each in self.nodes:
            if each.process is not None and each.process.poll() is not None:
                raise AssertionError(f"node {each.number} ended:\n{each.tail()}")
        try:
            with urllib.request.urlopen(node.url + "/readyz", timeout=5) as answer:
                return answer.status == 200
        except OSError:
            return False

    def leader(self):
        """The node that leads, once there is one that runs."""

        def look():
            running = {node.number: node for node in self.nodes if node.process is not None}
            for node in running.values():
                view = get(node.url + "/cluster")
                if view and view.get("leader") in running:
                    return running[view["leader"]]
            return None

        return wait_until(look, "no leader")
