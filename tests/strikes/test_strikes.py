#!/usr/bin/env python3
"""test_strikes.py PROGRAM [BROKER]   What becomes of a job that breaks its worker and of its
neighbours. PROGRAM is sheaf_breakable; the faults are those of worker/base/fault.h. With a
broker also over a topic; kcat reads the results."""
import concurrent.futures
import errno
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import unittest

PROGRAM = ""
BROKER = ""
MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)),
                     "../golden/tiny/tiny-llama-q4_1.gguf")
N_JOBS = 10
BAD = "q4"
PATIENCE_S = 120
# Nobody but the bad job has a 4, the token 52, in its prompt or its answer.
BREAKS_DEVICE = "device: 52 :fail"
ON_DEVICE = ("--device", "cuda-emu", "--device-exact", "on", "--kv-type", "bf16",
             "--kv-mb", "4")
AT = ("parse", "tokenize", "submit", "result", "emit")  # where a job may find no memory


def write_jobs(path, max_tokens=12, **bad):
    with open(path, "w", encoding="utf-8") as out:
        for i in range(N_JOBS):
            job = {"custom_id": f"q{i}", "question": "When was it built?",
                   "documents": [{"id": "d", "text": f"The mill is of 178{i}."}],
                   "params": {"max_tokens": max_tokens, "temperature": 0,
                              "ignore_eos": max_tokens > 100}}
            if job["custom_id"] == BAD:
                job.update(bad)
            out.write(json.dumps(job) + "\n")


class Run:
    """Jobs in a folder of their own, and the worker that is started on them."""

    def __init__(self, max_tokens=12, **bad):
        self.folder = tempfile.TemporaryDirectory()
        unittest.addModuleCleanup(self.folder.cleanup)
        write_jobs(self.path("in.jsonl"), max_tokens, **bad)

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def command(self, flags):
        return [PROGRAM, "run", "-i", self.path("in.jsonl"), "-o", self.path("out.jsonl"),
                "--db", self.path("jobs.db"), "--model", MODEL, "--threads", "1",
                "--chat-template", "chatml", *flags]

    def begin(self, fault=None, guards_off=None, *flags):
        env = dict(os.environ)
        for name in ("ASAN_OPTIONS", "TSAN_OPTIONS"):  # a crash is to be a crash
            env[name] = env.get(name, "") + ":handle_segv=0:handle_abort=0"
        env["TSAN_OPTIONS"] += ":report_thread_leaks=0"  # who ends at once joins nobody
        for name, value in (("SHEAF_FAULT_AT", fault), ("SHEAF_GUARDS_OFF", guards_off)):
            env.pop(name, None)
            if value:
                env[name] = value
        with open(self.path("log"), "a", encoding="utf-8") as log:
            process = subprocess.Popen(self.command(flags), env=env, stderr=log)
        unittest.addModuleCleanup(process.kill)  # one that a failed test has left behind
        return process

    def start(self, fault=None, guards_off=None, *flags):
        return self.begin(fault, guards_off, *flags).wait(PATIENCE_S)

    def start_until_done(self, fault, at_most, guards_off=None, *flags):
        """The exit codes of the starts that it took."""
        codes = []
        while len(codes) < at_most and (not codes or codes[-1] not in (0, 1)):
            codes.append(self.start(fault, guards_off, *flags))
        return codes

    def results(self):
        with open(self.path("out.jsonl"), encoding="utf-8") as lines:
            results = [json.loads(line) for line in lines]
        by_id = {r["custom_id"]: r for r in results}
        assert len(by_id) == len(results), "a job has two results"
        return by_id

    def rows(self, query):
        with sqlite3.connect(f"file:{self.path('jobs.db')}?mode=ro", uri=True) as db:
            return db.execute(query).fetchall()

    def log(self):
        with open(self.path("log"), encoding="utf-8") as log:
            return log.read()

    def wait_for(self, text):
        end = time.monotonic() + PATIENCE_S
        while text not in self.log():
            assert time.monotonic() < end, f"no {text} in {self.log()}"
            time.sleep(0.02)

    def wait_stored(self, custom_id):
        """The next thing is its delivery."""
        self.wait_for("context 512")
        end = time.monotonic() + PATIENCE_S
        while not self.rows(f"SELECT 1 FROM jobs WHERE custom_id = '{custom_id}'"):
            assert time.monotonic() < end, f"{custom_id} is not stored: {self.log()}"
            time.sleep(0.02)


class TopicRun(Run):
    """The same jobs in a topic; the results are those that a reader of the results sees."""

    def __init__(self):
        super().__init__()
        self.topic = f"strikes-{os.getpid()}-{time.monotonic_ns()}"
        subprocess.run([PROGRAM, "submit", "-q", "-i", self.path("in.jsonl"), "-b", BROKER,
                        "-t", self.topic], check=True)

    def command(self, flags):
        return [PROGRAM, "work", "-b", BROKER, "-t", self.topic, "--results-topic",
                self.topic + ".results", "-G", self.topic, "--db", self.path("jobs.db"),
                "--documents-topic", "", "--model", MODEL, "--threads", "1",
                "--chat-template", "chatml", "--exit-when-empty",
                "-X", "session.timeout.ms=6000", "-X", "heartbeat.interval.ms=300",
                *flags]

    def results(self):
        with open(self.path("out.jsonl"), "wb") as out:
            subprocess.run(["kcat", "-b", BROKER, "-t", self.topic + ".results", "-C", "-e",
                            "-q", "-X", "isolation.level=read_committed"], stdout=out,
                           check=True)
        return super().results()

    def dead_letters(self):
        """Of each its headers and its bytes."""
        out = subprocess.run(["kcat", "-b", BROKER, "-t", self.topic + ".dlq", "-C", "-e", "-q",
                              "-X", "isolation.level=read_committed", "-f", "%h\n%s\n"],
                             stdout=subprocess.PIPE, check=True, text=True).stdout.split("\n")
        return [(dict(h.split("=", 1) for h in headers.split(",") if "=" in h), value)
                for headers, value in zip(out[::2], out[1::2])]


def said(results, without=()):
    """What the answers say: their bytes, not their times."""
    return {k: (r["status"], r["answer"], r["finish_reason"], r["stop_reason"],
                r["usage"]["completion_tokens"])
            for k, r in results.items() if k not in without}


def undisturbed(max_tokens=12, flags=()):
    run = Run(max_tokens)
    assert run.start(None, None, *flags) == 0
    return said(run.results())


def has_device():
    return os.path.exists(os.path.join(os.path.dirname(PROGRAM), "sheaf-cuda-emu.so"))


class StrikesCase(unittest.TestCase):
    def check_one_error(self, run, code, neighbours=None):
        results = run.results()
        self.assertEqual(len(results), N_JOBS)
        self.assertEqual(results[BAD]["error"]["code"], code)
        expected = dict(neighbours or undisturbed())
        del expected[BAD]
        self.assertEqual(said(results, {BAD}), expected)
        self.assertEqual(run.rows("SELECT * FROM crashes"), [])
        self.assertFalse(os.path.exists(run.path("jobs.db-running")))
        return results[BAD]["error"]


class Strikes(StrikesCase):
    def check_crash(self, fault, number, restarts=3, *flags):
        run = Run()
        codes = run.start_until_done(fault, restarts + 3, None, *flags)
        self.assertEqual(codes, [-number] * restarts + [1])
        return self.check_one_error(run, "poison_crash")

    def test_a_job_that_crashes_the_engine_has_one_error_after_three_restarts(self):
        error = self.check_crash(f"step:{BAD}:segv", signal.SIGSEGV)
        self.assertIn("crashed 3 times", error["message"])

    def test_so_has_one_that_breaks_an_assertion(self):
        self.check_crash(f"step:{BAD}:abort", signal.SIGABRT)

    def test_so_has_one_that_crashes_its_reader_and_is_not_read_again(self):
        # The reader sees the line only, which has the id in it; the result is named by place.
        run = Run()
        codes = run.start_until_done(f"parse:{BAD}:segv", 6)
        self.assertEqual(codes, [-signal.SIGSEGV] * 3 + [1])
        results = run.results()
        place = f"line-{int(BAD[1:]) + 1}"
        self.assertEqual(results[place]["error"]["code"], "poison_crash")
        expected = undisturbed()
        del expected[BAD]
        self.assertEqual(said(results, {place}), expected)

    def test_so_has_one_whose_result_crashes_delivery(self):
        # The error has to pass delivery too: only what the answer says may break it.
        run = Run()
        codes = run.start_until_done(f"emit:{BAD}:segv", 3)
        self.assertEqual(codes, [-signal.SIGSEGV] * 3)
        self.assertEqual(run.start(), 1)
        self.check_one_error(run, "poison_crash")

    def test_one_that_hangs_is_ended_by_the_watchdog_and_named(self):
        run = Run()
        codes = run.start_until_done(f"step:{BAD}:hang", 6, None, "--watchdog-timeout-s", "1")
        self.assertEqual(codes, [-signal.SIGABRT] * 3 + [1])
        self.check_one_error(run, "poison_crash")
        self.assertIn(f"in.jsonl-0-{int(BAD[1:]) + 1}", run.log())

    def test_being_killed_is_forgiven_nine_times(self):
        error = self.check_crash(f"step:{BAD}:kill", signal.SIGKILL, 10)
        self.assertIn("killed 10 times", error["message"])

    def test_without_its_memory_the_worker_would_crash_for_ever(self):
        run = Run()
        self.assertEqual(run.start_until_done(f"step:{BAD}:segv", 6, "strikes"),
                         [-signal.SIGSEGV] * 6)

    def test_not_running_alone_a_suspect_would_take_its_neighbours_down(self):
        run = Run()
        self.assertEqual(run.start_until_done(f"step:{BAD}:segv", 6, "alone")[3:], [1])
        failed = [k for k, r in run.results().items() if r["status"] == "failed"]
        self.assertGreater(len(failed), 1)

    def test_a_fault_that_passed_leaves_no_trace(self):
        run = Run()
        self.assertEqual(run.start(f"step:{BAD}:segv"), -signal.SIGSEGV)
        self.assertEqual(os.stat(run.path("jobs.db-running")).st_mode & 0o777, 0o600)
        self.assertEqual(run.start(), 0)
        self.assertEqual(said(run.results()), undisturbed())
        self.assertEqual(run.rows("SELECT * FROM crashes"), [])

    def test_lacking_memory_twice_delays_one_job_and_changes_no_answer(self):
        faults = [f"{at}:{BAD}:fail2" for at in AT]
        runs = [Run() for _ in faults]
        with concurrent.futures.ThreadPoolExecutor(len(runs)) as pool:
            codes = list(pool.map(lambda pair: pair[0].start(pair[1]), zip(runs, faults)))
        for run, code, fault in zip(runs, codes, faults):
            with self.subTest(fault):
                self.assertEqual(code, 0)
                self.assertEqual(said(run.results()), undisturbed())
                self.assertEqual(len(re.findall("of 5 comes in|trying again", run.log())), 2)

    def test_lacking_memory_five_times_is_an_error_of_that_job(self):
        # Where the result itself finds no memory, the error finds none either.
        faults = [f"{at}:{BAD}:fail5" for at in AT]
        runs = [Run() for _ in faults]
        with concurrent.futures.ThreadPoolExecutor(len(runs)) as pool:
            codes = list(pool.map(lambda pair: pair[0].start(pair[1]), zip(runs, faults)))
        for run, code, fault in zip(runs, codes, faults):
            with self.subTest(fault):
                self.assertEqual(code, 1)
                results = run.results()
                (bad,) = [k for k in results if results[k]["status"] == "failed"]
                self.assertEqual(results[bad]["error"]["code"], "attempts_exhausted")
                self.assertIn("no memory", results[bad]["error"]["message"])
                expected = undisturbed()
                del expected[BAD]
                self.assertEqual(said(results, {bad}), expected)

    @unittest.skipUnless(os.path.exists("/proc/self/mem"), "no file that cannot be read")
    def test_a_document_that_cannot_be_read_is_asked_for_again_then_an_error(self):
        run = Run(documents=[{"ref": "mem"}])  # reading its first byte is EIO
        self.assertEqual(run.start(None, None, "--documents", "/proc/self"), 1)
        error = self.check_one_error(run, "attempts_exhausted")
        self.assertIn(os.strerror(errno.EIO), error["message"])
        self.assertEqual(run.log().count("of 5 comes in"), 4)

    def check_deadline(self, *flags, **bad):
        run = Run(300, **bad)
        self.assertEqual(run.start(f"step:{BAD}:slow", None, *flags), 1)
        return run

    def test_a_job_that_runs_past_its_deadline_is_ended_alone(self):
        deadline = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 2))
        run = self.check_deadline(deadline=deadline)
        error = self.check_one_error(run, "batch_expired", undisturbed(300))
        self.assertRegex(error["message"], "running|turn")
        self.assertEqual(run.rows("SELECT custom_id, error_code FROM jobs WHERE status <> "
                                  "'succeeded'"), [(BAD, "deadline_exceeded")])

    def test_a_job_that_gives_no_deadline_has_that_of_the_setting(self):
        run = self.check_deadline("--deadline-s", "3")
        self.assertEqual(run.results()[BAD]["error"]["code"], "batch_expired")
        self.assertIn("running", run.results()[BAD]["error"]["message"])

    def test_a_second_sigterm_ends_running_jobs_at_once(self):
        run = Run(300)
        process = run.begin(f"step:{BAD}:slow", None, "--batch", "1",
                            "--drain-timeout-s", "240")
        run.wait_for("context 512")
        process.send_signal(signal.SIGTERM)
        run.wait_for("once more")
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(PATIENCE_S), 75)
        self.assertFalse(os.path.exists(run.path("jobs.db-running")))
        self.assertEqual(run.start(), 0)
        self.assertEqual(said(run.results()), undisturbed(300))

    def test_a_delivery_that_hangs_does_not_outlive_the_drain(self):
        for signals in (1, 2):
            with self.subTest(signals=signals):
                run = Run()
                process = run.begin(f"deliver:{BAD}:hang", None, "--drain-timeout-s",
                                    "1" if signals == 1 else "240")
                run.wait_stored(BAD)
                for i in range(signals):
                    process.send_signal(signal.SIGTERM)
                    if i == 0:
                        run.wait_for("once more")
                self.assertEqual(process.wait(PATIENCE_S), 75)
                self.assertIn("its next start delivers what is left", run.log())
                self.assertEqual(run.start(), 0)
                self.assertEqual(said(run.results()), undisturbed())

    def test_results_that_cannot_be_delivered_before_a_stop_are_no_fault_of_it(self):
        run = Run()
        process = run.begin(f"deliver:{BAD}:fail", None, "--drain-timeout-s", "240")
        run.wait_for("made to fail; trying again")
        process.send_signal(signal.SIGTERM)
        run.wait_for("once more")
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(PATIENCE_S), 75)
        self.assertIn("the next start does what is left", run.log())
        self.assertEqual(run.start(), 0)
        self.assertEqual(said(run.results()), undisturbed())

    def test_what_was_computed_is_stored_when_a_stop_comes_before_its_delivery(self):
        run = Run(200, params={"max_tokens": 1})  # the bad one is the first to be delivered
        process = run.begin(f"deliver:{BAD}:fail", None, "--drain-timeout-s", "6")
        run.wait_for("made to fail; trying again")
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(PATIENCE_S), 75)
        self.assertIn("the next start does what is left", run.log())
        self.assertEqual(len(run.rows("SELECT 1 FROM jobs")), N_JOBS)
        self.assertEqual(run.start(), 0)
        self.assertEqual(len(run.results()), N_JOBS)
        self.assertIn(f"{N_JOBS} known from before", run.log())

    def test_a_sigterm_leaves_what_waits_for_its_next_attempt(self):
        for at in ("tokenize", "submit"):
            with self.subTest(at):
                run = Run()
                process = run.begin(f"{at}:{BAD}:fail")
                run.wait_for("attempt 2 of 5")
                process.send_signal(signal.SIGTERM)
                self.assertEqual(process.wait(PATIENCE_S), 75)
                self.assertNotIn(BAD, run.results())
                self.assertEqual(run.start(), 0)
                self.assertEqual(said(run.results()), undisturbed())


class StrikesOfADevice(StrikesCase):
    """A device that fails ends the worker in order; its jobs are suspects all the same."""

    def setUp(self):
        if not has_device():
            self.skipTest("this build has no emulated device")

    def test_a_job_that_breaks_the_device_has_one_error_after_three_restarts(self):
        run = Run()
        codes = run.start_until_done(BREAKS_DEVICE, 6, None, *ON_DEVICE)
        self.assertEqual(codes, [os.EX_IOERR] * 3 + [1])
        error = self.check_one_error(run, "poison_crash", undisturbed(12, ON_DEVICE))
        self.assertIn("crashed 3 times", error["message"])
        self.assertIn("it was made to fail", run.log())
        alone = f'In the engine: [^ ]*in.jsonl-0-{int(BAD[1:]) + 1}"'
        self.assertEqual(len(re.findall(alone, run.log())), 2)  # after the first strike

    def test_without_its_memory_the_device_would_fail_for_ever(self):
        run = Run()
        codes = run.start_until_done(BREAKS_DEVICE, 6, "strikes", *ON_DEVICE)
        self.assertEqual(codes, [os.EX_IOERR] * 6)

    def test_a_failure_that_passed_leaves_no_trace(self):
        run = Run()
        self.assertEqual(run.start(BREAKS_DEVICE, None, *ON_DEVICE), os.EX_IOERR)
        self.assertEqual(os.stat(run.path("jobs.db-running")).st_mode & 0o777, 0o600)
        self.assertEqual(run.start(None, None, *ON_DEVICE), 0)
        self.assertEqual(said(run.results()), undisturbed(12, ON_DEVICE))
        self.assertEqual(run.rows("SELECT * FROM crashes"), [])
        self.assertFalse(os.path.exists(run.path("jobs.db-running")))


class StrikesOnATopic(StrikesCase):
    """Those whose ways differ from a file's."""

    def setUp(self):
        if not BROKER:
            self.skipTest("no broker was given")

    def test_a_job_that_breaks_the_device_is_a_dead_letter(self):
        if not has_device():
            self.skipTest("this build has no emulated device")
        run = TopicRun()
        codes = run.start_until_done(BREAKS_DEVICE, 6, None, *ON_DEVICE)
        self.assertEqual(codes, [os.EX_IOERR] * 3 + [1])
        self.check_one_error(run, "poison_crash", undisturbed(12, ON_DEVICE))
        self.check_dead_letter(run, "poison_crash", 3)
        run.start(None, None, *ON_DEVICE)
        self.assertEqual(len(run.results()), N_JOBS)

    def test_poison_has_one_error_result_and_does_not_come_again(self):
        run = TopicRun()
        codes = run.start_until_done(f"step:{BAD}:segv", 6)
        self.assertEqual(codes[:-1], [-signal.SIGSEGV] * 3)
        self.check_one_error(run, "poison_crash")
        self.check_dead_letter(run, "poison_crash", 3)
        run.start()
        self.assertEqual(len(run.results()), N_JOBS)
        self.assertEqual(run.rows("SELECT count(*), count(DISTINCT partition * 1000 + offset) "
                                  "FROM jobs"),
                         [(N_JOBS, N_JOBS)])

    def check_dead_letter(self, run, code, attempts):
        with open(run.path("in.jsonl"), encoding="utf-8") as lines:
            (line,) = [line.rstrip("\n") for line in lines if f'"{BAD}"' in line]
        ((headers, value),) = run.dead_letters()
        self.assertEqual(value, line)
        self.assertEqual(headers["sheaf.error.code"], code)
        self.assertEqual(headers["sheaf.error.attempts"], str(attempts))

    def test_a_job_that_was_never_read_leaves_its_bytes_as_a_dead_letter(self):
        run = TopicRun()
        self.assertEqual(run.start(f"parse:{BAD}:fail5"), 1)
        self.check_dead_letter(run, "attempts_exhausted", 5)

    def test_retried_jobs_hold_their_offsets_until_they_are_answered(self):
        for at in ("parse", "submit"):
            with self.subTest(at):
                run = TopicRun()
                self.assertEqual(run.start(f"{at}:{BAD}:fail3"), 0)
                self.assertEqual(said(run.results()), undisturbed())


if __name__ == "__main__":
    PROGRAM = os.path.abspath(sys.argv.pop(1))
    if len(sys.argv) > 1 and ":" in sys.argv[1]:
        BROKER = sys.argv.pop(1)
    unittest.main(verbosity=2)
