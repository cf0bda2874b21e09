#!/usr/bin/env python3
"""How throughput and latency grow with nodes, connections and keys: measures real clusters and draws the plots of PERFORMANCE.md.

    cargo build --release
    python3 docs/performance/measure.py target/release/quorate           # measures everything, some ten minutes
    python3 docs/performance/measure.py --draw                           # draws again what was measured

Nothing but Python's standard library. Clusters listen on loopback and keep their data below the current directory, on the disk
that counts. Each point is a cluster of its own, at its leader, closed loop.
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
RESULTS = HERE / "growth.json"

USUAL = {"nodes": 3, "connections": 64, "keys": 10_000}
SERIES = {
    "nodes": [1, 3, 5, 7],
    "connections": [1, 4, 16, 64, 256, 1_024],
    "keys": [1, 1_000, 10_000, 100_000, 1_000_000, 10_000_000],
}
# From so many keys on, all are in memory at once: each is asked for once, under a limit so slow that none is forgotten.
HELD_FROM = 100_000
HELD = {"fill": None, "limit": "1/1h"}


class Cluster:
    """A cluster of `quorate up`, for as long as the block lasts."""

    def __init__(self, binary, nodes):
        self.binary, self.nodes = binary, nodes

    def __enter__(self):
        self.dir = tempfile.mkdtemp(prefix="growth-", dir=".")
        self.start("--nodes", str(self.nodes), "--port", "0")
        return self

    def __exit__(self, *_):
        self.stop()
        shutil.rmtree(self.dir)

    def start(self, *flags):
        command = [self.binary, "--json", "up", "--data", self.dir, *flags]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        urls = {}
        for line in self.process.stdout:
            event = json.loads(line)
            if event["event"] == "starting":
                urls = {node["id"]: node["client"] for node in event["nodes"]}
            elif event["event"] == "ready":
                self.leader = urls[event["leader"]]
                return
        raise RuntimeError("the cluster did not start")

    def stop(self):
        self.process.terminate()
        self.process.wait()
        self.process.stdout.close()

    def bench(self, seconds, **options):
        done = subprocess.run(self.load(seconds, options), stdout=subprocess.PIPE, check=True)
        return json.loads(done.stdout)

    def bench_in_background(self, seconds, **options):
        return subprocess.Popen(self.load(seconds, options), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def load(self, seconds, options):
        """The command; an option without a value is a flag."""
        flags = []
        for name, value in options.items():
            flags += [f"--{name}"] if value is None else [f"--{name}", str(value)]
        return [self.binary, "--json", "bench", "--nodes", self.leader, "--for", f"{seconds}s", *flags]


def measure(binary, seconds, names):
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in names:
        results[name] = []
        for value in SERIES[name]:
            case = {**USUAL, name: value}
            if case["keys"] >= HELD_FROM:
                case.update(HELD)
                os.environ["QUORATE_KEYS_MAX"] = str(case["keys"] + 1_000)
            print(f"{name} {value:,}", file=sys.stderr)
            with Cluster(binary, case.pop("nodes")) as cluster:
                found = cluster.bench(seconds, **case)
                latency = found["latency_ms"]
                point = {"at": value, "per_second": round(found["per_second"]), "p50": latency["p50"], "p99": latency["p99"]}
            print(f"    {point}", file=sys.stderr)
            results[name].append(point)
            RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    return results


WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 320, 70, 70, 44, 46
STYLE = """<style>
text { font: 13px sans-serif; fill: #24292f } .title { font-weight: bold } .grid { stroke: #d0d7de }
.bar { fill: #54aeff } .p50 { stroke: #cf222e } .p99 { stroke: #8250df } .line { fill: none; stroke-width: 2 }
.dot50 { fill: #cf222e } .dot99 { fill: #8250df }
@media (prefers-color-scheme: dark) {
text { fill: #c9d1d9 } .grid { stroke: #30363d } .bar { fill: #1f6feb }
.p50 { stroke: #ff7b72 } .p99 { stroke: #d2a8ff } .dot50 { fill: #ff7b72 } .dot99 { fill: #d2a8ff } }
</style>"""


def ceiling(value):
    """The next round number: 1, 2 or 5 times a power of ten."""
    power = 1.0
    while power * 10 <= value:
        power *= 10
    while power > value:
        power /= 10
    return next(step * power for step in (1, 2, 5, 10) if step * power >= value)


def draw(name, points):
    """Bars for decisions a second, lines for latencies."""
    inner_width, inner_height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    most, slowest = ceiling(max(p["per_second"] for p in points)), ceiling(max(p["p99"] for p in points))
    slot = inner_width / len(points)
    base = HEIGHT - BOTTOM
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">', STYLE]
    out.append(f'<text class="title" x="{LEFT}" y="20">By {name}: decisions a second (bars), p50 and p99 in ms (lines)</text>')
    for quarter in range(5):
        y = base - inner_height * quarter / 4
        out.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        out.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{most * quarter / 4:,.0f}</text>')
        out.append(f'<text x="{WIDTH - RIGHT + 8}" y="{y + 4:.1f}">{slowest * quarter / 4:g}</text>')
    for place, point in enumerate(points):
        x, tall = LEFT + slot * (place + 0.2), inner_height * point["per_second"] / most
        out.append(f'<rect class="bar" x="{x:.1f}" y="{base - tall:.1f}" width="{slot * 0.6:.1f}" height="{tall:.1f}"/>')
        out.append(f'<text x="{x + slot * 0.3:.1f}" y="{base + 18}" text-anchor="middle">{point["at"]:,}</text>')
    for kind in ("50", "99"):
        at = [(LEFT + slot * (n + 0.5), base - inner_height * p["p" + kind] / slowest) for n, p in enumerate(points)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
        out.append(f'<polyline class="line p{kind}" points="{path}"/>')
        out.extend(f'<circle class="dot{kind}" cx="{x:.1f}" cy="{y:.1f}" r="4"/>' for x, y in at)
        out.append(f'<text x="{at[-1][0] + 8:.1f}" y="{at[-1][1] - 6:.1f}">p{kind}</text>')
    out.append(f'<text x="{LEFT + inner_width / 2}" y="{HEIGHT - 8}" text-anchor="middle">{name}</text></svg>')
    (HERE / f"growth-{name}.svg").write_text("\n".join(out) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binary", nargs="?", help="the program, built for release")
    parser.add_argument("--seconds", type=int, default=6, help="how long each point is measured")
    parser.add_argument("--only", choices=SERIES, help="one series, and the others as they were measured before")
    parser.add_argument("--draw", action="store_true", help="only draw what was measured before")
    arguments = parser.parse_args()
    if not arguments.draw and arguments.binary is None:
        parser.error("which program?")
    names = [arguments.only] if arguments.only else list(SERIES)
    results = json.loads(RESULTS.read_text()) if arguments.draw else measure(arguments.binary, arguments.seconds, names)
    for name, points in results.items():
        draw(name, points)


if __name__ == "__main__":
    main()
