#!/usr/bin/env python3
"""Tasks as Celery has them, with one difference: `rate_limit` holds for all workers together, not for each.

    quorate up                                             # in another terminal
    python3 examples/python/task_queue.py http://127.0.0.1:8000/

The queue is a tiny one of this example's own. What matters is where the permit is asked for: in the worker, right before the task
runs. A task that cannot have one soon goes back to the queue, so that others need not wait behind it.
"""

import argparse
import multiprocessing
import os
import time
import urllib.request

from quorate import Client, OutcomeUnknown, Timeout, Unavailable

#: Where `quorate up` listens, unless the environment knows better.
NODES = os.environ.get("QUORATE_NODES") or "http://127.0.0.1:7001,http://127.0.0.1:7002,http://127.0.0.1:7003"

TASKS = {}
#: How long a worker waits for the permit of one task before it takes another one, in seconds.
PATIENCE = 1.0


def task(rate_limit=None):
    """Registers a function as a task: `name.delay(…)` puts a call of it on the queue."""

    def register(function):
        TASKS[function.__name__] = (function, rate_limit)
        function.delay = lambda queue, *args: queue.put((function.__name__, args))
        return function

    return register


@task(rate_limit={"rate": "10/s", "start_window": "100ms"})
def call_api(url):
    started = time.monotonic_ns()
    request = urllib.request.Request(url, headers={"x-started-ns": str(started)})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return answer.status


@task()
def add(a, b):
    return a + b


def worker(number, queue):
    """Takes tasks until the queue has ended."""
    client = Client(NODES.split(","), worker=f"worker-{number}")
    while True:
        name, args = queue.get()
        if name is None:
            queue.task_done()
            return
        function, rate_limit = TASKS[name]
        try:
            if rate_limit is not None:
                client.acquire(f"task:{name}", rate_limit, timeout=PATIENCE)
            print(f"worker {number}: {name}{args} -> {function(*args)}", flush=True)
        except (Timeout, Unavailable, OutcomeUnknown) as error:
            # The task has not started. At worst a slot passes unused, so nothing is lost by asking again later.
            print(f"worker {number}: {name} goes back: {error}", flush=True)
            queue.put((name, args))
        except Exception as error:
            # Its own failure is the task's, not the worker's.
            print(f"worker {number}: {name}{args} failed: {error}", flush=True)
        finally:
            queue.task_done()


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("url", help="what the tasks call")
    arguments.add_argument("--tasks", type=int, default=12)
    arguments.add_argument("--workers", type=int, default=4)
    options = arguments.parse_args()
    queue = multiprocessing.JoinableQueue()
    workers = [multiprocessing.Process(target=worker, args=(number, queue)) for number in range(options.workers)]
    for process in workers:
        process.start()
    for number in range(options.tasks):
        call_api.delay(queue, options.url)
        add.delay(queue, number, number)
    queue.join()
    for _ in workers:
        queue.put((None, None))
    for process in workers:
        process.join()
    failed = sum(process.exitcode != 0 for process in workers)
    if failed:
        raise SystemExit(f"{failed} workers failed")


if __name__ == "__main__":
    main()
