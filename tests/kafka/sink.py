#!/usr/bin/python3
"""sink.py BROKER SHEAF MODEL [--results N] [--kills N] [--seed N]

Fills a result topic from python3-kafka while `sheaf sink` reads it and is killed (kill -9) at
random moments; then the topic is deleted and made anew, and old records are deleted. After each
part the database must have what was sent, each result once, with its figures: counted by
sqlite3 against what this script sent. Last, two workers answer jobs, and a sink must have what
their merged databases have, figure by figure. Prints a line for each part, and last
"N results, N kills: N missing, N twice, N different"; exits 0 only when those are 0.
"""
import argparse
import json
import os
import random
import socket
import sqlite3
import struct
import subprocess
import sys
import tempfile
import threading
import time

try:
    from kafka import KafkaProducer
    from kafka.admin import KafkaAdminClient, NewPartitions, NewTopic
except ImportError:
    sys.exit("python3-kafka is missing: apt-get install python3-kafka")

WAIT_S = 120
PARTITIONS = 3
JUNK = [b"", b"nonsense", b"{}", b'{"custom_id": "a"}', b"\xff\xfe", b'{"custom_id": 1}' * 3]


def usage_of(i):
    return {"prompt_tokens": 100 + i % 50, "completion_tokens": 1 + i % 7,
            "prompt_tokens_details": {"cached_tokens": i % 90}}


def native(i, answer):
    good = i % 10 != 9
    return {"id": f"batch_req_{i:016x}{i:016x}", "custom_id": f"job-{i}", "run_id": None,
            "status": "succeeded" if good else "failed", "answer": answer if good else None,
            "finish_reason": "stop", "usage": usage_of(i), "created": 1700000000 + i,
            "error": None if good else {"code": "invalid_json_line", "message": "no"},
            "source": {"topic": "night", "partition": 0, "offset": i}}


def openai(i, answer):
    body = {"choices": [{"message": {"role": "assistant", "content": answer},
                         "finish_reason": "stop"}], "usage": usage_of(i)}
    return {"id": f"batch_req_{i:016x}{i:016x}", "custom_id": f"job-{i}",
            "response": {"status_code": 200, "body": body}, "error": None}


def headers_of(i):
    texts = {"sheaf.source.topic": "night", "sheaf.source.partition": "0",
             "sheaf.source.offset": str(i), "sheaf.payload_sha256": f"{i:016x}{i + 1:048x}",
             "sheaf.run_id": f"run-{i % 2}", "sheaf.worker": "w:1",
             "sheaf.metrics": json.dumps({"e2e_us": 1000 + i, "ttft_us": 400, "queue_us": i,
                                          "group_wait_us": 100, "prefill_us": 300,
                                          "decode_us": 600 + i})}
    return [(name, value.encode()) for name, value in texts.items()]


def result(i, version=0):
    """Value, headers and what the database must say of result i: some have no headers."""
    answer = f"answer {i} of {version}"
    if i % 3 == 0:
        return native(i, answer), [], answer if i % 10 != 9 else None
    return openai(i, answer), headers_of(i), answer


class Topic:
    def __init__(self, broker, name):
        self.broker, self.name = broker, name
        self.admin = KafkaAdminClient(bootstrap_servers=broker)
        self.wanted = {}

    def make(self):
        deadline = time.monotonic() + WAIT_S
        while True: # a deleted topic of the name may not be gone yet
            try:
                self.admin.create_topics([NewTopic(self.name, PARTITIONS, 1)])
                break
            except Exception: # of several kinds
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
        self.producer = KafkaProducer(bootstrap_servers=self.broker, acks="all",
                                      metadata_max_age_ms=500)

    def delete(self):
        self.producer.close()
        self.admin.delete_topics([self.name])

    def send(self, i, version=0, partition=None):
        value, headers, answer = result(i, version)
        self.wanted[f"job-{i}"] = (answer, usage_of(i)["prompt_tokens"] if answer else None,
                                   1000 + i if headers else None)
        self.producer.send(self.name, json.dumps(value).encode(), headers=headers,
                           key=f"job-{i}".encode(), partition=partition)

    def send_junk(self, value):
        self.producer.send(self.name, value, key=b"job-junk")

    def flush(self):
        self.producer.flush()

    def delete_records(self, partition, before):
        """DeleteRecords, version 1, by hand: python3-kafka has no such call."""
        host, port = self.broker.split(":")
        name = self.name.encode()
        body = struct.pack(">hhih4s", 21, 1, 7, 4, b"test") + struct.pack(
            f">ih{len(name)}siiqi", 1, len(name), name, 1, partition, before, 30000)
        with socket.create_connection((host, int(port)), 30) as link:
            link.sendall(struct.pack(">i", len(body)) + body)
            size = struct.unpack(">i", link.recv(4, socket.MSG_WAITALL))[0]
            reply = link.recv(size, socket.MSG_WAITALL)
        low, error = struct.unpack(">qh", reply[-10:])
        if error or low != before:
            sys.exit(f"the broker did not delete records: error {error}, low {low}")


class Sink:
    def __init__(self, sheaf, broker, topic):
        self.command = [sheaf, "sink", "--db", "all.db", "-b", broker, "--results-topic", topic,
                        "-X", "topic.metadata.refresh.interval.ms=500"]

    def finish(self):
        done = subprocess.run(self.command + ["--exit-when-empty"], stderr=subprocess.PIPE,
                              text=True, timeout=WAIT_S, check=False)
        if done.returncode != 0:
            sys.exit(f"exit code {done.returncode}: {done.stderr}")
        return done.stderr

    def beside(self, actions):
        """Runs while each action is done in turn and the job that it returns is read."""
        with open("sink.log", "w", encoding="utf-8") as log:
            process = subprocess.Popen(self.command, stderr=log)
            for action in actions:
                wanted = action()
                deadline = time.monotonic() + WAIT_S
                while not has_job(wanted):
                    if process.poll() is not None or time.monotonic() > deadline:
                        process.kill()
                        sys.exit(f"no {wanted}: {open('sink.log', encoding='utf-8').read()}")
                    time.sleep(0.05)
            process.terminate()
            if process.wait(timeout=WAIT_S) != 0:
                sys.exit(f"exit code {process.returncode} after SIGTERM")

    def storm(self, n_kills, is_over, draw):
        """Kills as long as the topic is filled, and n_kills times at least."""
        n = 0
        with open("sink.log", "w", encoding="utf-8") as log:
            while n < n_kills or not is_over():
                process = subprocess.Popen(self.command, stderr=log)
                time.sleep(draw.uniform(0.02, 0.9))
                if process.poll() is not None:
                    sys.exit(f"the sink ended: {open('sink.log', encoding='utf-8').read()}")
                process.kill()
                process.wait()
                n += 1
        return n


def has_job(custom_id):
    with sqlite3.connect("file:all.db?mode=ro", uri=True) as database:
        return database.execute("SELECT count(*) FROM jobs WHERE custom_id = ?",
                                (custom_id,)).fetchone()[0]


def compare(topic, sheaf):
    with sqlite3.connect("file:all.db?mode=ro", uri=True) as database:
        rows = database.execute(
            "SELECT custom_id, answer, CASE status WHEN 'succeeded' THEN prompt_tokens END, "
            "round(e2e_ms * 1000), published_at FROM v_jobs").fetchall()
        total = database.execute("SELECT sum(jobs), sum(unpublished) FROM v_runs").fetchone()
    got = {row[0]: (row[1], row[2], None if row[3] is None else int(row[3])) for row in rows}
    missing = len(topic.wanted.keys() - got.keys())
    twice = len(rows) - len(got)
    different = sum(topic.wanted.get(name) != value for name, value in got.items())
    subprocess.run([sheaf, "db", "check", "all.db"], check=True, stdout=subprocess.DEVNULL)
    if total != (len(rows), 0) or any(row[4] is None for row in rows):
        sys.exit(f"v_runs has {total} for {len(rows)} jobs")
    return missing, twice, different


def must_say(words, said):
    if words not in said:
        sys.exit(f"the sink does not say '{words}':\n{said}")


def part(title, sums, topic, sheaf):
    counts = compare(topic, sheaf)
    print(f"{title}: {len(topic.wanted)} results: {counts[0]} missing, {counts[1]} twice, "
          f"{counts[2]} different", flush=True)
    for i, n in enumerate(counts):
        sums[i] += n


def fill(topic, n, draw):
    """Results in some order, a few twice, junk between them; a partition is added halfway."""
    order = list(range(n)) + draw.sample(range(n), n // 10)
    draw.shuffle(order)
    for k, i in enumerate(order):
        topic.send(i)
        if k % 100 == 7:
            topic.send_junk(JUNK[k // 100 % len(JUNK)])
        if k == len(order) // 2:
            topic.flush()
            topic.admin.create_partitions({topic.name: NewPartitions(PARTITIONS + 1)})
        if k % 50 == 0:
            topic.flush()
            time.sleep(0.04)
    topic.send(n, partition=None)
    topic.flush()


def make_jobs(n, path):
    """Of all dialects, some refused."""
    with open(path, "w", encoding="utf-8") as out:
        for i in range(n):
            body = {"max_tokens": 4, "temperature": 0}
            if i % 3 == 0:
                job = {"documents": [{"id": f"d{i % 2}", "title": "T", "text": "A mill."}],
                       "question": 7 if i % 5 == 0 else "When?", "params": body}
            elif i % 3 == 1:
                job = {"body": body | {"messages": [{"role": "user", "content": f"Hi {i}"}]}}
            else:
                job = {"body": body | {"prompt": f"Once {i}", "top_k": -5 * (i % 2)}}
            out.write(json.dumps({"custom_id": f"j{i}"} | job) + "\n")


FIGURES = """custom_id, run_id, status, answer, error_code, dialect, model, worker_id, attempt,
    result_id, topic, "partition", "offset", payload_sha256, queue_ms, group_wait_ms,
    prefill_ms, ttft_ms, tpot_ms, decode_ms, e2e_ms, gap_ms_max, turnaround_ms, prompt_tokens,
    cached_tokens, computed_tokens, completion_tokens, draft_tokens, accepted_tokens,
    engine_steps, prefill_chunks, kv_pages_peak, miss_reason, miss_at, group_jobs,
    shared_tokens, round(submitted_at * 1e6), round(admitted_at * 1e6),
    round(finished_at * 1e6), round(stored_at * 1e6), nullif(prefix_group, ''), metadata_json"""


def figures_of(path):
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as database:
        rows = database.execute(f"SELECT {FIGURES} FROM v_jobs ORDER BY custom_id").fetchall()
        rows += database.execute("SELECT custom_id, doc_id, title, bytes FROM job_documents "
                                 "JOIN jobs USING (job_id) ORDER BY 1, position").fetchall()
        rows += database.execute("SELECT run_id, model, model_sha256, quant, kernels, version, "
                                 "round(started_at), jobs, succeeded, unpublished, busy_s "
                                 "FROM v_runs").fetchall()
    return rows


def compare_with_workers(args, n_jobs):
    name = f"work-{args.seed}"
    topics = ["-b", args.broker, "-t", name, "--results-topic", f"{name}.results"]
    make_jobs(n_jobs, "jobs.jsonl")
    subprocess.run([args.sheaf, "submit", "--quiet", "jobs.jsonl", *topics], check=True,
                   stderr=subprocess.DEVNULL)
    workers = [subprocess.Popen([args.sheaf, "work", "--quiet", "--model", args.model, *topics,
                                 "-G", name, "--db", f"w{i}.db", "--exit-when-empty",
                                 "--threads", "1", "-X", "session.timeout.ms=2000"])
               for i in range(2)]
    if any(worker.wait(timeout=WAIT_S) > 1 for worker in workers):
        sys.exit("a worker failed")
    subprocess.run([args.sheaf, "db", "merge", "--quiet", "merged.db", "w0.db", "w1.db"],
                   check=True)
    os.rename("all.db", "results.db") # without its log, which a closed database has not
    Sink(args.sheaf, args.broker, f"{name}.results").finish()
    merged, collected = figures_of("merged.db"), figures_of("all.db")
    different = sum(a != b for a, b in zip(merged, collected))
    print(f"workers: {len(collected)} rows of figures, {len(merged)} merged: {different} "
          "different", flush=True)
    if different or len(merged) != len(collected) or len(merged) <= n_jobs:
        first = [pair for pair in zip(merged, collected) if pair[0] != pair[1]][:1]
        sys.exit(f"merged and collected: {first}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("broker")
    parser.add_argument("sheaf")
    parser.add_argument("model")
    parser.add_argument("--results", type=int, default=3000)
    parser.add_argument("--kills", type=int, default=8)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    args = parser.parse_args()
    args.sheaf, args.model = os.path.abspath(args.sheaf), os.path.abspath(args.model)
    draw = random.Random(args.seed)
    print(f"seed {args.seed}", flush=True)
    sums = [0, 0, 0]
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        topic = Topic(args.broker, f"sink-{args.seed}")
        sink = Sink(args.sheaf, args.broker, topic.name)
        topic.make()
        filler = threading.Thread(target=fill, args=(topic, args.results, draw))
        filler.start()
        n_kills = sink.storm(args.kills, lambda: not filler.is_alive(),
                             random.Random(args.seed))
        filler.join()
        sink.finish()
        part("killed", sums, topic, args.sheaf)
        must_say("0 results stored, 0 replaced, 0 known before, 0 records", sink.finish())

        topic.delete() # anew, and shorter
        topic.make()
        for i in range(args.results - 20, args.results + 20):
            topic.send(i)
        topic.flush()
        must_say("made anew", sink.finish())
        part("made anew, shorter", sums, topic, args.sheaf)

        topic.delete() # anew, and longer than what was read of it
        topic.make()
        for i in range(args.results + 100):
            topic.send(i, version=1)
        topic.flush()
        must_say("made anew", sink.finish())
        part("made anew, longer", sums, topic, args.sheaf)

        for i in range(args.results + 100, args.results + 130): # the first of these are lost
            topic.send(i, partition=0)
        topic.flush()
        with sqlite3.connect("file:all.db?mode=ro", uri=True) as database:
            read_to = database.execute("SELECT next_offset FROM result_offsets "
                                       "WHERE partition = 0").fetchone()[0]
        topic.delete_records(0, read_to + 10)
        for i in range(args.results + 100, args.results + 110):
            del topic.wanted[f"job-{i}"]
        must_say(f"offsets {read_to} to {read_to + 9} were deleted", sink.finish())
        part("cut", sums, topic, args.sheaf)

        def send(first, version):
            for i in range(first, first + 20):
                topic.send(i, version=version)
            topic.flush()
            return f"job-{first + 19}"

        def make_anew():
            topic.delete()
            topic.make()
            return send(args.results + 120, 2)
        sink.beside([lambda: send(args.results + 140, 1), make_anew])
        sink.finish()
        part("made anew under it", sums, topic, args.sheaf)
        compare_with_workers(args, 60)
        print(f"{len(topic.wanted)} results, {n_kills} kills: {sums[0]} missing, "
              f"{sums[1]} twice, {sums[2]} different")
        sys.exit(0 if n_kills >= args.kills and sum(sums) == 0 else 1)


if __name__ == "__main__":
    main()
