-- Schema 1. Durations are integers in microseconds, dates are Unix seconds, text is UTF-8.
-- The views in views.sql are the stable way to read; tables may change between versions.
-- Columns named _json hold valid JSON or NULL: the inserting statements see to it, for SQLite
-- 3.40 has no json_valid() in a CHECK while trusted_schema is off.

CREATE TABLE meta (
    key   TEXT PRIMARY KEY NOT NULL,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE runs (
    run_id       TEXT PRIMARY KEY NOT NULL,
    label        TEXT,
    model        TEXT NOT NULL,
    model_sha256 TEXT NOT NULL,
    quant        TEXT NOT NULL,
    kernels      TEXT NOT NULL,
    engine_json  TEXT NOT NULL,
    version      TEXT NOT NULL,
    status       TEXT NOT NULL DEFAULT 'in_progress'
                 CHECK (status IN ('in_progress', 'completed', 'cancelled', 'failed')),
    started_at   REAL NOT NULL,
    ended_at     REAL,
    starts       INTEGER NOT NULL DEFAULT 1 -- more than 1: the run was resumed
) STRICT, WITHOUT ROWID;

-- A row per answered job. Its source is the Kafka record, or for a file: topic = path,
-- partition = 0, offset = line number.
CREATE TABLE jobs (
    job_id            INTEGER PRIMARY KEY,
    run_id            TEXT NOT NULL REFERENCES runs (run_id),
    custom_id         TEXT NOT NULL,
    topic             TEXT NOT NULL,
    partition         INTEGER NOT NULL,
    offset            INTEGER NOT NULL,
    is_file           INTEGER NOT NULL CHECK (is_file IN (0, 1)),
    -- 0: the offset was used again by another payload (topic made anew), in a later run.
    is_current        INTEGER NOT NULL DEFAULT 1 CHECK (is_current IN (0, 1)),
    payload_sha256    TEXT NOT NULL CHECK (length(payload_sha256) = 64),
    attempt           INTEGER NOT NULL DEFAULT 1, -- answers this run gave to this source
    result_id         TEXT NOT NULL,
    worker_id         TEXT,
    dialect           TEXT NOT NULL
                      CHECK (dialect IN ('native', 'openai-chat', 'openai-completion')),
    model             TEXT,
    prefix_group      TEXT,
    status            TEXT NOT NULL
                      CHECK (status IN ('succeeded', 'failed', 'expired', 'cancelled')),
    finish_reason     TEXT,
    stop_reason       TEXT,
    error_status      INTEGER,
    error_code        TEXT,
    error_type        TEXT,
    error_param       TEXT,
    error_message     TEXT,
    warnings          TEXT,
    metadata_json     TEXT,
    submitted_at      REAL,
    admitted_at       REAL,
    finished_at       REAL NOT NULL,
    stored_at         REAL NOT NULL,
    queue_us          INTEGER CHECK (queue_us >= 0),
    group_wait_us     INTEGER CHECK (group_wait_us >= 0),
    prefill_us        INTEGER CHECK (prefill_us >= 0),
    ttft_us           INTEGER CHECK (ttft_us >= 0),
    decode_us         INTEGER CHECK (decode_us >= 0),
    e2e_us            INTEGER CHECK (e2e_us >= 0),
    gap_us_max        INTEGER CHECK (gap_us_max >= 0),
    turnaround_us     INTEGER CHECK (turnaround_us >= 0), -- submitted to stored
    tpot_us           INTEGER GENERATED ALWAYS AS (
                          CASE WHEN completion_tokens >= 2
                               THEN decode_us / (completion_tokens - 1) END) VIRTUAL,
    prompt_tokens     INTEGER NOT NULL CHECK (prompt_tokens >= 0),
    cached_tokens     INTEGER NOT NULL CHECK (cached_tokens >= 0),
    computed_tokens   INTEGER NOT NULL CHECK (computed_tokens >= 0),
    completion_tokens INTEGER NOT NULL CHECK (completion_tokens >= 0),
    draft_tokens      INTEGER NOT NULL CHECK (draft_tokens >= 0),
    accepted_tokens   INTEGER NOT NULL CHECK (accepted_tokens >= 0),
    engine_steps      INTEGER NOT NULL CHECK (engine_steps >= 0),
    prefill_chunks    INTEGER NOT NULL CHECK (prefill_chunks >= 0),
    preemptions       INTEGER NOT NULL CHECK (preemptions >= 0),
    kv_pages_peak     INTEGER NOT NULL CHECK (kv_pages_peak >= 0),
    CONSTRAINT prompt_is_cached_plus_computed
        CHECK (status <> 'succeeded' OR prompt_tokens = cached_tokens + computed_tokens),
    CONSTRAINT accepted_at_most_drafted CHECK (accepted_tokens <= draft_tokens),
    CONSTRAINT ttft_is_wait_plus_prefill
        CHECK (status <> 'succeeded' OR ttft_us = group_wait_us + prefill_us),
    CONSTRAINT e2e_is_ttft_plus_decode
        CHECK (status <> 'succeeded' OR e2e_us = ttft_us + decode_us),
    CONSTRAINT failure_has_a_code CHECK ((status = 'succeeded') = (error_code IS NULL))
) STRICT;

-- A record of a topic is answered once in a database, a line of a file once in a run.
CREATE UNIQUE INDEX jobs_by_record ON jobs (topic, partition, offset)
    WHERE is_file = 0 AND is_current = 1;
CREATE UNIQUE INDEX jobs_by_line ON jobs (run_id, topic, partition, offset)
    WHERE is_file = 1 AND is_current = 1;
CREATE INDEX jobs_by_run ON jobs (run_id, status);
CREATE INDEX jobs_by_custom_id ON jobs (custom_id);
CREATE INDEX jobs_not_succeeded ON jobs (run_id, error_code) WHERE status <> 'succeeded';

CREATE TABLE outputs (
    job_id      INTEGER PRIMARY KEY REFERENCES jobs (job_id) ON DELETE CASCADE,
    question    TEXT, -- the last user message or the prompt, its first 2,000 bytes at most
    text        TEXT, -- the answer; NULL: none was made
    expect_json TEXT
) STRICT;

-- The documents that a job named, without their text.
CREATE TABLE job_documents (
    job_id   INTEGER NOT NULL REFERENCES jobs (job_id) ON DELETE CASCADE,
    position INTEGER NOT NULL,
    doc_id   TEXT,
    title    TEXT,
    bytes    INTEGER NOT NULL,
    PRIMARY KEY (job_id, position)
) STRICT, WITHOUT ROWID;
CREATE INDEX job_documents_by_doc ON job_documents (doc_id) WHERE doc_id IS NOT NULL;

-- The result lines, and which of them were handed over (produced and acknowledged, or written
-- to the output file and synced).
CREATE TABLE outbox (
    job_id       INTEGER PRIMARY KEY REFERENCES jobs (job_id) ON DELETE CASCADE,
    line         TEXT NOT NULL,
    published_at REAL
) STRICT;
CREATE INDEX outbox_unpublished ON outbox (job_id) WHERE published_at IS NULL;

-- How far the output file of a run over an input file is known to be good.
CREATE TABLE sinks (
    run_id   TEXT NOT NULL REFERENCES runs (run_id),
    topic    TEXT NOT NULL,
    path     TEXT NOT NULL,
    bytes    INTEGER NOT NULL CHECK (bytes >= 0),
    is_stale INTEGER NOT NULL DEFAULT 0 CHECK (is_stale IN (0, 1)),
    PRIMARY KEY (run_id, topic)
) STRICT, WITHOUT ROWID;
