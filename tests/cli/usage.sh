. "$CLI_TESTS/lib.sh"

it 'says its version on stdout'
run sheaf --version
code_is 0
out_has '^sheaf [0-9]+\.[0-9]+\.[0-9]+'
err_is_empty

it 'lists its commands with --help, on stdout'
run sheaf --help
code_is 0
for command in run work submit check status dlq results stats model bench; do
    out_has "^ +$command "
done
err_is_empty

it 'helps briefly and exits 2 when called bare'
run sheaf
code_is 2
out_is_empty
err_has 'sheaf --help'

for command in run work submit check status dlq results stats model 'bench engine'; do
    it "explains $command with an example"
    # shellcheck disable=SC2086
    run sheaf $command --help
    code_is 0
    out_has "sheaf $command"
    out_has '[Ee]xample'
    err_is_empty
done

it 'names the setting, its range and its default in --help'
run sheaf run --help
out_has '--batch'
out_has '1.*256.*16|16.*1.*256'

it 'refuses an unknown command and suggests the nearest'
run sheaf rnu
code_is 2
out_is_empty
err_has 'rnu'
err_has '\brun\b'

it 'refuses an unknown flag by name'
run sheaf run -i x.jsonl --no-such-flag
code_is 2
err_has 'no-such-flag'
out_is_empty

it 'refuses a number outside its range with the range'
run sheaf run -i x.jsonl --batch 0
code_is 2
err_has 'batch'
err_has '256'

it 'refuses a number that is none'
run sheaf run -i x.jsonl --batch 8x
code_is 2
err_has 'batch'

it 'refuses a flag without its value'
run sheaf run -i
code_is 2
err_has '-i'

it 'exits 66 when the input file is not there, and names it'
run sheaf run -i nowhere.jsonl
code_is 66
err_has 'nowhere\.jsonl'
out_is_empty

it 'exits 66 when the model file is not there, and names it'
write_jobs 1 >one.jsonl
run sheaf run -i one.jsonl --model nowhere.gguf
code_is 66
err_has 'nowhere\.gguf'

it 'exits 65 when the model file is no model'
head -c 4096 /dev/zero >zeros.gguf
run sheaf run -i one.jsonl --model zeros.gguf
code_is 65
err_has 'zeros\.gguf'

it 'refuses an option that the verb of a command does not know'
run sheaf dlq ls --yes
code_is 2
err_has 'dlq ls .*--yes'
run sheaf dlq purge
code_is 2
out_is_empty
run sheaf dlq purrge --all
code_is 2
err_has 'ls\|show\|redrive\|purge'

it 'exits 69 when no broker answers'
run timeout 60 "$SHEAF" submit one.jsonl -b 127.0.0.1:1 -t t
code_is 69
err_has '127\.0\.0\.1:1'

for roles in '--results-topic j' '--dead-letters j' '--documents-topic j' '--dead-letters r' \
    '--documents-topic r' '--documents-topic j.dlq'; do
    it "refuses to work with one topic in two roles: $roles"
    # shellcheck disable=SC2086
    run sheaf work -b 127.0.0.1:1 --model none.gguf -t j --results-topic r $roles
    code_is 78
    err_has 'are both (j|r|j.dlq):'
done

it 'works with topics that are four'
run sheaf work -b 127.0.0.1:1 --model none.gguf -t j --results-topic r
code_is 66
err_has 'none.gguf: cannot be opened'

it 'submits no jobs to the topic of the results'
run sheaf submit jobs.jsonl -b 127.0.0.1:1 -t j --results-topic j
code_is 78
err_has 'topic and results_topic are both j:'

it 'sends no dead letters again that are their own jobs'
run sheaf dlq redrive --all -b 127.0.0.1:1 -t j --dead-letters j
code_is 78
err_has 'dead_letters and topic are both j:'

it 'refuses a group that no transaction takes, before anything is read'
run sheaf work -b 127.0.0.1:1 --model none.gguf -G 'nächtlich'
code_is 78
err_has 'group=nächtlich has other characters'
run sheaf work -b 127.0.0.1:1 --model none.gguf -G 'nightly of ~today'
code_is 66
