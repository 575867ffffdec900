. "$CLI_TESTS/lib.sh"
tiny=$CLI_TESTS/../golden/tiny/tiny-llama-q8_0.gguf

# Forty paragraphs that say the same few things in turn.
python3 - >text.txt <<'PY'
import random

draw = random.Random(3)
for i in range(40):
    words = [draw.choice(["mill", "river", "ferry", "stone"]) for _ in range(3)]
    print(" ".join(words * 8) + f" {i}.\n")
PY
train() { sheaf heads train --model "$tiny" --jobs text.txt "$@"; }
# The same in the background, as process $pid.
start_training() {
    "$SHEAF" heads train --model "$tiny" --jobs text.txt "$@" 2>training.log &
    pid=$!
}
# holds EXPRESSION: of the JSON in ./out, as d.
holds() {
    python3 -c 'import json, sys; d = json.load(open("out")); assert eval(sys.argv[1])' "$1" \
        2>/dev/null || complain "$1 does not hold"
}

it 'trains heads on a text, and says how good they are on what it has held out'
run train -o heads.gguf --epochs 4
code_is 0
out_has '^ +1 +[0-9]+ +[01]\.[0-9]{3} +[01]\.[0-9]{3}$'
out_has '^ +3 +[0-9]+ +[01]\.[0-9]{3} +[01]\.[0-9]{3}$'
err_has '40 texts, 0 of them with answers; [0-9]+ positions of 40 texts are used'
err_has 'step [0-9]+ of [0-9]+, loss [0-9.]+; held out, top-1/top-5 by head: [0-9.]+/[0-9.]+'
[ "$(stat -c %a heads.gguf)" = 600 ] || complain 'others may read the heads'
[ ! -e heads.gguf.state ] || complain 'the state is still there'
mv out trained.txt

it 'gives the same bytes for the same seed, whatever the number of threads'
run train -o again.gguf --epochs 4 --threads 1
code_is 0
same heads.gguf again.gguf
run train -o three.gguf --epochs 4 --threads 3
same heads.gguf three.gguf
run train -o other.gguf --epochs 4 --seed 1
cmp -s heads.gguf other.gguf && complain 'another seed gives the same heads'

it 'says nothing but errors when told so'
run train -o quiet.gguf --epochs 1 -q
code_is 0
err_is_empty

it 'shows the accuracies that the file states, which are those that training printed'
run sheaf heads show heads.gguf --model "$tiny"
code_is 0
sed -n 's/^ *\([0-9]\) *[0-9-]* *\([0-9.]* *[0-9.]*\)$/\1 \2/p' out >shown.txt
sed -n 's/^ *\([0-9]\) *[0-9-]* *\([0-9.]* *[0-9.]*\)$/\1 \2/p' trained.txt >printed.txt
lines_are 3 shown.txt
same shown.txt printed.txt
run sheaf heads show heads.gguf --model "$tiny" --json
holds 'd["heads"] == 3 and d["blocks"] == 1 and d["tied"] and d["draft_vocab"] > 10'

it 'measures them on what was held out, as training did'
run sheaf heads eval --heads heads.gguf --jobs text.txt --model "$tiny"
code_is 0
out_has 'a step yields [0-9.]+ tokens with a chain of 3, [0-9.]+ with a tree of 8$'
sed -n 's/^ *\([0-9]\) *[0-9-]* *\([0-9.]* *[0-9.]*\)$/\1 \2/p' out >measured.txt
same measured.txt printed.txt
run sheaf heads eval --heads heads.gguf --jobs text.txt --model "$tiny" --all --json
code_is 0
holds 'd["accuracies"][0]["positions"] == "all"'
holds '1 <= d["accuracies"][0]["chain_tokens"] <= d["accuracies"][0]["tree_tokens"] <= 4'

it 'goes on after a kill and ends in the same bytes'
start_training -o killed.gguf --epochs 300 -q
for _ in $(seq 600); do [ ! -e killed.gguf.state ] || break; sleep 0.1; done
kill -9 $pid 2>/dev/null
wait $pid 2>/dev/null
[ -e killed.gguf.state ] || complain 'there was no state'
[ ! -e killed.gguf ] || complain 'it had ended before it was killed'
[ "$(stat -c %a killed.gguf.state)" = 600 ] || complain 'others may read the state'
cp killed.gguf.state state
run train -o killed.gguf --epochs 300
code_is 0
err_has 'going on after step [1-9][0-9]* of '
run train -o whole.gguf --epochs 300 -q
same killed.gguf whole.gguf

it 'ends at a signal, says how to go on, and does'
start_training -o ended.gguf --epochs 300
for _ in $(seq 600); do [ ! -e ended.gguf.state ] || break; sleep 0.1; done
kill -TERM $pid
rc=0
wait $pid || rc=$?
[ $rc = 75 ] || complain "exit code $rc, not 75"
grep -q 'stopped at step .*; the same command goes on from there' training.log ||
    complain 'it does not say how to go on'
run train -o ended.gguf --epochs 300 -q
same ended.gguf whole.gguf

it 'refuses a state of other options, other texts and damaged ones'
cp state refused.gguf.state
run train -o refused.gguf --epochs 299
code_is 75
err_has 'other texts, options or another model; delete it'
sed 's/mill/Mill/' text.txt >other.txt
run sheaf heads train --model "$tiny" --jobs other.txt -o refused.gguf --epochs 300
code_is 75
printf x | dd of=refused.gguf.state bs=1 seek=200 conv=notrunc 2>/dev/null
run train -o refused.gguf --epochs 300
code_is 65
err_has 'refused.gguf.state is damaged; delete it'
[ ! -e refused.gguf ] || complain 'heads were written'

it 'says what is missing or wrong'
run sheaf heads
code_is 2
run sheaf heads train --jobs text.txt
code_is 2
err_has 'usage: sheaf heads train --jobs FILE -o'
run sheaf heads train --model "$tiny" --jobs none.txt -o no.gguf
code_is 66
run train -o nowhere/no.gguf
code_is 74
err_has 'nowhere/no.gguf: no file can be made in its folder'
run train -o no.gguf --head-count 9
code_is 78
err_has 'head-count 9 is outside 1\.\.8'
echo 'One text alone.' >one.txt
run sheaf heads train --model "$tiny" --jobs one.txt -o no.gguf
code_is 65
err_has 'two different texts'
: >empty.txt
run sheaf heads train --model "$tiny" --jobs empty.txt -o no.gguf
code_is 65

it 'reads job lines as a worker does, and answers from the database of a run'
write_jobs 12 >in.jsonl
echo '{"custom_id": "bad"' >>in.jsonl
run sheaf heads train --jobs in.jsonl -o lines.gguf --epochs 1 --head-count 1
code_is 0
err_has '12 texts, 0 of them with answers'
err_has '1 cannot be used'
sheaf run -i in.jsonl -o in.out --db night.db -q
run sheaf heads train --jobs night.db -o night.gguf --epochs 1 --head-count 1
code_is 0
err_has 'night.db: 12 texts, 12 of them with answers'
run sheaf heads eval --heads night.gguf --jobs night.db --all --json
code_is 0
holds '[x["positions"] for x in d["accuracies"]] == ["all", "answers"]'
holds 'd["accuracies"][1]["heads"][0]["labels"] > 12 * 3'

it 'finds jobs again by what they say when their file has moved'
shuf --random-source=<(yes) in.jsonl >moved.jsonl
write_jobs 14 | tail -n 2 >>moved.jsonl
rm in.jsonl
run sheaf heads train --jobs night.db -o moved.gguf --epochs 1 --head-count 1
code_is 66
err_has 'in.jsonl'
err_has 'input names another'
run sheaf heads train --jobs night.db --input moved.jsonl -o moved.gguf --epochs 1 \
    --head-count 1
code_is 0
err_has '3 job lines have no answer there'
same night.gguf moved.gguf
