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

it 'refuses a kind of speculation that it does not have'
run sheaf run -i in.jsonl -o no.jsonl --db no.db --speculation telepathy
code_is 78
err_has 'off, lookup'

it 'names the setting when heads are wanted and not given, or are none'
run sheaf run -i in.jsonl -o no.jsonl --db no.db --speculation heads
code_is 78
err_has 'speculation\.heads'
run sheaf run -i in.jsonl -o no.jsonl --db no.db --speculation heads --speculation-heads in.jsonl
[ "$code" != 0 ] || complain 'any file will do'
err_has 'in\.jsonl'

it 'takes what is given of all sources'
run sheaf run -i in.jsonl -o all.jsonl --db all.db --speculation all
code_is 0
[ "$(answers off.db)" = "$(answers all.db)" ] || complain 'answers differ'
sql all.db "SELECT json_extract(engine_json, '\$.speculation') FROM v_runs" 'all'
