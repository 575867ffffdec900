#!/usr/bin/env python3
"""check_history.py JOBS --final FILE [--concurrent FILE] [--uncommitted FILE]
    [--database FILE]... [--computed FILE]... [--answers FILE]

Judges a run from outside: what was submitted, what readers of the result topic saw, what the
workers' databases hold. It knows the job and result lines and the view v_jobs, and nothing of
the worker.

JOBS          the submitted lines
--final       the result topic as a read_committed reader saw it at the end (kcat -J)
--concurrent  and as one saw it that read all the time
--uncommitted and as a read_uncommitted reader saw it: doubles there are counted, no fault
--database    of a worker; opened read-only
--computed    what a worker's fake engine wrote when jobs began, in the order of --database. A
              process that had the job in work before may begin it once more: its partition went
              and came back, and what is in work is not stored. That is counted, no fault.
--answers     result lines with the right answers; else they are those of the fake engine

Faults, one line each, then the sums:
    lost         submitted and not answered
    doubled      answered more than once
    different    the answer is another one, in the topic or in a database
    recomputed   computed by a worker whose database had the answer when it took the job
    alien        an answer that nobody asked for, or a line that is none
    unstored     answered, and in no database
    untrue       published, says a database, but no reader sees it
    unpublished  left in a database, neither published nor superseded
    unsteady     the two readers disagree, or offsets of a partition go back
Exits 0 only when all are 0.
"""
import argparse
import collections
import json
import sqlite3
import sys
from contextlib import closing

KINDS = ["lost", "doubled", "different", "recomputed", "alien", "unstored", "untrue",
         "unpublished", "unsteady"]
TEXTS_MAX = 20  # of each kind are printed
WORD = (1 << 64) - 1


def fake_state(job):
    """What the fake engine makes of a job before the first digit."""
    state = 14695981039346656037
    marked = [text for part in [*job["documents"], job["question"]]
              for text in part.split("[[")[1:]]
    text = "".join(part.split("]]")[0] for part in marked) + str(job["params"]["seed"])
    for byte in text.encode():
        state = ((state ^ byte) * 1099511628211) & WORD
    return state


def fake_answer(job):
    state, digits = fake_state(job), []
    for _ in range(job["params"]["max_tokens"]):
        digits.append(format(state, "016x")[0])
        state = (state * 6364136223846793005 + 1442695040888963407) & WORD
    return "".join(digits)


def read_lines(path):
    with open(path, encoding="utf-8") as lines:
        return [json.loads(line) for line in lines if line.strip()]


def read_answers(path):
    return {line["custom_id"]: line.get("answer") for line in read_lines(path)}


class Findings:
    def __init__(self):
        self.texts = {kind: [] for kind in KINDS}
        self.n_begun_again = 0

    def add(self, kind, text):
        self.texts[kind].append(text)

    def count(self, kind):
        return len(self.texts[kind])

    def is_clean(self):
        return not any(self.texts.values())


def read_results(records, wanted, found):
    """-> [(custom_id, answer)] of what belongs to a job; the rest is found to be alien."""
    results = []
    for record in records:
        place = f"{record['topic']}-{record['partition']}-{record['offset']}"
        try:
            line = json.loads(record["payload"])
            custom_id, answer = line["custom_id"], line.get("answer")
        except (ValueError, TypeError, KeyError):
            found.add("alien", f"{place} is no result line")
            continue
        if custom_id not in wanted:
            found.add("alien", f"{place} answers {custom_id}, which nobody asked")
            continue
        if record["key"] != custom_id:
            found.add("alien", f"{place} answers {custom_id} under the key {record['key']}")
        if line.get("status") != "succeeded":
            answer = f"({line.get('status')})"
        results.append((custom_id, answer))
    return results


def check_results(results, wanted, found):
    counts = collections.Counter(custom_id for custom_id, _ in results)
    for custom_id in wanted:
        if counts[custom_id] == 0:
            found.add("lost", custom_id)
        elif counts[custom_id] > 1:
            found.add("doubled", f"{custom_id}: {counts[custom_id]} times")
    for custom_id, answer in results:
        if answer != wanted[custom_id]:
            found.add("different", f"{custom_id}: {answer}, not {wanted[custom_id]}")


def check_order(name, records, found):
    last = {}
    for record in records:
        partition, offset = record["partition"], record["offset"]
        if offset <= last.get(partition, -1):
            found.add("unsteady", f"{name}: partition {partition} goes back to {offset}")
        last[partition] = offset


def check_readers(final, concurrent, found):
    """Both saw the same records; a reader that reads committed ones never unsees any."""
    def by_place(records):
        return {(r["partition"], r["offset"]): (r["key"], r["payload"]) for r in records}
    one, other = by_place(final), by_place(concurrent)
    for place in sorted(one.keys() | other.keys()):
        if one.get(place) != other.get(place):
            found.add("unsteady", f"partition {place[0]} offset {place[1]}: the readers saw "
                                  "different things")


def read_rows(path):
    """Rows of a database: (custom_id, attempt, answer, stored_at, published, superseded)."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        return database.execute(
            "SELECT v.custom_id, v.attempt, v.answer, v.stored_at, b.published_at IS NOT NULL,"
            " b.superseded_at IS NOT NULL FROM v_jobs v JOIN outbox b USING (job_id)"
        ).fetchall()


def read_computed(path):
    """state -> [(when it was begun, by which process)]"""
    begun = collections.defaultdict(list)
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            state, wall_us, process = line.split()
            begun[int(state, 16)].append((int(wall_us) / 1e6, process))
    return begun


def check_database(path, rows, wanted, visible, found):
    seen = set()
    for custom_id, attempt, answer, _, published, superseded in rows:
        if custom_id not in wanted:
            found.add("alien", f"{path} has {custom_id}, which nobody asked")
            continue
        if attempt > 1:
            found.add("recomputed", f"{custom_id}: attempt {attempt} in {path}")
        if custom_id in seen:
            found.add("recomputed", f"{custom_id}: several rows in {path}")
        seen.add(custom_id)
        if answer != wanted[custom_id]:
            found.add("different", f"{custom_id}: {answer} in {path}")
        if published and custom_id not in visible:
            found.add("untrue", f"{custom_id} is published, says {path}")
        if not published and not superseded:
            found.add("unpublished", f"{custom_id} in {path}")


def check_computed(path, rows, states, computed, found):
    for custom_id, _, _, stored_at, _, _ in rows:
        begun = computed.get(states.get(custom_id), [])
        before = {process for begun_at, process in begun if begun_at <= stored_at}
        for begun_at, process in begun:
            if begun_at > stored_at and process in before:
                found.n_begun_again += 1
            elif begun_at > stored_at:
                found.add("recomputed", f"{custom_id}: begun {begun_at - stored_at:.3f} s "
                                        f"after it was stored in {path}")


def check_databases(args, jobs, wanted, visible, found):
    if not args.database:
        return
    stored = set()
    states = {job["custom_id"]: fake_state(job) for job in jobs} if args.computed else {}
    for i, path in enumerate(args.database):
        rows = read_rows(path)
        check_database(path, rows, wanted, visible, found)
        if i < len(args.computed):
            check_computed(path, rows, states, read_computed(args.computed[i]), found)
        stored.update(row[0] for row in rows)
    for custom_id in sorted(visible - stored):
        found.add("unstored", custom_id)


def count_doubles(records, wanted):
    results = read_results(records, wanted, Findings())
    return len(results) - len(set(custom_id for custom_id, _ in results))


def check(args):
    """-> the findings, and the doubles that a read_uncommitted reader saw (None: unasked)."""
    found = Findings()
    jobs = read_lines(args.jobs)
    if args.answers:
        right = read_answers(args.answers)
        wanted = {job["custom_id"]: right[job["custom_id"]] for job in jobs}
    else:
        wanted = {job["custom_id"]: fake_answer(job) for job in jobs}
    final = read_lines(args.final)
    check_order("final", final, found)
    results = read_results(final, wanted, found)
    check_results(results, wanted, found)
    if args.concurrent:
        concurrent = read_lines(args.concurrent)
        check_order("concurrent", concurrent, found)
        check_readers(final, concurrent, found)
    check_databases(args, jobs, wanted, set(custom_id for custom_id, _ in results), found)
    doubles = None
    if args.uncommitted:
        doubles = count_doubles(read_lines(args.uncommitted), wanted)
    return found, doubles


def parse(arguments):
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("jobs")
    parser.add_argument("--final", required=True)
    parser.add_argument("--concurrent")
    parser.add_argument("--uncommitted")
    parser.add_argument("--database", action="append", default=[])
    parser.add_argument("--computed", action="append", default=[])
    parser.add_argument("--answers")
    return parser.parse_args(arguments)


def main():
    found, doubles = check(parse(sys.argv[1:]))
    for kind, texts in found.texts.items():
        for text in texts[:TEXTS_MAX]:
            print(f"{kind}: {text}")
        if len(texts) > TEXTS_MAX:
            print(f"{kind}: and {len(texts) - TEXTS_MAX} more")
    if doubles is not None:
        print(f"{doubles} taken back before they were committed, seen by readers that do not "
              "wait")
    print(f"{found.n_begun_again} begun again by a process that had them in work")
    print(", ".join(f"{found.count(kind)} {kind}" for kind in KINDS))
    sys.exit(0 if found.is_clean() else 1)


if __name__ == "__main__":
    main()
