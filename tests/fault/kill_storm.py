#!/usr/bin/env python3
"""kill_storm.py BROKER BUILD [--jobs N] [--kills N] [--points N] [--at POINT,...] [--pause S]
    [--token-us N] [--set KEY=VALUE]... [--may KIND]... [--seed N] [--real MODEL]

Two workers answer the jobs of a topic. They are killed at random, up to --pause seconds after
there was a new result, and at each crash point (CRASH_POINT in worker/; or those of --at)
--points times, and started again. check_history.py says what became of the jobs. --set: a
setting of the workers, "{name}" is the worker's name; --may: a kind of fault that is none then.
--real: BUILD/sheaf itself, with that model, which has no crash points; the right answers are
those of `sheaf run`. Prints "N jobs, N kills, N crash points x N: N lost, N doubled, N
different, N recomputed" and exits 0 only when nothing was found.
"""
import re
import signal
import subprocess
import sys
import time

import rig as rigs

TAKEN_OVER = 0.3  # of the kills: long enough for the other worker to notice
BOTH = 0.15       # of the kills hit both workers
# Points that are passed only when somebody makes it happen.
AT_REBALANCE = {"revoke", "revoked"}
AT_END = {"leave", "left"}


def crash_points():
    """Every name in the sources, so that none is forgotten; those of other commands than work
    have an underscore."""
    names = set()
    for path in (rigs.ROOT / "worker").rglob("*.c"):
        if path.name != "fault.c":
            names.update(re.findall(r'CRASH_POINT\("([a-z-]+)"\)',
                                    path.read_text(encoding="utf-8")))
    return sorted(names)


class Storm:
    def __init__(self, args, rig):
        self.args, self.rig, self.draw = args, rig, args.draw
        self.workers = [rig.worker(f"worker{i}") for i in range(2)]
        self.points = args.at.split(",") if args.at else crash_points()
        if args.real:
            self.points = []
        rounds = args.kills + args.points * len(self.points)
        self.portion = -(-args.jobs // max(rounds, 1))
        self.left = rigs.make_jobs(args.jobs, self.draw)
        self.n_kills = self.n_points = 0

    def feed(self):
        self.rig.feeder.feed(self.left[:self.portion])
        del self.left[:self.portion]

    def wait_progress(self, n_before):
        """Something new was answered, or all is."""
        self.rig.wait_results(min(n_before + 1, self.rig.feeder.n))

    def crash_at(self, point):
        """The victim runs into the point, the other worker goes on."""
        victim, other = self.draw.sample(self.workers, 2)
        if point in AT_END:
            n = self.rig.reader.n
            self.feed()
            self.restart(victim, crash_at=f"{point}:1")
            self.wait_progress(n)
            victim.term()
        else:
            count = 1 if point in AT_REBALANCE | {"assign", "assigned"} \
                else self.draw.randrange(1, 4)
            self.restart(victim, crash_at=f"{point}:{count}")
            if point in AT_REBALANCE:
                self.restart(other)
            self.feed()
        self.wait_crash(victim, other, point)
        self.n_points += 1
        victim.start()

    def wait_crash(self, victim, other, point):
        """Feeds on while the point is not reached: the other worker may have taken all; and
        makes a rebalance when the point needs one."""
        for _ in range(60):
            try:
                victim.wait(-signal.SIGKILL, 3)
                return
            except rigs.TestError:
                if not victim.runs():
                    raise
            if point in AT_REBALANCE:
                self.restart(other)
            self.more()
        raise rigs.TestError(f"the point {point} was not reached")

    def more(self):
        jobs = rigs.make_jobs(8, self.draw, self.rig.feeder.n + len(self.left))
        self.rig.feeder.feed(jobs)

    def restart(self, worker, **environment):
        if worker.runs():
            worker.kill()
        worker.start(**environment)

    def kill(self):
        n = self.rig.reader.n
        self.feed()
        self.wait_progress(n)
        time.sleep(self.draw.uniform(0.02, self.args.pause))
        both = self.draw.random() < BOTH
        victims = self.workers if both else [self.draw.choice(self.workers)]
        for worker in victims:
            worker.kill()
        self.n_kills += 1
        if self.draw.random() < TAKEN_OVER:
            time.sleep(self.draw.uniform(0.0, self.args.pause))
        for worker in victims:
            worker.start()

    def run(self):
        for worker in self.workers:
            worker.start()
        rounds = ["kill"] * self.args.kills + self.points * self.args.points
        self.draw.shuffle(rounds)
        for each in rounds:
            if each == "kill":
                self.kill()
            else:
                self.crash_at(each)

    def finish(self):
        """In order, and each worker alone once more, with every partition, so that each
        settles what kills have left."""
        self.rig.feeder.feed(self.left)
        self.rig.wait_all_results()
        for worker in self.workers:
            worker.term()
        for worker in self.workers:
            worker.wait(0)
        for worker in self.workers:
            worker.run_dry()


def make_answers(args, rig):
    """By the program itself, without Kafka and kills."""
    if not args.real:
        return None
    path = f"{rig.folder}/answers"
    subprocess.run([args.sheaf, "run", "--quiet", "--model", args.model, "-i",
                    f"{rig.folder}/jobs", "-o", path, "--db", f"{rig.folder}/answers.db"],
                   check=True)
    return path


def main():
    parser = rigs.parser_of(__doc__)
    parser.add_argument("--jobs", type=int, default=10000)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--points", type=int, default=3)
    parser.add_argument("--pause", type=float, default=3.0)
    parser.add_argument("--token-us", type=int, default=5000)
    parser.add_argument("--real")
    parser.add_argument("--at")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--may", action="append", default=[])
    args = rigs.parse(parser)
    if args.real:
        args.program, args.model = args.sheaf, args.real
    with rigs.open_rig(args, "storm") as rig:
        rig.token_us = args.token_us
        rig.settings.update(each.split("=", 1) for each in args.set)
        storm = Storm(args, rig)
        storm.run()
        storm.finish()
        found, doubles = rig.judge(make_answers(args, rig))
        n_jobs = rig.feeder.n
    lines = rigs.describe(found)
    print("\n".join([*lines, f"{doubles} taken back, seen by a read_uncommitted reader; "
                     f"{found.n_begun_again} begun again by a process that had them in work"]))
    is_good = not any(texts for kind, texts in found.texts.items() if kind not in args.may)
    rigs.end_history(rig, is_good)
    print(f"{n_jobs} jobs, {storm.n_kills} kills, {len(storm.points)} crash points x "
          f"{args.points}: {rigs.summary(found)}")
    sys.exit(0 if is_good else 1)


if __name__ == "__main__":
    main()
