"""What the loops of bad_disk.py share: the jobs, runs of the program, and the judge.

The judge knows nothing of the program: it reads the answers' file and the database with
Python's own sqlite3, and compares with a run that met no fault.
"""
import collections
import contextlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import threading

RUN_S_MAX = 120
# What the last sentence has, by exit code: what is short, or what to do.
ADVICE = {70: "memory", 74: "; "}
LINES = 30


def write_jobs(path, n):
    documents = [f"Mill {d} was built in {1700 + d} by the river. " * 2 for d in range(5)]
    with open(path, "w", encoding="utf-8") as out:
        for i in range(n):
            out.write(json.dumps({
                "custom_id": f"q{i}", "documents": [documents[i % 5]],
                "question": f"Question {i}?",
                "params": {"max_tokens": 6, "temperature": 0.8, "seed": i}}) + "\n")


def answer_of(line):
    """What must be the same byte for byte: all but times, names of the run, and caching."""
    result = json.loads(line)
    usage = result.get("usage") or {}
    kept = {key: result.get(key) for key in ("custom_id", "status", "answer", "finish_reason",
                                             "stop_reason", "error")}
    kept["tokens"] = [usage.get("prompt_tokens"), usage.get("completion_tokens")]
    return result["custom_id"], json.dumps(kept, sort_keys=True)


def whole_lines(path):
    """Without a torn last line, which the program cuts off when it opens the file."""
    try:
        with open(path, "rb") as file:
            return [line.decode() for line in file.read().split(b"\n")[:-1] if line]
    except FileNotFoundError:
        return []


class Tally:
    """Counts what went wrong, and prints each case with what repeats it."""

    def __init__(self):
        self.lock = threading.Lock()
        self.runs = self.faults = 0
        self.wrong = collections.Counter(lost=0, twice=0, database=0, code=0)
        self.codes = collections.Counter()

    def blame(self, kind, case, text, n=1):
        with self.lock:
            self.wrong[kind] += n
            print(f"{kind}: {case}: {text}", flush=True)

    def count(self, runs, faults, code):
        with self.lock:
            self.codes[code] += 1
            self.runs += runs
            self.faults += faults

    def is_clean(self):
        return self.faults > 0 and not any(self.wrong.values())

    def __str__(self):
        wrong = self.wrong
        return (f"{self.runs} runs under {self.faults} faults: {wrong['lost']} lost, "
                f"{wrong['twice']} twice, {wrong['database']} bad databases, "
                f"{wrong['code']} wrong exit codes")


Stored = collections.namedtuple("Stored", "lines published")
Ended = collections.namedtuple("Ended", "code talk report")


def read_store(path, scratch):
    """(what the database says of itself, lines by custom_id). A copy is read, so that the
    program meets its own files as it left them."""
    if not os.path.exists(path):
        return "ok", Stored({}, set())
    copy = os.path.join(scratch, "copy.db")
    for suffix in ("", "-wal"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(copy + suffix)
        if os.path.exists(path + suffix):
            shutil.copyfile(path + suffix, copy + suffix)
    try:
        with contextlib.closing(sqlite3.connect(copy)) as database:
            verdict = database.execute("PRAGMA integrity_check").fetchone()[0]
            if database.execute("PRAGMA foreign_key_check").fetchone():
                verdict = "a row refers to nothing"
            tables = {row[0] for row in database.execute("SELECT name FROM sqlite_schema")}
            if "outbox" not in tables:
                return verdict, Stored({}, set())
            rows = database.execute("SELECT custom_id, line, published_at IS NOT NULL "
                                    "FROM jobs JOIN outbox USING (job_id)").fetchall()
    except sqlite3.DatabaseError as error:
        return str(error), Stored({}, set())
    return verdict, Stored({row[0]: row[1] for row in rows}, {row[0] for row in rows if row[2]})


class Rig:
    def __init__(self, sheaf, model, libraries, folder, n_jobs=LINES):
        self.sheaf, self.model, self.libraries = sheaf, model, libraries
        self.folder = folder
        self.jobs = os.path.join(folder, "jobs.jsonl")
        write_jobs(self.jobs, n_jobs)
        clean = self.new_place("clean")
        ended = self.run(clean)
        if ended.code != 0:
            raise SystemExit(f"the program fails without faults: {ended.talk}")
        self.wanted = dict(map(answer_of, whole_lines(f"{clean}/out.jsonl")))
        assert len(self.wanted) == n_jobs

    def new_place(self, name):
        place = os.path.join(self.folder, name)
        shutil.rmtree(place, ignore_errors=True)
        os.mkdir(place)
        os.makedirs(place + ".scratch", exist_ok=True)
        return place

    def command(self, place, *options):
        return [self.sheaf, "run", "--quiet", "--model", self.model, "-i", self.jobs, "-o",
                f"{place}/out.jsonl", "--db", f"{place}/x.db", "--threads", "1", *options]

    def environment(self, place, preload=(), **settings):
        """The fault's report goes below the folder of the place, out of the fault's reach."""
        settings = {key: str(value) for key, value in settings.items()}
        return {**os.environ, **settings,
                "BAD_DISK_FOLDER": settings.get("BAD_DISK_FOLDER", place),
                "BAD_DISK_REPORT": f"{place}.report", "BAD_MEMORY_REPORT": f"{place}.report",
                "LD_PRELOAD": ":".join(f"{self.libraries}/{name}.so" for name in preload)}

    def run(self, place, preload=(), before=None, in_place=None, **settings):
        """in_place(place) gives further settings and options that depend on it."""
        options = []
        if in_place:
            more, options = in_place(place)
            settings.update(more)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{place}.report")
        done = subprocess.run(self.command(place, *options), stdin=subprocess.DEVNULL,
                              stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False,
                              env=self.environment(place, preload, **settings),
                              timeout=RUN_S_MAX, preexec_fn=before)
        return Ended(done.returncode, done.stderr.decode(errors="replace").strip(),
                     self.report(place))

    def report(self, place):
        """{}: the program did not come to its end."""
        with contextlib.suppress(FileNotFoundError), open(f"{place}.report",
                                                          encoding="utf-8") as lines:
            return dict(line.rstrip("\n").split(" ", 1) for line in lines)
        return {}

    # -------------------------------------------------------------- the judge

    def judge_answers(self, tally, case, lines):
        """Every job once, and as without faults."""
        counts = collections.Counter()
        for line in lines:
            custom_id, answer = answer_of(line)
            counts[custom_id] += 1
            if self.wanted.get(custom_id) != answer:
                tally.blame("lost", case, f"another answer than without faults: {line}")
        missing = self.wanted.keys() - counts.keys()
        if missing:
            tally.blame("lost", case, f"no answer to {sorted(missing)}", len(missing))
        twice = sorted(custom_id for custom_id, n in counts.items() if n > 1)
        if twice:
            tally.blame("twice", case, f"more than one answer to {twice}", len(twice))

    def judge_code(self, tally, case, ended, codes):
        said = ended.talk.rsplit("\n", 1)[-1]
        if ended.code < 0:
            name = signal.Signals(-ended.code).name
            tally.blame("code", case, f"ended by {name}: {ended.talk[-400:]}")
        elif ended.code not in codes:
            tally.blame("code", case, f"exit code {ended.code}: {said}")
        elif ADVICE.get(ended.code, "") not in said or (ended.code != 0 and not said):
            tally.blame("code", case, f"exit code {ended.code} without what to do: {said}")

    def judge_wreck(self, tally, case, place, ended, codes):
        """Right after the fault. Returns what the database holds then."""
        self.judge_code(tally, case, ended, codes)
        verdict, stored = read_store(f"{place}/x.db", f"{place}.scratch")
        if verdict != "ok":
            tally.blame("database", case, verdict)
        in_file = {answer_of(line)[0] for line in whole_lines(f"{place}/out.jsonl")}
        unwritten = stored.published - in_file
        if unwritten:
            tally.blame("lost", case, f"marked as written and not in the file: {unwritten}",
                        len(unwritten))
        if ended.code == 0:
            self.judge_answers(tally, case, whole_lines(f"{place}/out.jsonl"))
        return stored

    def judge_resumed(self, tally, case, place, stored):
        """A run without faults over what the fault has left."""
        case = f"{case}, resumed"
        ended = self.run(place)
        self.judge_code(tally, case, ended, {0})
        lines = whole_lines(f"{place}/out.jsonl")
        self.judge_answers(tally, case, lines)
        forgotten = set(stored.lines.values()) - set(lines)
        if forgotten:
            tally.blame("lost", case, f"stored and not delivered: {forgotten}", len(forgotten))
        verdict, now = read_store(f"{place}/x.db", f"{place}.scratch")
        if verdict != "ok":
            tally.blame("database", case, verdict)
        if now.published != self.wanted.keys():
            tally.blame("lost", case, "the database does not hold every answer as delivered")

    def try_fault(self, tally, case, codes, **settings):
        """One fault and the run after it. A fault beyond the last call is none."""
        place = self.new_place(f"place-{threading.get_ident()}")
        ended = self.run(place, **settings)
        case = f"{case} ({ended.report.get('first', 'no report')})"
        stored = self.judge_wreck(tally, case, place, ended, codes)
        self.judge_resumed(tally, case, place, stored)
        tally.count(2, int(ended.report.get("failed", "1")) > 0, ended.code)
