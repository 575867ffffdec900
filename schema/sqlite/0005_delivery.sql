-- Schema 5: what became of stored answers, which jobs were in work when a worker died, what a
-- topic lost before it was read, and how far a result topic was read into this database.

-- A burst with this answer was begun, and is not known to have failed.
ALTER TABLE outbox ADD COLUMN offered_at REAL;
-- The job was settled by another worker's answer; this one is never published.
ALTER TABLE outbox ADD COLUMN superseded_at REAL;

-- Jobs that were being computed when their worker ended without saying so. A row goes when its
-- job is answered.
CREATE TABLE crashes (
    topic          TEXT NOT NULL,
    partition      INTEGER NOT NULL,
    offset         INTEGER NOT NULL,
    payload_sha256 TEXT NOT NULL CHECK (length(payload_sha256) = 64),
    strikes        INTEGER NOT NULL CHECK (strikes >= 0), -- the worker crashed or hung by itself
    deaths         INTEGER NOT NULL CHECK (deaths >= 0),  -- it was killed, or nobody knows
    seen_at        REAL NOT NULL, -- the last time
    PRIMARY KEY (topic, partition, offset, payload_sha256)
) STRICT, WITHOUT ROWID;

-- Offsets that were in a job topic and could never be read.
CREATE TABLE lost_ranges (
    lost_id      INTEGER PRIMARY KEY,
    topic        TEXT NOT NULL,
    partition    INTEGER NOT NULL,
    first_offset INTEGER NOT NULL,
    last_offset  INTEGER NOT NULL CHECK (last_offset >= first_offset),
    reason       TEXT NOT NULL CHECK (reason IN ('retention', 'topic_recreated')),
    detected_at  REAL NOT NULL
) STRICT;

-- The next offset of a result topic to be read into this database; it changes in the
-- transaction that stores what was read.
CREATE TABLE result_offsets (
    topic       TEXT NOT NULL,
    partition   INTEGER NOT NULL,
    next_offset INTEGER NOT NULL CHECK (next_offset >= 0),
    updated_at  REAL NOT NULL,
    PRIMARY KEY (topic, partition)
) STRICT, WITHOUT ROWID;
