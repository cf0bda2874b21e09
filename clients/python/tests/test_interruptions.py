"""What is left behind, and what is not, when a call is interrupted, a loop ends, or a process forks."""

import asyncio
import os
import signal
import threading
import time
import unittest

from quorate import AsyncClient, Ask, Client
from tests.fake import FakeNode, answer, granted
from tests.test_cancellation import _until
from tests.world import grant


def released(node):
    return [content["permit"] for (_, path), content, _ in node.requests if path == "/release"]


def done(_):
    return answer(200, {"released": True, "key": "k", "permit": 7})


class SoftTimeLimit(Exception):
    """As task queues raise it from a handler."""


@unittest.skipUnless(hasattr(signal, "setitimer"), "there are no timers here")
class Signals(unittest.TestCase):
    def interrupted(self, error, script, call):
        """A call that a signal interrupts; the node it asked."""

        def raise_it(*_):
            raise error

        before = signal.signal(signal.SIGALRM, raise_it)
        try:
            with FakeNode(*script) as node, Client(node.url) as client:
                signal.setitimer(signal.ITIMER_REAL, 0.3)
                with self.assertRaises(type(error)):
                    call(client)
                self.assertEqual(released(node), [7])
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    def test_whatever_a_handler_raises_after_the_send_gives_the_permit_back(self):
        def late(request):
            time.sleep(0.8)
            return answer(*grant(request, permit=7, wait_ms=60_000))

        again = granted(permit=7, wait_ms=60_000, replayed=True)
        for error in (SoftTimeLimit(), TimeoutError("of the task"), OSError("of the task")):
            with self.subTest(repr(error)):
                self.interrupted(error, [late, again, done], lambda client: client.acquire("k"))

    def test_an_interrupted_wait_for_a_permit_of_a_batch_gives_it_back(self):
        def one(content):
            return answer(200, {"results": [grant(content["requests"][0], permit=7, wait_ms=60_000)[1]]})

        self.interrupted(SoftTimeLimit(), [one, done], lambda client: client.wait(client.batch([Ask("k")])[0]))


class Loops(unittest.TestCase):
    def test_an_answer_that_nobody_reads_is_nobody_elses(self):
        gate = threading.Event()

        def late(request):
            gate.wait(10)
            return answer(*grant(request, permit=1, wait_ms=60_000))

        with FakeNode(late, otherwise=granted(permit=2)) as node:

            async def main():
                client = AsyncClient(node.url)
                task = asyncio.ensure_future(client.acquire("k"))
                await _until(lambda: node.requests)
                task.cancel()
                await _until(lambda: client._returning)
                for returning in list(client._returning):
                    # As the end of `asyncio.run` does.
                    returning.cancel()
                await asyncio.gather(*client._returning, task, return_exceptions=True)
                gate.set()
                self.assertEqual((await client.acquire("k")).number, 2)
                self.assertEqual(client.stats.connections, 2)
                await client.aclose()

            asyncio.run(main())

    @unittest.skipUnless(os.path.isdir("/proc/self/fd"), "descriptors cannot be counted here")
    def test_loops_that_have_ended_leave_no_connections_behind(self):
        with FakeNode() as node:
            client = AsyncClient(node.url)
            # Connections of this client alone: those of the node's side are in this process as well.
            most = 0
            for _ in range(10):
                asyncio.run(client.acquire("k"))
                most = max(most, len(client._wires))
            _wait(lambda: len(node._open) <= 1)
            self.assertEqual((most, client.stats.connections), (1, 10))
            asyncio.run(client.aclose())

    def test_a_lease_is_given_back_by_a_task_that_is_cancelled_meanwhile(self):
        lease = granted(permit=7, limit={"kind": "concurrency", "max": 1}, start_before_ms=30_000)
        gate = threading.Event()

        def held(request):
            gate.wait(10)
            return answer(*grant(request, permit=8))

        with FakeNode(lease, held, done) as node:

            async def main():
                client = AsyncClient(node.url, max_connections=1)
                inside, leave = asyncio.Event(), asyncio.Event()

                async def work():
                    async with client.reserve("k"):
                        inside.set()
                        await leave.wait()

                task = asyncio.ensure_future(work())
                await inside.wait()
                other = asyncio.ensure_future(client.acquire("other"))
                await _until(lambda: len(node.requests) == 2)
                leave.set()
                # Its release waits for the only connection now.
                await _until(lambda: client._wire()._waiting)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                gate.set()
                await other
                await client.aclose()

            asyncio.run(main())
            self.assertEqual(released(node), [7])


@unittest.skipUnless(hasattr(os, "fork"), "there is no fork here")
class Forks(unittest.TestCase):
    def test_a_child_has_no_connections_of_its_parent_and_counts_from_nothing(self):
        with FakeNode() as node, Client(node.url) as client:
            client.acquire("k")
            (resting,) = client._wire._idle[node.url]
            number = resting[0].fileno()
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    try:
                        os.fstat(number)
                        inherited = True
                    except OSError:
                        inherited = False
                    stats = client.stats
                    status = 0 if not inherited and (stats.granted, stats.connections) == (0, 0) else 2
                finally:
                    os._exit(status)
            from tests.test_threads import _status

            self.assertEqual(_status(child), 0)
            client.acquire("k")
            self.assertEqual(node.connections, 1, "the parent's own stays as it is")


def _wait(condition):
    until = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < until, "gave up waiting"
        time.sleep(0.01)


if __name__ == "__main__":
    unittest.main()
