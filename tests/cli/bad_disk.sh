. "$CLI_TESTS/lib.sh"
bad_disk=$CLI_TESTS/../bad_disk/bad_disk.py
libraries=$(dirname "$SHEAF")/tests/bad_disk
model=$CLI_TESTS/../golden/tiny/tiny-llama-q4_0.gguf

it 'loses no answer and gives none twice, whatever call on the disk or allocation fails'
run python3 "$bad_disk" "$SHEAF" "$libraries" "$model" --quick
code_is 0
out_has '10 wrecks planted, 10 seen'
out_has ' 0 lost, 0 twice, 0 bad databases, 0 wrong exit codes$'

it 'says what to do when a file cannot be made, or may not grow'
write_jobs 2 >in.jsonl
run sheaf run --model "$model" -i in.jsonl -o out.jsonl --db no/folder/run.db
code_is 74
err_has 'cannot open no/folder/run.db.lock: .*; is the path right'
run bash -c 'ulimit -f 8; "$0" run --model "$1" -i in.jsonl -o out.jsonl --db run.db' \
    "$SHEAF" "$model"
code_is 74
err_has 'run.db: cannot .*ulimit -f'
