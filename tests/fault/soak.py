#!/usr/bin/env python3
"""soak.py BROKER BUILD [--jobs N] [--seed N]

One worker answers many small jobs. Its resident memory is read each second; after the warm-up,
the first third of the jobs, it must not drift: the medians of the second and of the last third
differ by less than 1 %. Prints "N jobs, N jobs/s: N MiB after the warm-up, N % drift; N lost, N
doubled, N different, N recomputed".
"""
import resource
import statistics
import sys
import time

import rig as rigs

DRIFT_MAX = 0.01
SAMPLE_S = 1.0
LEFT_MIN = 3 # samples of each third


def resident_mib(worker):
    with open(f"/proc/{worker.process.pid}/statm", encoding="utf-8") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize() / 2**20


def watch(rig, worker):
    """-> [(results so far, MiB)] until everything is answered."""
    samples = []
    due = time.monotonic()
    while rig.reader.n < rig.feeder.n:
        if not worker.runs():
            raise rigs.TestError("the worker has ended")
        samples.append((rig.reader.n, resident_mib(worker)))
        due += SAMPLE_S
        time.sleep(max(due - time.monotonic(), 0))
    return samples


def thirds(samples, n_jobs):
    """-> the medians of the second and the last third."""
    middle = [mib for n, mib in samples if n_jobs / 3 <= n < 2 * n_jobs / 3]
    last = [mib for n, mib in samples if n >= 2 * n_jobs / 3]
    if min(len(middle), len(last)) < LEFT_MIN:
        raise rigs.TestError(f"{len(middle)} and {len(last)} samples are too few: more --jobs")
    return statistics.median(middle), statistics.median(last)


def main():
    parser = rigs.parser_of(__doc__)
    parser.add_argument("--jobs", type=int, default=100000)
    args = rigs.parse(parser)
    with rigs.open_rig(args, "soak") as rig:
        rig.feeder.feed(rigs.make_jobs(args.jobs, args.draw))
        worker = rig.worker("worker", {"sheaf.batch": 64})
        worker.start()
        rig.wait_results(1)
        began = time.monotonic()
        samples = watch(rig, worker)
        rate = rig.feeder.n / (time.monotonic() - began)
        worker.term()
        worker.wait(0)
        found, _ = rig.judge()
    before, after = thirds(samples, args.jobs)
    drift = after / before - 1
    print("\n".join(rigs.describe(found)))
    is_good = found.is_clean() and abs(drift) < DRIFT_MAX
    if not is_good:
        print(", ".join(f"{n}: {mib:.1f}" for n, mib in samples))
    rigs.end_history(rig, is_good)
    print(f"{args.jobs} jobs, {rate:.0f} jobs/s: {before:.1f} MiB after the warm-up, "
          f"{100 * drift:+.2f} % drift; {rigs.summary(found)}")
    sys.exit(0 if is_good else 1)


if __name__ == "__main__":
    main()
