"""The decorator, on functions and coroutines."""

import asyncio
import inspect
import os
import unittest

import quorate
from quorate import AsyncClient, Client, RateLimited, Refused, throttle
from tests.fake import FakeNode, granted, refused, unreachable


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
            lambda: throttle("k")(_plain_generator),
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


def _plain_generator():
    yield 1


if __name__ == "__main__":
    unittest.main()
