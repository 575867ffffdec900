"""Runs one program once: Sheaf, a peer's driver, or a peer's server. What comes back is a
dictionary; speeds are tokens a second under "prefill", "decode_1", "decode_8", "decode_32",
the job is "seconds" and "answers".

A peer's job is timed inside its driver, from a loaded model on. Sheaf's is the whole process:
loading, measuring its chunk, SQLite and all.
"""
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from work import ANSWER_TOKENS

SIZES = (1, 8, 32)
RUN_SECONDS_MAX = 1800
START_SECONDS_MAX = 60
PORT = 18467
HERE = Path(__file__).resolve().parent


class Failed(Exception):
    """A run that gave nothing, and why."""


def run_json(command, **more):
    try:
        done = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False,
                              timeout=RUN_SECONDS_MAX, **more)
    except subprocess.TimeoutExpired as error:
        raise Failed(f"{command[0]} took more than {RUN_SECONDS_MAX} s") from error
    talk = done.stderr.decode(errors="replace").strip().splitlines()
    if done.returncode != 0:
        raise Failed(f"exit code {done.returncode}: {talk[-1][:200] if talk else 'no word'}")
    return json.loads(done.stdout), talk


def words(options):
    return [f"{name}={value}" for name, value in options.items()]


class Sheaf:
    """In its default settings, or with another kv.type."""

    def __init__(self, path, models, job_file, threads, folder):
        self.path, self.models, self.job_file = path, models, job_file
        self.threads, self.folder, self.n = threads, Path(folder), 0

    @staticmethod
    def kv_words(kv):
        return ["--kv-type", kv] if kv else []

    def speed(self, file, kv=None):
        bench, _ = run_json([self.path, "bench", "roofline", "--json", "--repeats", "1",
                             "--threads", self.threads, "--model", self.models[file],
                             *self.kv_words(kv)])
        out = {"prefill": bench["prefill"]["tok_s"]}
        out.update({f"decode_{f['sequences']}": f["tok_s"] for f in bench["decode"]})
        return out

    def job(self, file, kv=None):
        self.n += 1
        out, db = (self.folder / f"sheaf-{self.n}.{end}" for end in ("jsonl", "db"))
        began = time.monotonic()
        subprocess.run([self.path, "run", "-q", "-i", self.job_file, "-o", out, "--db", db,
                        "--model", self.models[file], "--threads", str(self.threads),
                        "--batch", "32", *self.kv_words(kv)], check=True,
                       stdin=subprocess.DEVNULL)
        seconds = time.monotonic() - began
        return {"seconds": seconds, "answers": read_answers(out)}


def read_answers(path):
    """The texts, document by document."""
    texts = {}
    with open(path, encoding="utf-8") as file:
        for line in map(json.loads, file):
            body = line["response"]["body"]
            if "choices" not in body:
                raise Failed(f"{line['custom_id']}: {body['error']['message']}")
            place = tuple(map(int, line["custom_id"].split("-")))
            texts[place] = body["choices"][0]["text"]
    return [texts[place] for place in sorted(texts)]


class Peer:
    """A driver: a program and what stands before the model's name on its command line."""

    def __init__(self, command, models, job_file, threads, environment):
        self.command, self.models, self.job_file = command, models, job_file
        self.threads = threads
        self.environment = {**os.environ, **environment}

    def run(self, config, mode, options):
        options = {"threads": self.threads, **config["options"], **options}
        return run_json([*self.command, self.models[config["file"]], *mode, *words(options)],
                        env=self.environment)

    def speed(self, config, steps=64, prefill=1, sizes=SIZES):
        return self.run(config, ["speed"], {"steps": steps, "prefill": prefill,
                                            "sizes": ",".join(map(str, sizes))})[0]

    def job(self, config, documents=64, answer=ANSWER_TOKENS):
        return self.run(config, ["job", self.job_file],
                        {"documents": documents, "answer": answer})[0]

    def banner(self, config):
        """What the library says of how it was built."""
        talk = self.run(config, ["speed"], {"steps": 0, "prefill": 0})[1]
        return " ".join(line.strip("= ") for line in talk if "FANCY" in line)

    def pieces(self, file):
        """[bytes] of each token."""
        done = subprocess.run([*self.command, self.models[file], "pieces"], check=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, env=self.environment)
        return [bytes.fromhex(line) for line in done.stdout.decode().split("\n")[:-1]]


def library_peer(driver, models, job_file, threads):
    return Peer([driver], models, job_file, threads, {"OMP_WAIT_POLICY": "active"})


def openvino_peer(folder, models, job_file, threads):
    return Peer([sys.executable, HERE / "openvino_driver.py"], models, job_file, threads,
                {"PYTHONPATH": str(folder)})


# ---- a server, one question after another ----------------------------------------------------


def post(path, body):
    request = urllib.request.Request(f"http://127.0.0.1:{PORT}{path}",
                                     json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=RUN_SECONDS_MAX) as answer:
        return json.load(answer)


def wait_for(server):
    deadline = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < deadline and server.poll() is None:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{PORT}/health", timeout=5).close()
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise Failed("the server did not come up")


def server_job(program, model, jobs, n, cached, options, threads):
    """The first n questions, one slot, in order. -> seconds, answers"""
    command = [program, "-m", model, "-c", "4096", "-np", "1", "-t", threads, "-tb", threads,
               "-fa", "on" if options["flash"] else "off", "-ctk", options["kv"], "-ctv",
               options["kv"], "-cram", "0", "--host", "127.0.0.1", "--port",
               PORT]
    server = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL,
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(server)
        asks = [document + ask for document, group in jobs for ask in group][:n]
        post("/completion", {"prompt": asks[0][-8:], "n_predict": 1, "cache_prompt": False})
        began, answers = time.monotonic(), []
        for ids in asks:
            answers.append(post("/completion", {
                "prompt": ids, "n_predict": ANSWER_TOKENS, "temperature": 0, "ignore_eos": True,
                "cache_prompt": cached, "return_tokens": True})["tokens"])
        return {"seconds": time.monotonic() - began, "answers": answers}
    except (urllib.error.URLError, OSError) as error:
        raise Failed(f"the server: {error}") from error
    finally:
        server.terminate()
        server.wait()
