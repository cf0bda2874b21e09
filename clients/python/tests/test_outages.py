"""What counts as an outage, how long one node may take, and what the local limiter does meanwhile: without sockets or clocks."""

import unittest

from quorate import OutcomeUnknown, Timeout, Unavailable
from quorate.acquire import take, try_take
from quorate.batch import Ask, batch
from quorate.effects import Reply, Sleep
from quorate.permit import NS
from quorate.want import Wanted
from tests.world import MS, A, B, C, World, grant, problem

WANTED = Wanted("k", "1/6s", 1, None)


def world_without_room(*script, **settings):
    """A world in which every connection of the client stays in use."""
    world = World(*script, **settings)
    world.exchange = lambda send: Reply(None, "all 64 connections stayed in use", no_room=True)
    return world


class Patience(unittest.TestCase):
    def test_a_node_that_says_nothing_leaves_time_for_the_others(self):
        world = World("lost", grant, on_unavailable="open", degrade_after=2)
        self.assertIsNone(world.run(take(world.core, WANTED, None, None)).degraded)
        self.assertEqual(world.asked, [A, B])

    def test_a_node_that_said_nothing_is_asked_last_for_a_while(self):
        world = World("lost", lambda _: problem("no_leader", 503), lambda _: problem("no_leader", 503), "lost", grant, grant)
        world.run(take(world.core, WANTED, None, None))
        self.assertEqual(world.asked, [A, B, C, B, C])
        world.core.nodes._leader = None
        world.now_ns += 6 * NS
        world.run(take(world.core, WANTED, None, None))
        self.assertEqual(world.asked[-1], A, "and then it is forgotten")

    def test_nothing_is_begun_that_would_only_be_cut_off(self):
        # Two nodes refuse at once; the third has 50 ms left, and would make doubt of what is certain.
        slow = lambda _: problem("no_leader", 503)  # noqa: E731
        world = World(slow, slow, nodes=(A, B), way_ms=950, timeout=1)
        with self.assertRaises(Unavailable):
            world.run(take(world.core, WANTED, None, None))
        self.assertEqual(world.asked, [A])

    def test_who_is_overloaded_is_left_alone_for_as_long_as_it_says(self):
        busy = lambda _: problem("overloaded", 503, retry_after_ms=2_000)  # noqa: E731
        world = World(busy, grant, nodes=(A,))
        world.run(take(world.core, WANTED, None, None))
        self.assertEqual(world.naps, [2_000])
        world = World(busy, nodes=(A,), timeout=1)
        with self.assertRaises(Unavailable):
            world.run(take(world.core, WANTED, None, None))


class Outages(unittest.TestCase):
    def test_a_full_pool_is_no_outage(self):
        for flow in (lambda core: take(core, WANTED, core.now() + NS, None), lambda core: try_take(core, WANTED, None)):
            world = world_without_room(on_unavailable="open")
            with self.assertRaises(Timeout):
                world.run(flow(world.core))
            self.assertIsNone(world.core.down)
            self.assertEqual(world.core.counters.snapshot().degraded_open, 0)

    def test_what_the_cluster_decided_is_no_outage(self):
        world = World(lambda _: problem("too_many_keys", 503), grant, on_unavailable="open")
        with self.assertRaises(Unavailable):
            world.run(take(world.core, WANTED, None, None))
        self.assertIsNone(world.run(take(world.core, Wanted("other", "1/s", 1, None), None, None)).degraded)

    def test_a_probe_every_time_still_degrades(self):
        world = World(*["refused"] * 12, on_unavailable="open", probe_every=0)
        for _ in range(2):
            self.assertEqual(world.run(take(world.core, WANTED, None, None)).degraded, "open")


class Local(unittest.TestCase):
    def test_a_stored_policy_comes_before_the_limit_of_the_request(self):
        policy = lambda r: grant(r, limit="1/1m", policy="p")  # noqa: E731
        world = World(policy, *["refused"] * 6, on_unavailable="local", local_fraction=1.0, probe_every=3600)
        wanted = Wanted("k", "10/s", 1, None)
        world.run(take(world.core, wanted, None, None))
        starts = []
        for _ in range(2):
            world.run(take(world.core, wanted, None, None))
            starts.append(world.now_ns)
        self.assertGreaterEqual(starts[1] - starts[0], 60 * NS)

    def test_who_waits_for_a_local_slot_tries_the_cluster_when_it_is_time(self):
        script = ["refused"] * 6
        world = World(*script, grant, on_unavailable="local", local_fraction=0.1)
        self.assertEqual(world.run(take(world.core, WANTED, None, None)).degraded, "local")
        # The next local slot is a minute away, but a second later the cluster is back.
        begun = world.now_ns
        self.assertIsNone(world.run(take(world.core, WANTED, None, None)).degraded)
        self.assertLess(world.now_ns - begun, 2 * NS)

    def test_a_cancelled_local_wait_holds_no_slot(self):
        world = World(*["refused"] * 6, on_unavailable="local", local_fraction=1.0, probe_every=3600)
        world.run(take(world.core, WANTED, None, None))
        begun = world.now_ns
        for _ in range(3):
            waiting = take(world.core, WANTED, None, None)
            effect = next(waiting)
            while not isinstance(effect, Sleep):
                effect = waiting.send(world.perform(effect))
            waiting.close()
        world.run(take(world.core, WANTED, None, None))
        self.assertLess(world.now_ns - begun, 7 * NS)


class Ids(unittest.TestCase):
    def test_a_replay_under_the_callers_own_id_is_not_this_calls(self):
        replay = lambda r: grant(r, 1, start_before_ms=60_000, replayed=True)  # noqa: E731
        world = World(lambda _: problem("no_leader", 503), replay, lambda r: grant(r, 2))
        permit = world.run(take(world.core, WANTED, None, "mine"))
        self.assertEqual(permit.number, 2, "the window of the old one began nobody knows when")

        def answer(content):
            return 200, {"results": [replay(content["requests"][0])[1]]}

        world = World("lost", answer)
        (old,) = world.run(batch(world.core, [Ask("k", "1/s", request_id="mine")], False))
        self.assertTrue(old.is_dead(world.now_ns))
        self.assertFalse(old.ours)

    def test_doubt_about_a_batch_names_its_ids(self):
        world = World(*["lost"] * 50, timeout=1)
        with self.assertRaises(OutcomeUnknown) as caught:
            world.run(batch(world.core, [Ask("a", request_id="one"), Ask("b")], False))
        sent = [one["request_id"] for one in world.sent[0][2]["requests"]]
        self.assertEqual((caught.exception.request_ids, sent[0]), (tuple(sent), "one"))

    def test_a_lead_never_makes_a_request_impossible(self):
        limit = {"rate": "1/s", "max_reserved": 0}
        world = World(grant, grant, way_ms=7)
        for _ in range(2):
            world.run(take(world.core, Wanted("k", limit, 1, None), None, None))
        self.assertNotIn("lead_ms", world.sent[1][2])
        # Of a stored policy nobody here knows: it is asked again, and from then on without.
        world = World(grant, lambda _: problem("never", 422), grant, grant, way_ms=7)
        for _ in range(3):
            world.run(take(world.core, Wanted("k", None, 1, None), None, None))
        self.assertEqual(["lead_ms" in content for _, _, content in world.sent], [False, True, False, False])

    def test_a_timeout_from_the_cache_says_what_is_left(self):
        no = lambda _: problem("denied", 429, granted=False, key="k", reason="reservations_full", retry_after_ms=5_000)  # noqa: E731
        world = World(no, denial_cache=True)
        self.assertFalse(world.run(try_take(world.core, WANTED, None)))
        world.now_ns += 3_000 * MS
        with self.assertRaises(Timeout) as caught:
            world.run(take(world.core, WANTED, world.now_ns + NS, None))
        self.assertAlmostEqual(caught.exception.retry_after, 2.0)


if __name__ == "__main__":
    unittest.main()
