"""What the fault tests share: jobs, topics, workers that can be killed, readers, the verdict.

The readers and the feeder are kcat, an independent client; the verdict is check_history's.
Every wait has a deadline and says what it waited for.
"""
import argparse
import json
import os
import random
import re
import signal
import subprocess
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import check_history

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "tests/golden/tiny/tiny-llama-q4_0.gguf"
# So that the group and the broker notice a death soon.
QUICK = {"session.timeout.ms": 1500, "heartbeat.interval.ms": 250, "message.timeout.ms": 2900,
         "transaction.timeout.ms": 3000}
WAIT_S = 90
POLL_S = 0.01
PARTITIONS = 6
DOCUMENTS = 16


class TestError(Exception):
    pass


def wait_until(is_done, what, wait_s=WAIT_S):
    deadline = time.monotonic() + wait_s
    while not is_done():
        if time.monotonic() > deadline:
            raise TestError(f"in {wait_s} s: {what}")
        time.sleep(POLL_S)


def make_job(i, draw, max_tokens=None, document=None):
    d = draw.randrange(DOCUMENTS) if document is None else document
    return {"custom_id": f"job-{i}",
            "documents": [f"[[Mill {d} was built in {1700 + d} by the river.]]"],
            "question": f"[[Question {i}?]]",
            "params": {"max_tokens": max_tokens or draw.randrange(4, 40), "temperature": 0.8,
                       "seed": i}}


def make_jobs(n, draw, first=0):
    return [make_job(first + i, draw) for i in range(n)]


class Feeder:
    """Submits jobs, keyed by document, and waits until they have arrived."""

    def __init__(self, broker, topic, path):
        self.command = ["kcat", "-P", "-b", broker, "-t", topic, "-K", "\t", "-X",
                        "linger.ms=1", "-X", "enable.idempotence=true", "-l",
                        f"{path}.part"]
        self.path = path
        self.n = 0

    def feed(self, jobs):
        if not jobs:
            return
        with open(self.path, "a", encoding="utf-8") as out, \
                open(f"{self.path}.part", "w", encoding="utf-8") as part:
            for job in jobs:
                line = json.dumps(job)
                out.write(line + "\n")
                part.write(f"{job['documents'][0]}\t{line}\n")
        subprocess.run(self.command, check=True, timeout=WAIT_S)
        self.n += len(jobs)


def is_known(broker, topic):
    """A topic that was just made is not known at once."""
    asked = subprocess.run(["kcat", "-L", "-J", "-b", broker, "-t", topic], check=False,
                           capture_output=True, text=True, timeout=WAIT_S)
    if asked.returncode != 0:
        return False
    topics = json.loads(asked.stdout)["topics"]
    return bool(topics) and len(topics[0]["partitions"]) == PARTITIONS and all(
        partition["leader"] > 0 for partition in topics[0]["partitions"])


class Reader:
    """A read_committed reader that reads all the time."""

    def __init__(self, broker, topic, path):
        self.process = subprocess.Popen(
            ["kcat", "-C", "-q", "-u", "-J", "-b", broker, "-t", topic, "-o", "beginning",
             "-X", "isolation.level=read_committed", "-X", "topic.metadata.refresh.interval.ms="
             "1000"], stdout=subprocess.PIPE, text=True)
        self.path = path
        self.n = 0  # records
        self.thread = threading.Thread(target=self._copy, daemon=True)
        self.thread.start()

    def _copy(self):
        with open(self.path, "w", encoding="utf-8", buffering=1) as out:
            for line in self.process.stdout:
                out.write(line)
                self.n += 1

    def stop(self):
        self.process.terminate()
        self.process.wait()
        self.thread.join()


def read_topic(broker, topic, isolation, path):
    with open(path, "wb") as out:
        subprocess.run(["kcat", "-C", "-q", "-e", "-J", "-b", broker, "-t", topic, "-o",
                        "beginning", "-X", f"isolation.level={isolation}"],
                       check=True, stdout=out, timeout=WAIT_S)
    with open(path, "rb") as lines:
        return sum(1 for _ in lines)


class Worker:
    """One database, and the process that has it, again and again."""

    def __init__(self, rig, name, settings=None):
        self.rig, self.name = rig, name
        self.database = f"{rig.folder}/{name}.db"
        self.computed = f"{rig.folder}/{name}.computed"
        self.settings = {"sheaf.batch": 8, **(settings or {})}
        self.process = None

    def start(self, *options, **environment):
        """environment: token_us, crash_at, stop_at, guards_off, as the program reads them."""
        command = [self.rig.program, "work", "--model", str(self.rig.model), "-b",
                   self.rig.broker, "-t", self.rig.topic, "--results-topic", self.rig.results,
                   "--group", self.rig.topic, "--db", self.database, *options]
        for key, value in {**QUICK, **self.rig.settings, **self.settings}.items():
            command += ["-X", f"{key}={value}".replace("{name}", self.name)]
        names = {"token_us": "SHEAF_FAKE_TOKEN_US", "crash_at": "SHEAF_CRASH_AT",
                 "stop_at": "SHEAF_STOP_AT", "guards_off": "SHEAF_GUARDS_OFF"}
        env = {**os.environ, "SHEAF_FAKE_LOG": self.computed,
               "SHEAF_FAKE_TOKEN_US": str(self.rig.token_us)}
        env.update({names[key]: str(value) for key, value in environment.items() if value})
        with open(f"{self.rig.folder}/{self.name}.log", "a", encoding="utf-8") as log:
            self.process = subprocess.Popen(command, stderr=log, env=env)

    def runs(self):
        return self.process is not None and self.process.poll() is None

    def has_failed(self):
        """Ended, and was not killed."""
        return self.process is not None and (self.process.poll() or 0) > 0

    def wait(self, code, wait_s=WAIT_S):
        try:
            found = self.process.wait(timeout=wait_s)
        except subprocess.TimeoutExpired as error:
            raise TestError(f"{self.name} did not end in {wait_s} s") from error
        if code is not None and found != code:
            raise TestError(f"{self.name} ended with {found}, not {code}; see {self.name}.log")

    def kill(self):
        self.process.kill()
        self.process.wait()

    def is_stopped(self):
        with open(f"/proc/{self.process.pid}/stat", encoding="utf-8") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] == "T"

    def catches(self, number):
        """Before its first steps a process dies of a signal as any does."""
        with open(f"/proc/{self.process.pid}/status", encoding="utf-8") as status:
            caught = [line.split()[1] for line in status if line.startswith("SigCgt:")]
        return bool(caught) and bool(int(caught[0], 16) >> (number - 1) & 1)

    def term(self):
        wait_until(lambda: not self.runs() or self.catches(signal.SIGTERM),
                   f"{self.name} starts")
        self.signal(signal.SIGTERM)

    def signal(self, number):
        self.process.send_signal(number)

    def run_dry(self, code=0, **environment):
        """Answers what there is, and ends."""
        self.start("--exit-when-empty", **environment)
        self.wait(code)


def begun(worker):
    """States of the jobs that its engine has begun."""
    return check_history.read_computed(worker.computed) if os.path.exists(worker.computed) \
        else {}


def n_stored(worker):
    return len(check_history.read_rows(worker.database))


def count_log(worker, pattern):
    with open(f"{worker.rig.folder}/{worker.name}.log", encoding="utf-8") as log:
        return len(re.findall(pattern, log.read()))


def log_has(worker, pattern):
    return count_log(worker, pattern) > 0


class Rig:
    """Topics of its own on the broker, and the files of one history in a folder."""

    def __init__(self, args, folder):
        self.args, self.folder = args, folder
        self.broker, self.program, self.model = args.broker, args.program, args.model
        self.topic = os.path.basename(folder)
        self.results = f"{self.topic}.results"
        self.settings = {}
        self.token_us = 0
        self.workers = []
        empty = f"{folder}/empty"
        Path(empty).touch()
        Path(f"{folder}/jobs").touch()
        subprocess.run([args.sheaf, "submit", "--quiet", empty, "-b", self.broker, "-t",
                        self.topic, "--results-topic", self.results, "--partitions",
                        str(PARTITIONS)], check=True)
        for topic in (self.topic, self.results):
            wait_until(lambda name=topic: is_known(self.broker, name), f"the topic {topic}")
        self.feeder = Feeder(self.broker, self.topic, f"{folder}/jobs")
        self.reader = Reader(self.broker, self.results, f"{folder}/concurrent")

    def worker(self, name, settings=None):
        worker = Worker(self, name, settings)
        self.workers.append(worker)
        return worker

    def wait_results(self, n):
        def is_done():
            if any(worker.has_failed() for worker in self.workers):
                raise TestError(f"a worker has ended; see the logs in {self.folder}")
            if self.reader.process.poll() is not None:
                raise TestError("the reader has ended")
            return self.reader.n >= n
        wait_until(is_done, f"{n} results")

    def wait_all_results(self):
        """Gives up when nothing comes any more; the verdict tells what is missing."""
        at = time.monotonic()
        n = self.reader.n
        while n < self.feeder.n and time.monotonic() - at < WAIT_S:
            time.sleep(POLL_S)
            if self.reader.n > n:
                n, at = self.reader.n, time.monotonic()

    def judge(self, answers=None):
        """-> (findings, doubles seen by read_uncommitted readers). After every worker
        has ended."""
        n = read_topic(self.broker, self.results, "read_committed", f"{self.folder}/final")
        wait_until(lambda: self.reader.n >= n, "the concurrent reader reads as much")
        self.reader.stop()
        read_topic(self.broker, self.results, "read_uncommitted",
                   f"{self.folder}/uncommitted")
        f = self.folder
        arguments = [f"{f}/jobs", "--final", f"{f}/final", "--concurrent", f"{f}/concurrent",
                     "--uncommitted", f"{f}/uncommitted"]
        for worker in self.workers:
            if os.path.exists(worker.database):
                arguments += ["--database", worker.database]
                if os.path.exists(worker.computed):
                    arguments += ["--computed", worker.computed]
        if answers:
            arguments += ["--answers", answers]
        return check_history.check(check_history.parse(arguments))

    def close(self):
        for worker in self.workers:
            if worker.runs():
                worker.signal(signal.SIGCONT)
                worker.kill()
        self.reader.process.kill()


@contextmanager
def open_rig(args, name):
    """The folder stays when something was wrong, and is named."""
    folder = tempfile.mkdtemp(prefix=f"{name}.")
    rig = Rig(args, folder)
    try:
        yield rig
    except BaseException:
        print(f"the history is in {folder}", flush=True)
        raise
    finally:
        rig.close()


def end_history(rig, is_good):
    """The folder stays when something was wrong, and is named."""
    if is_good:
        subprocess.run(["rm", "-rf", "--one-file-system", rig.folder], check=True)
    else:
        print(f"the history is in {rig.folder}")


def parser_of(description):
    """broker, sheaf and program, and what every script here takes."""
    parser = argparse.ArgumentParser(usage=description)
    parser.add_argument("broker")
    parser.add_argument("build", help="folder of the build")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    return parser


def parse(parser):
    args = parser.parse_args()
    args.sheaf = os.path.join(args.build, "sheaf")
    args.program = os.path.join(args.build, "tests/fault/sheaf_faulty")
    args.model = MODEL
    args.draw = random.Random(args.seed)
    print(f"seed {args.seed}", flush=True)
    return args


def summary(found):
    kinds = ["lost", "doubled", "different", "recomputed"]
    return ", ".join(f"{found.count(kind)} {kind}" for kind in kinds)


def describe(found):
    """-> lines about faults; none when there are none."""
    return [f"{kind}: {text}" for kind in check_history.KINDS
            for text in found.texts[kind][:check_history.TEXTS_MAX]]
