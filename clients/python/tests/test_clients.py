"""Both clients on real sockets, against nodes that misbehave on purpose. Every test runs with `Client` and with `AsyncClient`."""

import asyncio
import dataclasses
import inspect
import socket
import time
import unittest

import quorate
from quorate import AsyncClient, Client, OutcomeUnknown, Unavailable
from tests.fake import CLOSE, HANG, FakeNode, answer, granted, unreachable
from tests.world import grant



class Blocking:
    """`AsyncClient` as if it were `Client`, on a loop of its own."""

    def __init__(self, *args, **settings):
        self.loop = asyncio.new_event_loop()
        self.inner = AsyncClient(*args, **settings)

    def __getattr__(self, name):
        value = getattr(self.inner, name)
        if not inspect.iscoroutinefunction(value):
            return value
        return lambda *args, **kwargs: self.loop.run_until_complete(value(*args, **kwargs))

    def close(self):
        self.loop.run_until_complete(self.inner.aclose())
        self.loop.close()


class EachKind(unittest.TestCase):
    def each(self):
        """Both kinds of clients, each in a subtest of its own."""
        for kind in (Client, Blocking):
            with self.subTest(kind.__name__):
                yield kind


class Both(EachKind):
    def test_the_two_have_the_same_methods(self):
        def surface(kind):
            return {
                name: [p for p in inspect.signature(value).parameters]
                for name, value in vars(kind).items()
                if not name.startswith("_") and callable(value)
            }

        ours, theirs = surface(Client), surface(AsyncClient)
        self.assertEqual(ours.pop("close"), theirs.pop("aclose"))
        self.assertEqual(ours, theirs)
        settings = [list(inspect.signature(kind).parameters.values())[1:] for kind in (Client, AsyncClient)]
        self.assertEqual(settings[0], settings[1])
        defaults = {field.name: field.default for field in dataclasses.fields(quorate.Options)}
        self.assertEqual({setting.name: setting.default for setting in settings[0]}, defaults)

    def test_connections_are_reused_and_the_leader_is_remembered(self):
        for kind in self.each():
            with FakeNode() as leader:
                named = f"quorate-leader: {leader.url}\r\n"
                follower = FakeNode(lambda r: answer(*grant(r), headers=named))
                with follower:
                    client = kind([follower.url])
                    for _ in range(5):
                        self.assertTrue(client.acquire("k", "1/s"))
                    client.close()
                    self.assertEqual((len(follower.requests), len(leader.requests), leader.connections), (1, 4, 1))
                    self.assertEqual(client.stats.connections, 2)

    def test_nodes_that_are_not_there_are_passed_over(self):
        for kind in self.each():
            with FakeNode() as node:
                client = kind([unreachable(), node.url])
                self.assertTrue(client.acquire("k"))
                self.assertEqual(client.leader, node.url)
                client.close()
            client = kind([unreachable(), unreachable()])
            begun = time.monotonic()
            with self.assertRaises(Unavailable):
                client.acquire("k")
            self.assertLess(time.monotonic() - begun, 5)
            client.close()

    def test_every_lost_answer_is_asked_for_again_under_the_same_id(self):
        partial = b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{"
        for step in (CLOSE, HANG, b"garbage", b"\x00" * 10, partial, b"HTTP/1.1 200 OK\r\n", answer(200, {"hello": 1})):
            for kind in self.each():
                with FakeNode(step) as bad, FakeNode() as good:
                    client = kind([bad.url, good.url], attempt_timeout=0.3)
                    permit = client.acquire("k")
                    self.assertEqual(bad.requests[0][1]["request_id"], permit.request_id)
                    self.assertEqual(good.requests[0][1]["request_id"], permit.request_id)
                    client.close()

    def test_only_garbage_is_an_unknown_outcome(self):
        for kind in self.each():
            with FakeNode(otherwise=lambda _: b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n[]") as node:
                client = kind(node.url, timeout=0.5)
                with self.assertRaises(OutcomeUnknown) as caught:
                    client.acquire("k")
                self.assertTrue(caught.exception.request_id)
                client.close()

    def test_a_connection_that_was_closed_while_it_rested_is_no_doubt(self):
        for kind in self.each():
            with FakeNode() as node:
                client = kind(node.url)
                client.acquire("k")
                for connection in list(node._open):
                    connection.shutdown(socket.SHUT_RDWR)
                # The loop has not run since: only the socket itself knows.
                client.acquire("k")
                self.assertEqual((client.stats.retries, client.stats.connections), (0, 2))
                client.close()

    def test_a_node_that_takes_connections_and_says_nothing(self):
        for kind in self.each():
            # The system takes connections on behalf of a program that never does.
            with socket.create_server(("127.0.0.1", 0)) as silent:
                client = kind(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout=0.6, attempt_timeout=0.2)
                begun = time.monotonic()
                with self.assertRaises(OutcomeUnknown):
                    client.acquire("k")
                self.assertLess(time.monotonic() - begun, 5)
                with self.assertRaises(Unavailable):
                    client.peek("k")
                client.close()

    def test_the_deadline_of_a_retry_counts_from_the_first_send(self):
        replay = granted(start_before_ms=60_000, replayed=True)
        for kind in self.each():
            with FakeNode(HANG, otherwise=replay) as node:
                client = kind(node.url, attempt_timeout=0.3)
                permit = client.acquire("k")
                first = node.requests[0][2]
                # The node reads a request a moment after it was sent, and the second one an attempt later.
                second = node.requests[1][2]
                self.assertLessEqual(permit.dead_at_ns, first + 60_000_000_000)
                self.assertLess(permit.dead_at_ns, second + 60_000_000_000 - 250_000_000)
                self.assertGreater(permit.dead_at_ns, first + 30_000_000_000)
                client.close()

    def test_a_slot_is_waited_for_and_reserved_bodies_run_with_it(self):
        for kind in self.each():
            with FakeNode(otherwise=granted(wait_ms=80)) as node:
                client = kind(node.url)
                begun = time.monotonic()
                client.acquire("k")
                self.assertGreaterEqual(time.monotonic() - begun, 0.08)
                client.close()
        with FakeNode(otherwise=granted(wait_ms=80)) as node, Client(node.url) as client:
            with client.reserve("k") as permit:
                self.assertEqual(permit.ready_in(), 0)
            self.assertEqual(len(node.requests), 1, "what was used is not given back")

    def test_leases_are_given_back(self):
        lease = granted(limit={"kind": "concurrency", "max": 1}, start_before_ms=30_000)
        done = lambda _: answer(200, {"released": True, "key": "k", "permit": 1})  # noqa: E731
        with FakeNode(lease, done, lease, done) as node, Client(node.url) as client:
            with self.assertRaises(ZeroDivisionError):
                with client.reserve("k"):
                    raise ZeroDivisionError
            client.throttle("k")(lambda: None)()
            self.assertEqual([path for (_, path), _, _ in node.requests], ["/acquire", "/release"] * 2)

    def test_wrong_arguments_are_told_before_anything_is_sent(self):
        with FakeNode() as node, Client(node.url) as client:
            for wrong in (
                lambda: client.acquire(5),
                lambda: client.acquire(None),
                lambda: client.acquire("k", 5),
                lambda: client.acquire("k", ["1/s"]),
                lambda: client.acquire("k", cost="1"),
                lambda: client.acquire("k", cost=True),
                lambda: client.acquire("k", timeout="1"),
                lambda: client.acquire("k", request_id=5),
                lambda: client.release("k"),
                lambda: client.release("k", "5"),
                lambda: client.wait(quorate.Denied("k", "no")),
                lambda: client.put_policy("p", 5, "1/s"),
                lambda: client.batch(["k"]),
                lambda: client.batch([{"kee": "k"}]),
                lambda: Client(node.url, nonsense=1),
                lambda: Client(node.url, max_connections=1.5),
                lambda: Client(5),
            ):
                with self.assertRaises(TypeError):
                    wrong()
            for wrong in (
                lambda: client.acquire(""),
                lambda: client.acquire("x" * 257),
                lambda: client.acquire("\ud800"),
                lambda: client.acquire("k", cost=0),
                lambda: client.acquire("k", {"rate": object()}),
                lambda: client.acquire("k", {"rate": float("nan")}),
                lambda: client.acquire("k", timeout=-1),
                lambda: client.acquire("k", timeout=float("nan")),
                lambda: client.acquire("k", request_id=""),
                lambda: client.acquire("k", request_id="\ud800"),
                lambda: client.batch([{"key": "k", "request_id": "x" * 129}]),
                lambda: Client(node.url, worker="x" * 65),
                lambda: client.peek(".."),
                lambda: client.release("k", -1),
                lambda: Client(node.url, timeout=0),
                lambda: Client(node.url, timeout=1e9),
                lambda: Client(node.url, on_unavailable="maybe"),
                lambda: Client(node.url, on_unavailable="local"),
                lambda: Client(node.url, local_fraction=0.5),
                lambda: Client(node.url, on_unavailable="local", local_fraction=0),
                lambda: Client(node.url, on_unavailable="local", local_fraction=1.5),
                lambda: Client([]),
            ):
                with self.assertRaises(ValueError):
                    wrong()
            self.assertEqual(node.requests, [])

    def test_a_closed_client_says_so(self):
        for kind in self.each():
            with FakeNode() as node:
                client = kind(node.url)
                if kind is Blocking:
                    client.loop.run_until_complete(client.inner.aclose())
                else:
                    client.close()
                with self.assertRaises(RuntimeError):
                    client.acquire("k")
                if kind is Blocking:
                    client.loop.close()


class Bounds(EachKind):
    def test_connections_that_rest_make_room_for_others(self):
        for kind in self.each():
            with FakeNode() as first, FakeNode() as second:
                client = kind([first.url], max_connections=1)
                client.acquire("k")
                first.script.append(lambda r: answer(*grant(r), headers=f"quorate-leader: {second.url}\r\n"))
                client.acquire("k")
                client.acquire("k")
                deadline = time.monotonic() + 5
                while first._open and time.monotonic() < deadline:
                    time.sleep(0.01)
                self.assertEqual((len(first._open), len(second.requests)), (0, 1))
                client.close()

    def test_a_name_that_no_resolver_takes(self):
        for kind in self.each():
            client = kind("http://" + "a" * 70 + ".example:1")
            with self.assertRaises(Unavailable):
                client.acquire("k")
            client.close()


if __name__ == "__main__":
    unittest.main()
