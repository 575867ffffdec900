. "$CLI_TESTS/lib.sh"
write_jobs 3 >in.jsonl
echo '{"custom_id": "broken", "question": 7}' >>in.jsonl
sheaf run -i in.jsonl -o answers.jsonl --db run.db 2>/dev/null

it 'shows questions and answers'
run sheaf results --db run.db
code_is 0
out_has 'When was the mill built'
out_has 'q1'
err_is_empty

it 'shows results as JSON lines, as many as asked for'
run sheaf results --db run.db --json --limit 2
code_is 0
lines_are 2 out
is_json_lines out

it 'shows counts and the latency table'
run sheaf stats --db run.db
code_is 0
out_has '\b3\b'
out_has 'ttft'
out_has 'p50'
out_has 'p99'

it 'gives statistics as JSON that agree with the database'
run sheaf stats --db run.db --json
code_is 0
python3 -c '
import json, sqlite3
stats, db = json.load(open("out")), sqlite3.connect("run.db")
def find(value, key):
    if isinstance(value, dict):
        own = [value[key]] if key in value else []
        return own + [x for v in value.values() for x in find(v, key)]
    return [x for v in value for x in find(v, key)] if isinstance(value, list) else []
run = db.execute("SELECT jobs, succeeded, failed FROM v_runs").fetchone()
assert run == tuple(find(stats, k)[0] for k in ("jobs", "succeeded", "failed")), run
p50 = db.execute("SELECT p50_ms FROM v_latency ORDER BY position").fetchall()
assert [round(x, 3) for x in find(stats, "p50_ms")] == [round(x[0], 3) for x in p50]
' || complain 'JSON and database differ'

it 'checks a file: counts, tokens and the line of each bad job'
run sheaf check in.jsonl
code_is 1
out_has '\b3\b'
out_has '4'
out_has 'token'

it 'checks a good file with exit 0'
head -n 3 in.jsonl >good.jsonl
run sheaf check good.jsonl
code_is 0

it 'checks as JSON'
run sheaf check good.jsonl --json
code_is 0
python3 -m json.tool out >/dev/null || complain 'not JSON'

it 'tells of a job name that occurs twice'
cat good.jsonl good.jsonl >twice.jsonl
run sheaf check twice.jsonl
out_has 'q1|duplicate' # on stdout, for it is what was asked for
out_has '[Dd]uplicate|twice'

it 'exits 66 for a database that is not there, and makes none'
run sheaf results --db nowhere.db
code_is 66
[ ! -e nowhere.db ] || complain 'nowhere.db was made'
