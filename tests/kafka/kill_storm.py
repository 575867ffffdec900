#!/usr/bin/env python3
"""kill_storm.py BROKER SHEAF MODEL [--jobs N] [--kills N] [--workers N] [--seed N] [OPTION...]

Answers jobs of a topic with several workers, kills them at random moments and starts them
again, and counts what a reader of the results sees. The reader is kcat; what each job's answer
must be comes from `sheaf run` over the same jobs. OPTIONs go to `sheaf work`. Prints
"N jobs, N kills: N missing, N answered twice, N different, N computed again", and exits 0 only
when the last four are 0.
"""
import argparse
import collections
import json
import os
import random
import sqlite3
import subprocess
import sys
import tempfile
import time

QUICK = ["session.timeout.ms=2000", "heartbeat.interval.ms=300", "message.timeout.ms=2500",
         "transaction.timeout.ms=3000"]
WAIT_S = 120


def make_jobs(n, path, draw):
    """A few documents, so that jobs are grouped and answered in another order."""
    documents = [f"Mill {d} was built in {1700 + d} by the river." * 3 for d in range(12)]
    with open(path, "w", encoding="utf-8") as out:
        for i in range(n):
            out.write(json.dumps({
                "custom_id": f"job-{i}", "documents": [draw.choice(documents)],
                "question": f"Question {i}?",
                "params": {"max_tokens": draw.randrange(4, 40), "temperature": 0.8,
                           "seed": i}}) + "\n")


def answer_of(line):
    result = json.loads(line)
    return result["custom_id"], result["response"]["text"] if result.get("response") else None


class Worker:
    def __init__(self, command, database, log):
        self.command, self.database, self.log = command + ["--db", database], database, log
        self.start()

    def start(self):
        self.process = subprocess.Popen(self.command, stderr=self.log)

    def runs(self):
        return self.process.poll() is None

    def kill(self):
        self.process.kill()
        self.process.wait()


def storm(workers, n_kills, draw):
    """Kills as long as somebody works, one worker at a time."""
    n = 0
    while n < n_kills:
        time.sleep(draw.uniform(0.05, 0.9))
        running = [worker for worker in workers if worker.runs()]
        if not running:
            break
        victim = draw.choice(running)
        victim.kill()
        victim.start()
        n += 1
    return n


def finish(workers):
    """Every worker ends by itself once nothing is left; a kill may have left it for others."""
    for worker in workers:
        if worker.process.wait(timeout=WAIT_S) != 0:
            sys.exit(f"a worker ended with exit code {worker.process.returncode}")


def read_results(broker, topic):
    """What a reader of committed records sees, kcat's default."""
    done = subprocess.run(["kcat", "-C", "-q", "-e", "-b", broker, "-t", topic, "-f", "%s\\n"],
                          check=True, capture_output=True, text=True, timeout=WAIT_S)
    return [answer_of(line) for line in done.stdout.splitlines()]


def count_recomputed(databases):
    """Answers that a worker made although its database had one."""
    n = 0
    for path in databases:
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as database:
            n += database.execute("SELECT count(*) FROM v_jobs WHERE attempt > 1").fetchone()[0]
            n += database.execute("SELECT count(*) - count(DISTINCT custom_id) FROM v_jobs"
                                  ).fetchone()[0]
    return n


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("broker")
    parser.add_argument("sheaf")
    parser.add_argument("model")
    parser.add_argument("--jobs", type=int, default=600)
    parser.add_argument("--kills", type=int, default=6)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    args, options = parser.parse_known_args()
    draw = random.Random(args.seed)
    print(f"seed {args.seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        make_jobs(args.jobs, "jobs.jsonl", draw)
        subprocess.run([args.sheaf, "run", "--quiet", "--model", args.model, "-i", "jobs.jsonl",
                        "-o", "wanted.jsonl", "--db", "wanted.db"], check=True)
        with open("wanted.jsonl", encoding="utf-8") as lines:
            wanted = dict(map(answer_of, lines))
        topic = f"storm-{args.seed}"
        subprocess.run([args.sheaf, "submit", "--quiet", "jobs.jsonl", "-b", args.broker, "-t",
                        topic, "--results-topic", f"{topic}.results"], check=True)
        command = [args.sheaf, "work", "--quiet", "--model", args.model, "-b", args.broker,
                   "--topic", topic, "--results-topic", f"{topic}.results", "--group", topic,
                   "--exit-when-empty", "--threads", "1", *options]
        command += [part for setting in QUICK for part in ("-X", setting)]
        databases = [f"worker{i}.db" for i in range(args.workers)]
        with open("workers.log", "w", encoding="utf-8") as log:
            workers = [Worker(command, database, log) for database in databases]
            n_kills = storm(workers, args.kills, draw)
            finish(workers)
            workers[0].start() # what the last kill left
            finish(workers[:1])
        results = read_results(args.broker, f"{topic}.results")
        counts = collections.Counter(custom_id for custom_id, _ in results)
        missing = len(wanted.keys() - counts.keys())
        twice = sum(n > 1 for n in counts.values())
        different = sum(wanted.get(custom_id) != text for custom_id, text in results)
        again = count_recomputed(databases)
        print(f"{args.jobs} jobs, {n_kills} kills: {missing} missing, {twice} answered twice, "
              f"{different} different, {again} computed again")
        sys.exit(0 if n_kills > 0 and not missing + twice + different + again else 1)


if __name__ == "__main__":
    main()
