"""What the scripts of this folder share: workers as processes, jobs, and the judge. The judge
reads the results topic with kcat, as a reader of committed records, and knows from `sheaf run`
over the same jobs what each answer must be."""
import collections
import contextlib
import ctypes
import json
import os
import signal
import subprocess
import time

WAIT_S = 300
QUICK = ("session.timeout.ms=2000", "heartbeat.interval.ms=300", "message.timeout.ms=2500",
         "transaction.timeout.ms=3000")


class Wrong(Exception):
    """A claim does not hold; the text says which and by how much."""


def check(holds, text):
    if not holds:
        raise Wrong(text)


def until(what, holds, wait_s=WAIT_S):
    """Asks until it is so; what: for the message when it never is."""
    deadline = time.monotonic() + wait_s
    while not holds():
        check(time.monotonic() < deadline, f"not within {wait_s} s: {what}")
        time.sleep(0.02)


def jobs_of(ids, max_tokens=12, documents=12):
    """One job a name. A few documents, so that jobs are answered in another order."""
    return [{"custom_id": custom_id,
             "documents": [f"Mill {i % documents} was built in {1700 + i % documents}. " * 4],
             "question": f"Question {i}?",
             "params": {"max_tokens": 1 + i * 7 % max_tokens, "temperature": 0.8, "seed": i}}
            for i, custom_id in enumerate(ids)]


def write_jobs(path, jobs):
    with open(path, "w", encoding="utf-8") as out:
        out.writelines(json.dumps(job) + "\n" for job in jobs)
    return path


def answer_of(line):
    result = json.loads(line)
    return result["custom_id"], result["response"]["text"] if result.get("response") else None


class Worker:
    """`sheaf work`, with what it says in a file."""

    def __init__(self, command, log):
        self.log = log
        with open(log, "a", encoding="utf-8") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=out)

    def pid(self):
        return self.process.pid

    def says(self):
        with open(self.log, encoding="utf-8", errors="replace") as text:
            return text.read()

    def signal(self, number):
        if self.process.poll() is None:
            self.process.send_signal(number)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def end(self, wait_s=WAIT_S):
        """Its exit code, once it ends by itself."""
        try:
            return self.process.wait(timeout=wait_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise Wrong(f"a worker does not end in {wait_s} s: {self.says()[-400:]}") from None

    def stop(self):
        self.signal(signal.SIGTERM)
        return self.end()

    def cpu_s(self):
        with open(f"/proc/{self.pid()}/stat", encoding="ascii") as stat:
            fields = stat.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Rig:
    """One broker, one program, one model; files go to the current folder."""

    def __init__(self, broker, sheaf, model, props=(), kcat=()):
        self.broker, self.sheaf, self.model = broker, sheaf, model
        self.props = [part for p in props for part in ("-X", p)]
        self.kcat = list(kcat)
        self.workers = []

    def client(self, *extra):
        return ["-b", self.broker, *self.props, *extra]

    def submit(self, topic, path, *extra):
        subprocess.run([self.sheaf, "submit", "--quiet", path, "-t", topic, "--results-topic",
                        f"{topic}.results", *self.client(*extra)], check=True, timeout=WAIT_S)

    def work(self, topic, *extra, name="worker", props=QUICK, exits=True, group=None):
        command = [self.sheaf, "work", "--model", self.model, "-t", topic,
                   "--results-topic", f"{topic}.results", "--group", group or topic,
                   "--db", f"{topic}.{name}.db", "--threads", "1", *self.client(*extra)]
        command += [part for p in props for part in ("-X", p)]
        command += ["--exit-when-empty"] if exits else []
        worker = Worker(command, f"{topic}.{name}.log")
        self.workers.append(worker)
        return worker

    def finish(self, topic, *extra, **options):
        """A worker that answers what is left, and ends."""
        worker = self.work(topic, *extra, **options)
        check(worker.end() == 0, f"the worker ends badly: {worker.says()[-400:]}")
        return worker

    def wanted(self, path):
        """custom_id -> text, as this program says them without any broker."""
        out = f"{path}.wanted"
        subprocess.run([self.sheaf, "run", "--quiet", "--model", self.model, "-i", path, "-o",
                        out, "--db", f"{path}.db"], check=True, timeout=WAIT_S)
        with open(out, encoding="utf-8") as lines:
            return dict(map(answer_of, lines))

    def lines(self, topic):
        """What a reader of committed records sees, kcat's default."""
        done = subprocess.run(["kcat", "-C", "-q", "-e", "-b", self.broker, "-t", topic, "-f",
                               "%s\\n", *self.kcat], capture_output=True, text=True,
                              timeout=WAIT_S, check=False)
        if done.returncode != 0 and "Unknown topic" in done.stderr:
            return []
        check(done.returncode == 0, f"kcat: {done.stderr[-300:]}")
        return done.stdout.splitlines()

    def answered(self, topic):
        return len(self.lines(f"{topic}.results"))

    def judge(self, topic, wanted):
        """Every job has one answer, the right one, and nobody else has any."""
        judge(wanted, [answer_of(line) for line in self.lines(f"{topic}.results")])

    def clear(self):
        for worker in self.workers:
            if worker.process.poll() is None:
                worker.signal(signal.SIGCONT)
                worker.kill()
        self.workers = []


def judge(wanted, results):
    counts = collections.Counter(custom_id for custom_id, _ in results)
    missing = sorted(wanted.keys() - counts.keys())
    strange = sorted(counts.keys() - wanted.keys())
    twice = sorted(custom_id for custom_id, n in counts.items() if n > 1)
    different = sorted(i for i, text in results if i in wanted and wanted[i] != text)
    for what, ids in (("without an answer", missing), ("that nobody asked for", strange),
                      ("answered twice", twice), ("answered otherwise", different)):
        check(not ids, f"{len(ids)} jobs {what}: {', '.join(ids[:5])}")


def check_teeth():
    """The judge sees what it is there for."""
    wanted = {"a": "1", "b": "2"}
    good = list(wanted.items())
    judge(wanted, good)
    for planted in (good[:1], good + good[:1], good + [("c", "3")], [("a", "1"), ("b", "1")],
                    [("a", "2"), ("b", "1")], [("a", "1"), ("b", None)]):
        try:
            judge(wanted, planted)
        except Wrong:
            continue
        raise Wrong(f"the judge lets pass {planted}")


class Library:
    """Faults that only a client can make, by librdkafka itself: records and topics deleted,
    offsets of a group changed, transactions aborted."""

    def __init__(self, broker):
        self.lib = ctypes.CDLL("librdkafka.so.1")
        for name in ("conf_new", "new", "topic_partition_list_new", "topic_partition_list_add",
                     "DeleteRecords_new", "DeleteTopic_new", "queue_new", "queue_poll",
                     "AlterConsumerGroupOffsets_new", "NewTopic_new", "topic_new",
                     "begin_transaction", "init_transactions", "commit_transaction",
                     "abort_transaction", "event_error_string"):
            getattr(self.lib, f"rd_kafka_{name}").restype = ctypes.c_void_p
        self.broker = broker
        self.rk = self.handle({})

    def call(self, name, *args):
        """Addresses as what they are, not cut to an int."""
        return getattr(self.lib, f"rd_kafka_{name}")(
            *[ctypes.c_void_p(a) if isinstance(a, int) and a > 1 << 31 else a for a in args])

    def handle(self, props):
        why = ctypes.create_string_buffer(256)
        conf = self.call("conf_new")
        for key, value in {"bootstrap.servers": self.broker, "log_level": "0",
                           **props}.items():
            code = self.call("conf_set", conf, key.encode(), value.encode(), why,
                             ctypes.c_size_t(256))
            check(code == 0, why.value.decode())
        rk = self.call("new", 0, conf, why, ctypes.c_size_t(256))
        check(rk, why.value.decode())
        return rk

    def ask(self, name, wanted):
        """One admin request with one object, and its answer."""
        queue = self.call("queue_new", self.rk)
        array = (ctypes.c_void_p * 1)(wanted)
        self.call(name, self.rk, array, ctypes.c_size_t(1), None, queue)
        event = self.call("queue_poll", queue, 20000)
        check(event, f"{name}: no answer")
        code = self.call("event_error", event)
        text = ctypes.cast(self.call("event_error_string", event) or 0, ctypes.c_char_p).value
        check(code == 0, f"{name}: {(text or b'').decode()}")
        self.call("event_destroy", event)
        self.call("queue_destroy", queue)

    def offsets(self, topic, offsets):
        parts = self.call("topic_partition_list_new", len(offsets))
        for partition, offset in offsets.items():
            at = self.call("topic_partition_list_add", parts, topic.encode(), partition)
            # struct: char *topic; int32_t partition; int64_t offset
            ctypes.cast(at + 16, ctypes.POINTER(ctypes.c_int64))[0] = offset
        return parts

    def delete_records(self, topic, before):
        self.ask("DeleteRecords", self.call("DeleteRecords_new", self.offsets(topic, before)))

    def delete_topic(self, topic):
        self.ask("DeleteTopics", self.call("DeleteTopic_new", topic.encode()))

    def make_topic(self, topic, partitions):
        why = ctypes.create_string_buffer(256)
        self.ask("CreateTopics", self.call("NewTopic_new", topic.encode(), partitions, -1, why,
                                           ctypes.c_size_t(256)))

    def set_offsets(self, group, topic, offsets):
        self.ask("AlterConsumerGroupOffsets",
                 self.call("AlterConsumerGroupOffsets_new", group.encode(),
                           self.offsets(topic, offsets)))

    def transact(self, topic, values, ends="commit"):
        """Each transaction of values is committed or aborted."""
        rk = self.handle({"transactional.id": f"{topic}.writer", "linger.ms": "0"})
        check(not self.call("init_transactions", rk, 20000), "no transactions")
        rkt = self.call("topic_new", rk, topic.encode(), None)
        copy = 2
        for value in values:
            self.call("begin_transaction", rk)
            for line in value if isinstance(value, list) else [value]:
                data = line.encode()
                code = self.call("produce", rkt, -1, copy, data, ctypes.c_size_t(len(data)),
                                 None, ctypes.c_size_t(0), None)
                check(code == 0, "not produced")
            self.call("flush", rk, 10000)
            check(not self.call(f"{ends}_transaction", rk, 20000), f"{ends} fails")
        self.call("topic_destroy", rkt)
        self.call("destroy", rk)


@contextlib.contextmanager
def cleared(rig):
    try:
        yield rig
    finally:
        rig.clear()
