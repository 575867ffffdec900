-- Schema 4: what the drafts of each job brought and took, and speculation among the levers.

-- Draft figures of jobs of earlier schemas are not known.
ALTER TABLE jobs ADD COLUMN draft_steps INTEGER CHECK (draft_steps >= 0);
ALTER TABLE jobs ADD COLUMN draft_us INTEGER CHECK (draft_us >= 0);
ALTER TABLE jobs ADD COLUMN verify_us INTEGER CHECK (verify_us >= 0);
ALTER TABLE jobs ADD COLUMN expected_us INTEGER CHECK (expected_us >= 0);
ALTER TABLE jobs ADD COLUMN expected_tokens REAL CHECK (expected_tokens >= 0);

-- Tokens that steps verified, by who drafted them and how far behind the answer's last token
-- they stood; what several sources drafted counts for each of them, and once for source 'all'.
CREATE TABLE job_drafts (
    job_id   INTEGER NOT NULL REFERENCES jobs (job_id) ON DELETE CASCADE,
    source   TEXT NOT NULL,
    depth    INTEGER NOT NULL CHECK (depth >= 1), -- 16: and all that is deeper
    drafted  INTEGER NOT NULL CHECK (drafted >= 1),
    accepted INTEGER NOT NULL CHECK (accepted BETWEEN 0 AND drafted),
    PRIMARY KEY (job_id, source, depth)
) STRICT, WITHOUT ROWID;

-- A CHECK can only be changed with its table. Renaming looks through all views, and the one on
-- this table would name what is not there; the views are made anew afterwards.
DROP VIEW IF EXISTS v_ab;
DELETE FROM meta WHERE key = 'views';
CREATE TABLE experiments_new (
    row_id               INTEGER PRIMARY KEY,
    experiment_id        TEXT NOT NULL,
    lever                TEXT NOT NULL CHECK (lever IN ('prefix_cache', 'grouping',
                             'chunked_prefill', 'shared_attention', 'speculation')),
    name                 TEXT NOT NULL, -- of the ready experiment, or the job file
    job_kind             TEXT NOT NULL DEFAULT 'all', -- kinds of jobs are measured apart
    repeat               INTEGER NOT NULL CHECK (repeat >= 0),
    position             INTEGER NOT NULL CHECK (position >= 0), -- in the order of measuring
    lever_on             INTEGER NOT NULL CHECK (lever_on IN (0, 1)),
    started_at           REAL NOT NULL,
    cpu                  TEXT NOT NULL,
    kernels              TEXT NOT NULL,
    model                TEXT NOT NULL,
    model_sha256         TEXT NOT NULL,
    quant                TEXT NOT NULL,
    version              TEXT NOT NULL,
    settings_json        TEXT NOT NULL,
    cores                INTEGER NOT NULL CHECK (cores >= 1),
    concurrency          INTEGER NOT NULL CHECK (concurrency >= 1),
    step_tokens          INTEGER NOT NULL,
    chunk_tokens         INTEGER NOT NULL,
    jobs                 INTEGER NOT NULL, -- answered
    refused              INTEGER NOT NULL, -- bad lines, and prompts that the engine refused
    prompt_tokens        INTEGER NOT NULL,
    cached_tokens        INTEGER NOT NULL,
    completion_tokens    INTEGER NOT NULL,
    prompt_tokens_p50    INTEGER,
    prompt_tokens_max    INTEGER,
    memory_peak_bytes    INTEGER,
    decode_rows          INTEGER,
    draft_tokens         INTEGER,
    accepted_tokens      INTEGER,
    hit_ratio            REAL,
    wall_s               REAL NOT NULL,
    prefill_s            REAL NOT NULL,
    decode_s             REAL,
    acceptance           REAL,
    tokens_per_step      REAL,
    decode_tok_s         REAL,
    completion_tok_s     REAL,
    total_tok_s          REAL,
    decode_step_ms       REAL,
    ttft_p50_ms          REAL,
    ttft_p95_ms          REAL,
    ttft_p99_ms          REAL,
    ttft_cold_p50_ms     REAL,
    ttft_cold_p95_ms     REAL,
    ttft_cold_p99_ms     REAL,
    ttft_warm_p50_ms     REAL,
    ttft_warm_p95_ms     REAL,
    ttft_warm_p99_ms     REAL,
    tpot_p50_ms          REAL,
    tpot_p95_ms          REAL,
    tpot_p99_ms          REAL,
    tpot_cold_p50_ms     REAL,
    tpot_cold_p95_ms     REAL,
    tpot_cold_p99_ms     REAL,
    tpot_warm_p50_ms     REAL,
    tpot_warm_p95_ms     REAL,
    tpot_warm_p99_ms     REAL,
    ttft_short_p50_ms    REAL,
    ttft_short_p95_ms    REAL,
    ttft_short_p99_ms    REAL,
    e2e_long_p50_ms      REAL,
    e2e_long_p95_ms      REAL,
    e2e_long_p99_ms      REAL,
    identical_share      REAL CHECK (identical_share BETWEEN 0 AND 1),
    UNIQUE (experiment_id, job_kind, position)
) STRICT;
INSERT INTO experiments_new (
    row_id, experiment_id, lever, name, repeat, position, lever_on, started_at, cpu,
    kernels, model, model_sha256, quant, version, settings_json, cores, concurrency,
    step_tokens, chunk_tokens, jobs, refused, prompt_tokens, cached_tokens,
    completion_tokens, prompt_tokens_p50, prompt_tokens_max, memory_peak_bytes,
    decode_rows, hit_ratio, wall_s, prefill_s, completion_tok_s, total_tok_s,
    decode_step_ms, ttft_p50_ms, ttft_p95_ms, ttft_p99_ms, ttft_cold_p50_ms,
    ttft_cold_p95_ms, ttft_cold_p99_ms, ttft_warm_p50_ms, ttft_warm_p95_ms,
    ttft_warm_p99_ms, tpot_p50_ms, tpot_p95_ms, tpot_p99_ms, tpot_cold_p50_ms,
    tpot_cold_p95_ms, tpot_cold_p99_ms, tpot_warm_p50_ms, tpot_warm_p95_ms,
    tpot_warm_p99_ms, ttft_short_p50_ms, ttft_short_p95_ms, ttft_short_p99_ms,
    e2e_long_p50_ms, e2e_long_p95_ms, e2e_long_p99_ms, identical_share)
SELECT
    row_id, experiment_id, lever, name, repeat, position, lever_on, started_at, cpu,
    kernels, model, model_sha256, quant, version, settings_json, cores, concurrency,
    step_tokens, chunk_tokens, jobs, refused, prompt_tokens, cached_tokens,
    completion_tokens, prompt_tokens_p50, prompt_tokens_max, memory_peak_bytes,
    decode_rows, hit_ratio, wall_s, prefill_s, completion_tok_s, total_tok_s,
    decode_step_ms, ttft_p50_ms, ttft_p95_ms, ttft_p99_ms, ttft_cold_p50_ms,
    ttft_cold_p95_ms, ttft_cold_p99_ms, ttft_warm_p50_ms, ttft_warm_p95_ms,
    ttft_warm_p99_ms, tpot_p50_ms, tpot_p95_ms, tpot_p99_ms, tpot_cold_p50_ms,
    tpot_cold_p95_ms, tpot_cold_p99_ms, tpot_warm_p50_ms, tpot_warm_p95_ms,
    tpot_warm_p99_ms, ttft_short_p50_ms, ttft_short_p95_ms, ttft_short_p99_ms,
    e2e_long_p50_ms, e2e_long_p95_ms, e2e_long_p99_ms, identical_share
FROM experiments;
DROP TABLE experiments;
ALTER TABLE experiments_new RENAME TO experiments;
