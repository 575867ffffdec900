#!/usr/bin/env python3
"""kafka.py BROKER SHEAF LIBRARIES MODEL [--faults N] [--seed N]

The disk fails for good under `sheaf work`, at calls drawn by chance, in one database after
another. No answer may be published that the database does not hold, the worker ends with exit
code 74, and the next start answers the rest: each job once, as without faults. The reader is
kcat. Prints its figure last.
"""
import argparse
import collections
import os
import random
import signal
import subprocess
import sys
import tempfile
import time

from rig import Ended, Rig, Tally, read_store

EX_IOERR = 74
WAIT_S = 120
QUICK = ("session.timeout.ms=2000", "heartbeat.interval.ms=300", "message.timeout.ms=2500",
         "transaction.timeout.ms=3000")
CALLS = "write sync cut"


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

    def work(self, preload=(), **settings):
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
            if "trying again" in line and n_tries in (2, 3):
                process.send_signal(signal.SIGTERM)
        return Ended(process.wait(WAIT_S), "\n".join(lines), self.rig.report(self.place))

    def results(self):
        done = subprocess.run(["kcat", "-C", "-q", "-e", "-b", self.broker, "-t",
                               f"{self.name}.results", "-f", "%s\\n"], check=True, text=True,
                              capture_output=True, timeout=WAIT_S)
        return done.stdout.splitlines()


def try_fault(tally, topic, n, error):
    case = f"{error} for good from call {n} on, {topic.name}"
    ended = topic.work(preload=("bad_disk",), BAD_DISK_NTH=n, BAD_DISK_FOR_GOOD=1,
                       BAD_DISK_ERROR=error, BAD_DISK_CALLS=CALLS)
    topic.rig.judge_code(tally, case, ended, {0, EX_IOERR})
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
    tally.count(2, ended.code != 0)
    return len(published)


def main():
    parser = argparse.ArgumentParser()
    for name in ("broker", "sheaf", "libraries", "model"):
        parser.add_argument(name)
    parser.add_argument("--faults", type=int, default=6)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    args = parser.parse_args()
    print(f"seed {args.seed}", flush=True)
    draw = random.Random(args.seed)
    tally, by_call = Tally(), collections.OrderedDict()
    with tempfile.TemporaryDirectory() as folder:
        rig = Rig(os.path.realpath(args.sheaf), os.path.realpath(args.model),
                  os.path.realpath(args.libraries), os.path.realpath(folder))
        without = Topic(rig, args.broker, f"disk-{args.seed}").work(preload=("bad_disk",),
                                                                   BAD_DISK_CALLS=CALLS)
        n_calls = int(without.report["calls"])
        for i in range(args.faults):
            n = n_calls * (i + 1) // (args.faults + 1) + draw.randrange(20)
            topic = Topic(rig, args.broker, f"disk-{args.seed}-{i}")
            by_call[n] = try_fault(tally, topic, n, draw.choice(("EIO", "ENOSPC")))
    print("published before the fault, by call: " +
          ", ".join(f"{n}: {published}" for n, published in by_call.items()))
    print(tally)
    sys.exit(0 if tally.is_clean() else 1)


if __name__ == "__main__":
    main()
