"""Five thousand tasks on one key, most of them cancelled."""

import asyncio
import random
import time
import unittest

from quorate import AsyncClient
from tests.cluster import Cluster

#: One an hour, so that no slot comes while the test runs but the first, and what is counted is exact.
LIMIT = {"rate": "1/1h", "max_reserved": 10_000}
#: Only bounds failures.
PATIENCE = 180


async def reserved(client, key):
    """How many permits of the key lie in the future."""
    state = await client.peek(key)
    return state.reserved if state is not None else 0


async def until(condition, what):
    """Polls until a condition holds; what it came to."""
    deadline = time.monotonic() + PATIENCE
    while True:
        value = await condition()
        if value is not None:
            return value
        assert time.monotonic() < deadline, f"gave up waiting: {what}"
        await asyncio.sleep(0.05)


class FiveThousandTasks(unittest.TestCase):
    def test_cancelling_four_thousand_gives_their_permits_back(self):
        with Cluster() as cluster:
            asyncio.run(self.scenario(cluster.urls))

    async def scenario(self, urls):
        async with AsyncClient(urls) as client:
            begun = time.monotonic()
            tasks = [asyncio.ensure_future(client.acquire("many", LIMIT)) for _ in range(5_000)]

            def done():
                return sum(task.done() for task in tasks)

            async def all_reserved():
                ahead = await reserved(client, "many")
                return ahead if (ahead, done()) == (4_999, 1) else None

            ahead = await until(all_reserved, "five thousand reservations")
            took = time.monotonic() - begun
            connections = client.stats.connections
            print(f"\n5,000 tasks: {ahead} permits ahead after {took:.1f} s, {connections} connections")
            # At most 64 at once; those to the node that was asked first were closed when the leader was known.
            self.assertLessEqual(connections, 64 * len(urls))

            cancelled = random.sample([task for task in tasks if not task.done()], 4_000)
            begun = time.monotonic()
            for task in cancelled:
                task.cancel()
            outcomes = await asyncio.gather(*cancelled, return_exceptions=True)
            ended = time.monotonic() - begun
            self.assertTrue(all(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes))

            async def given_back():
                ahead = await reserved(client, "many")
                return ahead if ahead <= 999 else None

            ahead = await until(given_back, "four thousand permits given back")
            left = sum(not task.done() for task in tasks)
            print(
                f"4,000 cancelled: the tasks ended in {ended:.1f} s, their permits were back after "
                f"{time.monotonic() - begun:.1f} s; {ahead} ahead, {left} tasks still wait; {client.stats.as_dict()}"
            )
            self.assertEqual((ahead, left), (999, 999))

            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

            async def nothing_ahead():
                return True if await reserved(client, "many") == 0 else None

            await until(nothing_ahead, "all permits given back")
        # Closed, so every answer has come. Of a release whose first answer was lost nobody knows who did it.
        stats = client.stats
        self.assertEqual(stats.given_back + stats.not_given_back, 4_999)
        self.assertLessEqual(stats.not_given_back, stats.retries)

    def test_cancelling_in_the_middle_of_asking_leaves_nothing_behind(self):
        with Cluster() as cluster:
            asyncio.run(self.in_the_middle(cluster.urls))

    async def in_the_middle(self, urls):
        async with AsyncClient(urls, max_connections=16) as client:
            await client.acquire("middle", LIMIT)
            for _ in range(5):
                tasks = [asyncio.ensure_future(client.acquire("middle", LIMIT)) for _ in range(100)]
                for task in tasks:
                    await asyncio.sleep(random.uniform(0, 0.002))
                    random.choice(tasks).cancel()
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

            async def nothing_ahead():
                return True if await reserved(client, "middle") == 0 else None

            await until(nothing_ahead, "all permits given back")
            print(f"\ncancelled in the middle: {client.stats.as_dict()}")


if __name__ == "__main__":
    unittest.main()
