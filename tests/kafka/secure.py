#!/usr/bin/env python3
"""secure.py FOLDER SHEAF MODEL [--jobs N] [--mechanism M] [--quick]

The broker of `ops/kafka/broker -s -d FOLDER` by TLS and a password: N jobs are submitted,
answered and read back by kcat; then a wrong password, a wrong authority, a wrong host name and
a client without TLS each end with their own exit code and a sentence. The password stands in
nothing that any of them wrote, nor in a command line. Prints one line about each. --quick
leaves out the client without TLS, which knows only after 10 s that nobody will answer.
"""
import argparse
import glob
import json
import os
import stat
import subprocess
import sys
import tempfile

from rig import Rig, Wrong, check, jobs_of, until, write_jobs

EX_UNAVAILABLE, EX_CONFIG = 69, 78
TOPIC = f"safe-{os.getpid()}" # in each command line


def read(path):
    with open(path, encoding="utf-8", errors="replace") as text:
        return text.read()


def is_private(folder):
    names = [folder, *glob.glob(f"{folder}/**", recursive=True)]
    return all(stat.S_IMODE(os.lstat(name).st_mode) & 0o077 == 0 for name in names)


def written_by_anyone(broker_folder):
    """Everything said and stored but the broker's settings, and the command lines of now."""
    texts = {name: read(name) for name in os.listdir(".") if os.path.isfile(name)}
    for name in ("broker.log", "format.log"):
        texts[name] = read(f"{broker_folder}/{name}")
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            texts[pid] = read(f"/proc/{pid}/cmdline") + read(f"/proc/{pid}/environ")
        except OSError:
            pass
    return texts


def find(texts, wanted):
    return sorted(name for name, text in texts.items() if wanted in text)


def answers_all(rig, folder, n, secret, options):
    path = write_jobs("jobs.jsonl", jobs_of([f"job-{i}" for i in range(n)]))
    wanted = rig.wanted(path)
    rig.submit(TOPIC, path, *options)
    worker = rig.work(TOPIC, *options, props=("debug=security,conf",), exits=False)
    until("all is answered", lambda: worker.process.poll() is not None
          or rig.answered(TOPIC) >= n)
    texts = written_by_anyone(folder) # the worker runs
    check(worker.stop() == 0, f"the worker ends badly: {worker.says()[-400:]}")
    rig.judge(TOPIC, wanted)
    texts.update(written_by_anyone(folder))
    check(str(worker.pid()) in find(texts, TOPIC), "the search finds nothing at all")
    check(find({**texts, "planted": f"x{secret}x"}, secret), "the search finds no password")
    check(not find(texts, secret), f"the password is in {find(texts, secret)}")
    print(f"{n} jobs answered once each over TLS, read back by kcat; "
          f"the password in none of {len(texts)} outputs and command lines", flush=True)


def refusals(rig, options, is_quick):
    """name, the options that make it so, exit code, what the sentence must hold, and the
    command unless it is a worker"""
    port = rig.broker.split(":")[1]
    write_secret("wrong-password", "wrong-" + "x" * 20)
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
                    "ec_paramgen_curve:P-256", "-noenc", "-subj", "/CN=another", "-keyout",
                    "other.key", "-out", "other.pem"], check=True, capture_output=True)
    plain = ["-b", f"127.0.0.1:{port}"]
    good = [*plain, *options]
    wrong = ([*good, "-X", "sasl.password.file=wrong-password"], EX_CONFIG,
             ("no Kafka broker lets us in", "Authentication failed", "sasl.password.file"))
    cases = [
        ("a wrong password", *wrong),
        ("a status with a wrong password", *wrong, ["status", "-t", TOPIC]),
        ("a sink with a wrong password", *wrong, ["sink", "--db", "refused.db"]),
        ("a wrong authority", [*good, "-X", "ssl.ca.location=other.pem"], EX_CONFIG,
         ("no Kafka broker lets us in", "certificate verify failed", "ssl.ca.location")),
        # resolves to 127.0.0.1, and is in no certificate
        ("a wrong host name", [*good, "-b", f"127.1:{port}"], EX_CONFIG,
         ("no Kafka broker lets us in", "certificate verify failed", "host name")),
        ("a password that is not in a file", [*good, "-X", "sasl.password=wrong-" + "x" * 20],
         EX_CONFIG, ("is a secret", "sasl.password.file")),
        ("the right ones", [*good, "-t", "nobody-made-this"], 66, ("nobody-made-this",)),
    ]
    if not is_quick:
        cases.append(("no TLS", plain, EX_UNAVAILABLE, ("no Kafka broker answers at",)))
    return cases


def write_secret(path, text):
    with open(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), "w", encoding="utf-8") as out:
        out.write(text)


def last_words(text):
    return json.loads(text.splitlines()[-1])["msg"] if text.strip() else ""


def is_refused(rig, name, options, code, words, command=None):
    command = command or ["work", "--model", rig.model, "-t", TOPIC, "--db", "refused.db",
                          "--results-topic", f"{TOPIC}.results"]
    done = subprocess.run([rig.sheaf, *command, *options], capture_output=True, text=True,
                          timeout=90, check=False)
    said = last_words(done.stderr)
    check(done.returncode == code, f"{name}: exit code {done.returncode}, {said}")
    for word in words:
        check(word in said, f"{name}: \"{word}\" is not in: {said}")
    check("wrong-x" not in done.stderr + done.stdout, f"{name}: the password is in the output")
    print(f"{name}: exit code {code}: {said}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("sheaf")
    parser.add_argument("model")
    parser.add_argument("--jobs", type=int, default=20)
    parser.add_argument("--mechanism", default="PLAIN")
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    safe = f"{args.folder}/secure"
    port = int(read(f"{args.folder}/port")) + 2
    secret = read(f"{safe}/password").strip()
    mechanism = ["-X", f"sasl.mechanism={args.mechanism}"]
    options = ["-F", f"{safe}/client.properties", *mechanism]
    rig = Rig(f"127.0.0.1:{port}", args.sheaf, args.model,
              kcat=["-F", f"{safe}/kcat.properties", *mechanism])
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            check(is_private(safe), f"others may read files in {safe}")
            answers_all(rig, args.folder, args.jobs, secret, options)
            for case in refusals(rig, options, args.quick):
                is_refused(rig, *case)
        except Wrong as wrong:
            print(f"secure: {wrong}", file=sys.stderr)
            sys.exit(1)
        finally:
            rig.clear()


if __name__ == "__main__":
    main()
