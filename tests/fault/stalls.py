#!/usr/bin/env python3
"""stalls.py BROKER BUILD --pid PID [--stalls N] [--jobs N] [--seed N]

The broker (process PID) stands still again and again, for longer than a worker waits for a
message to be acknowledged, while a worker publishes: what the worker has given up lies in the
broker's sockets and is read when it goes on; and brokers fence off whose transaction took too
long, which is no reason for the worker to end. Prints "N stalls, N jobs: N lost, N doubled,
..." and exits 0 only when nothing was found.
"""
import os
import signal
import sys
import time

import rig as rigs

STALL_S = (3.2, 6.0)  # message.timeout.ms is 2,900, the controller's patience 2 s


class Stalls:
    def __init__(self, rig, args):
        self.rig, self.args, self.draw = rig, args, args.draw
        self.worker = rig.worker("worker", {"sheaf.batch": 64})
        self.left = rigs.make_jobs(args.jobs, self.draw)
        self.portion = -(-args.jobs // args.stalls)

    def stall(self):
        n = self.rig.reader.n
        self.rig.feeder.feed(self.left[:self.portion])
        del self.left[:self.portion]
        self.rig.wait_results(min(n + 1, self.rig.feeder.n))
        time.sleep(self.draw.uniform(0.0, 0.4))
        os.kill(self.args.pid, signal.SIGSTOP)
        try:
            time.sleep(self.draw.uniform(*STALL_S))
        finally:
            os.kill(self.args.pid, signal.SIGCONT)

    def run(self):
        self.worker.start()
        for _ in range(self.args.stalls):
            self.stall()
        self.rig.wait_results(self.rig.feeder.n)
        self.worker.term()
        self.worker.wait(0)
        self.worker.run_dry()


def main():
    parser = rigs.parser_of(__doc__)
    parser.add_argument("--pid", type=int, required=True)
    parser.add_argument("--stalls", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=8000)
    args = rigs.parse(parser)
    with rigs.open_rig(args, "stalls") as rig:
        rig.token_us = 10000
        Stalls(rig, args).run()
        found, doubles = rig.judge()
        n_jobs = rig.feeder.n
        n_given_up = rigs.count_log(rig.workers[0], "timed out on .*results")
    print("\n".join([*rigs.describe(found), f"{doubles} taken back, seen by a read_uncommitted "
                     f"reader; {n_given_up} times messages were given up"]))
    is_good = found.is_clean() and n_given_up > 0
    rigs.end_history(rig, is_good)
    print(f"{args.stalls} stalls, {n_jobs} jobs: {rigs.summary(found)}")
    sys.exit(0 if is_good else 1)


if __name__ == "__main__":
    main()
