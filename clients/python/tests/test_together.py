"""Those who wait together, and keys that are decided together."""

import asyncio
import threading
import unittest

from quorate import Ask, AsyncClient, Client, Denied, Timeout, Unavailable
from quorate.acquire import take, try_take
from quorate.line import Lines
from quorate.want import Wanted, WantedAll
from tests.fake import FakeNode, answer
from tests.world import Flag, World, problem

NAME = ("k", "", 1)


class TheLine(unittest.TestCase):
    def test_a_grant_calls_two_and_a_denial_leaves_one(self):
        lines = Lines()
        tickets = [lines.join(NAME, Flag) for _ in range(10)]

        def called():
            return [number for number, ticket in enumerate(tickets) if ticket.called]

        self.assertEqual(called(), [0])
        lines.leave(tickets[0], granted=True)
        self.assertEqual(called()[1:], [1, 2])
        lines.leave(tickets[1], granted=True)
        lines.leave(tickets[2], granted=True)
        self.assertEqual(called()[3:], [3, 4, 5, 6])
        lines.denied(tickets[4], Flag)
        self.assertFalse(tickets[4].event.is_set, "it is not the first: it waits to be called again")
        lines.leave(tickets[3])
        self.assertTrue(tickets[4].called, "now it is")
        for ticket in tickets[4:]:
            lines.leave(ticket)
        self.assertFalse(lines.exists(NAME))

    def test_those_behind_are_told_that_nobody_decides(self):
        lines = Lines()
        first, second, third = (lines.join(NAME, Flag) for _ in range(3))
        error = Unavailable("nobody")
        lines.leave(first)
        lines.fail(NAME, error)
        self.assertEqual((second.error, third.error, third.event.is_set), (None, error, True), "the second asks itself")

    def test_all_of_them_fail_with_the_first(self):
        no = problem("denied", 429, granted=False, key="k", reason="reservations_full", retry_after_ms=100)
        gate = threading.Event()

        def first(_):
            return answer(*no)

        def then(_):
            gate.wait(10)
            return answer(*problem("too_many_keys", 503))

        with FakeNode(first, otherwise=then) as node:

            async def main():
                async with AsyncClient(node.url) as client:
                    head = asyncio.ensure_future(client.acquire("k", "1/s"))
                    while not client._core.lines.exists(Wanted("k", "1/s", 1, None).name):
                        await asyncio.sleep(0.01)
                    rest = [asyncio.ensure_future(client.acquire("k", "1/s")) for _ in range(50)]
                    await asyncio.sleep(0)
                    gate.set()
                    return await asyncio.gather(head, *rest, return_exceptions=True)

            outcomes = asyncio.run(main())
            self.assertEqual({type(outcome) for outcome in outcomes}, {Unavailable})
            self.assertLess(len(node.requests), 10, "they do not find out one after the other")


ALL = WantedAll((Wanted("a", "1/s", 1, None), Wanted("b", "2/s", 2, None)), "w")


def both(request, **members):
    permits = [{"key": part["key"], "permit": number, "reserved": 0, "limit": part["limit"]} for number, part in enumerate(request["all_of"], 7)]
    return 200, {"granted": True, "permits": permits, "slot_ms": 5.0, "wait_ms": 0, "replayed": False, **members}


def released(_):
    return 200, {"released": True, "key": "a", "permit": 7}


class SeveralKeys(unittest.TestCase):
    def test_one_decision_one_slot_several_permits(self):
        world = World(lambda r: both(r, wait_ms=40, start_before_ms=500))
        begun = world.now_ns
        permits = world.run(take(world.core, ALL, None, None))
        self.assertEqual([(permit.key, permit.number) for permit in permits], [("a", 7), ("b", 8)])
        self.assertEqual((permits["b"].number, world.now_ns - begun), (8, 40_000_000))
        content = world.sent[0][2]
        self.assertEqual(content.pop("request_id"), permits.request_id)
        parts = [{"key": "a", "limit": "1/s"}, {"key": "b", "limit": "2/s", "cost": 2}]
        self.assertEqual(content, {"all_of": parts, "worker": "w"})

    def test_who_refused_is_named(self):
        no = lambda _: problem("denied", 429, granted=False, key="b", denied_by="b", reason="not_free_now", retry_after_ms=9_000)  # noqa: E731
        world = World(no, no)
        denied = world.run(try_take(world.core, ALL, None))
        self.assertIsInstance(denied, Denied)
        self.assertEqual((denied.denied_by, denied.error().denied_by), ("b", "b"))
        with self.assertRaises(Timeout) as caught:
            world.run(take(world.core, ALL, world.now_ns + 1_000_000_000, None))
        self.assertEqual(caught.exception.denied_by, "b")

    def test_an_interrupted_wait_gives_all_of_them_back(self):
        world = World(lambda r: both(r, wait_ms=500), released, released)
        world.interrupt_nap = 0
        with self.assertRaises(KeyboardInterrupt):
            world.run(take(world.core, ALL, None, None))
        self.assertEqual([content["permit"] for _, _, content in world.sent[1:]], [7, 8])

    def test_without_the_cluster(self):
        world = World(*["refused"] * 6, on_unavailable="open")
        self.assertEqual([permit.degraded for permit in world.run(take(world.core, ALL, None, None))], ["open", "open"])
        world = World(*["refused"] * 6, on_unavailable="local", local_fraction=0.5)
        with self.assertRaises(Unavailable):
            world.run(take(world.core, ALL, None, None))

    def test_wrong_arguments(self):
        client = Client("http://127.0.0.1:1")
        for wrong in ([], [Ask("a")], [Ask("a"), Ask("a")], [Ask("a"), Ask("b", max_wait=1)], [Ask(str(n)) for n in range(17)]):
            with self.assertRaises(ValueError):
                client.acquire_all(wrong)
        client.close()


if __name__ == "__main__":
    unittest.main()
