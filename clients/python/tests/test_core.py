"""What is sent, what an answer means, and what may be retried: the part that both clients share."""

import doctest
import importlib
import os
import pickle
import unittest

import quorate
from quorate import Denied, OutcomeUnknown, Permit, RateLimited, Refused, Timeout, Unavailable
from quorate.acquire import take, try_take
from quorate.batch import Ask, batch
from quorate.limit import interval_ns
from quorate.nodes import Nodes
from quorate.peek import peek
from quorate.permit import NS
from quorate.policies import delete_policy, put_policy
from quorate.release import release
from quorate.want import Wanted
from tests.world import MS, A, B, C, World, grant, problem

WANTED = Wanted("k", "1/6s", 1, None)


def no_leader(_):
    return problem("no_leader", 503, retry_after_ms=100)


def unknown(_):
    return problem("outcome_unknown", 504)


def denied(reason="reservations_full", retry_after_ms=200):
    return lambda _: problem("denied", 429, granted=False, key="k", reason=reason, retry_after_ms=retry_after_ms)


def released(_):
    return 200, {"released": True, "key": "k", "permit": 1}


class Retries(unittest.TestCase):
    def test_every_request_has_an_id_and_a_retry_keeps_it(self):
        world = World("lost", unknown, lambda r: grant(r, replayed=True))
        permit = world.run(take(world.core, WANTED, None, None))
        ids = {content["request_id"] for _, _, content in world.sent}
        self.assertEqual(len(world.sent), 3)
        self.assertEqual(ids, {permit.request_id})
        self.assertEqual(world.asked, [A, B, C])

    def test_a_503_with_our_code_is_certain_and_the_next_node_is_asked(self):
        world = World(no_leader, no_leader, no_leader, grant)
        world.run(take(world.core, WANTED, None, None))
        self.assertEqual(world.asked, [A, B, C, A])
        self.assertEqual(world.naps, [100])

    def test_nobody_there_is_unavailable_after_two_rounds(self):
        world = World(*["refused"] * 6)
        with self.assertRaises(Unavailable):
            world.run(take(world.core, WANTED, None, None))
        self.assertEqual(world.core.counters.snapshot().unavailable, 1)
        self.assertEqual(world.core.counters.snapshot().requests, 0)

    def test_doubt_sticks(self):
        world = World("lost", *["refused"] * 200, timeout=5)
        with self.assertRaises(OutcomeUnknown) as caught:
            world.run(take(world.core, WANTED, None, None))
        self.assertEqual(caught.exception.request_id, world.sent[0][2]["request_id"])
        self.assertIn("no answer in time", caught.exception.detail)

    def test_a_503_that_is_not_ours_is_doubt(self):
        world = World(lambda _: (503, b"<html>busy</html>"), *["refused"] * 200)
        with self.assertRaises(OutcomeUnknown):
            world.run(take(world.core, WANTED, None, None))

    def test_a_200_that_no_node_gives_is_doubt(self):
        for bad in (
            b"[]",
            b"\xff",
            b"",
            b"[" * 100_000,
            {"granted": True, "key": "other", "permit": 1, "slot_ms": 0, "wait_ms": 0, "reserved": 0},
            {"granted": True, "key": "k", "permit": True, "slot_ms": 0, "wait_ms": 0, "reserved": 0},
            {"granted": True, "key": "k", "permit": 1, "slot_ms": 0, "wait_ms": -1, "reserved": 0},
            {"granted": True, "key": "k", "permit": 1, "slot_ms": 0, "wait_ms": "0", "reserved": 0},
            b'{"granted":true,"key":"k","permit":1,"slot_ms":0,"wait_ms":NaN,"reserved":0}',
        ):
            world = World(lambda _, bad=bad: (200, bad), *["refused"] * 200)
            with self.assertRaises(OutcomeUnknown, msg=bad):
                world.run(take(world.core, WANTED, None, None))

    def test_what_is_refused_is_refused_once(self):
        for code, status in (("bad_request", 400), ("no_limit", 404), ("never", 422), ("request_id_reused", 422)):
            world = World(lambda _, code=code, status=status: problem(code, status))
            with self.assertRaises(Refused) as caught:
                world.run(take(world.core, WANTED, None, None))
            self.assertEqual(caught.exception.code, code)

    def test_a_full_cluster_is_unavailable_at_once(self):
        world = World(lambda _: problem("too_many_keys", 503))
        with self.assertRaises(Unavailable):
            world.run(take(world.core, WANTED, None, None))

    def test_a_look_is_never_in_doubt(self):
        world = World("lost", *["refused"] * 200)
        with self.assertRaises(Unavailable):
            world.run(peek(world.core, "k"))

    def test_a_policy_that_a_lost_attempt_made_is_found(self):
        stored = {"name": "p", "match": "k", "limit": "1/s", "revision": 7}
        world = World("lost", lambda _: problem("revision_mismatch", 412), lambda _: (200, stored))
        policy = world.run(put_policy(world.core, "p", "k", "1/s", (), None, True))
        self.assertEqual(policy.revision, 7)
        other = {**stored, "limit": "2/s"}
        world = World("lost", lambda _: problem("revision_mismatch", 412), lambda _: (200, other))
        with self.assertRaises(OutcomeUnknown):
            world.run(put_policy(world.core, "p", "k", "1/s", (), None, True))
        world = World(lambda _: problem("revision_mismatch", 412))
        with self.assertRaises(Refused):
            world.run(put_policy(world.core, "p", "k", "1/s", (), 3, False))
        self.assertEqual(dict(world.sent[0][1].headers), {"if-match": '"3"'})
        world = World("lost", lambda _: problem("no_policy", 404))
        self.assertTrue(world.run(delete_policy(world.core, "p", None)))


class Instants(unittest.TestCase):
    def test_a_wait_counts_from_the_receipt(self):
        world = World(lambda r: grant(r, wait_ms=30.5), way_ms=20)
        begun = world.now_ns
        world.run(take(world.core, WANTED, None, None))
        self.assertEqual(world.now_ns - begun, int(50.5 * MS))

    def test_a_deadline_counts_from_the_first_send_over_all_retries(self):
        # The answer that was lost took three seconds, so what it granted has been dead for long when the retry learns of it.
        world = World(
            "lost",
            lambda r: grant(r, 1, start_before_ms=2_900, replayed=True),
            lambda r: grant(r, 2, start_before_ms=2_900),
        )
        begun = world.now_ns
        permit = world.run(take(world.core, WANTED, None, None))
        self.assertEqual(permit.number, 2)
        first, second, third = (content["request_id"] for _, _, content in world.sent)
        self.assertEqual(first, second)
        self.assertNotEqual(second, third, "a permit that is dead is not asked for again")
        self.assertEqual(world.core.counters.snapshot().dropped, 1)
        world = World("lost", lambda r: grant(r, 1, start_before_ms=3_100, replayed=True))
        permit = world.run(take(world.core, WANTED, None, None))
        self.assertEqual(permit.dead_at_ns, begun + 3_100 * MS)

    def test_what_somebody_else_was_granted_under_the_same_id_is_dead(self):
        world = World(lambda r: grant(r, 1, start_before_ms=60_000, replayed=True), lambda r: grant(r, 2))
        permit = world.run(take(world.core, WANTED, None, "mine"))
        self.assertEqual(permit.number, 2)
        self.assertEqual(world.sent[0][2]["request_id"], "mine")
        self.assertNotEqual(world.sent[1][2]["request_id"], "mine")
        world = World(lambda r: grant(r, 1, replayed=True))
        self.assertEqual(world.run(take(world.core, WANTED, None, "mine")).number, 1, "it never expires")

    def test_a_permit_that_will_be_dead_is_given_back_at_once(self):
        world = World(lambda r: grant(r, 1, wait_ms=50, start_before_ms=60), released, lambda r: grant(r, 2), way_ms=20)
        permit = world.run(take(world.core, WANTED, None, None))
        self.assertEqual((permit.number, world.naps), (2, []))
        self.assertEqual(world.sent[1][2], {"key": "k", "permit": 1})

    def test_a_decision_that_came_too_late_is_asked_for_again_under_another_id(self):
        world = World(lambda _: problem("expired", 409), grant)
        world.run(take(world.core, WANTED, None, None))
        self.assertNotEqual(world.sent[0][2]["request_id"], world.sent[1][2]["request_id"])

    def test_permits_that_are_always_late_come_to_an_end(self):
        world = World(*[lambda _: problem("expired", 409)] * 20)
        with self.assertRaises(Timeout):
            world.run(take(world.core, WANTED, None, None))

    def test_the_lead_is_the_measured_round_trip(self):
        world = World(grant, grant, grant, way_ms=7)
        for _ in range(2):
            world.run(take(world.core, WANTED, None, None))
        self.assertNotIn("lead_ms", world.sent[0][2])
        self.assertEqual(world.sent[1][2]["lead_ms"], 7)
        world.run(try_take(world.core, WANTED, None))
        self.assertNotIn("lead_ms", world.sent[2][2], "a slot ahead of now is never free now")
        self.assertEqual(world.sent[2][2]["wait"], "none")


class Denials(unittest.TestCase):
    def test_a_denial_is_waited_out_and_asked_again_under_another_id(self):
        world = World(denied(), denied(), grant)
        world.run(take(world.core, WANTED, None, None))
        self.assertEqual(world.naps, [200, 200])
        self.assertEqual(len({content["request_id"] for _, _, content in world.sent}), 3)
        self.assertEqual(world.core.counters.snapshot().denied, 2)

    def test_a_timeout_comes_as_soon_as_it_is_known(self):
        world = World(denied("would_wait_too_long", 5_000))
        with self.assertRaises(Timeout) as caught:
            world.run(take(world.core, WANTED, world.now_ns + NS, None))
        self.assertEqual((caught.exception.retry_after, world.naps), (5.0, []))
        self.assertIsInstance(caught.exception, RateLimited)
        self.assertIsInstance(caught.exception, TimeoutError)
        self.assertEqual(world.sent[0][2]["max_wait_ms"], 1_000)
        again = pickle.loads(pickle.dumps(caught.exception))
        self.assertEqual((type(again), again.retry_after, str(again)), (Timeout, 5.0, str(caught.exception)))

    def test_a_slot_that_comes_too_late_is_given_back(self):
        world = World(lambda r: grant(r, wait_ms=1_001), released)
        with self.assertRaises(Timeout):
            world.run(take(world.core, WANTED, world.now_ns + NS, None))
        self.assertEqual(world.core.counters.snapshot().given_back, 1)

    def test_a_place_in_flight_is_asked_for_every_second(self):
        world = World(denied("in_flight_full", 30_000), grant)
        world.run(take(world.core, WANTED, None, None))
        self.assertEqual(world.naps, [1_000])

    def test_trying_never_waits(self):
        world = World(denied("not_free_now", 6_000))
        taken = world.run(try_take(world.core, WANTED, None))
        self.assertIsInstance(taken, Denied)
        self.assertFalse(taken)
        self.assertEqual((taken.retry_after, taken.reason, world.naps), (6.0, "not_free_now", []))
        world = World(lambda r: grant(r, wait_ms=3), released)
        self.assertFalse(world.run(try_take(world.core, WANTED, None)), "a slot that has not come is given back")

    def test_without_a_cache_everybody_asks(self):
        world = World(denied("not_free_now"), grant)
        self.assertFalse(world.run(try_take(world.core, WANTED, None)))
        self.assertTrue(world.run(try_take(world.core, WANTED, None)))

    def test_with_a_cache_nobody_asks_before_retry_after(self):
        world = World(denied("not_free_now", 300), grant, grant, denial_cache=True)
        self.assertFalse(world.run(try_take(world.core, WANTED, None)))
        world.now_ns += 100 * MS
        cached = world.run(try_take(world.core, WANTED, None))
        self.assertTrue(cached.cached)
        self.assertAlmostEqual(cached.retry_after, 0.2)
        self.assertTrue(world.run(take(world.core, WANTED, None, None)), "not free now says nothing to those who wait")
        world.now_ns += 200 * MS
        self.assertTrue(world.run(try_take(world.core, WANTED, None)))
        self.assertEqual(world.core.counters.snapshot().denials_cached, 1)
        other = Wanted("k", "1/6s", 2, None)
        world = World(denied(), grant, denial_cache=True)
        self.assertFalse(world.run(try_take(world.core, WANTED, None)))
        self.assertTrue(world.run(try_take(world.core, other, None)), "another cost is another question")

    def test_with_a_cache_those_who_wait_stay_away_as_well(self):
        world = World(denied("reservations_full", 300), grant, denial_cache=True)
        self.assertFalse(world.run(try_take(world.core, WANTED, None)))
        world.run(take(world.core, WANTED, None, None))
        self.assertEqual((world.naps, len(world.sent)), ([300], 2))

    def test_a_place_in_flight_is_never_cached(self):
        world = World(denied("in_flight_full", 30_000), grant, denial_cache=True)
        self.assertFalse(world.run(try_take(world.core, WANTED, None)))
        self.assertTrue(world.run(try_take(world.core, WANTED, None)))

    def test_whoever_comes_while_others_wait_stands_behind_them(self):
        world = World(grant)
        ticket = world.core.lines.join(WANTED.name, world.core.new_event)
        with self.assertRaises(Timeout):
            world.run(take(world.core, WANTED, world.now_ns, None))
        self.assertEqual(world.sent, [])
        world.core.lines.leave(ticket)
        world.run(take(world.core, WANTED, None, None))


class Interruptions(unittest.TestCase):
    def test_an_interrupted_wait_gives_the_permit_back(self):
        world = World(lambda r: grant(r, wait_ms=500), released)
        world.interrupt_nap = 0
        with self.assertRaises(KeyboardInterrupt):
            world.run(take(world.core, WANTED, None, None))
        self.assertEqual(world.sent[1][1].path, "/release")
        self.assertEqual(world.core.counters.snapshot().given_back, 1)

    def test_what_was_granted_while_it_was_interrupted_is_given_back(self):
        world = World(lambda r: grant(r, wait_ms=500), released)
        world.interrupt_reply = 0
        with self.assertRaises(KeyboardInterrupt):
            world.run(take(world.core, WANTED, None, None))
        self.assertEqual(world.sent[1][2], {"key": "k", "permit": 1})

    def test_an_interrupted_request_in_doubt_is_asked_for_again_to_be_given_back(self):
        world = World("lost", lambda r: grant(r, 9, wait_ms=500, replayed=True), released)
        world.interrupt_reply = 0
        with self.assertRaises(KeyboardInterrupt):
            world.run(take(world.core, WANTED, None, None))
        self.assertEqual(world.sent[0][2]["request_id"], world.sent[1][2]["request_id"])
        self.assertEqual(world.sent[2][2], {"key": "k", "permit": 9})

    def test_what_was_certainly_not_granted_needs_no_giving_back(self):
        world = World(no_leader)
        world.interrupt_reply = 0
        with self.assertRaises(KeyboardInterrupt):
            world.run(take(world.core, WANTED, None, None))
        world = World(denied(), denied())
        world.interrupt_nap = 0
        with self.assertRaises(KeyboardInterrupt):
            world.run(take(world.core, WANTED, None, None))
        self.assertFalse(world.core.lines.exists(WANTED.name), "nobody waits in line any more")

    def test_giving_back_fails_quietly(self):
        world = World(lambda r: grant(r, wait_ms=500), *["refused"] * 6)
        world.interrupt_nap = 0
        with self.assertRaises(KeyboardInterrupt):
            world.run(take(world.core, WANTED, None, None))
        self.assertEqual(world.core.counters.snapshot().not_given_back, 1)


class Degraded(unittest.TestCase):
    def test_open_lets_pass_and_counts_and_does_not_ask_again_at_once(self):
        world = World(*["refused"] * 6, grant, on_unavailable="open")
        for _ in range(3):
            permit = world.run(take(world.core, WANTED, None, None))
            self.assertEqual((permit.degraded, permit.number), ("open", None))
        self.assertEqual(world.core.counters.snapshot().degraded_open, 3)
        world.now_ns += 1_001 * MS
        self.assertEqual(world.run(take(world.core, WANTED, None, None)).number, 1, "one second later it is tried again")
        self.assertIsNone(world.core.down)

    def test_local_keeps_a_fraction_of_the_rate(self):
        world = World(*["refused"] * 6, on_unavailable="local", local_fraction=0.5, probe_every=3600)
        starts = []
        for _ in range(4):
            permit = world.run(take(world.core, WANTED, None, None))
            self.assertEqual(permit.degraded, "local")
            starts.append(world.now_ns)
        self.assertTrue(all(b - a >= 12 * NS for a, b in zip(starts, starts[1:])), starts)
        self.assertFalse(world.run(try_take(world.core, WANTED, None)))
        with self.assertRaises(Timeout):
            world.run(take(world.core, WANTED, world.now_ns + NS, None))
        stats = world.core.counters.snapshot()
        self.assertEqual((stats.degraded_local, stats.degraded_local_denied, stats.unavailable), (4, 2, 1))

    def test_local_without_a_rate_is_closed(self):
        wanted = Wanted("k", None, 1, None)
        world = World(*["refused"] * 6, on_unavailable="local", local_fraction=0.5)
        with self.assertRaises(Unavailable) as caught:
            world.run(take(world.core, wanted, None, None))
        self.assertIn("no rate", caught.exception.detail)
        world = World(lambda r: grant(r, limit="1/s"), *["refused"] * 6, on_unavailable="local", local_fraction=0.5)
        world.run(take(world.core, wanted, None, None))
        self.assertEqual(world.run(take(world.core, wanted, None, None)).degraded, "local", "the cluster said it before")

    def test_doubt_degrades_as_well(self):
        world = World("lost", "lost", "lost", on_unavailable="open", degrade_after=1)
        self.assertEqual(world.run(take(world.core, WANTED, None, None)).degraded, "open")
        self.assertEqual(world.core.counters.snapshot().outcome_unknown, 1)

    def test_a_denial_is_a_decision_and_degrades_nothing(self):
        world = World(denied("not_free_now"), on_unavailable="open")
        self.assertFalse(world.run(try_take(world.core, WANTED, None)))

    def test_only_one_call_probes(self):
        world = World(*["refused"] * 6, on_unavailable="open")
        world.run(take(world.core, WANTED, None, None))
        world.now_ns += 1_001 * MS
        probing = take(world.core, WANTED, None, None)
        next(probing)
        self.assertEqual(world.run(take(world.core, WANTED, None, None)).degraded, "open")


class Rest(unittest.TestCase):
    def test_the_leader_is_remembered_and_forgotten(self):
        leader = {"quorate-leader": B}
        world = World(lambda r: (*grant(r), leader), grant, "refused", lambda r: (*grant(r), leader))
        world.run(take(world.core, WANTED, None, None))
        world.run(take(world.core, WANTED, None, None))
        self.assertEqual(world.asked, [A, B])
        world.run(take(world.core, WANTED, None, None))
        self.assertEqual(world.asked, [A, B, B, A])
        self.assertIsNone(world.core.nodes.leader, "who names a node that takes no connections is not believed for a while")

    def test_urls_are_checked(self):
        bad_urls = ("", "a:1", "https://a:1", "http://", "http://a:1/x", "http://a:1?x", "http://a:x", "http://u@a:1", "http://a b:1")
        for bad in bad_urls:
            with self.assertRaises(ValueError, msg=bad):
                Nodes([bad], lambda: 0)
        for wrong in ([], ["http://a:1"] * 65):
            with self.assertRaises(ValueError):
                Nodes(wrong, lambda: 0)
        with self.assertRaises(TypeError):
            Nodes([5], lambda: 0)
        self.assertEqual(Nodes(["http://[::1]:7001/", "http://a"], lambda: 0).in_turn(), ["http://[::1]:7001", "http://a:80"])

    def test_rates(self):
        for text, ns in (("1/6s", 6 * NS), ("10/s", NS // 10), ("100/1m", 600 * MS), ("5/250ms", 50 * MS), ("3/s", 333_333_334)):
            self.assertEqual(interval_ns(text), ns)
        for none in ("", "1/0s", "0/s", "1/6", "x", None, {"kind": "concurrency", "max": 5}, {"rate": 5}, "１/s"):
            self.assertIsNone(interval_ns(none), none)

    def test_a_release_says_when_a_lost_attempt_may_have_done_it(self):
        world = World("lost", lambda _: (200, {"released": False, "key": "k", "permit": 1, "detail": "done before"}))
        told = world.run(release(world.core, "k", 1))
        self.assertFalse(told)
        self.assertIn("answer was lost", told.detail)

    def test_a_batch_in_order(self):
        def answer(content):
            self.assertFalse(content["atomic"])
            first, second, third = content["requests"]
            return 200, {"results": [grant(first, 7)[1], denied()({})[1], problem("no_limit", 404)[1]]}

        world = World("lost", answer)
        permit, no, refused = world.run(batch(world.core, [Ask("a"), Ask("k", "1/s", 2), {"key": "c", "max_wait": 0}], False))
        self.assertEqual((permit.number, bool(no), type(refused)), (7, False, Refused))
        self.assertEqual(world.sent[0][2], world.sent[1][2], "a retry is the same in every member")
        self.assertEqual(world.sent[0][2]["requests"][2]["wait"], "none")
        with self.assertRaises(RateLimited):
            atomic = World(denied())
            atomic.run(batch(atomic.core, [Ask("k")], True))
        for wrong in ([], [Ask("k")] * 1001):
            with self.assertRaises(ValueError):
                world.run(batch(world.core, wrong, False))

    def test_the_version_is_one(self):
        home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        with open(os.path.join(home, "pyproject.toml"), encoding="utf-8") as file:
            self.assertIn(f'version = "{quorate.__version__}"', file.read())

    def test_the_examples_in_the_documentation_hold(self):
        for name in ("quorate", "quorate.limit", "quorate.sync_client", "quorate.throttle"):
            # By way of its name: the function `throttle` hides the module of the same name.
            failed, tried = doctest.testmod(importlib.import_module(name))
            self.assertEqual(failed, 0, name)
            self.assertGreater(tried, 0, name)

    def test_permits_and_denials_have_their_truth(self):
        self.assertTrue(Permit("k", 1, "id", 0))
        self.assertFalse(Denied("k", "no"))


if __name__ == "__main__":
    unittest.main()
