"""Threads that share a client, and a child that was forked from under them."""

import os
import signal
import threading
import time
import unittest

from quorate import Client
from tests.fake import FakeNode


class Threads(unittest.TestCase):
    def test_threads_share_a_client_and_its_connections_are_bounded(self):
        with FakeNode() as node, Client(node.url, max_connections=4) as client:
            failed = []

            def work():
                try:
                    for _ in range(20):
                        client.acquire("k")
                except BaseException as error:  # noqa: B902 - shown below
                    failed.append(error)

            threads = [threading.Thread(target=work) for _ in range(16)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual(failed, [])
            self.assertEqual((len(node.requests), client.stats.granted), (320, 320))
            self.assertLessEqual(node.connections, 4)
            ids = {content["request_id"] for _, content, _ in node.requests}
            self.assertEqual(len(ids), 320)

    @unittest.skipUnless(hasattr(os, "fork"), "there is no fork here")
    def test_a_forked_child_has_connections_and_ids_of_its_own(self):
        with FakeNode() as node, Client(node.url) as client:
            client.acquire("k")
            # A thread that holds every lock it can while the process forks.
            client._wire._room.acquire()
            client._core.counters._lock.acquire()
            try:
                child = os.fork()
                if child == 0:
                    status = 1
                    try:
                        status = 0 if client.acquire("k") and client.acquire("k") else 1
                    finally:
                        os._exit(status)
            finally:
                client._core.counters._lock.release()
                client._wire._room.release()
            self.assertEqual(_status(child), 0)
            client.acquire("k")
            self.assertEqual(node.connections, 2, "one of the parent's and one of the child's")
            self.assertEqual(len({content["request_id"] for _, content, _ in node.requests}), 4)


def _status(child):
    """How a child ended; one that hangs is killed."""
    until = time.monotonic() + 30
    while time.monotonic() < until:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid == child:
            return status
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise AssertionError("the child hangs")


if __name__ == "__main__":
    unittest.main()
