#!/usr/bin/env python3
"""demo_check.py DB RESULTS STATS INPUT...: do all who counted the jobs agree?

Reads the inputs, the database (SQLite), the result lines (from kcat, or the output files) and
what `sheaf stats --json` said, each with a reader of its own. A line of an input is a good job
unless it is no JSON object or its custom_id begins with "bad": such a line must be answered
with an error. Prints one line; exit 0 only when every good job has an answer and no count
differs.
"""
import json
import sqlite3
import sys
from collections import Counter


def read_lines(path):
    with open(path, "rb") as file:
        data = file.read().removeprefix(b"\xef\xbb\xbf")
    return [line for line in data.split(b"\n") if line.strip(b" \t\r")]


def parse(line):
    try:
        value = json.loads(line)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def is_good(line):
    custom_id = parse(line).get("custom_id")
    return isinstance(custom_id, str) and not custom_id.startswith("bad")


def is_answered(result):
    """An OpenAI batch line has a response, the native one a status."""
    if "response" in result:
        return bool(result["response"]) and result["response"]["status_code"] == 200
    return result.get("status") == "succeeded"


def count_input(paths):
    lines = [line for path in paths for line in read_lines(path)]
    good = Counter(parse(line)["custom_id"] for line in lines if is_good(line))
    return len(lines), good


def count_results(path):
    results = [parse(line) for line in read_lines(path)]
    return len(results), Counter(r.get("custom_id") for r in results if is_answered(r))


def count_database(path):
    database = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    (jobs,) = database.execute("SELECT count(*) FROM v_jobs").fetchone()
    answered = database.execute("SELECT custom_id FROM v_jobs WHERE status = 'succeeded' "
                                "AND length(answer) > 0")
    return jobs, Counter(row[0] for row in answered)


def sum_of(value, key):
    """The sum of all integers under key, however deep: one run or a list of runs."""
    if isinstance(value, list):
        return sum(sum_of(item, key) for item in value)
    if not isinstance(value, dict):
        return 0
    if isinstance(value.get(key), int):
        return value[key]
    return sum(sum_of(item, key) for item in value.values())


def main():
    database, results, stats, inputs = sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:]
    n_input, good = count_input(inputs)
    with open(stats, encoding="utf-8") as file:
        terminal = json.load(file)
    counts = {"input": (n_input, good.total()), "database": count_database(database),
              "results": count_results(results),
              "terminal": (sum_of(terminal, "jobs"), sum_of(terminal, "succeeded"))}
    wrong = []
    for who in ("database", "results"):
        n, answered = counts[who]
        counts[who] = (n, answered.total())
        missing, extra = good - answered, answered - good
        wrong += [f"{who}: not answered: {name}" for name in list(missing)[:5]]
        wrong += [f"{who}: should have failed: {name}" for name in list(extra)[:5]]
    wrong += [f"{who} counts {n} jobs, {ok} answered" for who, (n, ok) in counts.items()
              if (n, ok) != counts["input"]]
    for line in wrong:
        print(line, file=sys.stderr)
    n, ok = counts["input"]
    if n == 0 or wrong:
        print("the counts do not agree")
        return 1
    print(f"{n} jobs: {ok} answered, {n - ok} refused with an error; the input, the database, "
          "the results and the printed counts agree")
    return 0


if __name__ == "__main__":
    sys.exit(main())
