#!/usr/bin/env python3
"""fault_matrix.py [--folder F] [--demo-model M] [--keep] SHEAF MODEL [ROW...]

The rows of the fault matrix that need a real broker and whole workers, each a claim of its own:
the docstring of a row says what is done and what must come of it. In all of them every job has
one answer for a reader of committed records (kcat), and it is the one that `sheaf run` gives.
Without ROWs: all. A broker of its own is started, or the one of `ops/kafka/broker -d F` is used
(and killed, and started again). Prints a line a row, then "N of N rows hold".
"""
import argparse
import os
import random
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import traceback

from rig import Library, Rig, Wrong, check, check_teeth, jobs_of, until, write_jobs

BROKER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../ops/kafka/broker")
CPU_SHARE_MAX = 0.05
AWAY_S = 20
SLOW = ("-X", "sheaf.inflight.jobs=32") # a burst of 32 takes 200 ms at least
PATIENT = ("session.timeout.ms=6000", "heartbeat.interval.ms=500", "max.poll.interval.ms=6000")
ROWS = {}


def row(function):
    ROWS[function.__name__] = function
    return function


class Matrix(Rig):
    """The rig with a broker that can be killed, and jobs under names of the row's own."""

    def __init__(self, folder, sheaf, model, demo_model):
        self.folder = folder
        self.demo_model = demo_model
        super().__init__(self.start(), sheaf, model)
        self.library = Library(self.broker)

    def ops(self, action, settings=""):
        port = [] if os.path.exists(f"{self.folder}/port") else ["-p", "auto"]
        done = subprocess.run([BROKER, "-d", self.folder, *port, action], check=False,
                              env={**os.environ, "KAFKA_SETTINGS": settings}, timeout=120,
                              capture_output=True, text=True)
        check(done.returncode == 0, f"the broker does not {action}: {done.stderr}")

    def start(self, settings=""):
        self.ops("start", settings)
        with open(f"{self.folder}/port", encoding="ascii") as port:
            return f"127.0.0.1:{int(port.read())}"

    def restart(self, settings=""):
        self.ops("kill")
        check(self.start(settings) == self.broker, "the broker is back at another port")

    def given(self, topic, n, prefix="job", **options):
        """n jobs in the topic; what their answers must be."""
        path = write_jobs(f"{topic}.{prefix}.jsonl",
                          jobs_of([f"{prefix}-{i}" for i in range(n)], **options))
        wanted = self.wanted(path)
        self.submit(topic, path)
        return wanted

    def until_answered(self, topic, n):
        def is_so():
            if self.answered(topic) >= n:
                return True
            check(any(w.process.poll() is None for w in self.workers),
                  f"no worker is left: {self.workers[-1].says()[-400:]}")
            return False
        until(f"{n} answers in {topic}", is_so)


def ask(database, query):
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as db:
        return db.execute(query).fetchall()


def clean_end(worker, what):
    code = worker.stop()
    check(code == 0, f"{what} ends with {code}: {worker.says()[-400:]}")


# ------------------------------------------------------------------------- whose turn it is

# Answers wait 1.5 s in an open transaction, so that a nap begins in one.
DROWSY = ("session.timeout.ms=2000", "heartbeat.interval.ms=300", "linger.ms=1500")


def nap(m, topic, n):
    """What the worker says that was asleep while another one took its place."""
    wanted = m.given(topic, 300, f"nap{n}")
    n_before = m.answered(topic)
    sleeper = m.work(topic, *SLOW, exits=False, name="sleeper", props=DROWSY)
    m.until_answered(topic, n_before + 32)
    sleeper.signal(signal.SIGSTOP)
    other = m.work(topic, name="other")
    check(other.end() == 0, f"the other worker ends badly: {other.says()[-400:]}")
    asleep = len(sleeper.says())
    sleeper.signal(signal.SIGCONT)
    until("the sleeper is given partitions again", lambda: re.search(
        r"[1-9]\d* partitions of .* assigned", sleeper.says()[asleep:]))
    clean_end(sleeper, "the sleeper")
    return wanted, sleeper.says()[asleep:]


@row
def zombie(m, topic):
    """A worker sleeps past its session in the middle of a burst, another takes its partitions,
    it wakes up: the group refuses what it commits, and it says so."""
    wanted, refused = {}, None
    for n in range(5):
        more, said = nap(m, topic, n)
        wanted.update(more)
        m.judge(topic, wanted)
        refused = re.search(r"the offsets of answered jobs failed: [^;]*", said)
        if refused:
            break
    check(refused, f"the sleeper was never refused: {said[-600:]}")
    return f"{refused[0]} (nap {n + 1})"


@row
def rebalances(m, topic, n=3000):
    """Workers come and go about every second, some by kill -9, while 3,000 jobs run."""
    wanted = m.given(topic, n)
    draw = random.Random(5)
    slots = [None] * 4
    n_changes = 0
    while m.answered(topic) < n:
        at = draw.randrange(len(slots))
        worker = slots[at]
        if worker is None or worker.process.poll() is not None:
            slots[at] = m.work(topic, *SLOW, exits=False, name=f"w{at}")
        elif draw.random() < 0.3:
            worker.kill()
            slots[at] = None
        else:
            worker.signal(signal.SIGTERM)
            check(worker.end() == 0, f"a worker ends badly: {worker.says()[-400:]}")
            slots[at] = None
        n_changes += 1
        check(n_changes < 200, f"{m.answered(topic)} of {n} answers after {n_changes} changes")
        time.sleep(draw.uniform(0.5, 1.5)) # the pace of the storm
    for worker in filter(None, slots):
        clean_end(worker, "a worker")
    m.finish(topic, name="w0")
    m.judge(topic, wanted)
    check(n_changes >= 12, f"all was answered after {n_changes} changes: no storm")
    return f"{n} jobs, {n_changes} comings and goings"


@row
def two_of_one_name(m, topic):
    """A copied database makes two workers of one name: one ends with a sentence and exit code
    69, the other goes on, nothing is answered twice."""
    wanted = m.given(topic, 16, "first")
    m.finish(topic, name="one", props=())
    with sqlite3.connect(f"{topic}.one.db") as db, \
            sqlite3.connect(f"{topic}.two.db") as copy:
        db.backup(copy)
    wanted.update(m.given(topic, 1500, "then"))
    twins = [m.work(topic, *SLOW, name=name, exits=False) for name in ("one", "two")]
    until("one of the two ends", lambda: any(w.process.poll() is not None for w in twins))
    loser = next(w for w in twins if w.process.poll() is not None)
    winner = next(w for w in twins if w is not loser)
    check("another worker publishes as" in loser.says(), f"it says {loser.says()[-400:]}")
    check(loser.end() == 69, f"exit code {loser.end()}")
    m.until_answered(topic, len(wanted))
    clean_end(winner, "the one that is left")
    m.judge(topic, wanted)
    return f"exit code {loser.end()}"


@row
def long_jobs(m, topic):
    """max.poll.interval.ms is 6 s and a job takes longer: the worker stays in its group."""
    model, tokens = (m.demo_model, 300) if m.demo_model else (m.model, 200)
    old, m.model = m.model, model
    try:
        path = write_jobs(f"{topic}.jsonl", [
            {"custom_id": f"long-{i}", "question": f"Tell a long story about the number {i}.",
             "params": {"max_tokens": tokens, "temperature": 0.8, "seed": i}}
            for i in range(12 if m.demo_model else 400)])
        wanted = m.wanted(path)
        m.submit(topic, path)
        worker = m.finish(topic, "-X", "sheaf.kv.mb=256", props=PATIENT)
    finally:
        m.model = old
    m.judge(topic, wanted)
    check("lost to the group" not in worker.says() and
          worker.says().count(" assigned") == 1, f"it left: {worker.says()[-600:]}")
    slowest = ask(f"{topic}.worker.db",
                  "SELECT max(e2e_ms) / 1000 FROM v_jobs")[0][0]
    check(not m.demo_model or slowest > 6, f"the longest job took {slowest:.1f} s only")
    return f"the longest job took {slowest:.1f} s, one assignment"


# ------------------------------------------------------------------------- the broker

@row
def broker_killed(m, topic):
    """The broker is killed in the middle and starts again, twice."""
    wanted = m.given(topic, 1000)
    worker = m.work(topic, *SLOW)
    for n in (100, 400):
        m.until_answered(topic, n)
        check(worker.process.poll() is None, "the worker ended before the broker was killed")
        m.restart()
    check(worker.end() == 0, f"the worker ends badly: {worker.says()[-400:]}")
    m.judge(topic, wanted)
    return "killed twice"


@row
def broker_away(m, topic):
    """The broker is away for 20 s: the worker has hardly any use for a processor, and goes on
    when it is back."""
    wanted = m.given(topic, 400)
    worker = m.work(topic, *SLOW, exits=False)
    m.until_answered(topic, 64)
    m.ops("kill")
    used = [worker.cpu_s()]
    until("what was under way is computed", lambda: is_quiet(worker, used))
    before, began = worker.cpu_s(), time.monotonic()
    time.sleep(AWAY_S) # the fault itself
    share = (worker.cpu_s() - before) / (time.monotonic() - began)
    m.start()
    m.until_answered(topic, len(wanted))
    clean_end(worker, "the worker")
    m.judge(topic, wanted)
    check(share < CPU_SHARE_MAX, f"{share:.1%} of a processor while the broker is away")
    return f"{share:.2%} of a processor while the broker is away"


def is_quiet(worker, used):
    """Less than a tenth of a second of work in the last half."""
    time.sleep(0.5)
    used.append(worker.cpu_s())
    return used[-1] - used[-2] < 0.05


@row
def short_metadata(m, topic):
    """The broker takes 32 characters beside an offset instead of 4,096: answers are given in an
    order that needs no more, also over a kill -9; at least once goes on as well."""
    m.restart("offset.metadata.max.bytes=32")
    try:
        wanted = m.given(topic, 1000, max_tokens=90)
        worker = m.work(topic, "-X", "sheaf.inflight.jobs=64", exits=False)
        m.until_answered(topic, 100)
        worker.kill()
        check(m.answered(topic) < len(wanted), "all was answered before the kill")
        worker = m.finish(topic)
        m.judge(topic, wanted)
        refused = re.search(r"refuse (\d+) characters", worker.says())
        check(refused, "no text was too long: the row shows nothing")
        check(int(refused[1]) > 32, f"a text of {refused[1]} characters was refused")
        m.given(f"{topic}.plain", 300, max_tokens=90)
        m.finish(f"{topic}.plain", "--delivery", "at-least-once")
        again = m.finish(f"{topic}.plain", "--delivery", "at-least-once")
        check("0 answered, 0 failed, 0 known" in again.says(),
              f"at least once commits nothing: {again.says()[-300:]}")
    finally:
        m.restart()
    return f"{refused[1]} characters were refused"


# ------------------------------------------------------------------------- the topic

@row
def offsets_reset(m, topic):
    """An operator sets the group's offsets back to the beginning while no worker runs: jobs
    that have an answer are settled without a new one."""
    wanted = m.given(topic, 120)
    m.finish(topic)
    m.library.set_offsets(topic, topic, {p: 0 for p in range(4)})
    worker = m.finish(topic)
    m.judge(topic, wanted)
    known = re.search(r"(\d+) known from before", worker.says().splitlines()[-1])
    check(known and int(known[1]) == len(wanted), f"not read again: {worker.says()[-300:]}")
    return f"{known[0]}"


@row
def topic_made_anew(m, topic):
    """The job topic is deleted and made anew, once while no worker runs and once while one
    does: what the new topics hold is answered."""
    wanted = m.given(topic, 60, "old")
    m.finish(topic)
    m.library.delete_topic(topic)
    wanted.update(m.given(topic, 50, "stopped"))
    m.finish(topic)
    m.judge(topic, wanted)
    worker = m.work(topic, exits=False)
    until("it has its partitions", lambda: worker.says().count(" assigned") > 2)
    m.library.delete_topic(topic)
    wanted.update(m.given(topic, 40, "running"))
    until("it answers or ends", lambda: worker.process.poll() is not None
          or m.answered(topic) >= len(wanted))
    ended = worker.process.poll()
    if ended is None:
        clean_end(worker, "the worker")
    else:
        m.finish(topic) # as its supervisor does
    m.judge(topic, wanted)
    return "it went on" if ended is None else f"it ended with {ended} and was started again"


@row
def retention_overrun(m, topic):
    """Retention deletes records that the group has not read: an error names the range, the
    table lost_ranges has it once, the rest is answered."""
    m.library.make_topic(topic, 1)
    wanted = m.given(topic, 50, "read")
    m.finish(topic)
    late = m.given(topic, 50, "late")
    m.library.delete_records(topic, {0: 70})
    wanted.update({i: text for i, text in late.items() if int(i.split("-")[1]) >= 20})
    worker = m.finish(topic)
    m.judge(topic, wanted)
    check(re.search(r"offsets 50 to 69 were deleted before they were read", worker.says()),
          f"nothing is said of it: {worker.says()[-600:]}")
    m.finish(topic)
    rows = ask(f"{topic}.worker.db", "SELECT topic, partition, first_offset, last_offset,"
               " reason FROM lost_ranges")
    check(rows == [(topic, 0, 50, 69, "retention")], f"lost_ranges has {rows}")
    return "20 jobs lost, and noted"


@row
def aborted_input(m, topic):
    """Jobs come in transactions, of which every other one is aborted: those are no jobs, and
    their gaps keep nobody from the end."""
    m.library.make_topic(topic, 2)
    path = write_jobs(f"{topic}.jsonl", jobs_of([f"job-{i}" for i in range(60)]))
    wanted = m.wanted(path)
    with open(path, encoding="utf-8") as lines:
        jobs = lines.read().splitlines()
    for i in range(0, 60, 10):
        m.library.transact(topic, [jobs[i:i + 10]])
        m.library.transact(topic, [[job.replace("job-", "never-") for job in jobs[i:i + 10]]],
                           ends="abort")
    m.finish(topic)
    m.judge(topic, wanted)
    again = m.finish(topic)
    check("0 answered, 0 failed, 0 known" in again.says().splitlines()[-1],
          f"the second start finds more: {again.says()[-300:]}")
    return "6 transactions of 10 jobs committed, 6 aborted"


# ------------------------------------------------------------------------- running

def run_row(m, name):
    began = time.monotonic()
    topic = f"{name.replace('_', '-')}-{os.getpid()}-{int(began)}"
    try:
        said = ROWS[name](m, topic)
        print(f"{name}: holds ({time.monotonic() - began:.0f} s): {said}", flush=True)
        return True
    except Wrong as wrong:
        print(f"{name}: DOES NOT HOLD: {wrong}", flush=True)
    except (OSError, subprocess.SubprocessError):
        print(f"{name}: DOES NOT HOLD: {traceback.format_exc()}", flush=True)
    finally:
        m.clear()
    return False


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("sheaf")
    parser.add_argument("model")
    parser.add_argument("rows", nargs="*", metavar="ROW", help=", ".join(ROWS))
    parser.add_argument("--folder")
    parser.add_argument("--demo-model")
    parser.add_argument("--keep", action="store_true", help="the files, and tell where")
    args = parser.parse_args()
    unknown = [name for name in args.rows if name not in ROWS]
    if unknown:
        parser.error(f"no such row: {', '.join(unknown)}; there are {', '.join(ROWS)}")
    check_teeth()
    scratch = tempfile.mkdtemp(prefix="matrix.")
    m = Matrix(args.folder or f"{scratch}/kafka", args.sheaf, args.model, args.demo_model)
    os.chdir(scratch)
    try:
        held = [run_row(m, name) for name in args.rows or ROWS]
    finally:
        if not args.folder:
            m.ops("kill")
        if args.keep:
            print(f"files are in {scratch}")
        else:
            subprocess.run(["rm", "-rf", scratch], check=False)
    print(f"{sum(held)} of {len(held)} rows hold")
    sys.exit(0 if all(held) else 1)


if __name__ == "__main__":
    main()
