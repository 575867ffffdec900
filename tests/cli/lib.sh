# A tiny assert library for command line tests; sourced by each tests/cli/*.sh.
#
#   it 'says its version'     begins a claim; it ends at the next `it` or at the end
#   run sheaf --version       runs it; leaves exit code in $code, output in ./out and ./err
#   code_is 0                 and so on: each adds a complaint when it does not hold
#
# shellcheck shell=bash
set -u

claim='' complaints=0 all_complaints=0 code=0

finish_claim() {
    [ -n "$claim" ] || return 0
    if [ $complaints = 0 ]; then
        echo "ok $claim"
    else
        echo "FAILED $claim"
        sed 's/^/    out: /' out 2>/dev/null | head -n 10
        sed 's/^/    err: /' err 2>/dev/null | head -n 10
    fi
    all_complaints=$((all_complaints + complaints)) complaints=0 claim=''
}
at_end() {
    local rc=$?
    finish_claim
    [ $rc != 0 ] || [ $all_complaints = 0 ] || rc=1
    exit $rc
}
trap at_end EXIT

it() { finish_claim; claim=$*; }
complain() { echo "    $*"; complaints=$((complaints + 1)); }
sheaf() { "$SHEAF" "$@"; }

run() {
    code=0
    "$@" >out 2>err || code=$?
}
code_is() { [ $code = "$1" ] || complain "exit code $code, not $1"; }
out_has() { grep -qE -- "$1" out || complain "the output has no /$1/"; }
err_has() { grep -qiE -- "$1" err || complain "stderr has no /$1/"; }
out_is_empty() { [ ! -s out ] || complain "there is output"; }
err_is_empty() { [ ! -s err ] || complain "there is something on stderr"; }
out_is() { [ "$(cat out)" = "$1" ] || complain "the output is not: $1"; }
lines_are() { [ "$(wc -l <"$2")" = "$1" ] || complain "$2 has $(wc -l <"$2") lines, not $1"; }
same() { cmp -s "$1" "$2" || complain "$1 and $2 differ"; }
# Every line of FILE is a JSON value.
is_json_lines() {
    python3 -c 'import json, sys; [json.loads(line) for line in open(sys.argv[1])]' "$1" \
        2>/dev/null || complain "$1 is not JSON lines"
}
# sql DB QUERY EXPECTED
sql() {
    local got
    got=$(sqlite3 -readonly "$1" "$2")
    [ "$got" = "$3" ] || complain "$2 gives $got, not $3"
}

# write_jobs N: N short jobs with documents, greedy.
write_jobs() {
    local i
    for i in $(seq "$1"); do
        printf '{"custom_id": "q%d", "documents": [{"id": "d", "text": "%s"}], "question": ' \
            "$i" "The mill was built in 178$i by the river."
        printf '"When was the mill built?", "params": {"max_tokens": 8, "temperature": 0}}\n'
    done
}
