#!/usr/bin/env python3
"""three_workers.py BROKER SHEAF MODEL [--documents N] [--questions N] [--words N]

Three workers, six partitions, N questions to each of N documents of N words, submitted as
`sheaf submit` keys them: each document is prefilled once, by one worker. The prompt tokens that
the three have computed, read from their databases, are within 2 % of what a single worker
computes; documents should be long for that, for which worker asks what first changes how much
of the questions is shared. Each job is in one database, once, and has one answer for a reader
of committed records. Where there is `sheaf db merge`, the merged database has the same jobs and
tokens. Prints one line of figures.
"""
import argparse
import os
import random
import sqlite3
import subprocess
import sys
import tempfile

from rig import QUICK, Rig, Wrong, check, cleared, until, write_jobs

MORE_MAX = 0.02
# Room for all documents at once.
OPTIONS = ("-X", "sheaf.kv.mb=1024")
WORDS = ("mill river bridge harbour orchard quarry market station keeper flood roof library "
         "winter boat stone bread lamp road field council").split()


def make_jobs(n_documents, n_questions, n_words):
    draw = random.Random(11)
    documents = [" ".join(draw.choice(WORDS) for _ in range(n_words))
                 for _ in range(n_documents)]
    jobs = [{"custom_id": f"d{d}-q{q}", "documents": [{"id": f"d{d}", "text": text}],
             "question": f"{draw.choice(WORDS)} {q}?", "params": {"max_tokens": 8, "seed": q}}
            for d, text in enumerate(documents) for q in range(n_questions)]
    draw.shuffle(jobs)
    return jobs


def ask(database, query):
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as db:
        return db.execute(query).fetchall()


def computed_tokens(databases):
    return sum(ask(path, "SELECT total(computed_tokens) FROM v_jobs")[0][0]
               for path in databases)


def document_prefills(databases):
    """Jobs that found less than half of their prompt in the cache."""
    return sum(ask(path, "SELECT count(*) FROM v_jobs WHERE 2 * computed_tokens > prompt_tokens"
                   )[0][0] for path in databases)


def work_together(rig, topic, path, n_workers, n_jobs):
    """The databases of workers that were all there before the first job came."""
    subprocess.run([rig.sheaf, "submit", "--quiet", os.devnull, "-t", topic, "-p", "6",
                    "--results-topic", f"{topic}.results", *rig.client()], check=True)
    workers = [rig.work(topic, *OPTIONS, name=f"w{i}", exits=False, props=QUICK)
               for i in range(n_workers)]
    share = f" {6 // n_workers} partitions of "
    until("each worker has its partitions", lambda: all(
        share in w.says().rsplit(" assigned", 2)[-2] for w in workers if "assigned" in w.says())
        and all("assigned" in w.says() for w in workers))
    rig.submit(topic, path)
    until("all is answered", lambda: rig.answered(topic) >= n_jobs)
    for worker in workers:
        check(worker.stop() == 0, f"a worker ends badly: {worker.says()[-400:]}")
    return [f"{topic}.w{i}.db" for i in range(n_workers)]


def check_each_once(databases, n_jobs):
    """Every job in one database, every document's jobs in one."""
    rows = [(path, *r) for path in databases
            for r in ask(path, "SELECT custom_id, status FROM v_jobs")]
    check(len(rows) == n_jobs == len({custom_id for _, custom_id, _ in rows}),
          f"{len(rows)} rows for {n_jobs} jobs")
    check(all(status == "succeeded" for _, _, status in rows), "jobs have failed")
    owners = {}
    for path, custom_id, _ in rows:
        owners.setdefault(custom_id.split("-")[0], set()).add(path)
    shared = sorted(d for d, paths in owners.items() if len(paths) > 1)
    check(not shared, f"documents on several workers: {shared}")
    return [sum(path == p for p, _, _ in rows) for path in databases]


def merge(rig, databases, n_jobs, tokens):
    has_merge = subprocess.run([rig.sheaf, "db", "--help"], capture_output=True, check=False)
    if has_merge.returncode != 0:
        return "no sheaf db merge here: not merged"
    subprocess.run([rig.sheaf, "db", "merge", "merged.db", *databases], check=True)
    check(ask("merged.db", "SELECT count(*) FROM v_jobs")[0][0] == n_jobs,
          "the merged database has another number of jobs")
    check(computed_tokens(["merged.db"]) == tokens, "it has another number of tokens")
    return "merged into one"


def measure(rig, n_documents, n_questions, n_words):
    jobs = make_jobs(n_documents, n_questions, n_words)
    path = write_jobs("jobs.jsonl", jobs)
    wanted = rig.wanted(path)
    alone = f"alone-{os.getpid()}"
    one = computed_tokens(work_together(rig, alone, path, 1, len(jobs)))
    rig.judge(alone, wanted)
    topic = f"three-{os.getpid()}"
    databases = work_together(rig, topic, path, 3, len(jobs))
    rig.judge(topic, wanted)
    shares = check_each_once(databases, len(jobs))
    three = computed_tokens(databases)
    check(sum(n > 0 for n in shares) > 1, f"one worker did it all: {shares}")
    prefills = document_prefills(databases)
    check(prefills == n_documents, f"{prefills} prefills of {n_documents} documents")
    check(abs(three - one) <= MORE_MAX * one, f"{three:.0f} tokens computed, alone {one:.0f}")
    print(f"{len(jobs)} jobs over {n_documents} documents, {shares} by three workers, each "
          f"once; {prefills} prefills of a document, {three:.0f} prompt tokens computed, "
          f"{three / one - 1:+.2%} against one worker; "
          f"{merge(rig, databases, len(jobs), three)}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("broker")
    parser.add_argument("sheaf")
    parser.add_argument("model")
    parser.add_argument("--documents", type=int, default=12)
    parser.add_argument("--questions", type=int, default=30)
    parser.add_argument("--words", type=int, default=900)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, \
            cleared(Rig(args.broker, args.sheaf, args.model)) as rig:
        os.chdir(folder)
        try:
            measure(rig, args.documents, args.questions, args.words)
        except Wrong as wrong:
            print(f"three workers: {wrong}", file=sys.stderr)
            sys.exit(1)


if __name__ == "__main__":
    main()
