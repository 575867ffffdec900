. "$CLI_TESTS/lib.sh"

# Three jobs with their texts, and the same three by reference.
mkdir -p docs/town
printf 'The mill was built in 1786 by the river.' >docs/town/mill.txt
printf 'The ferry crosses at seven.' >docs/ferry.txt
python3 - <<'PY'
import json
mill, ferry = (open(f"docs/{name}", encoding="utf-8").read()
               for name in ("town/mill.txt", "ferry.txt"))
jobs = [([{"id": "m", "title": "Mill", "text": mill}], "When was the mill built?"),
        ([{"text": mill}, {"text": ferry}], "When does the ferry cross?"),
        ([{"title": "Ferry", "text": ferry}], "Who crosses?")]
names = {mill: "town/mill.txt", ferry: "ferry.txt"}
def line(n, documents, question):
    return json.dumps({"custom_id": f"q{n}", "documents": documents, "question": question,
                       "params": {"max_tokens": 8, "temperature": 0}}) + "\n"
with open("inline.jsonl", "w") as inline, open("refs.jsonl", "w") as refs:
    for n, (documents, question) in enumerate(jobs):
        inline.write(line(n, documents, question))
        refs.write(line(n, [{**{k: v for k, v in d.items() if k != "text"},
                             "ref": names[d["text"]]} for d in documents], question))
with open("docs.jsonl", "w") as file:
    file.write(json.dumps({"id": "ferry.txt", "text": ferry}) + "\n\n")
    # The title of a job goes before the document's; here every job that has none needs none.
    file.write(json.dumps({"id": "town/mill.txt", "text": mill, "source": "unread"}) + "\n")
PY
answers() {
    sqlite3 -readonly "$1" 'SELECT custom_id, answer, prompt_tokens, prefix_group
        FROM v_jobs ORDER BY custom_id'
}

it 'answers jobs with their texts'
run sheaf run -i inline.jsonl --db inline.db
code_is 0
answers inline.db >wanted
lines_are 3 wanted

it 'gives the same answers, token counts and groups by reference to a folder'
run sheaf run -i refs.jsonl --db folder.db --documents docs
code_is 0
answers folder.db >got
same wanted got

it 'gives the same answers, token counts and groups by reference to a file'
run sheaf run -i refs.jsonl --db file.db -o file.out --documents docs.jsonl
code_is 0
answers file.db >got
same wanted got

it 'counts the same tokens in check'
run sheaf check inline.jsonl
code_is 0
sed 's/inline.jsonl//' out >wanted.check
run sheaf check refs.jsonl --documents docs
code_is 0
sed 's/refs.jsonl//' out >got.check
same wanted.check got.check

it 'fails references that nobody has, and no other job'
{ cat refs.jsonl
  echo '{"custom_id": "gone", "documents": ["x", {"ref": "gone.txt"}], "question": "Q"}'; } \
    >gone.jsonl
run sheaf run -i gone.jsonl --db gone.db --documents docs
code_is 1
sql gone.db "SELECT count(*) FROM v_jobs WHERE status = 'succeeded'" 3
sql gone.db "SELECT error_code, error_message FROM v_jobs WHERE status = 'failed'" \
    'document_not_found|there is no document "gone.txt" in the documents folder'
run sheaf check gone.jsonl --documents docs --json
code_is 1
out_has '"param": "documents\[1\].ref"'

it 'says so when no documents are given'
run sheaf check refs.jsonl
code_is 1
out_has 'document_not_found.*--documents'

it 'reads nothing outside of the folder'
echo secret >secret.txt
ln -s ../secret.txt docs/link.txt
ln -s .. docs/up
ln -s town docs/village
mkfifo docs/pipe
for ref in ../secret.txt town/../../secret.txt "$PWD/secret.txt" link.txt up/secret.txt \
    town/ ./ferry.txt . .. '' town//mill.txt /etc/passwd town pipe; do
    printf '{"documents": [{"ref": "%s"}], "question": "Q"}\n' "$ref"
done >hostile.jsonl
run sheaf check hostile.jsonl --documents docs
code_is 1
out_has '14 jobs, 0 good, 14 bad'
! grep -q secret$ out || complain 'the secret came out'
[ "$(grep -c document_invalid out)" = 13 ] || complain 'not all are refused as invalid'

it 'follows a link that stays inside'
echo '{"documents": [{"ref": "village/mill.txt"}], "question": "Q"}' >inside.jsonl
run sheaf check inside.jsonl --documents docs
code_is 0

it 'names the line of a documents file that is wrong'
{ cat docs.jsonl; echo '{"id": "ferry.txt", "text": "another"}'; } >twice.jsonl
run sheaf check refs.jsonl --documents twice.jsonl
code_is 65
err_has 'twice.jsonl line 4.*ferry.txt'
echo '{"id": "a"}' >textless.jsonl
run sheaf run -i refs.jsonl --db no.db --documents textless.jsonl
code_is 65
err_has 'textless.jsonl line 1.*text'
run sheaf check refs.jsonl --documents nowhere
code_is 66

it 'refuses a documents file that does not fit'
python3 -c 'import json; print(json.dumps({"id": "big", "text": "x" * 1100000}))' >big.jsonl
run sheaf check refs.jsonl --documents big.jsonl --documents-mb 1
code_is 65
err_has 'documents.mb=1'
run sheaf check refs.jsonl --documents big.jsonl --documents-mb 2
code_is 1
