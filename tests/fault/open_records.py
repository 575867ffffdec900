#!/usr/bin/python3
"""open_records.py BROKER BUILD [--seed N]

A former producer of a worker's transactional id has left a result and an offset open of which
the coordinator knows nothing, as when brokers lose a transaction; BROKER takes such things only
with the setting transaction.partition.verification.enable=false. The worker that comes next
must not make it visible with its own results; with SHEAF_GUARDS_OFF=undecided it does. Prints
what was found with the guard and without, and exits 0 only when both are as they must be.
"""
import json
import socket
import struct
import sys

import rig as rigs

try:
    from kafka.record.default_records import DefaultRecordBatchBuilder
except ImportError:
    sys.exit("python3-kafka is missing: apt-get install python3-kafka")

PRODUCE, INIT_PRODUCER_ID, TXN_OFFSET_COMMIT, LIST_TRANSACTIONS = (0, 7), (22, 1), (28, 2), \
    (66, 0)


def text(value):
    data = value.encode()
    return struct.pack(">h", len(data)) + data


class Wire:
    """Requests of Kafka's protocol, of the few kinds that no client sends on its own."""

    def __init__(self, broker):
        host, port = broker.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=rigs.WAIT_S)
        self.file = self.socket.makefile("rb")

    def ask(self, kind, body, is_flexible=False):
        header = struct.pack(">hhi", *kind, 1) + text("test") + (b"\0" if is_flexible else b"")
        self.socket.sendall(struct.pack(">i", len(header + body)) + header + body)
        size, = struct.unpack(">i", self.file.read(4))
        return self.file.read(size)[5 if is_flexible else 4:]

    def transactional_ids(self):
        """Those of fewer than 127 transactions with names of less than 127 bytes."""
        answer = self.ask(LIST_TRANSACTIONS, b"\1\1\0", True)
        assert answer[4:6] == b"\0\0", answer
        at, ids = 8, []
        for _ in range(answer[7] - 1):
            n = answer[at] - 1
            ids.append(answer[at + 1:at + 1 + n].decode())
            at += 1 + n + 8
            at += answer[at] + 1
        return ids

    def become_producer(self, transactional_id):
        answer = self.ask(INIT_PRODUCER_ID, text(transactional_id) + struct.pack(">i", 60000))
        error, producer_id, epoch = struct.unpack(">hqh", answer[4:16])
        assert error == 0, error
        return producer_id, epoch

    def produce(self, transactional_id, producer, record):
        batch = DefaultRecordBatchBuilder(2, 0, True, *producer, 0, 1 << 20)
        batch.append(0, 1, record["key"].encode(), record["payload"].encode(), [])
        data = bytes(batch.build())
        answer = self.ask(PRODUCE, text(transactional_id) + struct.pack(">hii", -1, 30000, 1) +
                          text(record["topic"]) +
                          struct.pack(">iii", 1, record["partition"], len(data)) + data)
        error, = struct.unpack(">h", answer[4 + 2 + len(record["topic"]) + 4 + 4:][:2])
        assert error == 0, f"the broker does not take records of no transaction: {error}"

    def send_offset(self, transactional_id, producer, group, topic, offset):
        """Of partition 0."""
        answer = self.ask(TXN_OFFSET_COMMIT, text(transactional_id) + text(group) +
                          struct.pack(">qhi", *producer, 1) + text(topic) +
                          struct.pack(">iiqih", 1, 0, offset, -1, -1))
        assert answer[-2:] == b"\0\0", answer


def leave_open(rig, worker_id, with_offset):
    """The first visible result once more, in a transaction that nobody has begun; and that a
    partition's jobs are answered that are still to come."""
    path = f"{rig.folder}/visible"
    rigs.read_topic(rig.broker, rig.results, "read_committed", path)
    with open(path, encoding="utf-8") as lines:
        record = json.loads(next(lines))
    wire = Wire(rig.broker)
    producer = wire.become_producer(worker_id)
    wire.produce(worker_id, producer, record)
    if with_offset:
        wire.send_offset(worker_id, producer, rig.topic, rig.topic, 1000)


def worker_id_of(rig):
    ids = [name for name in Wire(rig.broker).transactional_ids() if rig.topic in name]
    assert len(ids) == 1, ids
    return ids[0]


def play(args, off):
    """-> the findings. With an open offset, a worker without the guard waits for its end."""
    with rigs.open_rig(args, "open-records") as rig:
        worker = rig.worker("worker")
        rig.feeder.feed(rigs.make_jobs(8, args.draw))
        worker.run_dry()
        leave_open(rig, worker_id_of(rig), not off)
        rig.feeder.feed(rigs.make_jobs(16, args.draw, 8))
        worker.run_dry(guards_off=off)
        found, _ = rig.judge()
        found.has_spoken = rigs.log_has(worker, "records before offset")
    rigs.end_history(rig, True)
    return found


def main():
    args = rigs.parse(rigs.parser_of(__doc__))
    found = play(args, "")
    without = play(args, "undecided")
    print(f"with the guard: {rigs.summary(found)}; without: {rigs.summary(without)}")
    is_good = found.is_clean() and found.has_spoken and without.count("doubled") == 1
    sys.exit(0 if is_good else 1)


if __name__ == "__main__":
    main()
