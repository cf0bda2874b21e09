"""Cancelled tasks: what they held, or may have been granted meanwhile, goes back."""

import asyncio
import threading
import time
import unittest

from quorate import AsyncClient
from tests.fake import HANG, FakeNode, answer, granted
from tests.world import grant


class Cancellation(unittest.TestCase):
    def released(self, node):
        return [content["permit"] for (_, path), content, _ in node.requests if path == "/release"]

    def test_a_cancelled_wait_gives_the_permit_back(self):
        done = lambda _: answer(200, {"released": True, "key": "k", "permit": 7})  # noqa: E731
        with FakeNode(granted(permit=7, wait_ms=60_000), done) as node:

            async def main():
                async with AsyncClient(node.url) as client:
                    task = asyncio.ensure_future(client.acquire("k"))
                    await _until(lambda: client._core.round_trip.lead_ms() is not None)
                    task.cancel()
                    with self.assertRaises(asyncio.CancelledError):
                        await task
                self.assertEqual(self.released(node), [7])
                self.assertEqual(client.stats.given_back, 1)

            asyncio.run(main())

    def test_what_is_granted_after_the_cancellation_is_given_back(self):
        gate = threading.Event()

        def late(request):
            gate.wait(10)
            return answer(*grant(request, permit=9, wait_ms=60_000))

        done = lambda _: answer(200, {"released": True, "key": "k", "permit": 9})  # noqa: E731
        with FakeNode(late, done) as node:

            async def main():
                async with AsyncClient(node.url) as client:
                    task = asyncio.ensure_future(client.acquire("k"))
                    await _until(lambda: node.requests)
                    task.cancel()
                    await asyncio.sleep(0)
                    gate.set()
                    with self.assertRaises(asyncio.CancelledError):
                        await task
                self.assertEqual(self.released(node), [9])

            asyncio.run(main())

    def test_tasks_that_never_sent_anything_end_at_once(self):
        with FakeNode(otherwise=HANG) as node:

            async def main():
                client = AsyncClient(node.url, max_connections=2, timeout=5)
                tasks = [asyncio.ensure_future(client.acquire(f"k{i}")) for i in range(100)]
                await _until(lambda: len(node.requests) >= 2)
                waiting = [task for task in tasks[2:]]
                for task in waiting:
                    task.cancel()
                begun = time.monotonic()
                await asyncio.gather(*waiting, return_exceptions=True)
                self.assertLess(time.monotonic() - begun, 30, "they waited for those that had sent something")
                self.assertEqual(len({content["request_id"] for _, content, _ in node.requests}), 2)
                # The end of the node ends the other two: nobody is left to ask.
                node.stop()
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                await client.aclose()

            asyncio.run(main())

    def test_one_client_serves_one_loop_after_the_other(self):
        with FakeNode() as node:
            client = AsyncClient(node.url)

            async def main():
                async with client:
                    return await client.acquire("k")

            for _ in range(3):
                self.assertTrue(asyncio.run(main()))


async def _until(condition):
    until = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < until, "gave up waiting"
        await asyncio.sleep(0.01)


if __name__ == "__main__":
    unittest.main()
