"""Every method of both clients against a real cluster, and the README as it stands."""

import os
import re
import subprocess
import sys
import unittest

from quorate import Ask, Client, Denied, Permit, Refused, Timeout
from tests.cluster import Cluster
from tests.test_clients import Blocking

HOME = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
README = os.path.join(os.path.dirname(os.path.dirname(HOME)), "README.md")
FREE = {"rate": "1/1h", "max_reserved": 10}


class Surface(unittest.TestCase):
    def test_the_same_calls_with_both_clients(self):
        with Cluster() as cluster:
            for kind in (Client, Blocking):
                with self.subTest(kind.__name__):
                    client = kind(cluster.urls, worker="surface", timeout=30)
                    try:
                        self.permits(client, kind.__name__)
                        self.several(client, kind.__name__)
                        self.leases(client, kind.__name__)
                        self.policies(client, kind.__name__)
                        self.reserve(client, kind)
                    finally:
                        client.close()

    def permits(self, client, name):
        key = f"permits:{name}"
        self.assertIsNone(client.peek(key))
        first = client.try_acquire(key, FREE)
        self.assertIsInstance(first, Permit)
        denied = client.try_acquire(key, FREE)
        self.assertIsInstance(denied, Denied)
        self.assertEqual(denied.reason, "not_free_now")
        with self.assertRaises(Timeout):
            client.acquire(key, FREE, timeout=1)
        state = client.peek(key)
        self.assertEqual((state.permit, state.reserved), (first.number, 0))
        self.assertFalse(client.release(first), "its slot has come")
        # No reservation at all, and a round trip that was measured: the lead must not make it impossible.
        strict = {"rate": "100/s", "max_reserved": 0}
        for _ in range(3):
            self.assertTrue(client.acquire(f"strict:{name}", strict))

    def several(self, client, name):
        one, other = f"one:{name}", f"other:{name}"
        ahead, again, wrong = client.batch([Ask(one, FREE), Ask(one, FREE), Ask(one, "nonsense")])
        self.assertIsInstance(wrong, Refused)
        self.assertGreater(again.ready_in(), 3_000)
        self.assertTrue(client.release(again))
        self.assertFalse(client.release(again), "once")
        self.assertTrue(client.wait(ahead))
        both = client.acquire_all([Ask(other, FREE), {"key": f"third:{name}", "limit": FREE, "cost": 2}])
        self.assertEqual([permit.key for permit in both], [other, f"third:{name}"])
        self.assertEqual(client.peek(other).permit, both[other].number)
        denied = client.try_acquire_all([Ask(f"fourth:{name}", FREE), Ask(other, FREE)])
        self.assertEqual((bool(denied), denied.denied_by), (False, other))
        self.assertIsNone(client.peek(f"fourth:{name}"), "all or nothing")

    def leases(self, client, name):
        key, limit = f"lease:{name}", {"kind": "concurrency", "max": 1, "lease": "60s"}
        lease = client.acquire(key, limit)
        self.assertTrue(lease.is_lease)
        self.assertEqual(client.try_acquire(key, limit).reason, "in_flight_full")
        self.assertEqual(client.renew(lease).lease, 60)
        self.assertTrue(client.release(lease))
        with self.assertRaises(Refused):
            client.renew(lease)
        both = client.acquire_all([Ask(key, limit), Ask(f"{key}:2", limit)])
        self.assertTrue(client.release(both))
        self.nobody_holds(client, key, limit)

    def policies(self, client, name):
        made = client.put_policy(name, f"policy:{name}:*", FREE, if_absent=True)
        self.assertEqual(client.policy(name), made)
        self.assertIn(made, client.policies())
        permit = client.acquire(f"policy:{name}:x")
        self.assertEqual((permit.policy, permit.policy_revision), (name, made.revision))
        with self.assertRaises(Refused):
            client.put_policy(name, f"policy:{name}:*", "1/s", if_revision=made.revision + 1_000)
        self.assertTrue(client.delete_policy(name, if_revision=made.revision))
        self.assertFalse(client.delete_policy(name))
        self.assertIsNone(client.policy(name))

    def reserve(self, client, kind):
        key, limit = f"reserve:{kind.__name__}", {"kind": "concurrency", "max": 1, "lease": "60s"}
        if kind is Client:
            with client.reserve(key, limit):
                self.assertEqual(client.peek(key).in_flight, 1)
        else:

            async def body():
                async with client.inner.reserve(key, limit):
                    return (await client.inner.peek(key)).in_flight

            self.assertEqual(client.loop.run_until_complete(body()), 1)
        self.nobody_holds(client, key, limit)

    def nobody_holds(self, client, key, limit):
        """The only place is free."""
        lease = client.try_acquire(key, limit)
        self.assertTrue(lease)
        client.release(lease)


@unittest.skipUnless(os.path.isfile(README), "only in a checkout")
class Readme(unittest.TestCase):
    def test_its_python_runs_as_it_stands(self):
        for path in (README, os.path.join(HOME, "README.md")):
            with self.subTest(path), open(path, encoding="utf-8") as file:
                code = re.search(r"```python\n(.*?)```", file.read(), re.DOTALL).group(1)
                self.assertIn("@throttle", code)
                with Cluster() as cluster:
                    variables = {**os.environ, "PYTHONPATH": HOME, "QUORATE_NODES": ",".join(cluster.urls)}
                    line = [sys.executable, "-c", code]
                    ran = subprocess.run(line, env=variables, capture_output=True, text=True, timeout=120)
                print(f"\n{ran.stdout}{ran.stderr}")
                self.assertEqual((ran.returncode, ran.stdout.count(" call ")), (0, 5))


if __name__ == "__main__":
    unittest.main()
