"""The examples, as a reader would run them: a real cluster, a real target server."""

import os
import shutil
import subprocess
import sys
import unittest

from tests.cluster import Cluster, binary
from tests.target import Target, gaps_ms

HOME = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
EXAMPLES = os.path.join(os.path.dirname(os.path.dirname(HOME)), "examples")
INTERVAL_MS = 100


def environment(cluster, **more):
    return {**os.environ, "PYTHONPATH": HOME, "QUORATE_NODES": ",".join(cluster.urls), **more}


@unittest.skipUnless(os.path.isdir(EXAMPLES), "only in a checkout")
class Examples(unittest.TestCase):
    def run_python(self, name, *arguments):
        """What an example printed, and when the target saw it."""
        with Cluster() as cluster, Target() as target:
            line = [sys.executable, os.path.join(EXAMPLES, "python", name), target.url + "/", *arguments]
            ran = subprocess.run(line, env=environment(cluster), capture_output=True, text=True, timeout=120)
            print(f"\n{name}:\n{ran.stdout[-2000:]}{ran.stderr[-2000:]}")
            self.assertEqual(ran.returncode, 0)
            return ran.stdout, target.arrivals()

    def spaced(self, arrivals, count):
        self.assertEqual(len(arrivals), count)
        starts, came = gaps_ms(arrivals, 1), gaps_ms(arrivals)
        print(f"{count} arrivals, closest starts {min(starts):.1f} ms, closest arrivals {min(came):.1f} ms")
        self.assertGreaterEqual(min(starts), INTERVAL_MS)

    def test_ten_workers(self):
        out, arrivals = self.run_python("ten_workers.py")
        self.assertEqual(out.count("-> 200"), 20)
        self.spaced(arrivals, 20)

    def test_task_queue(self):
        out, arrivals = self.run_python("task_queue.py")
        self.assertEqual(out.count("call_api("), 12)
        self.assertEqual(out.count("add("), 12)
        self.spaced(arrivals, 12)

    def test_cron(self):
        if shutil.which("curl") is None:
            if os.environ.get("NO_SKIP"):
                self.fail("curl is not installed, and nothing may be skipped here")
            self.skipTest("curl is not installed")
        with Cluster() as cluster, Target() as target:
            variables = environment(cluster, QUORATE=binary(), LIMIT="2/s")
            line = [os.path.join(EXAMPLES, "cron", "fetch.sh"), target.url + "/export"]
            # As many machines whose cron fires in the same second.
            jobs = [subprocess.Popen(line, env=variables, stdout=subprocess.PIPE, text=True) for _ in range(4)]
            outs = [job.communicate(timeout=60)[0] for job in jobs]
            self.assertEqual([job.returncode for job in jobs], [0] * 4)
            self.assertEqual(outs, ["ok\n"] * 4)
            arrivals = target.arrivals()
        self.assertEqual([path for _, _, path in arrivals], ["/export"] * 4)
        gaps = ", ".join(f"{gap:.0f}" for gap in gaps_ms(arrivals))
        print(f"\ncron: four jobs at once, 2/s; ms between them: {gaps}")
        # Slots are half a second apart; without a start window a start may be late, but four never fit into one second.
        self.assertGreaterEqual(sum(gaps_ms(arrivals)), 1_000)


if __name__ == "__main__":
    unittest.main()
