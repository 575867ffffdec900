. "$CLI_TESTS/lib.sh"

# Prompts as token ids, so that every figure can be worked out by hand: 10 jobs that begin with
# 5 equal tokens, go on with one of their own, then have 200 equal ones, then 3 of their own.
write_timed() {
    python3 -c '
import json
for i in range(10):
    prompt = [101] * 5 + [500 + i] + list(range(2000, 2200)) + [600 + i] * 3
    print(json.dumps({"custom_id": f"t{i}", "method": "POST", "url": "/v1/completions",
                      "body": {"model": "m", "prompt": prompt, "max_tokens": 2}}))'
}
# holds EXPRESSION: of the JSON in ./out, as d.
holds() {
    python3 -c 'import json, sys; d = json.load(open("out")); assert eval(sys.argv[1])' "$1" \
        2>/dev/null || complain "$1 does not hold"
}

it 'predicts the best hit ratio and lists the groups'
write_jobs 1 >one.jsonl
python3 -c '
import json
for i in range(12):
    print(json.dumps({"custom_id": f"g{i}", "documents": [f"document {i % 4} " * 30],
                      "question": f"{i} ?", "params": {"max_tokens": 2}}))' >groups.jsonl
cat one.jsonl >>groups.jsonl
run sheaf check groups.jsonl
code_is 0
out_has 'best possible hit ratio of the prefix cache: 0\.[0-9]{4} \('
out_has '^ +3 +[0-9]+ +[0-9]+  line 1 \(g0\)$'
out_has '^ +1 jobs in no group'
err_is_empty
run sheaf check groups.jsonl --json
holds 'len(d["groups"]) == 4 and d["lone_jobs"] == 1 and d["advice"] == []'
holds 'all(g["jobs"] == 3 for g in d["groups"])'
holds 'all(g["saved_tokens"] == 2 * g["shared_tokens"] for g in d["groups"])'
holds 'd["sharing"]["cached_tokens"] >= sum(g["saved_tokens"] for g in d["groups"])'
holds 'd["sharing"]["cached_tokens"] < d["prompt_tokens"] and d["sharing"]["whole_file"]'

it 'sums up the groups behind the ten that save most'
python3 -c '
import json
for i in range(26):
    print(json.dumps({"documents": [f"document {i // 2} " * (20 + i // 2)], "question": f"{i}",
                      "params": {"max_tokens": 2}}))' >many.jsonl
run sheaf check many.jsonl
out_has '^ +6 +[0-9]+  in 3 more groups$'
run sheaf check many.jsonl --json
holds 'len(d["groups"]) == 10 and d["more_groups"]["groups"] == 3'
holds 'd["more_groups"]["jobs"] == 6 and d["groups"][0]["line"] == 25'
holds 'd["more_groups"]["saved_tokens"] <= 3 * d["groups"][9]["saved_tokens"]'

it 'shows where a piece breaks the shared prefix, and what moving it would save'
write_timed >timed.jsonl
run sheaf check timed.jsonl
code_is 0
out_has 'hit ratio of the prefix cache: 0\.0000 \(0 of 2090 prompt tokens\)'
out_has 'advice: 10 jobs differ at token 5 '
out_has '^ +line [0-9]+ \(t[0-9]\): .*>>.*<<'
# Nine of ten would find 5 + 200 tokens: 1845 of 2090.
out_has 'share 205 tokens: 1845 tokens saved \(88\.3 %\)'
run sheaf check timed.jsonl --json
holds 'len(d["advice"]) == 1 and d["advice"][0]["position"] == 5'
holds 'd["advice"][0]["saved_tokens"] == 1845 and d["advice"][0]["jobs"] == 10'
holds 'len({x["piece"] for x in d["advice"][0]["examples"]}) == 2'

it 'counts today as well where the prefix before the piece is long enough to be kept'
run sheaf check timed.jsonl --json --prefix-cache-min-tokens 5
holds 'd["sharing"]["cached_tokens"] == 45 and d["advice"][0]["saved_tokens"] == 1800'

it 'has no advice when the piece is at the end, as it was told'
python3 -c '
import json, sys
for line in open("timed.jsonl"):
    job = json.loads(line)
    p = job["body"]["prompt"]
    job["body"]["prompt"] = p[:5] + p[6:] + p[5:6]
    print(json.dumps(job))' >moved.jsonl
run sheaf check moved.jsonl --json
holds 'd["sharing"]["cached_tokens"] == 1845 and d["advice"] == []'

it 'says nothing of it to tenants that may not share'
python3 -c '
import json
for i, line in enumerate(open("timed.jsonl")):
    job = json.loads(line)
    job["body"]["cache_salt"] = f"tenant {i}"
    print(json.dumps(job))' >salted.jsonl
run sheaf check salted.jsonl --json
holds 'd["sharing"]["cached_tokens"] == 0 and d["advice"] == []'

it 'shows control characters of a prompt as escapes and cuts long text'
python3 -c '
import json
for i in range(4):
    print(json.dumps({"custom_id": f"x{i}\u001b[2J",
                      "system": f"\u001b[31m\u202e{i} " + "\u0007 word" * 200,
                      "question": "?", "params": {"max_tokens": 2}}))' >hostile.jsonl
run sheaf check hostile.jsonl
code_is 0
out_has '>>'
out_has 'u\{1b\}\[31m'
out_has 'u\{202e\}'
out_has 'x[0-9]\\u\{1b\}\[2J'
[ "$(LC_ALL=C tr -d '\n\040-\176' <out | wc -c)" = 0 ] || complain 'raw bytes in the output'
[ "$(wc -L <out)" -lt 400 ] || complain 'a line is too wide'

it 'refuses the token ids that a worker would refuse, in the same words'
python3 -c '
import json
def line(name, **body):
    print(json.dumps({"custom_id": name, "method": "POST", "url": "/v1/completions",
                      "body": {"model": "m", "max_tokens": 2, **body}}))
line("last", prompt=[1, 2, 49151])
line("above", prompt=[1, 2, 49152])
line("bias", prompt="x", logit_bias={"49152": 1})
line("empty", prompt="")' >ids.jsonl
run sheaf check ids.jsonl --json
code_is 1
holds '[x["custom_id"] for x in d["errors"]] == ["above", "bias", "empty"]'
mv out check.json
sheaf run -i ids.jsonl -o ids.out --db ids.db 2>/dev/null
sql ids.db "SELECT count(*) FROM v_jobs WHERE status = 'succeeded'" 1
sqlite3 ids.db 'SELECT error_code, error_message FROM v_jobs WHERE error_code IS NOT NULL
    ORDER BY offset' >refused
python3 -c '
import json
for x in json.load(open("check.json"))["errors"]:
    print(x["code"], x["message"], sep="|")' >checked
same refused checked

it 'ends a run with advice when there is something to gain, and shows no text of a job'
run sheaf run -i timed.jsonl -o timed.out --db timed.db
code_is 0
err_has 'advice: 10 of the first 10 prompts differ at token 5 .*205 tokens each.*1845 of 2090'
[ "$(grep -c 'advice:' err)" = 1 ] || complain 'not one line of advice'

it 'ends a run without advice when there is nothing to gain'
run sheaf run -i moved.jsonl -o moved.out --db moved.db
code_is 0
! grep -q 'advice:' err || complain 'advice on prompts that share what they can'

it 'shows an id with what a terminal would obey escaped'
printf '%s\n' '{"custom_id": "red\u001b[31m\u202e", "question": ""}' >red.jsonl
run sheaf check red.jsonl
code_is 1
out_has 'line 1 \(red\\u\{1b\}\[31m\\u\{202e\}\): '
! grep -q "$(printf '\033')" out || complain 'the escape came out'
