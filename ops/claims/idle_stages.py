"""idle_stages.py DB WALL_S: where the wall time of the one run in DB went.

Prints each stage of the engine's thread with its share of WALL_S, then what ran beside it; the
stages of that thread are all of its time, and what is left of WALL_S is the process's start and
end. Exits 1 when the engine computed for less than 0.97 of it.
"""
import json
import sqlite3
import sys

SHARE = 0.97
JOBS_MIN = 1000
ENGINE = {"start_us": "start-up: model, engine, database", "wait_us": "waiting for input",
          "window_us": "read-ahead window, submitting", "plan_us": "planning, accepting tokens",
          "collect_us": "results handed over", "other_us": "signals, progress",
          "close_us": "last answers stored and delivered", "rest_us": "process start and end"}
BESIDE = {"parse_us": "parsing, documents, tokenising",
          "lookup_us": "SQLite: answered already?",
          "emit_us": "result lines", "store_us": "SQLite: answers",
          "deliver_us": "publishing"}


def read(path):
    db = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    (jobs, counters), = db.execute("SELECT jobs, counters_json FROM v_runs").fetchall()
    assert jobs >= JOBS_MIN, f"{jobs} jobs"
    return json.loads(counters)


def main():
    counters, wall_us = read(sys.argv[1]), float(sys.argv[2]) * 1e6
    stages, busy_us = counters["stages"], counters["busy_us"]
    stages["plan_us"] = stages["step_us"] - busy_us
    listed = [key for key in ENGINE if key in stages]
    stages["rest_us"] = wall_us - busy_us - sum(stages[key] for key in listed)
    assert stages["rest_us"] >= -1000, "the stages are longer than the run"
    print(f"{'the engine computes':36} {busy_us / 1e6:8.2f} s  {busy_us / wall_us:7.2%}")
    for key, text in ENGINE.items():
        print(f"{text:36} {stages[key] / 1e6:8.2f} s  {stages[key] / wall_us:7.2%}")
    print("beside it, on other threads:")
    for key, text in BESIDE.items():
        print(f"{text:36} {stages[key] / 1e6:8.2f} s  {stages[key] / wall_us:7.2%}")
    worst = max(ENGINE, key=lambda key: stages[key])
    holds = busy_us / wall_us >= SHARE
    print(f"the engine computes {busy_us / wall_us:.4f} of {wall_us / 1e6:.1f} s"
          + ("" if holds else f" (not {SHARE})")
          + f"; most of the rest: {ENGINE[worst]}, {stages[worst] / 1e6:.2f} s")
    sys.exit(0 if holds else 1)


main()
