. "$CLI_TESTS/lib.sh"
write_jobs 4 >in.jsonl

it 'answers a file: one line for each job, in the file and in the database'
run sheaf run -i in.jsonl -o out.jsonl --db run.db
code_is 0
out_is_empty
err_has '4'
lines_are 4 out.jsonl
is_json_lines out.jsonl
sql run.db "SELECT count(*) FROM v_jobs WHERE status = 'succeeded'" 4
sql run.db 'SELECT jobs, succeeded, failed, status FROM v_runs' '4|4|0|completed'

it 'accounts for every prompt token'
sql run.db 'SELECT sum(prompt_tokens - cached_tokens - computed_tokens) FROM v_jobs' 0
sql run.db 'SELECT count(*) FROM v_jobs WHERE completion_tokens NOT BETWEEN 1 AND 8' 0

it 'keeps what steps took at start, and where the time went'
sql run.db "SELECT json_extract(engine_json, '\$.calibration[0].rows'),
    json_extract(engine_json, '\$.calibration[0].us') > 0 FROM v_runs" '16|1'
run sheaf stats --db run.db
out_has '^steps   16 rows [0-9.]+ ms.*; prompts by [0-9]+$'
sql run.db "SELECT count(*), min(value) >= 0 FROM runs, json_each(counters_json, '\$.stages')" \
    '15|1'
sql run.db "SELECT json_extract(counters_json, '\$.stages.step_us') >=
        json_extract(counters_json, '\$.busy_us'),
    json_extract(counters_json, '\$.stages.start_us') > 0,
    json_extract(counters_json, '\$.stages.store_us') > 0 FROM runs" '1|1|1'

it 'leaves a finished run as it is when it is started again'
cp out.jsonl before.jsonl
run sheaf run -i in.jsonl -o out.jsonl --db run.db
code_is 0
same before.jsonl out.jsonl
sql run.db 'SELECT count(*) FROM v_jobs' 4

it 'writes answers to stdout with -o -, and nothing else there'
run sheaf run -i in.jsonl -o - --db stdout.db
code_is 0
lines_are 4 out
is_json_lines out

it 'reads jobs from stdin with -i -'
sheaf run -i - -o stdin.jsonl --db stdin.db <in.jsonl 2>err
lines_are 4 stdin.jsonl

it 'refuses to write over its input'
cp in.jsonl same.jsonl
run sheaf run -i same.jsonl -o ./same.jsonl --db same.db
code_is 2
same in.jsonl same.jsonl

it 'needs no more than -i'
cp in.jsonl alone.jsonl
run sheaf run -i alone.jsonl
code_is 0

it 'keeps KV in the type that is asked for, and the run says which'
sql run.db "SELECT json_extract(engine_json, '\$.kv_type'),
    json_extract(engine_json, '\$.prefix_cache_mb') FROM runs" 'bf16|0'
run sheaf run -i in.jsonl -o int8.jsonl --db int8.db --kv-type int8
code_is 0
lines_are 4 int8.jsonl
sql int8.db "SELECT json_extract(engine_json, '\$.kv_type') FROM runs" int8
sql int8.db "SELECT count(*) FROM v_jobs WHERE status = 'succeeded'" 4

it 'refuses a KV type that it does not have and names those it has'
run sheaf run -i in.jsonl -o int4.jsonl --db int4.db --kv-type int4
code_is 78
err_has 'bf16, int8, f32'

it 'answers the good jobs and exits 1 when one line is broken'
{ head -n 2 in.jsonl; echo '{"custom_id": "broken"'; tail -n 2 in.jsonl; } >mixed.jsonl
run sheaf run -i mixed.jsonl -o mixed.out --db mixed.db
code_is 1
lines_are 5 mixed.out
sql mixed.db "SELECT count(*) FROM v_jobs WHERE status = 'succeeded'" 4
sql mixed.db "SELECT offset FROM v_jobs WHERE status = 'failed'" 3

it 'still exits 1 when it is started again and finds nothing left to do'
run sheaf run -i mixed.jsonl -o mixed.out --db mixed.db
code_is 1

it 'gives an OpenAI line an OpenAI answer'
tr '\n' ' ' >openai.jsonl <<'TEXT'
{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions",
 "body": {"model": "demo", "messages": [{"role": "user", "content": "Say yes."}],
          "max_tokens": 4, "temperature": 0}}
TEXT
echo >>openai.jsonl
run sheaf run -i openai.jsonl -o openai.out --db openai.db
code_is 0
run python3 -c '
import json
d = json.load(open("openai.out"))
b = d["response"]["body"]
assert d["custom_id"] == "a" and d["error"] is None and d["response"]["status_code"] == 200
assert b["object"] == "chat.completion"
choice, usage = b["choices"][0], b["usage"]
assert choice["message"]["role"] == "assistant" and choice["message"]["content"]
assert choice["finish_reason"] in ("stop", "length")
assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
assert 1 <= usage["completion_tokens"] <= 4'
code_is 0

it 'refuses a prompt that is too long, with the count and the limit'
python3 -c 'import json; print(json.dumps({"custom_id": "long", "question": "word " * 5000}))' \
    >long.jsonl
run sheaf run -i long.jsonl -o long.out --db long.db --context 512
code_is 1
sql long.db "SELECT error_code FROM v_jobs" context_length_exceeded
sql long.db "SELECT error_message LIKE '%512%' FROM v_jobs" 1
