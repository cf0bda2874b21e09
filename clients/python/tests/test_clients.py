"""Both clients on real sockets, against nodes that misbehave on purpose. Every test runs with `Client` and with `AsyncClient`."""

import asyncio
import inspect
import os
import socket
import threading
import time
import unittest

import quorate
from quorate import AsyncClient, Client, OutcomeUnknown, RateLimited, Refused, Unavailable, throttle
from tests.fake import CLOSE, HANG, FakeNode, answer, granted, refused



def unreachable():
    """The URL of a port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}"


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

    def test_connections_are_reused_and_the_leader_is_remembered(self):
        for kind in self.each():
            with FakeNode() as leader:
                named = f"quorate-leader: {leader.url}\r\n"
                follower = FakeNode(lambda r: answer(*_grant(r), headers=named))
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
                if kind is Blocking:
                    client.loop.run_until_complete(asyncio.sleep(0.05))
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
        replay = granted(start_before_ms=5_000, replayed=True)
        for kind in self.each():
            with FakeNode(HANG, otherwise=replay) as node:
                client = kind(node.url, attempt_timeout=0.3)
                permit = client.acquire("k")
                first = node.requests[0][2]
                self.assertLessEqual(permit.dead_at_ns, first + 5_000_000_000)
                self.assertGreater(permit.dead_at_ns, first + 4_000_000_000)
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
            self.assertEqual(os.waitpid(child, 0)[1], 0)
            client.acquire("k")
            self.assertEqual(node.connections, 2, "one of the parent's and one of the child's")
            self.assertEqual(len({content["request_id"] for _, content, _ in node.requests}), 4)


class Bounds(EachKind):
    def test_connections_that_rest_make_room_for_others(self):
        for kind in self.each():
            with FakeNode() as first, FakeNode() as second:
                client = kind([first.url], max_connections=1)
                client.acquire("k")
                first.script.append(lambda r: answer(*_grant(r), headers=f"quorate-leader: {second.url}\r\n"))
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
                    self.assertEqual(self.released(node), [7], "before the cancelled task has ended")
                    self.assertEqual(client.stats.given_back, 1)

            asyncio.run(main())

    def test_what_is_granted_after_the_cancellation_is_given_back(self):
        gate = threading.Event()

        def late(request):
            gate.wait(10)
            return answer(*_grant(request, permit=9, wait_ms=60_000))

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
                client = AsyncClient(node.url, max_connections=2, attempt_timeout=0.5)
                tasks = [asyncio.ensure_future(client.acquire(f"k{i}")) for i in range(100)]
                await _until(lambda: len(node.requests) == 2)
                waiting = [task for task in tasks[2:]]
                for task in waiting:
                    task.cancel()
                begun = time.monotonic()
                await asyncio.gather(*waiting, return_exceptions=True)
                self.assertLess(time.monotonic() - begun, 0.9)
                self.assertEqual(len(node.requests), 2)
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


class Decorator(unittest.TestCase):
    def test_functions_and_coroutines(self):
        with FakeNode() as node, Client(node.url) as client:

            @throttle("k", "1/s", client=client)
            def double(x):
                """Doubles."""
                return 2 * x

            self.assertEqual((double(2), double.__name__, double.__doc__), (4, "double", "Doubles."))

            other = AsyncClient(node.url)

            @throttle(lambda x: f"user:{x}", "1/s", cost=lambda x: x, client=other)
            async def triple(x):
                return 3 * x

            async def main():
                async with other:
                    return await triple(5)

            self.assertTrue(inspect.iscoroutinefunction(triple))
            self.assertEqual(asyncio.run(main()), 15)
            self.assertEqual((node.requests[1][1]["key"], node.requests[1][1]["cost"]), ("user:5", 5))

    def test_denied(self):
        no = refused("denied", 429, granted=False, key="k", reason="not_free_now", retry_after_ms=100)
        with FakeNode(no, no, no, granted()) as node, Client(node.url) as client:
            with self.assertRaises(RateLimited) as caught:
                client.throttle("k", on_denied="raise")(lambda: 1)()
            self.assertEqual(caught.exception.retry_after, 0.1)
            self.assertIsNone(client.throttle("k", on_denied="skip")(lambda: 1)())
            self.assertEqual(client.throttle("k")(lambda: 1)(), 1)

    def test_errors_of_the_function_are_its_own(self):
        with FakeNode() as node, Client(node.url) as client:
            with self.assertRaises(ZeroDivisionError):
                client.throttle("k")(lambda: 1 / 0)()

    def test_wrong_use_is_told_when_it_is_written(self):
        client = Client("http://127.0.0.1:1")
        for wrong in (
            lambda: throttle(5),
            lambda: throttle("k", 5),
            lambda: throttle("k", "1/s", cost="x"),
            lambda: throttle("k", client=client)(5),
            lambda: throttle("k", client=client)(_coroutine),
            lambda: throttle("k", client=AsyncClient("http://127.0.0.1:1"))(lambda: 1),
            lambda: throttle("k")(_generator),
        ):
            with self.assertRaises(TypeError):
                wrong()
        for wrong in (lambda: throttle(""), lambda: throttle("k", on_denied="maybe"), lambda: throttle("k", timeout=-1)):
            with self.assertRaises(ValueError):
                wrong()

    def test_the_default_client_comes_from_the_environment(self):
        with FakeNode() as node:
            before = os.environ.get("QUORATE_NODES")
            os.environ["QUORATE_NODES"] = f"{unreachable()},{node.url}"
            try:
                quorate.configure(timeout=5)
                self.assertEqual(throttle("k", "1/s")(lambda: 1)(), 1)
                self.assertEqual(quorate.default_client().stats.granted, 1)
                quorate.default_client().close()
            finally:
                del os.environ["QUORATE_NODES"]
                if before is not None:
                    os.environ["QUORATE_NODES"] = before
                quorate.configure()
            with self.assertRaises(ValueError):
                quorate.configure("nonsense")

    def test_a_refusal_says_why(self):
        with FakeNode(refused("no_limit", 404)) as node, Client(node.url) as client:
            with self.assertRaises(Refused) as caught:
                client.acquire("k")
            self.assertEqual(caught.exception.code, "no_limit")


async def _coroutine():
    return 1


async def _generator():
    yield 1


async def _until(condition):
    until = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < until, "gave up waiting"
        await asyncio.sleep(0.01)


def _grant(request, **members):
    from tests.world import grant

    return grant(request, **members)


if __name__ == "__main__":
    unittest.main()
