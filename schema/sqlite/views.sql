-- The stable reading interface: milliseconds, ratios, ready-made columns. Made anew whenever
-- this text changes. Percentiles are nearest-rank over succeeded jobs: the value of rank
-- (n * p + 99) / 100 in integers; worker/report/percentile.c is the same rule in C.

DROP VIEW IF EXISTS v_jobs;
CREATE VIEW v_jobs AS
SELECT j.job_id, j.run_id, j.custom_id, j.status, j.finish_reason, j.stop_reason,
       o.question, o.text AS answer, o.expect_json,
       j.error_code, j.error_message, j.error_param, j.error_status, j.warnings,
       j.queue_us / 1000.0 AS queue_ms,
       j.group_wait_us / 1000.0 AS group_wait_ms,
       j.prefill_us / 1000.0 AS prefill_ms,
       j.ttft_us / 1000.0 AS ttft_ms,
       j.tpot_us / 1000.0 AS tpot_ms,
       j.decode_us / 1000.0 AS decode_ms,
       j.e2e_us / 1000.0 AS e2e_ms,
       j.gap_us_max / 1000.0 AS gap_ms_max,
       j.turnaround_us / 1000.0 AS turnaround_ms,
       j.prompt_tokens, j.cached_tokens, j.computed_tokens, j.completion_tokens,
       j.draft_tokens, j.accepted_tokens, j.engine_steps, j.prefill_chunks, j.preemptions,
       j.kv_pages_peak, j.miss_reason, j.miss_at, j.group_jobs, j.shared_tokens,
       j.draft_steps, j.draft_us / 1000.0 AS draft_ms, j.verify_us / 1000.0 AS verify_ms,
       CASE WHEN j.engine_steps > j.prefill_chunks AND j.completion_tokens >= 2
            THEN 1.0 * (j.completion_tokens - 1) / (j.engine_steps - j.prefill_chunks) END
           AS tokens_per_step,
       CASE WHEN j.draft_tokens > 0
            THEN 1.0 * j.accepted_tokens / j.draft_tokens END AS acceptance,
       CASE WHEN j.expected_us > 0
            THEN (j.draft_steps + j.expected_tokens) * 1e6 / j.expected_us END
           AS expected_tok_s,
       CASE WHEN j.verify_us > 0
            THEN (j.draft_steps + j.accepted_tokens) * 1e6 / j.verify_us END AS realised_tok_s,
       CASE WHEN j.decode_us > 0 AND j.completion_tokens >= 2
            THEN (j.completion_tokens - 1) * 1e6 / j.decode_us END AS decode_tok_s,
       CASE WHEN j.prompt_tokens > 0
            THEN 1.0 * j.cached_tokens / j.prompt_tokens END AS hit_ratio,
       j.dialect, j.model, j.prefix_group, j.worker_id, j.attempt, j.result_id,
       j.metadata_json, j.topic, j.partition, j.offset, j.is_file, j.payload_sha256,
       j.submitted_at, j.admitted_at, j.finished_at, j.stored_at, b.published_at,
       b.superseded_at,
       j.finished_at AS time
FROM jobs j
LEFT JOIN outputs o ON o.job_id = j.job_id
LEFT JOIN outbox b ON b.job_id = j.job_id;

DROP VIEW IF EXISTS v_runs;
CREATE VIEW v_runs AS
WITH sums AS (
    SELECT run_id,
           count(*) AS jobs,
           sum(status = 'succeeded') AS succeeded,
           sum(status = 'failed') AS failed,
           sum(status = 'expired') AS expired,
           sum(status = 'cancelled') AS cancelled,
           sum(prompt_tokens) AS prompt_tokens,
           sum(cached_tokens) AS cached_tokens,
           sum(computed_tokens) AS computed_tokens,
           sum(completion_tokens) AS completion_tokens,
           sum(draft_tokens) AS draft_tokens,
           sum(accepted_tokens) AS accepted_tokens,
           sum(CASE WHEN status = 'succeeded' THEN completion_tokens - 1 END) AS decoded_tokens,
           sum(CASE WHEN status = 'succeeded' THEN engine_steps - prefill_chunks END)
               AS decode_steps,
           sum(draft_steps) AS draft_steps,
           sum(draft_us) AS draft_us,
           sum(verify_us) AS verify_us,
           sum(expected_us) AS expected_us,
           sum(expected_tokens) AS expected_tokens,
           max(finished_at) - min(admitted_at) AS busy_s
    FROM jobs GROUP BY run_id
), waiting AS (
    SELECT j.run_id, sum(b.superseded_at IS NULL) AS unpublished,
           sum(b.superseded_at IS NOT NULL) AS superseded
    FROM outbox b JOIN jobs j ON j.job_id = b.job_id
    WHERE b.published_at IS NULL GROUP BY j.run_id
)
SELECT r.run_id, r.label, r.status, r.model, r.quant, r.kernels,
       coalesce(s.jobs, 0) AS jobs,
       coalesce(s.succeeded, 0) AS succeeded,
       coalesce(s.failed, 0) AS failed,
       coalesce(s.expired, 0) AS expired,
       coalesce(s.cancelled, 0) AS cancelled,
       coalesce(w.unpublished, 0) AS unpublished,
       coalesce(w.superseded, 0) AS superseded,
       coalesce(s.prompt_tokens, 0) AS prompt_tokens,
       coalesce(s.cached_tokens, 0) AS cached_tokens,
       coalesce(s.computed_tokens, 0) AS computed_tokens,
       coalesce(s.completion_tokens, 0) AS completion_tokens,
       coalesce(s.draft_tokens, 0) AS draft_tokens,
       coalesce(s.accepted_tokens, 0) AS accepted_tokens,
       s.busy_s,
       CASE WHEN s.busy_s > 0 THEN s.jobs / s.busy_s END AS jobs_s,
       CASE WHEN s.busy_s > 0 THEN s.completion_tokens / s.busy_s END AS completion_tok_s,
       CASE WHEN s.busy_s > 0 THEN s.prompt_tokens / s.busy_s END AS prompt_tok_s,
       CASE WHEN s.prompt_tokens > 0
            THEN 1.0 * s.cached_tokens / s.prompt_tokens END AS hit_ratio,
       CASE WHEN s.decode_steps > 0
            THEN 1.0 * s.decoded_tokens / s.decode_steps END AS tokens_per_step,
       s.draft_steps, s.draft_us / 1000.0 AS draft_ms, s.verify_us / 1000.0 AS verify_ms,
       CASE WHEN s.draft_tokens > 0
            THEN 1.0 * s.accepted_tokens / s.draft_tokens END AS acceptance,
       CASE WHEN s.expected_us > 0
            THEN (s.draft_steps + s.expected_tokens) * 1e6 / s.expected_us END
           AS expected_tok_s,
       CASE WHEN s.verify_us > 0
            THEN (s.draft_steps + s.accepted_tokens) * 1e6 / s.verify_us END AS realised_tok_s,
       r.started_at, r.ended_at, r.starts, r.version, r.model_sha256, r.engine_json,
       r.counters_json,
       r.started_at AS time
FROM runs r
LEFT JOIN sums s ON s.run_id = r.run_id
LEFT JOIN waiting w ON w.run_id = r.run_id;

DROP VIEW IF EXISTS v_latency;
CREATE VIEW v_latency AS
WITH samples (run_id, position, metric, us) AS (
    SELECT run_id, 1, 'queue', queue_us FROM jobs WHERE status = 'succeeded'
    UNION ALL
    SELECT run_id, 2, 'group_wait', group_wait_us FROM jobs WHERE status = 'succeeded'
    UNION ALL
    SELECT run_id, 3, 'prefill', prefill_us FROM jobs WHERE status = 'succeeded'
    UNION ALL
    SELECT run_id, 4, 'ttft', ttft_us FROM jobs WHERE status = 'succeeded'
    UNION ALL
    SELECT run_id, 5, 'tpot', tpot_us FROM jobs WHERE status = 'succeeded'
    UNION ALL
    SELECT run_id, 6, 'decode', decode_us FROM jobs WHERE status = 'succeeded'
    UNION ALL
    SELECT run_id, 7, 'e2e', e2e_us FROM jobs WHERE status = 'succeeded'
    UNION ALL
    SELECT run_id, 8, 'turnaround', turnaround_us FROM jobs WHERE status = 'succeeded'
), ranked AS (
    SELECT run_id, position, metric, us,
           row_number() OVER (PARTITION BY run_id, position ORDER BY us) AS rn,
           count(*) OVER (PARTITION BY run_id, position) AS n
    FROM samples WHERE us IS NOT NULL
)
SELECT run_id, metric, n, avg(us) / 1000.0 AS mean_ms,
       max(CASE WHEN rn = (n * 50 + 99) / 100 THEN us END) / 1000.0 AS p50_ms,
       max(CASE WHEN rn = (n * 90 + 99) / 100 THEN us END) / 1000.0 AS p90_ms,
       max(CASE WHEN rn = (n * 95 + 99) / 100 THEN us END) / 1000.0 AS p95_ms,
       max(CASE WHEN rn = (n * 99 + 99) / 100 THEN us END) / 1000.0 AS p99_ms,
       max(us) / 1000.0 AS max_ms,
       position
FROM ranked GROUP BY run_id, position ORDER BY run_id, position;

DROP VIEW IF EXISTS v_failures;
CREATE VIEW v_failures AS
SELECT run_id, status, error_code, count(*) AS count, min(job_id) AS example_job_id,
       custom_id AS example_id, error_message AS example_message -- of that row, as SQLite does
FROM jobs WHERE status <> 'succeeded'
GROUP BY run_id, status, error_code ORDER BY count(*) DESC;

DROP VIEW IF EXISTS v_slowest;
CREATE VIEW v_slowest AS
SELECT run_id, rank, custom_id, e2e_us / 1000.0 AS e2e_ms, ttft_us / 1000.0 AS ttft_ms,
       tpot_us / 1000.0 AS tpot_ms, prompt_tokens, completion_tokens, finish_reason
FROM (SELECT *, row_number() OVER (PARTITION BY run_id ORDER BY e2e_us DESC, job_id) AS rank
      FROM jobs WHERE status = 'succeeded')
WHERE rank <= 20;

-- What was finished in each ten seconds, counted when a job finished.
DROP VIEW IF EXISTS v_throughput;
CREATE VIEW v_throughput AS
SELECT run_id, CAST(finished_at / 10 AS INTEGER) * 10 AS time, count(*) AS jobs,
       sum(prompt_tokens) AS prompt_tokens, sum(completion_tokens) AS completion_tokens,
       sum(prompt_tokens) / 10.0 AS prompt_tok_s,
       sum(completion_tokens) / 10.0 AS completion_tok_s
FROM jobs GROUP BY run_id, CAST(finished_at / 10 AS INTEGER);

-- What the prefix cache did for each group of jobs that start with the same messages or
-- documents.
DROP VIEW IF EXISTS v_groups;
CREATE VIEW v_groups AS
SELECT run_id, prefix_group, count(*) AS jobs, sum(prompt_tokens) AS prompt_tokens,
       sum(cached_tokens) AS cached_tokens, sum(computed_tokens) AS computed_tokens,
       CASE WHEN sum(prompt_tokens) > 0
            THEN 1.0 * sum(cached_tokens) / sum(prompt_tokens) END AS hit_ratio,
       avg(ttft_us) / 1000.0 AS mean_ttft_ms,
       min(finished_at) AS first_finished_at, max(finished_at) AS last_finished_at,
       min(finished_at) AS time
FROM jobs WHERE status = 'succeeded' AND prefix_group IS NOT NULL
GROUP BY run_id, prefix_group;

-- The same for each document; a job that names a document twice counts once.
DROP VIEW IF EXISTS v_doc_hits;
CREATE VIEW v_doc_hits AS
SELECT j.run_id, d.doc_id, count(*) AS jobs, sum(j.prompt_tokens) AS prompt_tokens,
       sum(j.cached_tokens) AS cached_tokens,
       CASE WHEN sum(j.prompt_tokens) > 0
            THEN 1.0 * sum(j.cached_tokens) / sum(j.prompt_tokens) END AS hit_ratio
FROM (SELECT DISTINCT job_id, doc_id FROM job_documents WHERE doc_id IS NOT NULL) d
JOIN jobs j ON j.job_id = d.job_id
WHERE j.status = 'succeeded'
GROUP BY j.run_id, d.doc_id;

-- Why prompt tokens were computed; the last token of a prompt always is.
DROP VIEW IF EXISTS v_misses;
CREATE VIEW v_misses AS
SELECT run_id, miss_reason, count(*) AS jobs, sum(computed_tokens) AS missed_tokens
FROM jobs WHERE status = 'succeeded' AND miss_reason IS NOT NULL
GROUP BY run_id, miss_reason;

-- What speculation drafted for each job, by source and by depth: how far behind the last token
-- of the answer. A token that several sources drafted counts for each of them, and once for
-- source 'all'. tokens_per_step is the whole job's.
DROP VIEW IF EXISTS v_spec;
CREATE VIEW v_spec AS
SELECT j.run_id, d.job_id, j.custom_id, d.source, d.depth, d.drafted, d.accepted,
       1.0 * d.accepted / d.drafted AS acceptance,
       CASE WHEN j.engine_steps > j.prefill_chunks AND j.completion_tokens >= 2
            THEN 1.0 * (j.completion_tokens - 1) / (j.engine_steps - j.prefill_chunks) END
           AS tokens_per_step
FROM job_drafts d JOIN jobs j ON j.job_id = d.job_id;

-- Levers on and off side by side, a row for each metric: medians by nearest rank; ratio: how many
-- times better it is with the lever on (the greater hit ratio or speed, the smaller anything
-- else); spread: (greatest - smallest) / median, of the worse half.
DROP VIEW IF EXISTS v_ab;
CREATE VIEW v_ab AS
WITH metrics (position, metric, more_is_better) AS (
    VALUES
        (1, 'wall_s', 0),
        (2, 'prefill_s', 0),
        (3, 'total_tok_s', 1),
        (4, 'completion_tok_s', 1),
        (5, 'hit_ratio', 1),
        (6, 'ttft_p50_ms', 0),
        (7, 'ttft_p95_ms', 0),
        (8, 'ttft_cold_p50_ms', 0),
        (9, 'ttft_warm_p50_ms', 0),
        (10, 'ttft_warm_p95_ms', 0),
        (11, 'ttft_short_p95_ms', 0),
        (12, 'e2e_long_p50_ms', 0),
        (13, 'tpot_p50_ms', 0),
        (14, 'tpot_p95_ms', 0),
        (15, 'decode_step_ms', 0),
        (16, 'memory_peak_bytes', 0),
        (17, 'decode_tok_s', 1),
        (18, 'tokens_per_step', 1),
        (19, 'acceptance', 1)
), samples AS (
    SELECT experiment_id, lever, name, job_kind, step_tokens, chunk_tokens, lever_on,
           m.position, m.metric, m.more_is_better,
           CASE m.metric
           WHEN 'wall_s' THEN wall_s
           WHEN 'prefill_s' THEN prefill_s
           WHEN 'total_tok_s' THEN total_tok_s
           WHEN 'completion_tok_s' THEN completion_tok_s
           WHEN 'hit_ratio' THEN hit_ratio
           WHEN 'ttft_p50_ms' THEN ttft_p50_ms
           WHEN 'ttft_p95_ms' THEN ttft_p95_ms
           WHEN 'ttft_cold_p50_ms' THEN ttft_cold_p50_ms
           WHEN 'ttft_warm_p50_ms' THEN ttft_warm_p50_ms
           WHEN 'ttft_warm_p95_ms' THEN ttft_warm_p95_ms
           WHEN 'ttft_short_p95_ms' THEN ttft_short_p95_ms
           WHEN 'e2e_long_p50_ms' THEN e2e_long_p50_ms
           WHEN 'tpot_p50_ms' THEN tpot_p50_ms
           WHEN 'tpot_p95_ms' THEN tpot_p95_ms
           WHEN 'decode_step_ms' THEN decode_step_ms
           WHEN 'memory_peak_bytes' THEN memory_peak_bytes
           WHEN 'decode_tok_s' THEN decode_tok_s
           WHEN 'tokens_per_step' THEN CASE lever WHEN 'speculation' THEN tokens_per_step END
           WHEN 'acceptance' THEN acceptance
           END AS value
    FROM experiments, metrics m
), ranked AS (
    SELECT *,
           row_number() OVER (PARTITION BY experiment_id, lever, job_kind, step_tokens,
                              chunk_tokens, position, lever_on ORDER BY value) AS rn,
           count(*) OVER (PARTITION BY experiment_id, lever, job_kind, step_tokens,
                          chunk_tokens, position, lever_on) AS n
    FROM samples WHERE value IS NOT NULL
), halves AS (
    SELECT experiment_id, lever, name, job_kind, step_tokens, chunk_tokens, position, metric,
           more_is_better, lever_on, n,
           max(CASE WHEN rn = (n * 50 + 99) / 100 THEN value END) AS median,
           1.0 * (max(value) - min(value)) AS width
    FROM ranked
    GROUP BY experiment_id, lever, job_kind, step_tokens, chunk_tokens, position, lever_on
), pairs AS (
    SELECT experiment_id, lever, name, job_kind, step_tokens, chunk_tokens, position, metric,
           more_is_better,
           max(CASE WHEN lever_on = 1 THEN n END) AS n_on,
           max(CASE WHEN lever_on = 0 THEN n END) AS n_off,
           max(CASE WHEN lever_on = 1 THEN median END) AS median_on,
           max(CASE WHEN lever_on = 0 THEN median END) AS median_off,
           max(width / nullif(median, 0)) AS spread
    FROM halves GROUP BY experiment_id, lever, job_kind, step_tokens, chunk_tokens, position
), identical AS (
    SELECT experiment_id, lever, job_kind, step_tokens, chunk_tokens,
           min(identical_share) AS share
    FROM experiments GROUP BY experiment_id, lever, job_kind, step_tokens, chunk_tokens
)
SELECT p.experiment_id, p.lever, p.name, p.step_tokens, p.chunk_tokens, p.metric,
       p.n_on, p.n_off, p.median_on, p.median_off,
       CASE WHEN p.more_is_better THEN 1.0 * p.median_on / nullif(p.median_off, 0)
            ELSE 1.0 * p.median_off / nullif(p.median_on, 0) END AS ratio,
       p.spread, i.share AS identical_share, p.position, p.job_kind
FROM pairs p JOIN identical i USING (experiment_id, lever, job_kind, step_tokens, chunk_tokens)
ORDER BY p.experiment_id, p.lever, p.job_kind, p.step_tokens, p.chunk_tokens, p.position;
