#!/usr/bin/env python3
"""teeth.py BROKER BUILD [--only NAME,...] [--short] [--seed N]

Leaves the guards of delivery (GUARD in worker/) out, one at a time, in a history where each is
needed: the worker is killed or stopped at a named point, so that it happens every time. The
judge must find the fault that the guard keeps out, and nothing in the same history with the
guard (--short: that is not played). Prints "N guards: N found out, N histories clean with them"
and exits 0 when both are all.
"""
import re
import signal
import sys
import time

import check_history
import rig as rigs

GUARDS = {}
# No guard of delivery: what one takes away is the answer to a commit; the twins of the others
# are in tests/strikes, tests/kafka/small_topics.py and open_records.py.
NOT_GUARDS = {"commit-heard", "alone", "strikes", "size-singly", "sequences", "undecided"}


def guard(name, kind):
    """The function plays a history; off is what to leave out, or "". Without the guard, faults
    of that kind are found."""
    def register(function):
        GUARDS[name] = (kind, function)
        return function
    return register


def guards_in_sources():
    names = set()
    for path in (rigs.ROOT / "worker").rglob("*.c"):
        names.update(re.findall(r'GUARD\("([a-z-]+)"\)', path.read_text(encoding="utf-8")))
    return names - NOT_GUARDS


def feed(rig, n=48):
    rig.feeder.feed(rigs.make_jobs(n, rig.args.draw))


def crash_and_run_on(rig, point, off):
    """One worker dies at the point and goes on."""
    feed(rig)
    worker = rig.worker("worker")
    worker.start(crash_at=point, guards_off=off)
    worker.wait(-signal.SIGKILL)
    worker.run_dry(guards_off=off)


@guard("transactions", "doubled")
def results_and_offsets_at_once(rig, off):
    crash_and_run_on(rig, "marking:1", off)


@guard("offsets", "doubled")
def offsets_go_with_the_results(rig, off):
    crash_and_run_on(rig, "marking:1", off)


@guard("lookup", "recomputed")
def what_is_stored_is_not_computed(rig, off):
    crash_and_run_on(rig, "stored:1", off)


@guard("settle-last", "lost")
def settled_when_it_is_published(rig, off):
    feed(rig)
    rig.worker("worker").run_dry(guards_off=off)


@guard("store-first", "unstored")
def stored_before_it_is_published(rig, off):
    """The worker stumbles over what it cannot mark; the next start goes on behind it."""
    feed(rig)
    worker = rig.worker("worker")
    for _ in range(20):
        worker.run_dry(code=None, guards_off=off)
        if worker.process.returncode == 0:
            return
    raise rigs.TestError("the worker does not get through")


def with_one_that_takes_long(rig, n):
    """n jobs of one document, so of one partition; the first is still in work when the others
    are answered, so that they are settled above the watermark."""
    draw = rig.args.draw
    jobs = [rigs.make_job(0, draw, max_tokens=2000, document=0)]
    jobs += [rigs.make_job(i, draw, max_tokens=5, document=0) for i in range(1, n)]
    rig.feeder.feed(jobs)


@guard("bitmap", "doubled")
def what_is_settled_above_the_watermark(rig, off):
    with_one_that_takes_long(rig, 8)
    first = rig.worker("first")
    first.start(token_us=10000)
    rig.wait_results(7)
    first.kill()
    rig.worker("second").run_dry(guards_off=off)


@guard("ownership", "doubled")
def answers_of_partitions_that_were_given_away(rig, off):
    """They are in work when the second worker comes; it has none of them."""
    draw = rig.args.draw
    rig.feeder.feed([rigs.make_job(i, draw, max_tokens=10, document=i) for i in range(16)])
    first = rig.worker("first", {"sheaf.batch": 64})
    first.start(token_us=400000, guards_off=off)
    rigs.wait_until(lambda: len(rigs.begun(first)) == 16, "all jobs are in work")
    second = rig.worker("second")
    second.start()
    rig.wait_results(1) # of the second, which computes nothing
    second_n = rig.reader.n
    rigs.wait_until(lambda: rigs.n_stored(first) >= 16, "the first worker's jobs end")
    first.term()
    first.wait(0)
    assert second_n > 0
    second.term()
    second.wait(0)
    first.run_dry()


def wake_up(rig, first, off_second):
    """The first worker has stopped itself: the group gives its partitions away, the second
    answers everything, and the first goes on."""
    rigs.wait_until(first.is_stopped, "the first worker stops")
    rig.worker("second").run_dry(guards_off=off_second)
    first.signal(signal.SIGCONT)
    rigs.wait_until(lambda: rigs.log_has(first, "stopping|given by another|fenced|published "
                                         "before|failed|assigned.*\n.*assigned"),
                    "the first worker is awake")
    first.term()
    first.wait(None)
    first.run_dry()


@guard("generation", "doubled")
def a_worker_that_wakes_up_late(rig, off):
    rig.settings["transaction.timeout.ms"] = 20000
    feed(rig)
    first = rig.worker("first")
    first.start(stop_at="offsets:1", guards_off=off)
    wake_up(rig, first, "")


@guard("stable-offsets", "doubled")
def offsets_that_are_not_decided(rig, off):
    """The first worker stops with a transaction open, for longer than one question for the
    group's offsets takes; what it settled above the watermark before must be known all the
    same."""
    rig.settings["transaction.timeout.ms"] = 15000
    with_one_that_takes_long(rig, 8)
    first = rig.worker("first", {"sheaf.drain.timeout_s": 1})
    first.start(stop_at="commit:2", token_us=10000)
    rig.wait_results(7)
    rig.feeder.feed([rigs.make_job(8 + i, rig.args.draw, max_tokens=5, document=0)
                     for i in range(4)])
    wake_up(rig, first, off)


@guard("find-out", "doubled")
def a_commit_whose_answer_was_lost(rig, off):
    feed(rig)
    worker = rig.worker("worker")
    if not off:
        worker.run_dry(guards_off="commit-heard")
        return
    worker.start(guards_off=f"commit-heard,{off}")
    rig.wait_results(rig.feeder.n + 1)
    worker.kill()
    worker.run_dry()


def play(args, name, off):
    """-> the findings, with the folder when it was kept."""
    with rigs.open_rig(args, f"teeth-{name}") as rig:
        GUARDS[name][1](rig, off)
        found, _ = rig.judge()
    rigs.end_history(rig, True)
    return found


def show(name, off, found, is_good):
    counts = ", ".join(f"{found.count(kind)} {kind}" for kind in check_history.KINDS
                       if found.count(kind) > 0) or "nothing"
    print(f"{'ok' if is_good else 'FAILED'} {name} {'left out' if off else 'on'}: {counts}",
          flush=True)
    if not is_good:
        print("\n".join(rigs.describe(found)), flush=True)


def main():
    parser = rigs.parser_of(__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--short", action="store_true")
    args = rigs.parse(parser)
    names = args.only.split(",") if args.only else sorted(GUARDS)
    forgotten = guards_in_sources() ^ GUARDS.keys()
    if forgotten:
        sys.exit(f"only in worker/, or only here: {', '.join(sorted(forgotten))}")
    n_found = n_clean = 0
    for name in names:
        began = time.monotonic()
        for off in (name,) if args.short else ("", name):
            found = play(args, name, off)
            is_good = found.count(GUARDS[name][0]) > 0 if off else found.is_clean()
            n_found += off != "" and is_good
            n_clean += off == "" and is_good
            show(name, off, found, is_good)
        print(f"   {time.monotonic() - began:.0f} s", flush=True)
    print(f"{len(names)} guards: {n_found} found out" +
          ("" if args.short else f", {n_clean} histories clean with them"))
    sys.exit(0 if n_found == len(names) and (args.short or n_clean == n_found) else 1)


if __name__ == "__main__":
    main()
