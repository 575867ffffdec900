-- Questions people ask a Sheaf database: sqlite3 -box run.db < ops/queries.sql
-- Durations are in milliseconds, dates in Unix seconds. :run and :id are parameters; in the
-- sqlite3 shell: .parameter set :run "'my-run'". Left unset, :run is the run begun last.

-- The runs, newest first
SELECT run_id, status, jobs, succeeded, failed, round(jobs_s, 2) AS jobs_s,
       round(completion_tok_s, 1) AS tok_s, datetime(started_at, 'unixepoch') AS started
FROM v_runs ORDER BY started_at DESC;

-- Latency percentiles of a run
SELECT metric, n, round(mean_ms, 1) AS mean_ms, p50_ms, p95_ms, p99_ms, max_ms
FROM v_latency
WHERE run_id = coalesce(:run, (SELECT run_id FROM runs ORDER BY started_at DESC LIMIT 1));

-- Which jobs failed and why, grouped
SELECT run_id, error_code, count, example_id, example_message FROM v_failures;

-- Each failed job with its line
SELECT custom_id, topic, offset, error_code, error_param, error_message
FROM v_jobs WHERE status <> 'succeeded' ORDER BY run_id, topic, offset;

-- The slowest jobs of a run
SELECT rank, custom_id, e2e_ms, ttft_ms, prompt_tokens, completion_tokens
FROM v_slowest
WHERE run_id = coalesce(:run, (SELECT run_id FROM runs ORDER BY started_at DESC LIMIT 1));

-- What was the answer to one job?
SELECT run_id, question, answer, finish_reason, e2e_ms FROM v_jobs WHERE custom_id = :id;

-- Tokens per second over time
SELECT datetime(time, 'unixepoch') AS time, jobs, prompt_tok_s, completion_tok_s
FROM v_throughput ORDER BY run_id, time;

-- How answers ended
SELECT run_id, finish_reason, stop_reason, count(*) AS jobs,
       round(avg(completion_tokens), 1) AS mean_tokens
FROM v_jobs WHERE status = 'succeeded' GROUP BY 1, 2, 3 ORDER BY jobs DESC;

-- Answers that rest on each document
SELECT d.doc_id, count(*) AS jobs, sum(j.prompt_tokens) AS prompt_tokens,
       round(avg(j.e2e_ms), 1) AS mean_e2e_ms
FROM job_documents d JOIN v_jobs j ON j.job_id = d.job_id
WHERE d.doc_id IS NOT NULL GROUP BY d.doc_id ORDER BY jobs DESC;

-- Two runs side by side: the same job, another answer?
SELECT a.custom_id, a.run_id AS run_a, b.run_id AS run_b, a.e2e_ms AS ms_a, b.e2e_ms AS ms_b,
       a.answer IS b.answer AS same_answer
FROM v_jobs a JOIN v_jobs b ON b.custom_id = a.custom_id AND b.run_id > a.run_id
ORDER BY a.custom_id;

-- Answers stored and not yet handed over
SELECT run_id, custom_id, topic, partition, offset FROM v_jobs WHERE published_at IS NULL;

-- What each group of jobs shared, the largest first
SELECT prefix_group, jobs, prompt_tokens, cached_tokens, round(hit_ratio, 3) AS hit_ratio
FROM v_groups ORDER BY prompt_tokens DESC LIMIT 10;

-- How many drafted tokens were accepted, by who drafted them and how far ahead
SELECT run_id, source, depth, sum(drafted) AS drafted, sum(accepted) AS accepted,
       round(1.0 * sum(accepted) / sum(drafted), 3) AS acceptance
FROM v_spec GROUP BY run_id, source, depth;

-- Why prompt tokens had to be computed
SELECT run_id, miss_reason, jobs, missed_tokens FROM v_misses ORDER BY missed_tokens DESC;
