"""A bad disk under `sheaf work`, in one database after another, for good and for a while.

No answer may be published that the database does not hold. For good, the worker ends with exit
code 74, and the next start answers the rest; after a while it goes on by itself: each job once,
as without faults. The reader is kcat.
"""
import os
import signal
import subprocess

from rig import Ended, Rig, read_store

EX_IOERR = 74
WAIT_S = 120
QUICK = ("session.timeout.ms=2000", "heartbeat.interval.ms=300", "message.timeout.ms=2500",
         "transaction.timeout.ms=3000")
CALLS = "write sync cut"
JOBS = 400 # several transactions


class Topic:
    """One topic of jobs, its results, and the worker that answers it."""

    def __init__(self, rig, broker, name):
        self.rig, self.broker, self.name = rig, broker, name
        self.place = rig.new_place(name)
        subprocess.run([rig.sheaf, "submit", "--quiet", rig.jobs, "-p", "1", *self.names()],
                       check=True)

    def names(self):
        return ["-b", self.broker, "--topic", self.name, "--results-topic",
                f"{self.name}.results"]

    def work(self, preload=(), ends_patience=False, **settings):
        """A worker that meets a bad disk waits minutes for a better one; two signals say that
        there will be none."""
        command = [self.rig.sheaf, "work", "--model", self.rig.model, "--group", self.name,
                   "--db", f"{self.place}/x.db", "--threads", "1", "--batch", "2",
                   "--exit-when-empty", *self.names()]
        command += [part for setting in QUICK for part in ("-X", setting)]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, text=True,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                   env=self.rig.environment(self.place, preload, **settings))
        lines, n_tries = [], 0
        for line in process.stderr:
            lines.append(line.rstrip("\n"))
            n_tries += "trying again" in line
            if ends_patience and "trying again" in line and n_tries in (2, 3):
                process.send_signal(signal.SIGTERM)
        return Ended(process.wait(WAIT_S), "\n".join(lines), self.rig.report(self.place))

    def results(self):
        done = subprocess.run(["kcat", "-C", "-q", "-e", "-b", self.broker, "-t",
                               f"{self.name}.results", "-f", "%s\\n"], check=True, text=True,
                              capture_output=True, timeout=WAIT_S)
        return done.stdout.splitlines()


def try_fault(tally, topic, n, count, error):
    how_long = f"for {count} calls" if count else "for good"
    case = f"{error} {how_long} from call {n} on, {topic.name}"
    ended = topic.work(preload=("bad_disk",), ends_patience=count == 0, BAD_DISK_NTH=n,
                       BAD_DISK_COUNT=count, BAD_DISK_ERROR=error, BAD_DISK_CALLS=CALLS)
    topic.rig.judge_code(tally, case, ended, {0, EX_IOERR} if count == 0 else {0})
    verdict, stored = read_store(f"{topic.place}/x.db", f"{topic.place}.scratch")
    if verdict != "ok":
        tally.blame("database", case, verdict)
    published = topic.results()
    unstored = set(published) - set(stored.lines.values())
    if unstored:
        tally.blame("lost", case, f"published and not stored: {unstored}", len(unstored))
    resumed = topic.work()
    topic.rig.judge_code(tally, f"{case}, resumed", resumed, {0})
    topic.rig.judge_answers(tally, f"{case}, resumed", topic.results())
    verdict, now = read_store(f"{topic.place}/x.db", f"{topic.place}.scratch")
    if verdict != "ok":
        tally.blame("database", f"{case}, resumed", verdict)
    forgotten = set(stored.lines.values()) - set(now.lines.values())
    if forgotten:
        tally.blame("lost", case, f"stored and then forgotten: {forgotten}", len(forgotten))
    tally.count(2, ended.report.get("failed") != "0", ended.code)
    return len(published)


def topics(rig, tally, args, draw):
    """At calls spread over the work."""
    folder = os.path.join(rig.folder, "topics")
    os.mkdir(folder)
    rig = Rig(rig.sheaf, rig.model, rig.libraries, folder, JOBS)
    name = f"disk-{args.seed}"
    without = Topic(rig, args.broker, name).work(preload=("bad_disk",), BAD_DISK_CALLS=CALLS)
    n_calls = int(without.report["calls"])
    published = []
    for i in range(args.topics):
        n = n_calls * (i + 1) // (args.topics + 1) + draw.randrange(20)
        topic = Topic(rig, args.broker, f"{name}-{i}")
        error = draw.choice(("EIO", "ENOSPC"))
        published.append(f"{n}: {try_fault(tally, topic, n, (0, 0, 6)[i % 3], error)}")
    print(f"of {n_calls} calls; published at the fault, by call: {', '.join(published)}")
