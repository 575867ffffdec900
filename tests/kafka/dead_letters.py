#!/usr/bin/env python3
"""dead_letters.py BROKER SHEAF MODEL

Jobs that get an error leave a dead letter: kcat sends records, `sheaf work` answers them, kcat
reads both topics. Prints a line for each claim that holds, and exits 1 at the first that does
not.
"""
import json
import os
import subprocess
import sys
import tempfile

GOOD = {"custom_id": "good", "documents": ["The mill stands by the river."],
        "question": "Where?", "params": {"max_tokens": 4}}
LONG = {"custom_id": "long", "question": "word " * 4000, "params": {"max_tokens": 4}}
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def say(claim, holds, seen=""):
    if not holds:
        sys.exit(f"not so: {claim}: {str(seen)[:2000]}")
    print(f"ok {claim}")


def send(broker, topic, key, value, *headers):
    """value None: a record without one."""
    command = ["kcat", "-P", "-Z", "-b", broker, "-t", topic, "-K", "|", "-D", "\n"]
    for header in headers:
        command += ["-H", header]
    subprocess.run(command, input=f"{key}|{value or ''}\n".encode(), check=True)


def read(broker, topic):
    """What a reader of committed records sees."""
    done = subprocess.run(["kcat", "-C", "-q", "-e", "-J", "-b", broker, "-t", topic],
                          check=True, capture_output=True, text=True, errors="replace",
                          timeout=60)
    records = [json.loads(line) for line in done.stdout.splitlines()]
    for record in records:
        pairs = record.get("headers") or []
        record["headers"] = dict(zip(pairs[::2], pairs[1::2]))
        record["order"] = pairs[::2]
    return records


def main():
    broker, sheaf, model = sys.argv[1:4]
    folder = tempfile.TemporaryDirectory()
    os.chdir(folder.name)
    topic = f"letters-{os.getpid()}"

    def work(group, *options):
        done = subprocess.run(
            [sheaf, "work", "--quiet", "--model", model, "-b", broker, "-t", topic, "-G", group,
             "--db", f"{group}.db", "--exit-when-empty", "--results-topic", f"{group}.results",
             *options], check=False, timeout=120)
        return done.returncode

    say("a topic is made", subprocess.run(
        [sheaf, "submit", "--quiet", "-b", broker, "-t", topic, "--results-topic", "r", "-p",
         "2", "-"], input=json.dumps(GOOD).encode(), check=False).returncode == 0)
    send(broker, topic, "k1", "not {json", f"traceparent={TRACE}", "custom_id=torn", "note=1",
         "note=2")
    send(broker, topic, "k2", None)
    send(broker, topic, "k3", json.dumps(LONG))

    code = work(topic)
    say("a worker whose jobs failed in part says so by its exit code", code == 1, code)
    letters = {letter["key"]: letter for letter in read(broker, f"{topic}.dlq")}
    say("every job without an answer left one dead letter, and no other did",
        sorted(letters) == ["k1", "k2", "k3"], letters)
    torn = letters["k1"]
    say("key, value and headers are the record's own",
        torn["payload"] == "not {json" and torn["headers"]["traceparent"] == TRACE
        and torn["order"][:4] == ["traceparent", "custom_id", "note", "note"], torn)
    say("a record without a value has none in its letter", letters["k2"]["payload"] is None,
        letters["k2"])
    errors = {key: letter["headers"]["sheaf.error.code"] for key, letter in letters.items()}
    say("each says what was wrong",
        errors == {"k1": "invalid_json_line", "k2": "null_value",
                   "k3": "context_length_exceeded"}, errors)
    places = {(letter["headers"]["sheaf.error.topic"], letter["headers"]["sheaf.error.group"])
              for letter in letters.values()}
    say("and where it came from", places == {(topic, topic)}, places)
    results = read(broker, f"{topic}.results")
    codes = {}
    for result in results:
        line = json.loads(result["payload"])
        codes[line["custom_id"]] = line["error"]["code"] if line["error"] else None
    say("the result topic has the same errors, and the answer",
        len(results) == 4 and codes["torn"] == "invalid_json_line"
        and codes["long"] == "context_length_exceeded" and codes["good"] is None, codes)

    torn_result = [r for r in results if json.loads(r["payload"])["custom_id"] == "torn"]
    say("a result goes on with its job's trace",
        torn_result[0]["headers"]["traceparent"] == TRACE, torn_result)

    send(broker, topic, "k4", "not {json", "custom_id=b\udcff")
    work(topic)
    named = [json.loads(r["payload"])["custom_id"] for r in read(broker, f"{topic}.results")]
    say("an id that is no text is none", sum(n.startswith(f"{topic}-") for n in named) == 2,
        named)
    say("and leaves a database that is whole", subprocess.run(
        [sheaf, "db", "check", f"{topic}.db"], check=False, capture_output=True).returncode
        == 0)

    say("nothing is left to do", work(topic) in (0, 1))
    say("and no letter is written twice", len(read(broker, f"{topic}.dlq")) == 4)

    work("plain", "--dead-letters", f"{topic}.plain", "--delivery", "at-least-once",
         "--dlq-headers", "connect")
    plain = read(broker, f"{topic}.plain")
    say("at-least-once writes them too, with the headers that it is asked for",
        sorted(letter["headers"]["__connect.errors.exception.class.name"] for letter in plain)
        == sorted([*errors.values(), "invalid_json_line"]), plain)
    work("none", "--dead-letters", "off")
    say("off writes none", len(read(broker, f"{topic}.dlq")) == 4)


if __name__ == "__main__":
    main()
