#!/usr/bin/env python3
"""How a cluster carries millions of keys: measures real nodes and writes the table of PERFORMANCE.md.

    cargo build --release
    python3 docs/performance/scale.py target/release/quorate                 # a million keys: memory, snapshots, restart, a node far behind
    python3 docs/performance/scale.py target/release/quorate --keys 10000000 --only held

Nothing but Python's standard library. Clusters listen on loopback and keep their data below the current directory, on the disk
that counts.
"""

import argparse
import json
import os
import pathlib
import signal
import sys
import time
import urllib.request

from measure import Cluster

HERE = pathlib.Path(__file__).resolve().parent
RESULTS = HERE / "scale.json"

# Slow enough that no key is forgotten while anything here runs.
SLOW = "1/1h"


class Held(Cluster):
    """A cluster of three that holds many keys."""

    def __init__(self, binary, keys, **settings):
        super().__init__(binary, 3)
        self.keys = keys
        self.settings = {"QUORATE_KEYS_MAX": str(keys + keys // 10 + 1_000), **settings}

    def __enter__(self):
        os.environ.update(self.settings)
        super().__enter__()
        self.bench(1, keys=self.keys, limit=SLOW, fill=None)
        return self

    def __exit__(self, *error):
        super().__exit__(*error)
        for name in self.settings:
            del os.environ[name]

    def processes(self):
        """Process and directory of each node, by its id."""
        found = {}
        for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
            try:
                words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
                parent = int(pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
            except (OSError, ValueError):
                continue
            if parent == self.process.pid and "--id" in words:
                found[int(words[words.index("--id") + 1])] = pid
        return found

    def get(self, path):
        with urllib.request.urlopen(self.leader + path, timeout=10) as answer:
            return answer.read().decode()

    def metric(self, name):
        lines = (line.split() for line in self.get("/metrics").splitlines())
        return next(float(words[1]) for words in lines if words and words[0] == name)

    def snapshots(self):
        """How many snapshots all nodes have written."""
        logs = pathlib.Path(self.dir).glob("*/node.log")
        return sum(log.read_text().count("snapshot written") for log in logs)


def resident_bytes(pid):
    return int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


def states_of(pid):
    """Of all threads of a process, as the kernel has them; none if it is gone."""
    states = []
    for stat in pathlib.Path("/proc").glob(f"{pid}/task/*/stat"):
        try:
            states.append(stat.read_text().rsplit(")", 1)[1].split()[0])
        except OSError:
            continue
    return states


def is_there(pid):
    """Whether a process still holds what it had, its ports too: it does until its last thread is gone."""
    return any(state not in "ZX" for state in states_of(pid))


def is_ready(url):
    try:
        with urllib.request.urlopen(url + "/readyz", timeout=1) as answer:
            return answer.status == 200
    except OSError:
        return False


def held(binary, keys):
    """Memory of nodes that hold all keys, log and history included, and what they still do."""
    with Held(binary, keys, QUORATE_SNAPSHOT_EVERY="1000000000") as cluster:
        rss = [resident_bytes(pid) for pid in cluster.processes().values()]
        count = cluster.metric("quorate_keys")
        found = cluster.bench(10, keys=keys, limit=SLOW)
        return {
            "keys": int(count),
            "node_bytes_a_key": round(max(rss) / count),
            "per_second": round(found["per_second"]),
            "p99_ms": found["latency_ms"]["p99"],
        }


def snapshot(binary, keys):
    """Latency at a fixed rate while snapshots of all keys are written again and again."""
    with Held(binary, keys, QUORATE_SNAPSHOT_EVERY="2000", QUORATE_LOG_KEEP="1000") as cluster:
        before = cluster.snapshots()
        found = cluster.bench(30, keys=keys, limit=SLOW, rate=4_000)
        latency = found["latency_ms"]
        return {
            "keys": keys,
            "snapshots": cluster.snapshots() - before,
            "p99_ms": latency["p99"],
            "p999_ms": latency["p999"],
            "max_ms": latency["max"],
            "not_decided": found["failed"],
        }


def restart(binary, keys):
    """From the kill of one node to its being ready again, and from the start of all processes to the first leader that
    serves: after an orderly stop, and after a kill of all."""
    with Held(binary, keys) as cluster:
        view = json.loads(cluster.get("/cluster"))
        node = next(node for node in view["nodes"] if node["id"] != view["leader"])
        pid = cluster.processes()[node["id"]]
        since = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        while cluster.processes().get(node["id"], pid) == pid or not is_ready(node["client"]):
            time.sleep(0.02)
        took = {"one_killed_s": round(time.monotonic() - since, 2)}
        for how in ("stopped", "killed"):
            if how == "stopped":
                cluster.stop()
            else:
                # It must not start them again.
                cluster.process.send_signal(signal.SIGSTOP)
                while set(states_of(cluster.process.pid)) != {"T"}:
                    time.sleep(0.02)
                pids = list(cluster.processes().values())
                for pid in pids:
                    os.kill(pid, signal.SIGKILL)
                cluster.process.kill()
                cluster.process.wait()
                cluster.process.stdout.close()
                while any(map(is_there, pids)):
                    time.sleep(0.02)
            since = time.monotonic()
            cluster.start()
            took[how + "_s"] = round(time.monotonic() - since, 2)
            took["keys_after_" + how] = int(cluster.metric("quorate_keys"))
        return {"keys": keys, **took}


def behind(binary, keys, entries):
    """A follower stands still until the others are so many entries ahead, then catches up while the load goes on."""
    with Held(binary, keys) as cluster:
        view = json.loads(cluster.get("/cluster"))
        lagging = next(node["id"] for node in view["nodes"] if node["id"] != view["leader"])
        pid = cluster.processes()[lagging]

        def gap():
            with urllib.request.urlopen(cluster.leader + "/cluster", timeout=10) as answer:
                nodes = {node["id"]: node for node in json.load(answer)["nodes"]}
            return nodes[view["leader"]]["last_log"] - (nodes[lagging]["applied"] or 0)

        began = json.loads(cluster.get("/cluster"))
        first = max(node["last_log"] or 0 for node in began["nodes"])
        os.kill(pid, signal.SIGSTOP)
        try:
            ahead = 0
            while ahead < entries:
                cluster.bench(30, keys=keys, limit="1000/s", connections=2)
                last = max(node["last_log"] or 0 for node in json.loads(cluster.get("/cluster"))["nodes"])
                ahead = last - first
                print(f"  {ahead:,} entries ahead", file=sys.stderr)
        finally:
            os.kill(pid, signal.SIGCONT)
        since = time.monotonic()
        load = cluster.bench_in_background(600, keys=keys, limit="1000/s")
        try:
            # A second's worth of entries is as near as one gets under load.
            while gap() > 2_000:
                time.sleep(0.2)
            return {"entries_behind": ahead, "caught_up_s": round(time.monotonic() - since, 1)}
        finally:
            load.terminate()
            load.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binary")
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--entries", type=int, default=1_000_000, help="how far the node falls behind")
    parser.add_argument("--only", choices=["held", "snapshot", "restart", "behind"])
    given = parser.parse_args()
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in [given.only] if given.only else ["held", "snapshot", "restart", "behind"]:
        print(f"{name}, {given.keys:,} keys", file=sys.stderr)
        more = [given.entries] if name == "behind" else []
        found = globals()[name](given.binary, given.keys, *more)
        results[f"{name}-{given.keys}"] = found
        print(json.dumps(found))
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
