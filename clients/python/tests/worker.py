"""One worker of many: calls a throttled function again and again until its standard input ends, then prints its counters.

`python3 -m tests.worker NODES KEY LIMIT-AS-JSON TARGET-PORT`
"""

import http.client
import json
import os
import sys
import threading
import time

import quorate


def main():
    nodes, key, limit, port = sys.argv[1:]
    quorate.configure(nodes)
    target = http.client.HTTPConnection("127.0.0.1", int(port))
    target.connect()

    @quorate.throttle(key, json.loads(limit))
    def call():
        started = time.monotonic_ns()
        target.request("GET", "/", headers={"x-started-ns": str(started)})
        target.getresponse().read()

    unlucky = {}

    def work():
        while True:
            try:
                call()
            except (quorate.Unavailable, quorate.OutcomeUnknown, quorate.Timeout) as error:
                unlucky[type(error).__name__] = unlucky.get(type(error).__name__, 0) + 1

    print("ready", flush=True)
    threading.Thread(target=work, daemon=True).start()
    sys.stdin.read()
    print(json.dumps({**quorate.default_client().stats.as_dict(), **unlucky}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
