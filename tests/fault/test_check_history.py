#!/usr/bin/env python3
"""test_check_history.py: planted histories. Each fault is found, by its name and alone where it
can come alone; histories without one pass. Prints one line per history, as cmocka does."""
import contextlib
import io
import json
import os
import sqlite3
import sys
import tempfile

import check_history

# Of "[[D]]" and "[[q<i>]]" with seed <i> and 6 tokens, by a program in C.
ANSWERS = ["20aa13", "2de71b", "2a41dc", "23e48f", "2f5e08", "27f75a"]
N = 6
STORED_AT = 1_800_000_000.0
SCHEMA = """
CREATE TABLE v_jobs (job_id INTEGER PRIMARY KEY, custom_id, attempt, answer, stored_at);
CREATE TABLE outbox (job_id INTEGER PRIMARY KEY, published_at, superseded_at);
"""


def job(i):
    return {"custom_id": f"job-{i}", "documents": ["see [[D]]"], "question": f"[[q{i}]]",
            "params": {"max_tokens": 6, "temperature": 0.8, "seed": i}}


def line(i, **changes):
    return {"custom_id": f"job-{i}", "status": "succeeded", "answer": ANSWERS[i], **changes}


class World:
    """A clean history of N jobs in two partitions and two databases; a plant changes it."""

    def __init__(self):
        self.jobs = [job(i) for i in range(N)]
        self.final = []
        for i in range(N):
            self.publish(i)
        self.concurrent = None  # the same
        self.uncommitted = None
        self.rows = [[self.row(i) for i in range(d, N, 2)] for d in range(2)]
        self.computed = [[(i, STORED_AT - 1) for i in range(d, N, 2)] for d in range(2)]

    def publish(self, i, **changes):
        partition = i % 2
        offset = 2 * sum(r["partition"] == partition for r in self.final)
        self.final.append({"topic": "r", "partition": partition, "offset": offset,
                           "key": f"job-{i}", "payload": json.dumps(line(i, **changes))})

    def republish(self, i, **changes):
        self.final[i]["payload"] = json.dumps(line(i, **changes))

    @staticmethod
    def row(i, **changes):
        return {"custom_id": f"job-{i}", "attempt": 1, "answer": ANSWERS[i],
                "stored_at": STORED_AT, "published_at": STORED_AT + 1, "superseded_at": None,
                **changes}

    def drop_row(self, i):
        self.rows[i % 2] = [r for r in self.rows[i % 2] if r["custom_id"] != f"job-{i}"]

    def change_row(self, i, **changes):
        self.drop_row(i)
        self.rows[i % 2].append(self.row(i, **changes))


def write_database(path, rows):
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA synchronous = OFF")
        database.executescript(SCHEMA)
        for n, row in enumerate(rows):
            database.execute("INSERT INTO v_jobs VALUES (?, ?, ?, ?, ?)",
                             (n, row["custom_id"], row["attempt"], row["answer"],
                              row["stored_at"]))
            database.execute("INSERT INTO outbox VALUES (?, ?, ?)",
                             (n, row["published_at"], row["superseded_at"]))
        database.commit()


def write_lines(path, lines):
    with open(path, "w", encoding="utf-8") as out:
        out.writelines(json.dumps(each) + "\n" for each in lines)
    return path


def judge(world):
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        concurrent = world.final if world.concurrent is None else world.concurrent
        arguments = [write_lines("jobs", world.jobs), "--final",
                     write_lines("final", world.final), "--concurrent",
                     write_lines("concurrent", concurrent)]
        if world.uncommitted is not None:
            arguments += ["--uncommitted", write_lines("uncommitted", world.uncommitted)]
        for d, rows in enumerate(world.rows):
            write_database(f"{d}.db", rows)
            with open(f"{d}.log", "w", encoding="utf-8") as out:
                for n, (i, begun_at, *process) in enumerate(world.computed[d]):
                    out.write(f"{check_history.fake_state(job(i)):016x} "
                              f"{int(begun_at * 1e6)} {(process or [1000 + n])[0]}\n")
            arguments += ["--database", f"{d}.db", "--computed", f"{d}.log"]
        result = check_history.check(check_history.parse(arguments))
        os.chdir("/")
        return result


PLANTS = []


def plant(*kinds):
    """The history that the function makes shows faults of these kinds and of no others."""
    def register(function):
        PLANTS.append((function.__name__, set(kinds), function))
        return function
    return register


def plant_each(name, kinds, change):
    PLANTS.append((name, set(kinds), change))


@plant()
def nothing_is_wrong(w):
    del w


@plant()
def another_worker_gave_the_answer_of_a_stored_row(w):
    w.rows[1].append(w.row(0, published_at=None, superseded_at=STORED_AT))


@plant()
def two_workers_hold_the_row(w):
    w.rows[1].append(w.row(0))


@plant()
def computed_twice_before_it_was_stored(w):
    w.computed[0].insert(0, (0, STORED_AT - 2))


@plant()
def begun_again_by_the_process_that_had_it_in_work(w):
    w.computed[0] += [(0, STORED_AT - 1, 7), (0, STORED_AT + 2, 7)]


@plant()
def computed_by_the_other_worker_too(w):
    w.computed[1].append((0, STORED_AT + 5))


@plant()
def what_was_taken_back_is_no_fault(w):
    w.uncommitted = w.final + [{**w.final[0], "offset": 99}]


@plant()
def partitions_may_be_read_in_another_order(w):
    w.concurrent = sorted(w.final, key=lambda r: (r["partition"], r["offset"]))


plant_each("the_first_job_is_lost", ["lost", "untrue"], lambda w: w.final.pop(0))
plant_each("the_last_job_is_lost", ["lost", "untrue"], lambda w: w.final.pop())


@plant("lost", "untrue")
def every_job_is_lost(w):
    w.final.clear()


@plant("lost")
def lost_and_never_stored(w):
    w.final.pop(2)
    w.drop_row(2)
    w.computed[0] = [c for c in w.computed[0] if c[0] != 2]


@plant("lost", "unpublished")
def lost_and_left_in_the_database(w):
    w.final.pop(3)
    w.change_row(3, published_at=None)


@plant("doubled")
def doubled_in_one_partition(w):
    w.publish(0)


@plant("doubled")
def doubled_in_two_partitions(w):
    w.final.append({**w.final[0], "partition": 1, "offset": 50})


@plant("doubled")
def tripled(w):
    w.publish(4)
    w.publish(4)


@plant("doubled", "different")
def doubled_with_another_answer(w):
    w.publish(4, answer=ANSWERS[2])


@plant("doubled", "lost", "untrue")
def one_answered_in_the_place_of_another(w):
    w.final[2] = {**w.final[0], "offset": w.final[2]["offset"]}


@plant("different")
def two_answers_are_swapped(w):
    w.republish(0, answer=ANSWERS[1])
    w.republish(1, answer=ANSWERS[0])


@plant("different")
def two_rows_are_swapped(w):
    w.change_row(0, answer=ANSWERS[2])
    w.change_row(2, answer=ANSWERS[0])


plant_each("the_answer_is_truncated", ["different"],
           lambda w: w.republish(0, answer=ANSWERS[0][:-1]))
plant_each("the_answer_is_longer", ["different"],
           lambda w: w.republish(0, answer=ANSWERS[0] + "0"))
plant_each("the_answer_is_empty", ["different"], lambda w: w.republish(5, answer=""))
plant_each("there_is_no_answer", ["different"], lambda w: w.republish(5, answer=None))
plant_each("one_digit_differs", ["different"],
           lambda w: w.republish(3, answer="g" + ANSWERS[3][1:]))
plant_each("the_job_failed", ["different"], lambda w: w.republish(3, status="failed"))
plant_each("the_row_is_truncated", ["different"],
           lambda w: w.change_row(3, answer=ANSWERS[3][:3]))
plant_each("the_row_has_no_answer", ["different"], lambda w: w.change_row(3, answer=None))


@plant("alien")
def an_answer_that_nobody_asked_for(w):
    w.final.append({**w.final[0], "offset": 60, "key": "job-9",
                    "payload": json.dumps(line(0, custom_id="job-9"))})


@plant("alien")
def the_key_is_another_jobs(w):
    w.final[0]["key"] = "job-1"


@plant("alien")
def there_is_no_key(w):
    w.final[0]["key"] = None


@plant("alien")
def a_line_that_is_no_json(w):
    w.final.append({**w.final[0], "offset": 60, "payload": '{"custom_id":"job-0'})


@plant("alien")
def a_tombstone(w):
    w.final.append({**w.final[0], "offset": 60, "payload": None})


@plant("alien", "lost", "untrue")
def a_torn_line(w):
    w.final[1]["payload"] = w.final[1]["payload"][:20]


@plant("alien")
def a_row_that_nobody_asked_for(w):
    w.rows[0].append(w.row(0, custom_id="job-9"))


@plant("recomputed")
def a_second_attempt(w):
    w.change_row(1, attempt=2)


@plant("recomputed")
def two_rows_of_one_job(w):
    w.rows[0].append(w.row(0))


@plant("recomputed")
def begun_after_it_was_stored(w):
    w.computed[0].append((0, STORED_AT + 0.001))


@plant("recomputed")
def begun_twice_after_it_was_stored_by_one_process(w):
    w.computed[0] += [(0, STORED_AT + 1, 7), (0, STORED_AT + 2, 7)]


@plant("recomputed")
def begun_before_and_after_it_was_stored(w):
    w.computed[1].append((5, STORED_AT + 100))


@plant("unstored")
def answered_and_not_stored(w):
    w.drop_row(2)


@plant("unstored")
def a_database_is_empty(w):
    w.rows[1].clear()


@plant("unpublished")
def answered_and_not_marked(w):
    w.change_row(2, published_at=None)


@plant("unpublished")
def a_stale_row_of_the_other_worker(w):
    w.rows[1].append(w.row(0, published_at=None))


@plant("unsteady")
def the_concurrent_reader_saw_more(w):
    w.concurrent = w.final + [{**w.final[0], "offset": 60}]


@plant("unsteady")
def the_concurrent_reader_saw_less(w):
    w.concurrent = w.final[:-1]


@plant("unsteady")
def the_readers_saw_different_lines(w):
    w.concurrent = [dict(r) for r in w.final]
    w.concurrent[2]["payload"] = json.dumps(line(2, status="failed"))


@plant("unsteady")
def a_reader_is_given_a_record_twice(w):
    w.concurrent = w.final + [w.final[-1]]


@plant("unsteady")
def offsets_go_back(w):
    w.final[0], w.final[2] = w.final[2], w.final[0]
    w.concurrent = sorted(w.final, key=lambda r: r["offset"])


def run_one(name, kinds, change):
    world = World()
    change(world)
    found, doubles = judge(world)
    shown = {kind for kind in check_history.KINDS if found.count(kind) > 0}
    is_good = shown == kinds and (world.uncommitted is None or doubles == 1)
    print(f"[       OK ] {name}" if is_good else
          f"[  FAILED  ] {name}\n{name}: {shown} was found, {kinds} was planted")
    return is_good


def answers_are_those_that_are_written_out():
    found = [check_history.fake_answer(job(i)) for i in range(N)]
    print("[       OK ] arithmetic" if found == ANSWERS else "[  FAILED  ] arithmetic")
    return found == ANSWERS


def a_fault_is_an_exit_code():
    """The program, and not only its parts."""
    world = World()
    codes = []
    for change in (lambda: None, lambda: world.final.pop()):
        change()
        with tempfile.TemporaryDirectory() as folder:
            jobs = write_lines(f"{folder}/jobs", world.jobs)
            final = write_lines(f"{folder}/final", world.final)
            sys.argv = ["check_history.py", jobs, "--final", final]
            try:
                with contextlib.redirect_stdout(io.StringIO()):
                    check_history.main()
            except SystemExit as end:
                codes.append(end.code)
    print("[       OK ] exit_code" if codes == [0, 1] else f"[  FAILED  ] exit_code {codes}")
    return codes == [0, 1]


def main():
    good = [run_one(*each) for each in PLANTS]
    good += [answers_are_those_that_are_written_out(), a_fault_is_an_exit_code()]
    n_planted = sum(1 for _, kinds, _ in PLANTS if kinds)
    print(f"{n_planted} histories with a fault, {len(PLANTS) - n_planted} without")
    sys.exit(0 if all(good) and n_planted >= 30 else 1)


if __name__ == "__main__":
    main()
