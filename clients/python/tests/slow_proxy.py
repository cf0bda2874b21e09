"""A TCP proxy that adds a delay to everything that passes, either way."""

import asyncio
import threading


class SlowProxy:
    """`with SlowProxy(port, delay) as proxy:` listens on `proxy.port` and forwards to a port on loopback, `delay` seconds later."""

    def __init__(self, to_port, delay):
        self.to_port, self.delay = to_port, delay
        self.loop = asyncio.new_event_loop()
        self.port = None

    def __enter__(self):
        started = threading.Event()
        self.thread = threading.Thread(target=self._run, args=(started,), daemon=True)
        self.thread.start()
        started.wait()
        return self

    def __exit__(self, *_):
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()

    def _run(self, started):
        asyncio.set_event_loop(self.loop)
        server = self.loop.run_until_complete(asyncio.start_server(self._connection, "127.0.0.1", 0, backlog=512))
        self.port = server.sockets[0].getsockname()[1]
        started.set()
        self.loop.run_forever()
        server.close()
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        # The ends of the connections that were just closed.
        self.loop.run_until_complete(asyncio.sleep(0))
        self.loop.close()

    async def _connection(self, reader, writer):
        try:
            there = await asyncio.open_connection("127.0.0.1", self.to_port)
        except OSError:
            writer.transport.abort()
            return
        both = [asyncio.ensure_future(self._pump(*pair)) for pair in ((reader, there[1]), (there[0], writer))]
        try:
            await asyncio.wait(both)
        except asyncio.CancelledError:
            # The proxy ends. Whoever accepts connections would print this as a failure.
            pass
        finally:
            for pump in both:
                pump.cancel()
            writer.transport.abort()
            there[1].transport.abort()

    async def _pump(self, reader, writer):
        """Each piece leaves `delay` after it came; pieces behind it do not wait twice."""
        pieces = asyncio.Queue()

        async def deliver():
            while True:
                due, data = await pieces.get()
                await asyncio.sleep(max(0, due - self.loop.time()))
                if not data:
                    writer.transport.abort()
                    return
                writer.write(data)

        async def collect():
            while True:
                try:
                    data = await reader.read(65536)
                except OSError:
                    data = b""
                pieces.put_nowait((self.loop.time() + self.delay, data))
                if not data:
                    return

        tasks = [asyncio.ensure_future(deliver()), asyncio.ensure_future(collect())]
        try:
            await asyncio.wait(tasks)
        finally:
            for task in tasks:
                task.cancel()
