"""The examples, as a reader would run them: a real cluster, a real target server."""

import contextlib
import importlib.util
import io
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import unittest

from tests.cluster import Cluster, binary, wait_until
from tests.fake import HANG, FakeNode, granted
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
            # In a session of its own, so that its workers end with it if it hangs.
            ran = subprocess.Popen(
                line,
                env=environment(cluster),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
            try:
                out, _ = ran.communicate(timeout=120)
            except BaseException:
                os.killpg(ran.pid, signal.SIGKILL)
                out, _ = ran.communicate()
                print(f"\n{name} did not end:\n{out[-4000:]}")
                raise
            print(f"\n{name}:\n{out[-2000:]}")
            self.assertEqual(ran.returncode, 0)
            return out, target.arrivals()

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

    def test_a_worker_of_the_task_queue_outlives_lost_answers_and_failing_tasks(self):
        spec = importlib.util.spec_from_file_location("task_queue", os.path.join(EXAMPLES, "python", "task_queue.py"))
        example = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(example)
        called = []
        example.TASKS["flaky"] = (lambda: called.append(1) or 1 / 0, "1/s")
        tasks = queue.Queue()
        tasks.put(("flaky", ()))
        with FakeNode(otherwise=HANG) as silent, contextlib.redirect_stdout(io.StringIO()) as out:
            example.NODES = silent.url
            worker = threading.Thread(target=example.worker, args=(1, tasks), daemon=True)
            worker.start()
            wait_until(lambda: "goes back" in out.getvalue() or not worker.is_alive(), "the task does not go back")
            silent.otherwise = granted()
            wait_until(lambda: "failed" in out.getvalue() or not worker.is_alive(), "the task does not fail")
            tasks.put((None, None))
            worker.join(30)
            self.assertFalse(worker.is_alive())
        print(f"\n{out.getvalue()}")
        self.assertEqual(called, [1])
        self.assertEqual(tasks.unfinished_tasks, 0, "nobody waits for ever")

    def test_cron(self):
        if shutil.which("curl") is None:
            if os.environ.get("NO_SKIP"):
                self.fail("curl is not installed, and nothing may be skipped here")
            self.skipTest("curl is not installed")
        with Cluster() as cluster, Target() as target:
            variables = environment(cluster, QUORATE=binary(), LIMIT="1/2s")
            line = [os.path.join(EXAMPLES, "cron", "fetch.sh"), target.url + "/export"]
            # As many machines whose cron fires in the same second.
            jobs = [subprocess.Popen(line, env=variables, stdout=subprocess.PIPE, text=True) for _ in range(4)]
            outs = [job.communicate(timeout=60)[0] for job in jobs]
            self.assertEqual([job.returncode for job in jobs], [0] * 4)
            self.assertEqual(outs, ["ok\n"] * 4)
            arrivals = target.arrivals()
        self.assertEqual([path for _, _, path in arrivals], ["/export"] * 4)
        gaps = ", ".join(f"{gap:.0f}" for gap in gaps_ms(arrivals))
        print(f"\ncron: four jobs at once, 1/2s; ms between them: {gaps}")
        # Slots are two seconds apart, six in all; without a start window the first start may be late, but not by so much.
        self.assertGreaterEqual(sum(gaps_ms(arrivals)), 4_000)


if __name__ == "__main__":
    unittest.main()
