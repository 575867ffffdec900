#!/usr/bin/env python3
"""sigterm.py BROKER BUILD [--terms N] [--jobs N] [--drain S] [--unhurried] [--seed N]

Two workers answer jobs, some longer than a stopping worker has time for. One of them, drawn
anew each time, is told to stop at a random moment, every fourth time twice; it must end with
exit code 0 (75: what is stored could not be delivered) within drain.timeout_s and a second,
after a second SIGTERM within the two seconds that giving everything up may take (--unhurried:
that is only printed, for a machine that does other things too); then it is started again. In
the end check_history.py says what became of the jobs. Prints "N SIGTERMs: N late, N wrong exit
codes, at most S s after the drain; N lost, N doubled, N different, N recomputed".
"""
import signal
import sys
import time

import rig as rigs

SLACK_S = 1.0
UNDELIVERED = 75  # a second signal came before the brokers took the results
GIVE_UP_S = 2.0
TWICE = 4 # every so many times


class Stops:
    def __init__(self, rig, args):
        self.rig, self.draw, self.drain_s = rig, args.draw, args.drain
        self.workers = [rig.worker(f"worker{i}", {"sheaf.drain.timeout_s": args.drain})
                        for i in range(2)]
        self.n = self.n_late = self.n_bad = 0
        self.over_s = -float(args.drain)

    def feed(self, n):
        """Every tenth runs for twice as long as there is time."""
        first, draw = self.rig.feeder.n, self.draw
        n_long = 2 * self.drain_s * 1000000 // self.rig.token_us
        self.rig.feeder.feed([rigs.make_job(first + i, draw, n_long if i % 10 == 5 else None)
                              for i in range(n)])

    def stop(self, worker):
        time.sleep(self.draw.uniform(0.05, 1.5))
        self.n += 1
        worker.term()
        began = time.monotonic()
        limit_s = self.drain_s + SLACK_S
        if self.n % TWICE == 0:
            time.sleep(self.draw.uniform(0.0, 1.0))
            if worker.runs():
                worker.signal(signal.SIGTERM)
                limit_s = time.monotonic() - began + GIVE_UP_S
        worker.wait(None)
        took_s = time.monotonic() - began
        self.over_s = max(self.over_s, took_s - self.drain_s)
        if took_s > limit_s:
            self.n_late += 1
            print(f"SIGTERM {self.n}: {took_s:.2f} s, not {limit_s:.2f}", flush=True)
        if worker.process.returncode not in (0, UNDELIVERED):
            self.n_bad += 1
            print(f"SIGTERM {self.n}: exit code {worker.process.returncode}", flush=True)

    def run(self, terms, jobs):
        for worker in self.workers:
            worker.start()
        for _ in range(terms):
            self.feed(max(jobs // terms, 1))
            worker = self.draw.choice(self.workers)
            self.stop(worker)
            worker.start()

    def finish(self):
        self.rig.wait_all_results()
        for worker in self.workers:
            worker.term()
            worker.wait(None)
        for worker in self.workers:
            worker.run_dry()


def main():
    parser = rigs.parser_of(__doc__)
    parser.add_argument("--terms", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--drain", type=int, default=2)
    parser.add_argument("--unhurried", action="store_true")
    args = rigs.parse(parser)
    with rigs.open_rig(args, "sigterm") as rig:
        rig.token_us = 5000
        stops = Stops(rig, args)
        stops.run(args.terms, args.jobs)
        stops.finish()
        found, _ = rig.judge()
    print("\n".join([*rigs.describe(found),
                     f"{found.n_begun_again} begun again by a process that had them in work"]))
    is_good = found.is_clean() and stops.n_bad == 0 and (args.unhurried or stops.n_late == 0)
    rigs.end_history(rig, is_good)
    print(f"{stops.n} SIGTERMs: {stops.n_late} late, {stops.n_bad} wrong exit codes, at most "
          f"{stops.over_s:.2f} s after the drain; {rigs.summary(found)}")
    sys.exit(0 if is_good else 1)


if __name__ == "__main__":
    main()
