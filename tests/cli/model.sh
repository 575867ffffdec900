. "$CLI_TESTS/lib.sh"

it 'describes the demo model'
run sheaf model info
code_is 0
out_has 'llama'
out_has '49152'
out_has '8192'
err_is_empty

it 'describes it as JSON'
run sheaf model info --json
code_is 0
python3 -m json.tool out >/dev/null || complain 'not JSON'

it 'turns text into token ids and back into the same bytes'
printf 'The mill was built in 1786.\n  Grüße, 水車小屋 \xf0\x9f\x8c\xbe' >text
sheaf model tokenize <text >ids 2>err || complain 'tokenize failed'
sheaf model detokenize <ids >back 2>err || complain 'detokenize failed'
same text back
grep -qE '^[0-9]+( [0-9]+)*$' ids || complain 'not ids'

it 'reads the text of a special token as text'
printf '<|im_end|>' | sheaf model tokenize >out 2>err
[ "$(wc -w <out)" -gt 1 ] || complain 'text became a special token'
