. "$CLI_TESTS/lib.sh"
write_jobs 40 >in.jsonl

count_stored() { sqlite3 -readonly -cmd '.timeout 1000' stop.db 'SELECT count(*) FROM v_jobs'; }

# start_run ARGS...: a run in the background that is stopped after its first answer is stored.
start_run() {
    "$SHEAF" run "$@" 2>err &
    pid=$!
    for _ in $(seq 600); do
        [ "$(count_stored 2>/dev/null || echo 0)" -gt 0 ] && return
        sleep 0.05
    done
}

it 'stops on SIGTERM with exit 75, what is answered kept and the rest left for the next start'
start_run -i in.jsonl -o out.jsonl --db stop.db --batch 2
kill -TERM "$pid"
code=0
wait "$pid" || code=$?
code_is 75
answered=$(wc -l <out.jsonl)
[ "$answered" -gt 0 ] && [ "$answered" -lt 40 ] || complain "$answered lines"
sql stop.db 'SELECT status FROM v_runs' cancelled
run sheaf run -i in.jsonl -o out.jsonl --db stop.db
code_is 0
lines_are 40 out.jsonl
sql stop.db 'SELECT count(*), count(DISTINCT custom_id), status FROM v_jobs' '40|40|succeeded'
sql stop.db 'SELECT status FROM v_runs' completed

it 'can be stopped while its input is silent'
mkfifo silent
"$SHEAF" run -i - -o silent.jsonl --db silent.db <silent 2>err &
pid=$!
exec 9>silent
sleep 2
kill -TERM "$pid"
code=0
wait "$pid" || code=$?
exec 9>&-
code_is 75

it 'keeps the answers of lines that a dying generator did not repeat'
head -n 3 in.jsonl >three.jsonl
"$SHEAF" run -i - -o piped.jsonl --db piped.db <three.jsonl 2>err
lines_are 3 piped.jsonl
mkfifo short
"$SHEAF" run -i - -o piped.jsonl --db piped.db <short 2>err &
pid=$!
exec 9>short
head -n 1 in.jsonl >&9
sleep 2
kill -TERM "$pid"
exec 9>&-
wait "$pid"
lines_are 3 piped.jsonl

it 'prints on stdout the answers of this input only'
head -n 2 in.jsonl >first.jsonl
sed -n '3,4p' in.jsonl >second.jsonl
"$SHEAF" run -i - -o - --db both.db <first.jsonl >out 2>err
lines_are 2 out
"$SHEAF" run -i - -o - --db both.db <second.jsonl >out 2>err
lines_are 2 out
out_has q3
out_has q4

it 'exits 74 when stdout is full'
code=0
"$SHEAF" results --db both.db >/dev/full 2>err || code=$?
code_is 74
