#!/usr/bin/env python3
"""bad_disk.py SHEAF LIBRARIES MODEL [--quick] [--only PART] [--broker HOST:PORT] [--seed N]

Every call on the disk fails in turn, and allocations likewise, once and for good, under `sheaf
run`; after each the exit code, the database and the answers are judged, and a run without
faults must finish the work. LIBRARIES is the build folder with bad_disk.so. --quick tries a
sample. PART: self, disk, cache, memory, places, topics (these with --broker only). Prints its
figure last and exits 0 only when nothing was lost.
"""
import argparse
import concurrent.futures
import os
import random
import signal
import sys
import tempfile
import time

from places import places
from planted import planted
from rig import Rig, Tally
from topics import topics

EX_SOFTWARE, EX_IOERR = 70, 74
# Error, calls that count, and of how many calls one is tried: the others share their paths.
DISK = [("ENOSPC", "", 1), ("EIO", "", 1), ("EIO", "read", 1), ("EROFS", "", 3),
        ("SHORT", "write", 3)]
DISK_CODES = {0, EX_IOERR}
MEMORY_CODES = {0, EX_SOFTWARE}
PATIENT = ("bad_disk", "skip_naps")


def each(tries, threads):
    """Runs the calls, a few at a time; an error in one ends the rest."""
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        try:
            for done in concurrent.futures.as_completed([pool.submit(*call) for call in tries]):
                done.result()
        finally:
            pool.shutdown(cancel_futures=True)


def count_calls(rig, name, **settings):
    place = rig.new_place("count")
    ended = rig.run(place, preload=(name, "skip_naps"), **settings)
    if ended.code != 0:
        raise SystemExit(f"the program fails without faults: {ended.talk}")
    return int(ended.report["calls"])


def disk(rig, tally, args, draw):
    """A run counts its calls anew each time, a few more or less: the loop goes past the end."""
    tries = []
    for error, calls, one_of in DISK:
        n_calls = count_calls(rig, "bad_disk", BAD_DISK_CALLS=calls) + 3
        for for_good in (0, 1):
            chosen = range(draw.randint(1, one_of), n_calls + 1, one_of)
            if args.quick:
                chosen = sorted(draw.sample(chosen, 3))
            for n in chosen:
                tries.append((lambda n, error, calls, for_good: rig.try_fault(
                    tally, f"{error} {calls} {n} {'for good' if for_good else 'once'}",
                    DISK_CODES, preload=PATIENT, BAD_DISK_NTH=n, BAD_DISK_ERROR=error,
                    BAD_DISK_CALLS=calls, BAD_DISK_COUNT=1 - for_good),
                    n, error, calls, for_good))
    each(tries, args.threads)


def cache(rig, tally, args, draw):
    """The KV files are a cache: only a folder that cannot be had at start is an error."""
    def settings(place):
        return {"BAD_DISK_FOLDER": f"{place}/kv"}, ["--kv-disk", f"{place}/kv",
                                                    "--kv-disk-min-tokens", "32"]
    n_calls = count_calls(rig, "bad_disk", in_place=settings) + 3
    tries = [(n, for_good) for n in range(1, n_calls + 1) for for_good in (0, 1)]
    each([(lambda n, for_good: rig.try_fault(
        tally, f"KV files, call {n} {'for good' if for_good else 'once'}", DISK_CODES,
        in_place=settings, preload=PATIENT, BAD_DISK_NTH=n, BAD_DISK_COUNT=1 - for_good,
        BAD_DISK_CALLS="write sync cut open name read", BAD_DISK_ERROR="EIO"), n, for_good)
        for n, for_good in (draw.sample(tries, 4) if args.quick else tries)], args.threads)


def memory(rig, tally, args, draw):
    """The first ones are the command line's and the database's, one by one."""
    n_calls = count_calls(rig, "bad_memory")
    first = range(1, 1 + (24 if args.quick else args.allocations))
    later = draw.sample(range(first.stop, n_calls), 6 if args.quick else args.allocations)
    tries = [(n, for_good) for n in [*first, *sorted(later)] for for_good in (0, 1)
             if not (args.quick and for_good and n in first)]
    each([(lambda n, for_good: rig.try_fault(
        tally, f"allocation {n} {'and all after' if for_good else 'once'}", MEMORY_CODES,
        preload=("bad_memory", "skip_naps"), BAD_MEMORY_NTH=n, BAD_MEMORY_COUNT=1 - for_good),
        n, for_good) for n, for_good in tries], args.threads)
    print(f"{n_calls} allocations; the first {len(first)} and {len(later)} others tried",
          flush=True)


PARTS = {"self": planted, "disk": disk, "cache": cache, "memory": memory, "places": places,
         "topics": topics}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("sheaf")
    parser.add_argument("libraries")
    parser.add_argument("model")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--broker")
    parser.add_argument("--topics", type=int, default=6)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--allocations", type=int, default=250)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    args = parser.parse_args()
    print(f"seed {args.seed}", flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143)) # nothing is left behind
    draw = random.Random(args.seed)
    tally = Tally()
    shm = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR", shm)) as folder:
        rig = Rig(os.path.realpath(args.sheaf), os.path.realpath(args.model),
                  os.path.realpath(args.libraries), os.path.realpath(folder))
        for name, part in PARTS.items():
            if args.only in (None, name) and (name != "topics" or args.broker):
                before = time.monotonic()
                part(rig, tally, args, draw)
                print(f"{name}: {time.monotonic() - before:.0f} s, {tally}", flush=True)
    print(", ".join(f"{n} ended with {code}" for code, n in tally.codes.items()))
    print(tally)
    sys.exit(0 if tally.is_clean() else 1)


if __name__ == "__main__":
    main()
