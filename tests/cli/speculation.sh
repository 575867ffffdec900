. "$CLI_TESTS/lib.sh"
python3 - >in.jsonl <<'PY'
import json

text = "The mill was built by the river in 1786, and rebuilt in stone after the fire of 1803."
for i in range(4):
    print(json.dumps({"custom_id": f"q{i}", "documents": [{"id": "d", "text": text}],
                      "question": f"Repeat the text word for word. ({i})",
                      "params": {"max_tokens": 40, "temperature": 0.5 * (i % 2), "seed": i}}))
PY
answers() { sqlite3 -readonly "$1" 'SELECT custom_id, answer, finish_reason, completion_tokens
    FROM v_jobs ORDER BY custom_id'; }

it 'does not speculate unless it is told to'
run sheaf run -i in.jsonl -o off.jsonl --db off.db
code_is 0
sql off.db 'SELECT sum(draft_tokens), sum(accepted_tokens) FROM v_jobs' '0|0'
sql off.db "SELECT json_extract(engine_json, '\$.speculation'),
    json_extract(engine_json, '\$.drafts_bytes'), json_type(counters_json, '\$.drafts')
    FROM v_runs" 'off|0|'
run sheaf stats --db off.db
[ "$(grep -c '^drafts' out)" = 0 ] || complain 'drafts are counted'

it 'answers the same with lookup speculation, one at a time and all at once'
for n in 1 4; do
    run sheaf run -i in.jsonl -o on$n.jsonl --db on$n.db --batch $n --speculation lookup
    code_is 0
    err_has 'drafts [0-9]+ MiB at most'
    [ "$(answers off.db)" = "$(answers on$n.db)" ] || complain "answers differ, batch $n"
done

it 'accounts for every drafted token: the run, its jobs and their result lines agree'
sql on1.db 'SELECT draft_tokens > 0 FROM v_runs' 1
sql on1.db "SELECT json_extract(counters_json, '\$.drafts.drafted') = draft_tokens,
    json_extract(counters_json, '\$.drafts.accepted') = accepted_tokens,
    json_extract(counters_json, '\$.drafts.accepted') +
    json_extract(counters_json, '\$.drafts.rejected') = draft_tokens FROM v_runs" '1|1|1'
sql on1.db "SELECT (SELECT sum(json_extract(value, '\$.drafted')) = draft_tokens AND
        sum(json_extract(value, '\$.accepted')) = accepted_tokens
        FROM json_each(counters_json, '\$.drafts.by_depth')),
    (SELECT sum(json_extract(value, '\$.drafted')) >= draft_tokens
        FROM json_each(counters_json, '\$.drafts.by_source')) FROM v_runs" '1|1'
sql on1.db "SELECT sum(drafted) = draft_tokens, sum(accepted) = accepted_tokens
    FROM v_spec JOIN v_runs USING (run_id) WHERE source = 'all'" '1|1'
sql on1.db "SELECT count(*) FROM v_jobs WHERE draft_tokens > 0 AND draft_steps > 0
    AND draft_ms >= 0 AND verify_ms > 0 AND expected_tok_s > 0 AND realised_tok_s > 0
    AND tokens_per_step >= 1" "$(sqlite3 -readonly on1.db 'SELECT count(*) FROM v_jobs
    WHERE draft_tokens > 0')"
run sheaf stats --db on1.db
out_has '^        accepted of .*; by depth 1: [0-9]+ %'
out_has '^drafts  [0-9]+ tokens: [0-9]+ accepted, [0-9]+ rejected; [0-9.]+ tokens a step$'

it 'drafts from what a job says its answer may be, and counts it as OpenAI does'
python3 - <<'PY'
import json

answers = {r["custom_id"]: r["answer"] for r in map(json.loads, open("off.jsonl"))}
files = [open(f"p{i}.jsonl", "w") for i in range(3)]
for job in map(json.loads, open("in.jsonl")):
    text = answers[job["custom_id"]]
    body = {"messages": [{"role": "user", "content": job["question"]}],
            "documents": job["documents"], **job["params"],
            "prediction": {"type": "content", "content": text}}
    print(json.dumps({**job, "prediction": text}), file=files[0])
    print(json.dumps({"custom_id": job["custom_id"], "body": body}), file=files[1])
    print(json.dumps({**job, "prediction": "<|im_end|>" * 20000}), file=files[2])
PY
for i in 0 1 2; do
    run sheaf run -i p$i.jsonl -o p$i.out --db p$i.db --batch 1 --speculation lookup
    code_is 0
    [ "$(answers off.db)" = "$(answers p$i.db)" ] || complain "answers differ, predictions $i"
done
sql p0.db "SELECT json_extract(counters_json, '\$.drafts.by_source.prediction.accepted') > 0
    FROM v_runs" 1
sql p2.db "SELECT coalesce(json_extract(counters_json,
    '\$.drafts.by_source.prediction.accepted'), 0) FROM v_runs" 0
run sheaf run -i p1.jsonl -o p1off.out --db p1off.db
python3 - >out 2>&1 <<'PY' || complain 'the usage is wrong'
import json


def details(path):
    lines = list(map(json.loads, open(path)))
    return [(r.get("usage") or r["response"]["body"]["usage"])["completion_tokens_details"]
            for r in lines]


assert all(sorted(d) == ["reasoning_tokens"] for d in details("on1.jsonl"))
for path in ("p0.out", "p1.out"):
    assert sum(d["accepted_prediction_tokens"] for d in details(path)) > 0
assert all(d["accepted_prediction_tokens"] == 0 for d in details("p2.out"))
assert all(d["accepted_prediction_tokens"] == d["rejected_prediction_tokens"] == 0
           for d in details("p1off.out"))
PY

it 'answers the same with a draft model, be it the model itself'
model=${SHEAF_CACHE:-$HOME/.cache/sheaf}/SmolLM2-135M-Instruct.Q4_1.gguf
run sheaf run -i in.jsonl -o twin.jsonl --db twin.db --speculation all \
    --speculation-model "$model"
code_is 0
[ "$(answers off.db)" = "$(answers twin.db)" ] || complain 'answers differ'

it 'refuses to draft with a model that is not given, is not there, or speaks otherwise'
run sheaf run -i in.jsonl -o no.jsonl --db no.db --speculation model
code_is 78
err_has 'speculation=model needs a draft model; name its file with speculation.model'
run sheaf run -i in.jsonl -o no.jsonl --db no.db --speculation model \
    --speculation-model none.gguf
err_has 'speculation.model: .*none.gguf'
run sheaf run -i in.jsonl -o no.jsonl --db no.db --speculation model \
    --speculation-model "$CLI_TESTS/../golden/tiny/tiny-llama-q8_0.gguf"
code_is 78
err_has 'another vocabulary: token 0 is .* there and .*endoftext.* in the model'

it 'refuses a kind of speculation that it does not have'
run sheaf run -i in.jsonl -o no.jsonl --db no.db --speculation telepathy
code_is 78
err_has 'off, lookup'

it 'names the setting when heads are wanted and not given, or are none'
run sheaf run -i in.jsonl -o no.jsonl --db no.db --speculation heads
code_is 78
err_has 'speculation\.heads'
run sheaf run -i in.jsonl -o no.jsonl --db no.db --speculation heads \
    --speculation-heads in.jsonl
[ "$code" != 0 ] || complain 'any file will do'
err_has 'in\.jsonl'

it 'takes what is given of all sources'
run sheaf run -i in.jsonl -o all.jsonl --db all.db --speculation all
code_is 0
[ "$(answers off.db)" = "$(answers all.db)" ] || complain 'answers differ'
sql all.db "SELECT json_extract(engine_json, '\$.speculation') FROM v_runs" 'all'
