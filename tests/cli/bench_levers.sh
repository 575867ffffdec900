. "$CLI_TESTS/lib.sh"
levers() {
    run sheaf bench levers --chat-template chatml \
        --model "$CLI_TESTS/../golden/tiny/tiny-llama-q8_0.gguf" "$@"
}
write_jobs 5 >in.jsonl
echo '{"custom_id": "broken"' >>in.jsonl

it 'measures off and on in the order A B B A, a row for each half'
levers --lever prefix_cache -i in.jsonl --repeats 2 --db a.db
code_is 0
out_has '^wall_s .*100\.0%'
sql a.db "SELECT group_concat(position || lever_on || repeat, ' ') FROM
    (SELECT * FROM experiments ORDER BY position)" '000 110 211 301'
sql a.db "SELECT count(*) FROM experiments
    WHERE json_extract(settings_json, '\$.prefix_cache') = lever_on
    AND json_extract(settings_json, '\$.grouping') = 1
    AND json_extract(settings_json, '\$.\"prefix_cache.mb\"') = 0" 4

it 'measures the chunk once and keeps it for all halves'
sql a.db 'SELECT count(DISTINCT chunk_tokens), min(chunk_tokens) > 0 FROM experiments' '1|1'

it 'finds documents by reference'
mkdir folder
echo 'The mill was built in 1786 by the river.' >folder/mill.txt
echo '{"custom_id": "a", "documents": [{"ref": "mill.txt"}], "question": "When?",
    "params": {"max_tokens": 4}}' | tr -d '\n' >ref.jsonl
levers --lever prefix_cache -i ref.jsonl --repeats 1 --db ref.db --documents folder
code_is 0
sql ref.db 'SELECT DISTINCT jobs, refused FROM experiments' '1|0'

it 'counts jobs, tokens and lines that are no job'
sql a.db 'SELECT DISTINCT jobs, refused, name FROM experiments' '5|1|in.jsonl'
sql a.db 'SELECT count(*) FROM experiments WHERE completion_tokens BETWEEN 5 AND 40
    AND prompt_tokens >= 5 * prompt_tokens_p50 / 2 AND prompt_tokens_max >= prompt_tokens_p50' 4
sql a.db 'SELECT count(*) FROM experiments WHERE wall_s > 0 AND prefill_s > 0
    AND ttft_p99_ms >= ttft_p50_ms AND ttft_p50_ms > 0 AND tpot_p50_ms > 0 AND cores > 0' 4

it 'compares every half with the first'
sql a.db 'SELECT group_concat(ifnull(identical_share, "none"), " ") FROM
    (SELECT * FROM experiments ORDER BY position)' 'none 1.0 1.0 1.0'

it 'shows the medians of its own experiment and no other'
levers --lever shared_attention -i in.jsonl --repeats 1 --db a.db
code_is 0
lines_are 18 out
sql a.db 'SELECT count(DISTINCT experiment_id) FROM v_ab' 2

it 'prints JSON with pairs and halves'
levers --lever chunked_prefill -i in.jsonl --repeats 1 --db a.db --json
code_is 0
python3 - out <<'PY' || complain 'the JSON is not as it should be'
import json, sys
bench = json.load(open(sys.argv[1]))
assert [half["lever_on"] for half in bench["halves"]] == [0, 1], bench
walls = [pair for pair in bench["pairs"] if pair["metric"] == "wall_s"]
assert len(walls) == 1 and walls[0]["median_off"] == bench["halves"][0]["wall_s"], walls
assert bench["note"] is None
PY

it 'cuts an experiment to the context and says so; the first job is the cold one'
levers --lever prefix_cache --experiment prefix --repeats 1 --db b.db
code_is 0
out_has 'prefix of 418 tokens instead of 4000'
sql b.db 'SELECT DISTINCT jobs, concurrency, prompt_tokens, completion_tokens
    FROM experiments' '20|1|8960|1280'
sql b.db 'SELECT count(*) FROM experiments WHERE ttft_cold_p50_ms = ttft_cold_p99_ms
    AND ttft_warm_p50_ms > 0 AND ttft_short_p50_ms IS NULL' 2

it 'sweeps the budget of a step, and answers stay the same'
levers --lever chunked_prefill --experiment chunk --repeats 1 --sweep --db c.db
code_is 0
out_has '^ +64 +32 '
out_has '^ *2048 +1024 .*100\.0%'
sql c.db 'SELECT min(lever_on), count(*), min(jobs), min(identical_share) FROM experiments' \
    '1|6|32|1.0'
sql c.db 'SELECT count(*) FROM experiments WHERE ttft_short_p95_ms > 0
    AND e2e_long_p50_ms > 0' 6

it 'measures kinds of jobs apart and says which of them speculation pays for'
levers --lever speculation --experiment spec --repeats 1 --batch 4 --db e.db
code_is 0
out_has 'documents of [0-9]+ sections instead of 6'
out_has '^extraction +tokens_per_step'
out_has '^extraction +(pays|does not pay|repeats differ)'
out_has '^open +(pays|does not pay|repeats differ)'
sql e.db "SELECT group_concat(job_kind || position || lever_on, ' ') FROM
    (SELECT * FROM experiments ORDER BY row_id)" \
    'extraction00 fixed00 open00 extraction11 fixed11 open11'
sql e.db "SELECT DISTINCT jobs, refused, concurrency, ifnull(identical_share, 1.0)
    FROM experiments" '16|0|4|1.0'
sql e.db "SELECT DISTINCT lever_on, json_extract(settings_json, '\$.speculation')
    FROM experiments ORDER BY lever_on" '0|off
1|lookup'
sql e.db "SELECT count(*) FROM experiments WHERE lever_on = 0 AND draft_tokens = 0
    AND acceptance IS NULL AND tokens_per_step = 1 AND decode_tok_s > 0" 3
sql e.db "SELECT count(*) FROM experiments WHERE lever_on = 1 AND tokens_per_step >= 1
    AND ifnull(acceptance, 0) BETWEEN 0 AND 1" 3

it 'speculates as it is set'
levers --lever speculation -i in.jsonl --repeats 1 --db f.db --speculation all --json
code_is 0
sql f.db "SELECT json_extract(settings_json, '\$.speculation'), job_kind FROM experiments
    WHERE lever_on" 'all|all'
sql f.db "SELECT group_concat(metric, ' ') FROM v_ab WHERE metric LIKE '%_per_step'" \
    'tokens_per_step'

it 'has a judge that lets a ratio pass only when it is reached'
judge() { run python3 "$CLI_TESTS/../../ops/claims/lever_ratios.py" "$@"; }
write_jobs 5 >good.jsonl
levers --lever prefix_cache -i good.jsonl --repeats 1 --db d.db --json
cp out bench.json
judge bench.json wall_s 0.000001 total_tok_s 0.000001
code_is 0
out_has 'wall_s [0-9.]+x.*total_tok_s [0-9.]+x'
judge bench.json wall_s 0.000001 total_tok_s 1000000
code_is 1
out_has 'not 1e\+06x'
sed 's/"identical_share":1\.0/"identical_share":0.8/g' bench.json >differs.json
judge differs.json wall_s 0.000001
code_is 1
out_has 'answers differ'
sed 's/"refused":0/"refused":1/g' bench.json >refused.json
judge refused.json wall_s 0.000001
code_is 1
out_has 'refused'

it 'refuses what it cannot measure'
levers --lever gearbox -i in.jsonl
code_is 2
err_has 'prefix_cache, grouping, chunked_prefill'
levers --lever prefix_cache
code_is 2
err_has 'experiment NAME'
levers --lever prefix_cache -i in.jsonl --experiment prefix
code_is 2
levers --lever prefix_cache --experiment nothing
code_is 2
err_has 'prefix, chunk'
levers --lever speculation --experiment spec --sweep
code_is 2
err_has 'jobs of one kind'
levers --lever prefix_cache -i in.jsonl --repeats 0
code_is 2
levers --lever prefix_cache --experiment prefix --context 64
code_is 65
err_has 'context of more than 94 tokens'

it 'measures the engine although every prompt of it is the same'
run sheaf bench engine --prompt-tokens 40 --answer-tokens 4 --json
code_is 0
out_has '"prefill"'
