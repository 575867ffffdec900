# Documents by reference through a real broker at $SHEAF_TEST_BROKER: lifted, waited for,
# missing, taken away. Run by tests/kafka/run in a folder of its own.
. "$CLI_TESTS/lib.sh"
broker=$SHEAF_TEST_BROKER
export SHEAF_CONFIG=$PWD/sheaf.conf # a tiny random model: what it says is the same each time
echo "sheaf.model=$CLI_TESTS/../golden/tiny/tiny-llama-q4_0.gguf" >sheaf.conf

# work NAME [OPTION...]: answers topic NAME.jobs to its end, with documents from NAME.documents.
work() {
    sheaf work -b "$broker" -t "$1.jobs" --results-topic "$1.results" -G "$1" --db "$1.db" \
        --documents-topic "$1.documents" --exit-when-empty "${@:2}"
}
# The same in the background, as process $worker.
start_work() {
    : >work.log # now: the worker may be a while in coming to it, and an old log lies there
    "$SHEAF" work -b "$broker" -t "$1.jobs" --results-topic "$1.results" -G "$1" --db "$1.db" \
        --documents-topic "$1.documents" --exit-when-empty "${@:2}" 2>work.log &
    worker=$!
}
submit() {
    sheaf submit "$2" -b "$broker" -t "$1.jobs" --results-topic "$1.results" -p 1 \
        --documents-topic "$1.documents" "${@:3}"
}
# The topic NAME.documents, by lifting a document that nobody asks for.
make_documents() {
    echo '{"documents": ["."], "question": "Q"}' >setup.jsonl
    sheaf submit setup.jsonl -b "$broker" -t setup.jobs --results-topic setup.results -p 1 \
        --documents-topic "$1.documents" --lift-documents --lift-min-bytes 1 2>setup.err ||
        complain "there is no topic $1.documents: $(cat setup.err)"
}
# put NAME KEY [FILE]: a document; without FILE a tombstone.
put() {
    if [ $# = 3 ]; then
        kcat -P -b "$broker" -X message.max.bytes=2000000 -t "$1.documents" -k "$2" "$3"
    else
        printf '%s:' "$2" | kcat -P -b "$broker" -t "$1.documents" -K: -Z
    fi || complain "$2 was not put into $1.documents"
}
records() { kcat -C -e -q -b "$broker" -t "$1" -o beginning -f "$2"; }
answers() {
    sqlite3 -readonly "$1" 'SELECT custom_id, answer, prompt_tokens, prefix_group
        FROM v_jobs ORDER BY custom_id'
}
ask() { # ID REF: a job
    printf '{"custom_id": "%s", "documents": [{"ref": "%s"}], "question": "When?", ' "$1" "$2"
    printf '"params": {"max_tokens": 4, "temperature": 0}}\n'
}

python3 - <<'PY'
import json
long = ["".join(f"Mill {m} stands at mile {i} of the river. " for i in range(5))
        + 'It is "old" \u2014 \u00fcber alt.' for m in range(2)]
with open("jobs.jsonl", "w", encoding="utf-8") as file:
    for n in range(12):
        documents = [{"id": f"d{n}", "title": f"Mill {n}", "text": long[n % 2]}]
        if n % 4 == 3:
            documents += ["a short one", {"data": {"title": "T", "a": 1.5, "b": long[0][:100]}}]
        file.write(json.dumps({"custom_id": f"q{n}", "documents": documents,
                               "metadata": {"n": 1.0}, "question": "Where is it?",
                               "params": {"max_tokens": 4, "temperature": 0.9, "seed": n}},
                              ensure_ascii=False) + "\n")
PY
run sheaf run -i jobs.jsonl --db inline.db
answers inline.db >wanted

it 'lifts each long text once, and the lines refer to it'
run submit lift jobs.jsonl --lift-documents --lift-min-bytes 100
code_is 0
err_has 'created the compacted topic lift.documents'
err_has '3 documents lifted to lift.documents, referred to 15 times'
said=$(grep -o '[0-9]* bytes saved' err)
records lift.documents '%k\t%s\n' >documents
records lift.jobs '%s\n' >lines
run python3 - <<'PY'
import hashlib
import json
texts = {}
for line in open("documents", encoding="utf-8"):
    key, value = line.rstrip("\n").split("\t")
    texts[key] = json.loads(value)["text"]
    assert key == "sha256:" + hashlib.sha256(texts[key].encode()).hexdigest()
lines = [json.loads(line) for line in open("lines", encoding="utf-8")]
jobs = {job["custom_id"]: job for job in map(json.loads, open("jobs.jsonl", encoding="utf-8"))}
assert len(texts) == 3 and len(lines) == 12
for line in lines:
    job = jobs[line["custom_id"]]
    assert all(d == "a short one" or not {"text", "data"} & set(d) for d in line["documents"])
    first, wanted = line["documents"][0], job["documents"][0]
    assert (first["id"], first["title"]) == (wanted["id"], wanted["title"])
    assert texts[first["ref"]] == wanted["text"]
    assert all(line[k] == job[k] for k in ("question", "params", "metadata"))
PY
code_is 0

it 'tells how many bytes that saved'
sent=$(($(records lift.documents '%k%s' | wc -c) + $(records lift.jobs '%s' | wc -c)))
whole=$(tr -d '\n' <jobs.jsonl | wc -c)
[ "$said" = "$((whole - sent)) bytes saved" ] || complain "$said, not $((whole - sent))"
[ $((whole - sent)) -gt 0 ] || complain "$sent bytes in place of $whole"

it 'keys a lifted job as the job with its text'
submit plain jobs.jsonl 2>err
records plain.jobs '%k %h\n' | sort >plain.keys
records lift.jobs '%k %h\n' | sort >lift.keys
same plain.keys lift.keys

it 'answers lifted jobs as the jobs with their texts'
run work lift
code_is 0
answers lift.db >got
same wanted got

it 'lifts what --documents holds, whatever its length'
mkdir folder && printf 'The mill is from 1786.' >folder/mill.txt
ask here mill.txt >folder.jsonl
ask not-here gone.txt >>folder.jsonl
run submit folder folder.jsonl --lift-documents --documents folder
code_is 0
err_has 'folder.jsonl line 2: .*gone.txt'
err_has '1 documents lifted'
run work folder --documents-wait-s 0
code_is 1
sql folder.db "SELECT custom_id, ifnull(error_code, status) FROM v_jobs ORDER BY 1" \
    'here|succeeded
not-here|document_not_found'

it 'waits for a document that is late, while other jobs go past'
{ ask late late; ask never never; } >late.jsonl
head -n 2 jobs.jsonl >>late.jsonl
submit late late.jsonl 2>err
start_work late --documents-wait-s 15
until sqlite3 -readonly late.db 'SELECT count(*) FROM v_jobs' 2>/dev/null | grep -q 2; do
    sleep 0.1
    kill -0 $worker || break
done
printf '{"title": "Mill", "text": "The mill is from 1786."}' >late.json
make_documents late
put late late late.json
code=0; wait $worker || code=$?
code_is 1
records late.results '%s\n' >late.lines
run python3 - <<'PY'
import json
ids = [json.loads(line)["custom_id"] for line in open("late.lines")]
assert sorted(ids[:2]) == ["q0", "q1"] and ids[2:] == ["late", "never"], ids
PY
code_is 0
sql late.db "SELECT custom_id, ifnull(error_code, status) FROM v_jobs ORDER BY 1" \
    'late|succeeded
never|document_not_found
q0|succeeded
q1|succeeded'

it 'leaves a waiting job to the next start when it is stopped'
ask stopped stopped >stopped.jsonl
submit stopped stopped.jsonl 2>err
make_documents stopped
start_work stopped --documents-wait-s 600
# The documents are read from the first reference on.
until grep -q 'documents read' work.log; do
    sleep 0.1
    kill -0 $worker || break
done
kill $worker
code=0; wait $worker || code=$?
code_is 0
sql stopped.db 'SELECT count(*) FROM v_jobs' 0
put stopped stopped late.json
run work stopped
code_is 0
sql stopped.db "SELECT custom_id, status FROM v_jobs" 'stopped|succeeded'

it 'keeps the latest record of a key, and none after a tombstone'
printf 'first' >first; printf 'The mill was built in 1786 by the river.' >second
make_documents keys
for key in kept gone; do put keys $key first; put keys $key second; done
put keys gone
ask kept x | sed "s/{\"ref\": \"x\"}/\"$(cat second)\"/" >keys.inline
{ ask kept kept; ask gone gone; } >keys.jsonl
submit keys keys.jsonl 2>err
run work keys --documents-wait-s 1
code_is 1
sheaf run -i keys.inline --db keys.inline.db 2>err
answers keys.inline.db >wanted.keys
answers keys.db | grep kept >got.keys
same wanted.keys got.keys
sql keys.db "SELECT custom_id, ifnull(error_code, status) FROM v_jobs ORDER BY 1" \
    'gone|document_not_found
kept|succeeded'

it 'fails references to what is no document, and to what does not fit'
printf 'caf\351' >latin1
python3 -c 'print("x" * 1100000, end="")' >big
python3 -c 'print("x" * 300, end="")' >fits
make_documents bound
put bound fits fits; put bound big big; put bound latin1 latin1
{ ask fits fits; ask big big; ask latin1 latin1; } >bound.jsonl
submit bound bound.jsonl 2>err
run work bound --documents-mb 1
code_is 1
err_has 'bound.documents do not fit in documents.mb=1'
sql bound.db "SELECT custom_id, ifnull(error_code, status) FROM v_jobs ORDER BY 1" \
    'big|documents_memory_full
fits|succeeded
latin1|document_invalid'
