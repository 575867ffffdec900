#!/usr/bin/python3
"""small_topics.py BROKER SHEAF SHEAF_FAULTY MODEL

Topics that take only small messages: brokers measure what a producer packs together, so results
that are small one by one are refused as a pack. Each must come all the same, and an error only
in place of the one that is too large by itself. Without the guards of that, in the program that
may be broken, it is not so. Prints a line for each claim that holds, and
exits 1 at the first that does not.
"""
import json
import os
import random
import subprocess
import sys
import tempfile

try:
    from kafka import KafkaProducer
    from kafka.admin import KafkaAdminClient, NewTopic
except ImportError:
    sys.exit("python3-kafka is missing: apt-get install python3-kafka")

TAKES_BYTES = 2000
SMALL = 12
WAIT_S = 120
STUCK_S = 8


def say(claim, holds, seen=""):
    if not holds:
        sys.exit(f"not so: {claim}: {str(seen)[:2000]}")
    print(f"ok {claim}")


def values_of(broker, topic):
    """What a reader of committed records sees."""
    done = subprocess.run(["kcat", "-C", "-q", "-e", "-b", broker, "-t", topic, "-f", "%s\\n"],
                          check=True, capture_output=True, text=True, timeout=60)
    return done.stdout.splitlines()


def fill(broker, topic):
    limit = {"max.message.bytes": str(TAKES_BYTES)}
    KafkaAdminClient(bootstrap_servers=broker).create_topics(
        [NewTopic(topic, 1, 1), NewTopic(f"{topic}.results", 1, 1, topic_configs=limit),
         NewTopic(f"{topic}.dlq", 1, 1, topic_configs=limit)])
    dice = random.Random(4)
    producer = KafkaProducer(bootstrap_servers=broker)
    for i in range(SMALL):
        job = {"custom_id": f"small-{i}", "documents": ["The mill."], "question": f"Where? {i}",
               "params": {"max_tokens": 2}}
        # What hardly compresses; a result goes on with it.
        trace = f"a={dice.randbytes(4000 if i == 5 else 200).hex()}".encode()
        producer.send(topic, json.dumps(job).encode(), headers=[("tracestate", trace)])
    for length in (50, 5000, 60):
        producer.send(topic, dice.randbytes(length).hex().encode())
    producer.flush()


def answer(broker, program, model, topic, off=""):
    """-> the worker's exit code, None when it comes to no end; and id -> error code."""
    fill(broker, topic)
    command = [program, "work", "--quiet", "--model", model, "-b", broker, "-t", topic,
               "--results-topic", f"{topic}.results", "-G", topic, "--db", f"{topic}.db",
               "--exit-when-empty"]
    try:
        code = subprocess.run(command, env={**os.environ, "SHEAF_GUARDS_OFF": off},
                              stderr=subprocess.DEVNULL, timeout=STUCK_S if off else WAIT_S,
                              check=False).returncode
    except subprocess.TimeoutExpired:
        code = None
    results = [json.loads(value) for value in values_of(broker, f"{topic}.results")]
    return code, [(r["custom_id"], (r["error"] or {}).get("code")) for r in results]


def main():
    broker, program, faulty, model = sys.argv[1:5]
    folder = tempfile.TemporaryDirectory()
    os.chdir(folder.name)
    topic = f"small-{os.getpid()}"
    code, results = answer(broker, program, model, topic)
    say("a worker goes on when a batch of results is refused for its size", code == 1, code)
    say("each job has one result", len(results) == len(dict(results)) == SMALL + 3, results)
    say("an error stands in place of the one that is too large, and of no other",
        [i for i, code in results if code == "result_too_large"] == ["small-5"], results)
    letters = sorted(len(value) for value in values_of(broker, f"{topic}.dlq"))
    say("the dead letter that is too large is left out, and no other", letters == [100, 120],
        letters)
    for off in ("size-singly", "sequences"):
        seen = answer(broker, faulty, model, f"{topic}-{off}", off)
        say(f"without {off} that is not so", seen[0] != 1 or len(seen[1]) != SMALL + 3, seen)


if __name__ == "__main__":
    main()
