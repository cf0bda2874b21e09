"""`on_unavailable` each way, with the cluster stopped: what happens, how fast, and what is counted."""

import asyncio
import time
import unittest

from quorate import AsyncClient, Client, OutcomeUnknown, QuorateError, Unavailable
from tests.cluster import Cluster, wait_until

CALLS = 5


class WithoutACluster(unittest.TestCase):
    def test_each_way(self):
        settings = {
            "closed": {},
            "open": {"on_unavailable": "open", "degrade_after": 0.5},
            "local": {"on_unavailable": "local", "local_fraction": 0.5, "degrade_after": 0.5},
        }
        with Cluster() as cluster:
            clients = {mode: Client(cluster.urls, timeout=2, attempt_timeout=0.5, **more) for mode, more in settings.items()}
            for mode, client in clients.items():
                self.until_granted(client, mode)
            for node in cluster.nodes:
                node.pause()
            print("\nnodes that take connections and say nothing (stopped by a signal):")
            self.each(clients, OutcomeUnknown)
            for node in cluster.nodes:
                node.kill()
            print("nodes that are gone (killed):")
            self.each(clients, Unavailable)
            for node in cluster.nodes:
                node.start()
            cluster.ready()
            for mode, client in clients.items():
                # Degraded clients try the cluster again by themselves.
                self.until_granted(client, mode)
                client.close()
            print(f"back again: {({mode: client.stats.granted for mode, client in clients.items()})}")

    def each(self, clients, expected):
        for mode, client in clients.items():
            before, took, seen, starts = client.stats.as_dict(), [], [], []
            for _ in range(CALLS):
                begun = time.monotonic()
                try:
                    permit = client.acquire(mode, "10/s")
                    seen.append(permit.degraded)
                    starts.append(permit.start_at_ns)
                except QuorateError as error:
                    seen.append(type(error))
                took.append(time.monotonic() - begun)
            counted = {name: n - before[name] for name, n in client.stats.as_dict().items() if n != before[name]}
            times = " ".join(f"{seconds * 1e3:.0f}" for seconds in took)
            names = {each if isinstance(each, str) else each.__name__ for each in seen}
            print(f"  {mode}: {', '.join(sorted(names))}; ms: {times}; counted: {counted}")
            if mode == "closed":
                self.assertEqual(set(seen), {expected})
                self.assertLess(max(took), 10)
            else:
                self.assertEqual(set(seen), {mode})
                self.assertEqual(counted[f"degraded_{mode}"], CALLS)
                self.assertLess(max(took), 5)
            if mode == "local":
                # Half of ten a second.
                self.assertGreaterEqual(min(b - a for a, b in zip(starts, starts[1:])), 200_000_000)

    @staticmethod
    def until_granted(client, key):
        def granted():
            try:
                return client.acquire(key, "10/s").degraded is None
            except QuorateError:
                return False

        wait_until(granted, "the cluster is there, and the client does not notice")

    def test_the_same_with_asyncio(self):
        async def main(urls, cluster):
            async with AsyncClient(urls) as closed, AsyncClient(urls, on_unavailable="open") as opened:
                await closed.acquire("k", "10/s")
                for node in cluster.nodes:
                    node.kill()
                with self.assertRaises(Unavailable):
                    await closed.acquire("k", "10/s")
                with self.assertRaises(Unavailable):
                    await closed.try_acquire("k", "10/s")
                permits = await asyncio.gather(*[opened.acquire("k", "10/s") for _ in range(50)])
                self.assertEqual({permit.degraded for permit in permits}, {"open"})
                self.assertEqual(opened.stats.degraded_open, 50)

        with Cluster() as cluster:
            asyncio.run(main(cluster.urls, cluster))


if __name__ == "__main__":
    unittest.main()
