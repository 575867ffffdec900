#!/usr/bin/env python3
"""Puts the lines of a job file on the jobs topic and prints the results as they come.

    pip install confluent-kafka
    ./submit.py library.jsonl [BROKERS [JOBS_TOPIC [RESULTS_TOPIC]]]

Jobs over the same documents get the same key, so they meet on one partition and one worker,
which then computes their documents once. murmur2_random is the partitioner that Java clients
and `sheaf submit` use: the same key goes to the same partition whoever sends it. Results are
read with read_committed: an answer of a worker that died half-way is never seen.
"""
import hashlib
import json
import sys
import time

from confluent_kafka import Consumer, Producer

IDLE_S = 600  # give up after so long without a result


def group_key(line):
    """Any text will do as long as jobs that share their documents share it."""
    try:
        job = json.loads(line)
        shared = [job.get("system"), job.get("documents") or job["custom_id"]]
    except (ValueError, KeyError, AttributeError):
        return None  # no group: any partition
    return hashlib.sha256(json.dumps(shared).encode()).hexdigest()[:32]


def read_lines(path):
    with open(path, "rb") as file:
        return [line.rstrip(b"\r\n") for line in file if line.strip()]


def open_results(brokers, topic):
    consumer = Consumer(
        {
            "bootstrap.servers": brokers,
            "group.id": f"submit-example-{time.time_ns()}",
            "auto.offset.reset": "latest",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
        }
    )
    ready = []
    consumer.subscribe([topic], on_assign=lambda _, partitions: ready.extend(partitions))
    while not ready:  # only what comes after this moment is ours
        consumer.poll(0.2)
    return consumer


def send(brokers, topic, lines):
    producer = Producer(
        {
            "bootstrap.servers": brokers,
            "partitioner": "murmur2_random",
            "enable.idempotence": True,
            "linger.ms": 20,
        }
    )
    failures = []
    for line in lines:
        while True:
            try:
                producer.produce(
                    topic,
                    value=line,
                    key=group_key(line),
                    headers={"content-type": "application/json"},
                    on_delivery=lambda error, _: error and failures.append(error),
                )
                break
            except BufferError:
                producer.poll(0.5)
    producer.flush()
    if failures:
        sys.exit(f"{len(failures)} jobs were not accepted: {failures[0]}")


def print_results(consumer, wanted):
    last = time.monotonic()
    while wanted > 0 and time.monotonic() - last < IDLE_S:
        message = consumer.poll(1.0)
        if message is None or message.error():
            continue
        print(message.value().decode("utf-8"), flush=True)
        wanted -= 1
        last = time.monotonic()
    consumer.close()
    return wanted


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    path, brokers, jobs, results = (
        sys.argv[1:] + ["127.0.0.1:9092", "sheaf.jobs", "sheaf.results"][len(sys.argv) - 2 :]
    )[:4]
    lines = read_lines(path)
    consumer = open_results(brokers, results)
    send(brokers, jobs, lines)
    print(f"{len(lines)} jobs sent", file=sys.stderr)
    missing = print_results(consumer, len(lines))
    if missing:
        sys.exit(f"{missing} results did not come within {IDLE_S} s of the last")


if __name__ == "__main__":
    main()
