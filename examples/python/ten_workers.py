#!/usr/bin/env python3
"""Ten workers, one API token: each is a process of its own, and together they never call more often than the token allows.

    quorate up                                             # in another terminal
    python3 examples/python/ten_workers.py http://127.0.0.1:8000/

With a start window two calls are never closer than the interval, also when an answer is slow.
"""

import argparse
import multiprocessing
import time
import urllib.request

from quorate import throttle

LIMIT = {"rate": "10/s", "start_window": "100ms"}


@throttle("api-token", LIMIT)
def fetch(url):
    """One call of the API. Whatever happens before it, its start is the cluster's decision."""
    started = time.monotonic_ns()
    request = urllib.request.Request(url, headers={"x-started-ns": str(started)})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return answer.status


def work(name, url, calls):
    """One worker."""
    for call in range(calls):
        status = fetch(url)
        print(f"{time.strftime('%X')} worker {name}: call {call} -> {status}", flush=True)


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("url", help="what to fetch")
    arguments.add_argument("--workers", type=int, default=10)
    arguments.add_argument("--calls", type=int, default=2, help="calls of each worker")
    options = arguments.parse_args()
    workers = [
        multiprocessing.Process(target=work, args=(name, options.url, options.calls)) for name in range(options.workers)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    failed = sum(worker.exitcode != 0 for worker in workers)
    if failed:
        raise SystemExit(f"{failed} workers failed")


if __name__ == "__main__":
    main()
