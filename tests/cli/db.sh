. "$CLI_TESTS/lib.sh"
export SHEAF_CONFIG=$PWD/sheaf.conf # a tiny random model: what it says is the same each time
echo "sheaf.model=$CLI_TESTS/../golden/tiny/tiny-llama-q4_0.gguf" >sheaf.conf
{
    write_jobs 4
    echo '{"custom_id": "chat", "body": {"messages": [{"role": "user", "content": "Hi"}]}}'
    echo '{"custom_id": "echo", "body": {"prompt": "Hi", "echo": true, "max_tokens": 4}}'
    echo '{"custom_id": "broken", "question": 7}'
} >in.jsonl
write_jobs 6 | sed 's/"q/"r/' >more.jsonl
sheaf run -i in.jsonl -o answers.jsonl --db one.db --run-id night 2>/dev/null
sheaf run -i more.jsonl -o more.out --db two.db --run-id night 2>/dev/null

it 'finds a fresh database whole'
run sheaf db check one.db
code_is 0
out_has 'one.db is whole: 7 jobs of 1 runs, 0 results not published'
err_is_empty

it 'exports the stored lines: what the run wrote'
run sheaf db export one.db
code_is 0
is_json_lines out
sort answers.jsonl >wanted && sort out >got
same wanted got
run sheaf db export one.db --run night -o exported.jsonl
code_is 0
out_is_empty
sort exported.jsonl >got
same wanted got

it 'exports nothing of a run that is not there'
run sheaf db export one.db --run nobody
code_is 0
out_is_empty

it 'merges two databases of one run, and again without a change'
run sheaf db merge all.db one.db two.db
code_is 0
err_has 'one.db: 7 jobs added'
err_has 'two.db: 6 jobs added'
sql all.db 'SELECT jobs, succeeded, failed FROM v_runs' '13|12|1'
run sheaf db merge all.db two.db one.db
code_is 0
err_has 'two.db: 0 jobs added, 0 replaced, 6 known'
sql all.db 'SELECT count(*) FROM jobs' 13
sql all.db "SELECT sum(prompt_tokens) FROM jobs" \
    "$(($(sqlite3 one.db 'SELECT sum(prompt_tokens) FROM jobs') +
        $(sqlite3 two.db 'SELECT sum(prompt_tokens) FROM jobs')))"
run sheaf db check all.db
code_is 0

it 'shows a merged database as any other'
run sheaf results --db all.db r6
code_is 0
out_has 'When was the mill built'

it 'makes a file smaller, and loses nothing'
sheaf db export all.db >before
python3 - <<'PY'
import sqlite3
db = sqlite3.connect("all.db")
db.execute("CREATE TABLE ballast AS WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 "
           "FROM n WHERE i < 300) SELECT hex(randomblob(2000)) FROM n")
db.execute("DROP TABLE ballast")
db.commit()
db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
PY
large=$(stat -c %s all.db)
run sheaf db vacuum all.db
code_is 0
[ "$(stat -c %s all.db)" -lt $((large / 2)) ] || complain "$(stat -c %s all.db) of $large bytes"
sheaf db export all.db >after
same before after

it 'leaves a database alone that another process owns'
python3 -c 'import fcntl, os, time
lock = open("all.db.lock", "w")
fcntl.flock(lock, fcntl.LOCK_EX)
print(os.getpid(), file=lock, flush=True)
open("locked", "w").close()
time.sleep(600)' &
owner=$!
until [ -e locked ]; do :; done
run sheaf db vacuum all.db
code_is 75
err_has "in use by process $owner"
run sheaf db merge all.db one.db
code_is 75
kill $owner
wait $owner 2>/dev/null
rm all.db.lock

it 'exits 65 with what is wrong, and what to do'
cp one.db bad.db
sqlite3 bad.db 'UPDATE jobs SET cached_tokens = cached_tokens + 1, prompt_tokens =
    prompt_tokens + 1 WHERE custom_id = "q2"; DELETE FROM outputs WHERE job_id = 1'
run sheaf db check bad.db
code_is 65
out_has 'bad.db: job 1 has no output'
out_has 'disagree on usage.prompt_tokens'
err_has 'bad.db is damaged: keep the file'
err_has 'sheaf sink --db new.db'

it 'does not merge a damaged database'
run sheaf db merge none.db two.db bad.db
code_is 65
err_has 'bad.db is damaged .*not merged'
sql none.db 'SELECT count(*) FROM jobs' 6

it 'exits 65 for what is no database, 66 for what is not there'
run sheaf db check in.jsonl
code_is 65
err_has 'in.jsonl'
head -c 6000 one.db >cut.db
run sheaf db check cut.db
code_is 65
for verb in check export vacuum 'merge x.db'; do
    # shellcheck disable=SC2086
    run sheaf db $verb nowhere.db
    code_is 66
    err_has 'nowhere.db: no such database'
done
[ ! -e nowhere.db ] || complain 'nowhere.db was made'

it 'explains itself'
run sheaf db
code_is 2
err_has 'check\|merge\|export\|vacuum'
run sheaf db merge one.db
code_is 2
run sheaf db check
code_is 2
run sheaf db --help
code_is 0
out_has 'Example'
run sheaf sink --help
code_is 0
out_has 'sheaf sink --db all.db'

it 'needs a database to collect results in, and a broker'
run sheaf sink
code_is 2
err_has '--db'
