#!/usr/bin/env python3
"""dlq.py BROKER SHEAF MODEL [--letters N]

`sheaf dlq`, `sheaf status` and the keys of `sheaf submit` against a real broker. Dead letters,
and a group's offsets with the text beside them, are written by python3-kafka as the formats
say; what came of them is read by python3-kafka and kcat. Ends with `N passed, N failed,
N skipped`.
"""
import argparse
import base64
import collections
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

try:
    import kafka
except ImportError:  # a Python beside Debian's does not see Debian's packages
    if sys.executable != "/usr/bin/python3" and os.access("/usr/bin/python3", os.X_OK):
        os.execv("/usr/bin/python3", ["/usr/bin/python3", *sys.argv])
    sys.exit("python3-kafka is missing: apt-get install python3-kafka")
from kafka.admin import KafkaAdminClient, NewTopic
from kafka.partitioner.default import murmur2
from kafka.structs import OffsetAndMetadata, TopicPartition

WAIT_S = 60
GROUP = "g"
KILLS = [0, 600, 0, 300, 10]  # when so many jobs and one more were sent
SPAN = 16384      # offsets that a note reaches above the first open letter
DEAD = 7          # of ten letters, those of our group and topic


# ---- claims ---------------------------------------------------------------------------------

counts = collections.Counter()


class Skip(Exception):
    """Why a claim cannot be looked at."""


def claim(text, check):
    try:
        check()
    except Skip as why:
        counts["skipped"] += 1
        print(f"skipped {text}: {why}", flush=True)
    except Exception as e:  # pylint: disable=broad-except
        counts["failed"] += 1
        print(f"FAILED {text}: {type(e).__name__}: {str(e)[:2000]}", flush=True)
    else:
        counts["passed"] += 1
        print(f"ok {text}", flush=True)


def same(got, wanted):
    assert got == wanted, f"{got!r} is not {wanted!r}"


def wait_for(what, check):
    """check() until it is true."""
    end = time.monotonic() + WAIT_S
    while not check():
        assert time.monotonic() < end, f"{what} did not come"
        time.sleep(0.02)


# ---- the world ------------------------------------------------------------------------------


class World:
    """A broker with topics, and the program under test."""

    def __init__(self, broker, program, model):
        self.broker, self.program, self.model = broker, program, model
        self.admin = KafkaAdminClient(bootstrap_servers=broker)
        self.producer = kafka.KafkaProducer(bootstrap_servers=broker, retries=20)
        self.pending = []
        self.watch = kafka.KafkaConsumer(bootstrap_servers=broker)

    def make_topic(self, name, partitions):
        self.admin.create_topics([NewTopic(name, partitions, 1)])
        wait_for(name, lambda: self.producer.partitions_for(name))

    def put(self, topic, partition, key, value, headers=(), timestamp_ms=None):
        self.pending.append(self.producer.send(topic, value, key, list(headers), partition,
                                               timestamp_ms))

    def flush(self):
        """Every record that was put is there."""
        for record in self.pending:
            record.get(WAIT_S)
        self.pending = []

    def command(self, *args):
        """python3-kafka knows no zstd."""
        return [self.program, *args, "-b", self.broker, "-X", "compression.type=none"]

    def sheaf(self, *args, code=0):
        done = subprocess.run(self.command(*args), capture_output=True, timeout=WAIT_S,
                              check=False)
        said = done.stderr.decode()
        assert done.returncode == code, f"exit code {done.returncode}, not {code}: {said}"
        return done.stdout, said

    def sheaf_json(self, *args, **options):
        out = self.sheaf(*args, "--json", **options)[0]
        return json.loads(out)

    def ends(self, topic):
        """(first offset, the one behind the last) by partition, of whatever lies there."""
        places = [TopicPartition(topic, p) for p in self.watch.partitions_for_topic(topic)]
        first, last = self.watch.beginning_offsets(places), self.watch.end_offsets(places)
        return [(first[place], last[place]) for place in sorted(places)]

    def committed_places(self, topic):
        """(partition, offset) of what a reader of committed records sees: kcat's default."""
        out = subprocess.run(["kcat", "-C", "-e", "-q", "-b", self.broker, "-t", topic, "-o",
                              "beginning", "-f", "%p %o\n"], check=True, capture_output=True,
                             text=True, timeout=WAIT_S).stdout
        return {tuple(map(int, line.split())) for line in out.splitlines()}

    def records(self, topic, is_committed=True):
        """By partition and offset; not only those that committed readers see, if so wanted."""
        seen = self.committed_places(topic)
        consumer = kafka.KafkaConsumer(bootstrap_servers=self.broker, check_crcs=False)
        places = [TopicPartition(topic, p) for p in consumer.partitions_for_topic(topic)]
        consumer.assign(places)
        consumer.seek_to_beginning()
        ends = consumer.end_offsets(places)
        found = []
        end = time.monotonic() + WAIT_S
        while any(consumer.position(place) < ends[place] for place in places):
            assert time.monotonic() < end, f"{topic} is not read to its end"
            for batch in consumer.poll(100).values():
                found += batch
        consumer.close()
        found.sort(key=lambda r: (r.partition, r.offset))
        if is_committed:
            found = [r for r in found if (r.partition, r.offset) in seen]
        return found

    def commit(self, group, topic, offsets):
        """offsets: partition -> (offset, text)."""
        consumer = kafka.KafkaConsumer(bootstrap_servers=self.broker, group_id=group,
                                       enable_auto_commit=False)
        consumer.assign([TopicPartition(topic, p) for p in offsets])
        consumer.commit({TopicPartition(topic, p): OffsetAndMetadata(offset, text)
                         for p, (offset, text) in offsets.items()})
        consumer.close(autocommit=False)

    def noted(self, group, topic, partition):
        """What a group has committed: offset, text."""
        consumer = kafka.KafkaConsumer(bootstrap_servers=self.broker, group_id=group,
                                       enable_auto_commit=False)
        place = TopicPartition(topic, partition)
        consumer.assign([place])
        found = consumer.committed(place, metadata=True)
        consumer.close(autocommit=False)
        return (found.offset, found.metadata) if found else (None, "")


# ---- the text beside an offset, written and read another way --------------------------------


def crc32c(data):
    crc = 0xffffffff
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82f63b78 if crc & 1 else 0)
    return crc ^ 0xffffffff


def varint(n):
    out = bytearray()
    while n >= 128:
        out.append(n & 127 | 128)
        n >>= 7
    return bytes(out) + bytes([n])


def settled_text(base, settled):
    """A bitmap of the settled offsets, as offset_metadata.h says."""
    n_bits = max(settled) - base + 1
    bits = sum(1 << (offset - base) for offset in settled)
    body = base.to_bytes(8, "little") + varint(n_bits) + bits.to_bytes((n_bits + 7) // 8,
                                                                       "little")
    raw = b"\0" + crc32c(b"\0" + body).to_bytes(4, "little") + body
    return "shf1." + base64.urlsafe_b64encode(raw).decode().rstrip("=")


def read_varint(raw, at):
    n = shift = 0
    while True:
        n |= (raw[at] & 127) << shift
        shift += 7
        at += 1
        if raw[at - 1] < 128:
            return n, at


def settled_of(text):
    """(base, the settled offsets above it)."""
    assert text.startswith("shf1."), text
    raw = base64.urlsafe_b64decode(text[5:] + "=" * (-len(text[5:]) % 4))
    same(int.from_bytes(raw[1:5], "little"), crc32c(raw[:1] + raw[5:]))
    base = int.from_bytes(raw[5:13], "little")
    n_bits, at = read_varint(raw, 13)
    if raw[0] == 0:
        bits = int.from_bytes(raw[at:], "little")
        return base, {base + i for i in range(n_bits) if bits >> i & 1}
    found, i, is_set = set(), 0, False
    while i < n_bits:
        length, at = read_varint(raw, at)
        if is_set:
            found |= set(range(base + i, base + i + length))
        i += length
        is_set = not is_set
    return base, found


# ---- dead letters ---------------------------------------------------------------------------


def error_headers(topic, partition, offset, code, job_id="", group=GROUP, message="it failed"):
    """What a worker adds, the headers of other tools included."""
    own = {"code": code, "message": message, "attempts": "1", "worker": "w1",
           "timestamp": "2026-11-30T01:02:03Z", "topic": topic, "partition": str(partition),
           "offset": str(offset), "stage": "parse", "group": group, "job_id": job_id}
    return ([(f"sheaf.error.{name}", value.encode()) for name, value in own.items()]
            + [("__connect.errors.topic", topic.encode()),
               ("__connect.errors.exception.message", message.encode()),
               ("kafka_dlt-original-topic", topic.encode()),
               ("kafka_dlt-original-partition", partition.to_bytes(4, "big")),
               ("kafka_dlt-original-offset", offset.to_bytes(8, "big"))])


# Key, value, the job's own headers; the last column but one is the error's code.
LETTERS = [
    (b"key-0", b'{"custom_id": "a"}', [("custom_id", b"a")], "malformed_json", "a"),
    (b"\x00\xff\xfe", b"\x00\x01 no text \xff", [("bin", b"\x00\xff"), ("bin", b"\x01")],
     "malformed_json", "b"),
    (None, b"", [], "null_value", ""),
    (b"", b"empty key", [("empty", b"")], "schema_violation", "d\x1b[31m"),
    (b"k", None, [("traceparent", b"00-1-2-01")], "null_value", "e"),
    ("schl\u00fcssel".encode(), "\u00fcber".encode(), [("custom_id", "\u00fc".encode())],
     "schema_violation", "f"),
    (b"key-6", b"x" * 200000, [], "prompt_too_long", "g"),
]
assert len(LETTERS) == DEAD


def put_letters(world, name):
    """LETTERS and three that are not ours, in partition 0 of NAME.dlq."""
    world.make_topic(name, 3)
    world.make_topic(f"{name}.dlq", 2)
    topic = f"{name}.dlq"
    for i, (key, value, headers, code, job) in enumerate(LETTERS):
        world.put(topic, 0, key, value,
                  headers + error_headers(name, 0, 100 + i, code, job,
                                          message=f"\x1b[2Jnumber {i} \u202e of a kind"))
        if i == 1:
            world.put(topic, 0, b"g", b"other group",
                      error_headers(name, 0, 1, "malformed_json", "z", "other"))
        if i == 3:
            world.put(topic, 0, b"t", b"other topic",
                      error_headers("elsewhere", 0, 1, "malformed_json", "y"))
            world.put(topic, 0, b"n", b"no letter", [("h", b"v")])
    world.flush()


# Where put_letters puts LETTERS[i].
PLACES = [0, 1, 3, 4, 7, 8, 9]


def own_headers(record):
    return [h for h in record.headers if h[0] != "sheaf.replay_of"]


def check_sent(records, name, which):
    """The records of the job topic are LETTERS[i] for i in which, once each, as they were."""
    got = sorted((r.key or b"", r.value or b"", r.key is None, r.value is None,
                  own_headers(r), dict(r.headers)["sheaf.replay_of"]) for r in records)
    wanted = sorted((LETTERS[i][0] or b"", LETTERS[i][1] or b"", LETTERS[i][0] is None,
                     LETTERS[i][1] is None, LETTERS[i][2], f"{name}/0/{100 + i}".encode())
                    for i in which)
    same(got, wanted)


def dlq(world, name, verb, *args, group=GROUP, **options):
    return world.sheaf("dlq", verb, "-t", name, "-G", group, *args, **options)


def states(world, name, group=GROUP):
    rows = dlq(world, name, "ls", "--json", group=group)[0].decode().splitlines()
    return [json.loads(row)["state"] for row in rows]


def check_listing(world, name):
    rows = [json.loads(row) for row in
            dlq(world, name, "ls", "--json")[0].decode().splitlines()]
    same([(row["partition"], row["offset"]) for row in rows], [(0, i) for i in range(10)])
    same([rows[i]["code"] for i in PLACES], [letter[3] for letter in LETTERS])
    same([rows[i]["job_id"] for i in PLACES], [letter[4] for letter in LETTERS])
    same([rows[i]["from"] for i in PLACES],
         [{"topic": name, "partition": 0, "offset": 100 + i} for i in range(DEAD)])
    same([rows[2]["state"], rows[5]["state"], rows[6]["state"]],
         ["elsewhere", "elsewhere", "foreign"])
    same({rows[i]["state"] for i in PLACES}, {"open"})
    same({rows[i]["failed_at"] for i in PLACES}, {"2026-11-30T01:02:03Z"})


def check_table(world, name):
    out = dlq(world, name, "ls")[0]
    assert b"\x1b" not in out and "\u202e".encode() not in out, out
    lines = out.decode().splitlines()
    same(len(lines), 11)
    for part in ("0/1 ", "malformed_json", " b ", f"{name}/0/101", "number 1", "open"):
        assert part in lines[2], lines[2]
    out, said = dlq(world, name, "ls", "--limit", "3")
    same(len(out.splitlines()), 4)
    assert "more dead letters" in said, said
    assert "more dead letters" not in dlq(world, name, "ls", "--limit", "10")[1]


def check_show(world, name):
    for i, (_, value, _, _, _) in enumerate(LETTERS):
        same(dlq(world, name, "show", "0", str(PLACES[i]))[0], value or b"")
    out, said = dlq(world, name, "show", f"{name}.dlq-0-1")
    same(out, LETTERS[1][1])
    assert "sheaf.error.code: malformed_json" in said and "\x1b" not in said, said
    shown = json.loads(dlq(world, name, "show", "0/1", "--json")[0])
    same(base64.b64decode(shown["key_base64"]), LETTERS[1][0])
    same(base64.b64decode(shown["value_base64"]), LETTERS[1][1])
    got = [(h["name"], base64.b64decode(h["value_base64"]) if "value_base64" in h
            else h["value"].encode()) for h in shown["headers"]]
    same(got, LETTERS[1][2] + error_headers(name, 0, 101, "malformed_json", "b",
                                            message="\x1b[2Jnumber 1 \u202e of a kind"))
    dlq(world, name, "show", "0", "10", code=66)
    dlq(world, name, "show", "2", "0", code=66)
    dlq(world, name, "show", "other/0/1", code=2)


def check_redrive_by_code(world, name):
    said = dlq(world, name, "redrive", "--code", "schema_violation")[1]
    assert "2 dead letters sent again" in said, said
    check_sent(world.records(name), name, [3, 5])
    same([i for i, state in enumerate(states(world, name)) if state == "redriven"], [4, 8])
    # Offsets 0, 1, 3 are open; 2 is another group's, 4 and 8 sent; 5 stays for its own topic.
    offset, text = world.noted(f"{GROUP}.dlq", f"{name}.dlq", 0)
    same(offset, 0)
    base, settled = settled_of(text)
    same((base, settled & set(PLACES)), (0, {4, 8}))
    assert 5 not in settled, settled


def check_redrive_once(world, name):
    said = dlq(world, name, "redrive", "--code", "schema_violation")[1]
    assert "0 dead letters sent again" in said and "2 were sent again before" in said, said
    check_sent(world.records(name), name, [3, 5])


def check_redrive_again(world, name):
    said = dlq(world, name, "redrive", "--id", "f", "--again")[1]
    assert "1 dead letters sent again" in said, said
    check_sent(world.records(name), name, [3, 5, 5])


def check_redrive_rest(world, name):
    report = json.loads(dlq(world, name, "redrive", "--all", "--limit", "1", "--json")[0])
    same(report["redriven"], 1)
    dlq(world, name, "redrive", "0", "9")
    check_sent(world.records(name), name, [0, 3, 5, 5, 6])
    report = json.loads(dlq(world, name, "redrive", "--all", "--json")[0])
    same((report["redriven"], report["elsewhere"]), (3, 2))
    check_sent(world.records(name), name, [0, 1, 2, 3, 4, 5, 5, 6])
    same(states(world, name).count("open"), 0)
    # The letter of the other topic holds the offset; its own topic sends it, this one never.
    same(world.noted(f"{GROUP}.dlq", f"{name}.dlq", 0)[0], 5)


def check_other_topic(world, name):
    world.make_topic("elsewhere", 1)
    dlq(world, "elsewhere", "redrive", "--all", "--dead-letters", f"{name}.dlq")
    same([r.value for r in world.records("elsewhere")], [b"other topic"])
    same(world.noted(f"{GROUP}.dlq", f"{name}.dlq", 0), (10, ""))


def check_other_group(world, name):
    dlq(world, name, "redrive", "--all", group="other")
    same([r.value for r in world.records(name)].count(b"other group"), 1)
    same(states(world, name, "other").count("redriven"), 1)


def check_refusals(world, name):
    dlq(world, name, "redrive", code=2)
    dlq(world, name, "redrive", "--all", "--id", "a", code=2)
    dlq(world, name, "redrive", "--id", "nobody", code=66)
    dlq(world, name, "ls", "--yes", code=2)
    dlq(world, name, "ls", "--dead-letters", "off", code=78)
    dlq(world, "nowhere", "ls", code=66)
    said = dlq(world, name, "purge", "--before", "5", "--yes", code=2)[1]
    assert "2 partitions" in said, said


# ---- deletion -----------------------------------------------------------------------------


def check_purge(world, name):
    topic = f"{name}.dlq"
    put_letters(world, name)
    dlq(world, name, "redrive", "--id", "a")
    same(world.noted(f"{GROUP}.dlq", topic, 0)[0], 1)
    report = json.loads(dlq(world, name, "redrive", "--id", "a", "--json")[0])
    same((report["redriven"], report["already"]), (0, 1))
    said = dlq(world, name, "purge", "--all", code=2)[1]
    assert "7 dead letters" in said and "6 were never sent again" in said, said
    assert "--yes" in said, said
    same(world.ends(topic)[0], (0, 10))
    said = dlq(world, name, "purge", "0", "--before", "4", "--yes")[1]
    assert "3 dead letters" in said and "2 were never sent again" in said, said
    same(world.ends(topic)[0], (4, 10))
    dlq(world, name, "purge", "0", "--before", "11", "--yes", code=65)
    report = json.loads(dlq(world, name, "redrive", "--all", "--json")[0])
    same(report["redriven"], 4)
    check_sent(world.records(name), name, [0, 3, 4, 5, 6])
    dlq(world, name, "purge", "--all", "--yes")
    same(world.ends(topic)[0], (10, 10))
    same(dlq(world, name, "ls", "--json")[0], b"")
    world.put(topic, 0, b"k", b"new", error_headers(name, 1, 5, "expired", "new"))
    world.flush()
    same(json.loads(dlq(world, name, "redrive", "--all", "--json")[0])["redriven"], 1)


# ---- exactly once, whatever happens -------------------------------------------------------


def draw_keys(n, draw):
    """Any bytes, many of them no ASCII."""
    keys = ["m\u00fchle", "\u6c34\u8eca", "\U0001f33e", ""] + ["k" * i for i in range(1, 40)]
    keys = [key.encode() for key in keys] + [bytes([byte]) for byte in range(256)]
    return (keys + [draw.randbytes(draw.randrange(1, 24)) for _ in range(n)])[:n]


def put_many(world, name, n):
    """n letters, i as the value of the i-th, over both partitions. -> their keys."""
    world.make_topic(name, 5)
    world.make_topic(f"{name}.dlq", 2)
    keys = draw_keys(n, random.Random(n))
    for i, key in enumerate(keys):
        world.put(f"{name}.dlq", i % 2, key, b"%d" % i,
                  error_headers(name, 0, i, "poison_crash", f"job-{i}"))
    world.flush()
    return keys


def times_sent(records):
    """How often values were sent: {1: n} when it was once each."""
    return dict(collections.Counter(collections.Counter(r.value for r in records).values()))


def kill_in_flight(world, name, n_sent):
    """A redrive that is killed when more than n_sent jobs lie in the topic, the last ones of a
    transaction that is open, if that is seen before it is over."""
    before = sum(end for _, end in world.ends(name))
    process = subprocess.Popen(world.command("dlq", "redrive", "--all", "-q", "-t", name, "-G",
                                             GROUP), stderr=subprocess.DEVNULL)
    while process.poll() is None and sum(end for _, end in world.ends(name)) <= before + n_sent:
        pass
    process.kill()
    process.wait()


def check_kills(world, name, n):
    keys = put_many(world, name, n)
    for n_sent in KILLS:
        kill_in_flight(world, name, n_sent)
    report = json.loads(dlq(world, name, "redrive", "--all", "--json")[0])
    records = world.records(name)
    same(times_sent(records), {1: n})
    same({r.value: r.key for r in records}, {b"%d" % i: key for i, key in enumerate(keys)})
    same(json.loads(dlq(world, name, "redrive", "--all", "--json")[0])["redriven"], 0)
    print(f"   {n - report['redriven']} of {n} were sent before the last redrive", flush=True)


def check_kills_can_fail(world, name, n):
    """The kills did hit: who reads what no transaction committed sees jobs twice."""
    sent = times_sent(world.records(name, is_committed=False))
    if sent == {1: n}:
        raise Skip("no kill came within a transaction this time")


def check_partitions(world, name):
    records = world.records(name)
    wanted = [(murmur2(r.key) & 0x7fffffff) % 5 for r in records]
    assert len(records) >= 1000 and len(set(wanted)) == 5
    same([r.partition for r in records], wanted)
    # Read as signed bytes, as a careless hash would, some land elsewhere.
    assert any(r.key != bytes(b & 127 for b in r.key) and
               (murmur2(bytes(b & 127 for b in r.key)) & 0x7fffffff) % 5 != r.partition
               for r in records)


def check_side_by_side(world, name):
    put_many(world, name, 700)
    command = world.command("dlq", "redrive", "--all", "-q", "-t", name, "-G", GROUP)
    processes = [subprocess.Popen(command, stderr=subprocess.PIPE) for _ in range(3)]
    codes = []
    for process in processes:
        said = process.communicate(timeout=WAIT_S)[1].decode()
        codes.append(process.returncode)
        assert process.returncode in (0, 75), said
    assert 0 in codes, codes
    dlq(world, name, "redrive", "--all")
    same(times_sent(world.records(name)), {1: 700})


def check_span(world, name):
    """What lies further above the first open letter than a note reaches is left, and said."""
    world.make_topic(name, 1)
    world.make_topic(f"{name}.dlq", 1)
    world.put(f"{name}.dlq", 0, b"k", b"first", error_headers(name, 0, 1, "expired", "first"))
    world.flush()
    subprocess.run(["kcat", "-P", "-b", world.broker, "-t", f"{name}.dlq"], check=True,
                   input=b"no letter\n" * (SPAN - 2), timeout=WAIT_S)
    for job in ("near", "far"):
        world.put(f"{name}.dlq", 0, b"k", job.encode(),
                  error_headers(name, 0, 1, "poison_crash", job))
        world.flush()
    out, said = dlq(world, name, "redrive", "--code", "poison_crash", "--json", code=1)
    same(json.loads(out), {"redriven": 1, "already": 0, "elsewhere": 0, "beyond": 1})
    same([r.value for r in world.records(name)], [b"near"])
    base, settled = settled_of(world.noted(f"{GROUP}.dlq", f"{name}.dlq", 0)[1])
    same((base, max(settled)), (0, SPAN - 1))
    said = dlq(world, name, "redrive", "--code", "poison_crash", code=1)[1]
    assert f"{SPAN} offsets or more" in said, said
    same(json.loads(dlq(world, name, "redrive", "--all", "--json")[0])["redriven"], 2)
    same(sorted(r.value for r in world.records(name)), [b"far", b"first", b"near"])


def check_members(world, name):
    """A consumer's commits would count as notes."""
    put_many(world, name, 3)
    consumer = subprocess.Popen(["kcat", "-b", world.broker, "-q", "-G", f"{GROUP}.dlq",
                                 f"{name}.dlq"], stdout=subprocess.DEVNULL,
                                stderr=subprocess.DEVNULL)
    try:
        wait_for("the member", lambda: is_stable(world, f"{name}.dlq", f"{GROUP}.dlq"))
        said = dlq(world, name, "redrive", "--all", code=75)[1]
        assert "has 1 members" in said, said
    finally:
        consumer.terminate()
        consumer.wait()
    same(world.committed_places(name), set())


# ---- status -------------------------------------------------------------------------------


def status(world, topic, group, *args, **options):
    return world.sheaf_json("status", "-t", topic, "-G", group, *args, **options)


def check_status(world, name):
    world.make_topic(name, 3)
    world.make_topic(f"{name}.results", 1)
    for i in range(20):
        world.put(name, 0, b"k", b"%d" % i)
    for i in range(5):
        world.put(name, 1, b"k", b"%d" % i)
        world.put(f"{name}.results", 0, b"k", b"r")
    world.flush()
    world.commit("s", name, {0: (4, settled_text(4, {5, 6, 9})), 1: (5, "")})
    found = status(world, name, "s", "--results-topic", f"{name}.results")
    wanted = [(0, 20, 4, 3, 16, 13), (0, 5, 5, 0, 0, 0), (0, 0, None, 0, 0, 0)]
    same([(p["beginning"], p["end"], p["committed"], p["settled_above"], p["lag_offsets"],
           p["lag_jobs"]) for p in found["partitions"]], wanted)
    total = found["total"]
    same((total["jobs"], total["lag_offsets"], total["lag_jobs"]), (25, 16, 13))
    same(round(total["percent_done"], 3), 48.0)
    same(found["state"], "Empty")
    same(found["results"], {"topic": f"{name}.results", "records_max": 5})
    same(found["dead_letters"]["records_max"], None)
    oldest = next(r for r in world.records(name) if r.partition == 0 and r.offset == 4)
    age_s = time.time() - oldest.timestamp / 1000
    assert abs(total["oldest_unsettled_age_s"] - age_s) < 30, (total, age_s)
    out = world.sheaf("status", "-t", name, "-G", "s")[0].decode()
    for part in ("group s is Empty", "25 jobs, 13 unsettled", "48.0 % done"):
        assert part in out, out


def check_status_age(world, name):
    """A record that says it is a day old; what is settled before it does not count."""
    world.make_topic(name, 1)
    now_ms = int(time.time() * 1000)
    for age_ms in (10**9, 86400000, 5 * 10**8):
        world.put(name, 0, b"k", b"v", timestamp_ms=now_ms - age_ms)
    world.flush()
    world.commit("s", name, {0: (1, settled_text(1, {2}))})
    age_s = status(world, name, "s")["total"]["oldest_unsettled_age_s"]
    assert 86400 <= age_s < 86400 + WAIT_S, age_s


def check_owner(world, name):
    world.make_topic(name, 2)
    consumer = subprocess.Popen(["kcat", "-b", world.broker, "-q", "-G", "owned", "-X",
                                 "client.id=the-owner", name], stdout=subprocess.DEVNULL,
                                stderr=subprocess.DEVNULL)
    try:
        wait_for("the member", lambda: is_stable(world, name, "owned"))
        found = status(world, name, "owned")
        same([m["client"] for m in found["members"]], ["the-owner"])
        same({p["member"] for p in found["partitions"]}, {found["members"][0]["member"]})
        out = world.sheaf("status", "-t", name, "-G", "owned")[0].decode()
        assert "the-owner /127.0.0.1" in out, out
    finally:
        consumer.terminate()
        consumer.wait()


def is_stable(world, topic, group):
    done = subprocess.run(world.command("status", "-t", topic, "-G", group, "--json"),
                          capture_output=True, timeout=WAIT_S, check=False)
    return json.loads(done.stdout)["state"] == "Stable"


def check_status_of_letters(world, name):
    """Dead letters and what of them is open; a topic whose end is a transaction's mark."""
    put_letters(world, name)
    dlq(world, name, "redrive", "--code", "prompt_too_long")
    found = status(world, name, "new", "--dead-letters", f"{name}.dlq", code=66)
    same(found["dead_letters"]["records_max"], 10)
    found = status(world, name, GROUP, code=66)
    assert DEAD - 1 <= found["dead_letters"]["open_max"] <= 9, found["dead_letters"]
    sent = next(iter(world.committed_places(name)))
    same(world.ends(name)[sent[0]], (0, 2))  # the job and the mark
    world.commit(GROUP, name, {sent[0]: (1, "")})
    part = status(world, name, GROUP)["partitions"][sent[0]]
    same((part["lag_offsets"], part["lag_jobs"]), (1, 0))


def check_lost(world, name):
    put_letters(world, name)
    topic = f"{name}.dlq"
    world.commit("late", topic, {0: (1, settled_text(1, {3}))})
    dlq(world, name, "purge", "0", "--before", "6", "--yes")
    part = status(world, topic, "late")["partitions"][0]
    same((part["beginning"], part["lost_jobs"], part["lag_jobs"]), (6, 4, 4))
    assert "4 jobs were lost" in world.sheaf("status", "-t", topic, "-G", "late")[0].decode()


def check_spoilt_text(world, name):
    """A text with another checksum is worth nothing: all above the offset counts as open."""
    world.make_topic(name, 1)
    for i in range(10):
        world.put(name, 0, b"k", b"%d" % i)
    world.flush()
    good = settled_text(2, {4, 5})
    world.commit("s", name, {0: (2, good[:-2] + ("AA" if good[-2:] != "AA" else "BB"))})
    part = status(world, name, "s")["partitions"][0]
    same((part["committed"], part["settled_above"], part["lag_jobs"]), (2, 0, 8))


def check_absent(world, process):
    said = world.sheaf("status", "-t", "nowhere", code=66)[1]
    assert "nowhere" in said and "does not exist" in said, said
    world.make_topic("unworked", 1)
    out, said = world.sheaf("status", "-t", "unworked", "-G", "nobody", code=66)
    assert "nobody" in said and b"0 jobs" in out, said
    said = process.communicate(timeout=WAIT_S)[1].decode()
    same(process.returncode, 69)
    assert "127.0.0.1:1" in said, said


# ---- keys of sheaf submit -----------------------------------------------------------------


def check_submit(world, name):
    """A key a job, and some documents that have keys of their own."""
    with open("jobs.jsonl", "w", encoding="utf-8") as out:
        for i in range(1000):
            text = f"Mill {i}. " * (40 if i < 300 else 1)
            out.write(json.dumps({"custom_id": f"q{i}", "documents": [{"text": text}],
                                  "question": "When?"}) + "\n")
    world.sheaf("submit", "jobs.jsonl", "-t", name, "-p", "7", "--results-topic",
                f"{name}.results", "--documents-topic", f"{name}.documents",
                "--lift-documents", "--lift-min-bytes", "300")
    jobs, documents = world.records(name), world.records(f"{name}.documents")
    same((len(jobs), len(documents)), (1000, 300))
    assert len({r.key for r in jobs}) == 1000 and len({r.partition for r in jobs}) == 7
    for r in jobs + documents:
        same(r.partition, (murmur2(r.key) & 0x7fffffff) % 7)


# ---- real workers -------------------------------------------------------------------------


def work(world, name):
    done = subprocess.run(world.command("work", "-q", "--model", world.model, "-t", name,
                                        "--results-topic", f"{name}.results", "-G", name,
                                        "--db", f"{name}.db", "--documents-topic", "",
                                        "--exit-when-empty"),
                          capture_output=True, timeout=WAIT_S, check=False)
    assert done.returncode in (0, 1), done.stderr.decode()


def check_real_workers(world, name):
    """Three jobs that no worker can read, three that it can; those die, are sent again, and
    die again."""
    bad = ['{"custom_id": "bad-0", "question": ', '{"question": "Q"', "no JSON at all"]
    with open("mixed.jsonl", "w", encoding="utf-8") as out:
        for i in range(3):
            out.write(bad[i] + "\n")
            out.write(json.dumps({"custom_id": f"good-{i}", "question": "Q?",
                                  "params": {"max_tokens": 2}}) + "\n")
    world.sheaf("submit", "mixed.jsonl", "-t", name, "-p", "1", "--results-topic",
                f"{name}.results")
    work(world, name)
    same(status(world, name, name)["total"]["lag_jobs"], 0)
    same(states(world, name, name), ["open"] * 3)
    letters = world.records(f"{name}.dlq")
    same(sorted(r.value.decode() for r in letters), sorted(bad))
    jobs = {r.value: r for r in world.records(name)}
    for r in letters:
        job = jobs[r.value]
        same(r.key, job.key)
        same(r.headers[:len(job.headers)], job.headers)
        added = dict(r.headers[len(job.headers):])
        same((added["sheaf.error.topic"], added["sheaf.error.partition"],
              added["sheaf.error.offset"], added["sheaf.error.group"]),
             (name.encode(), b"0", b"%d" % job.offset, name.encode()))
    same(json.loads(dlq(world, name, "redrive", "--all", "--json",
                        group=name)[0])["redriven"], 3)
    work(world, name)
    same(sorted(states(world, name, name)), ["open"] * 3 + ["redriven"] * 3)
    same(status(world, name, name)["total"]["lag_jobs"], 0)


# ---- all of it ----------------------------------------------------------------------------


def run(world, n_letters):
    # It takes ten seconds to give up; the rest goes on meanwhile.
    absent = subprocess.Popen([world.program, "status", "-b", "127.0.0.1:1"],
                              stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    put_letters(world, "jobs")
    for text, check in (
            ("dlq ls tells place, job, code, origin and state of each", check_listing),
            ("dlq ls is a table on which no record writes what it likes", check_table),
            ("dlq show gives the job's bytes, and every header", check_show),
            ("dlq redrive --code sends these again, byte for byte, and notes it",
             check_redrive_by_code),
            ("a second redrive sends nothing", check_redrive_once),
            ("--again sends it once more", check_redrive_again),
            ("one by one and --all: each once, none of others", check_redrive_rest),
            ("a letter of another topic waits for that topic", check_other_topic),
            ("a letter of another group waits for that group", check_other_group),
            ("what is not clear or not there is refused", check_refusals)):
        claim(text, lambda check=check: check(world, "jobs"))
    claim("dlq purge counts first, deletes with --yes, and redrive goes on behind it",
          lambda: check_purge(world, "purged"))
    claim(f"{n_letters} letters are sent once each though {len(KILLS)} redrives are killed",
          lambda: check_kills(world, "killed", n_letters))
    claim("and without transactions they would not be",
          lambda: check_kills_can_fail(world, "killed", n_letters))
    claim("any bytes as a key go where murmur2 of another client says",
          lambda: check_partitions(world, "killed"))
    claim("redrives side by side send each letter once",
          lambda: check_side_by_side(world, "beside"))
    claim("a letter out of the notes' reach is left, and sent once they reach it",
          lambda: check_span(world, "span"))
    claim("a redrive stops when others are in the group of its notes",
          lambda: check_members(world, "noted"))
    claim("status counts what is settled above the committed offset",
          lambda: check_status(world, "counted"))
    claim("status tells the age of the oldest unsettled job",
          lambda: check_status_age(world, "aged"))
    claim("status names who has a partition", lambda: check_owner(world, "owned"))
    claim("status counts dead letters, and no mark of a transaction as a job",
          lambda: check_status_of_letters(world, "lettered"))
    claim("status tells of jobs that retention deleted", lambda: check_lost(world, "lost"))
    claim("status takes a spoilt text for none", lambda: check_spoilt_text(world, "spoilt"))
    claim("status says which of topic, group and broker is not there",
          lambda: check_absent(world, absent))
    claim("submit puts 1,000 keys and 300 documents where murmur2 of another client says",
          lambda: check_submit(world, "submitted"))
    claim("letters of real workers are listed, sent again, and die again",
          lambda: check_real_workers(world, "worked"))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("broker")
    parser.add_argument("sheaf", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("--letters", type=int, default=1000)
    args = parser.parse_args()
    world = World(args.broker, args.sheaf.resolve(), args.model.resolve())
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        run(world, args.letters)
        os.chdir("/")
    print(f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")
    return counts["failed"] > 0


if __name__ == "__main__":
    sys.exit(main())
