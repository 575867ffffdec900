"""hostile_lines.py write FILE | verify OUTPUT DB: the traps of JSON Lines and their fate.

Each trap stands between two good jobs. GOOD: it is answered. BLANK: it is no job and gets no
result. Anything else is the code of the error that it gets; where the bytes themselves are
broken the message names the line.
"""
import json
import sqlite3
import sys

GOOD, BLANK = "good", "blank"
BROKEN_BYTES = {"invalid_json_line", "invalid_utf8", "duplicate_key"}


def job(name, **more):
    return {"custom_id": name, "question": "Say yes.", "params": {"max_tokens": 4}, **more}


def text(name, **more):
    return json.dumps(job(name, **more)).encode()


def raw(name, question):
    """A job whose question is these bytes of JSON string, unescaped."""
    return (b'{"custom_id": "%s", "params": {"max_tokens": 4}, "question": "%s"}'
            % (name.encode(), question))


def number(name, digits):
    return (b'{"custom_id": "%s", "question": "Say yes.", "params": {"max_tokens": %s}}'
            % (name.encode(), digits))


# (name, line without its newline, what becomes of it); the first one begins the file.
TRAPS = [
    ("bom", b"\xef\xbb\xbf" + text("bom"), GOOD),
    ("crlf", text("crlf") + b"\r", GOOD),
    ("empty", b"", BLANK),
    ("blanks", b" \t \r", BLANK),
    ("escapes", raw("escapes", rb"Say \u0079es \ud83d\ude00."), GOOD),
    # The name is all that joins an answer to its question, so it can stand for one job only.
    ("same-id", text("same-id"), GOOD),
    ("same-id", text("same-id"), "duplicate_custom_id"),
    ("not-json", b"yes", "invalid_json_line"),
    ("half", text("half")[:-7], "invalid_json_line"),
    ("array", b'["custom_id", "array"]', "invalid_type"),
    ("trailing", text("trailing") + b" {}", "invalid_json_line"),
    ("invalid-utf8", raw("invalid-utf8", b"Say \xc3\x28 \xff."), "invalid_utf8"),
    ("overlong-utf8", raw("overlong-utf8", b"Say \xc0\xaf."), "invalid_utf8"),
    ("utf8-surrogate", raw("utf8-surrogate", b"Say \xed\xa0\x80."), "invalid_utf8"),
    ("nul-byte", raw("nul-byte", b"Say \x00yes."), "invalid_json_line"),
    ("nul-escape", raw("nul-escape", rb"Say \u0000yes."), "invalid_value"),
    ("control", raw("control", b"Say \x01yes."), "invalid_json_line"),
    ("lone-surrogate", raw("lone-surrogate", rb"Say \ud800."), "invalid_utf8"),
    ("duplicate-key", b'{"custom_id": "duplicate-key", "question": "a", "question": "b"}',
     "duplicate_key"),
    ("deep", b'{"custom_id": "deep", "question": "x", "metadata": ' + b"[" * 5000 + b"]" * 5000
     + b"}", "invalid_json_line"),
    ("deepest", b"[" * 1000000, "invalid_json_line"),
    ("huge-integer", number("huge-integer", b"9" * 400), "invalid_value"),
    ("huge-float", number("huge-float", b"1e999"), "invalid_value"),
    ("negative", number("negative", b"-1"), "invalid_value"),
    ("20-mb", text("20-mb", metadata={"pad": "x" * (20 << 20)}), "line_too_long"),
    # A prediction is a hint: whatever it says, the job is answered; its shape can be wrong.
    ("prediction", text("prediction", prediction="<|im_end|>\x01\u2581" * 1000), GOOD),
    ("prediction-2-mb", text("prediction-2-mb", prediction="yes " * (1 << 19)), GOOD),
    ("prediction-7", text("prediction-7", prediction=7), "invalid_type"),
    ("no-question", b'{"custom_id": "no-question"}', "invalid_request"),
    ("wrong-type", b'{"custom_id": "wrong-type", "question": 7}', "invalid_type"),
    ("utf-16", text("utf-16").decode().encode("utf-16"), "invalid_utf8"),
    ("last", text("last"), GOOD),
]


def lines():
    """-> (name, bytes, what becomes of it) of the whole file."""
    for i, trap in enumerate(TRAPS):
        if i > 0:
            yield f"between-{i}", text(f"between-{i}"), GOOD
        yield trap


def write(path):
    # The last line has no newline.
    with open(path, "wb") as file:
        file.write(b"\n".join(data for _, data, _ in lines()))


def check_line(number, name, fate, row, result):
    """-> what is wrong, or None."""
    if fate == BLANK:
        return "a blank line has a result" if row else None
    if row is None:
        return "no result"
    status, code, message, answer = row
    if fate == GOOD:
        right = status == "succeeded" and answer and result.get("custom_id") == name
    else:
        right = status == "failed" and code == fate and code in json.dumps(result)
        if code in BROKEN_BYTES:
            right = right and f"line {number}" in message
    return None if right else f"{status} {code}: {message}"


def read_output(path):
    results = {}
    with open(path, encoding="utf-8") as file:
        for result in map(json.loads, file):
            results.setdefault(result["custom_id"], []).append(result)
    return results


def verify(output, database):
    database = sqlite3.connect(database)
    rows = {row[0]: row[1:] for row in database.execute(
        "SELECT offset, status, error_code, error_message, answer FROM v_jobs")}
    ids = dict(database.execute("SELECT offset, custom_id FROM v_jobs"))
    results = read_output(output)
    wrong = []
    count = {"good": 0, "refused": 0, "blank": 0}
    for number, (name, _, fate) in enumerate(lines(), 1):
        # Of two lines with one name, each takes the result with its own status.
        mine = results.get(ids.get(number), [])
        own = next((r for r in mine if r["status"] == rows[number][0]), {}) if mine else {}
        if own:
            mine.remove(own)
        problem = check_line(number, name, fate, rows.get(number), own)
        if problem:
            wrong.append(f"line {number} ({name}, should be {fate}): {problem}")
        else:
            count[fate if fate in count else "refused"] += 1
        if fate not in (GOOD, BLANK) and number in rows:
            print(f"line {number:3} {name:16} {rows[number][1]}: {rows[number][2]}")
    wrong += [f"a result too many: {name}" for name, left in results.items() if left]
    if len(rows) != sum(fate != BLANK for _, _, fate in lines()):
        wrong.append(f"{len(rows)} rows in the database")
    for line in wrong:
        print(line)
    print(f"{count['good']} good jobs answered, {count['refused']} broken lines refused with "
          f"their code, {count['blank']} blank lines passed over, {len(wrong)} wrong")
    return not wrong


def main():
    if sys.argv[1] == "write":
        write(sys.argv[2])
        return 0
    return 0 if verify(sys.argv[2], sys.argv[3]) else 1


if __name__ == "__main__":
    sys.exit(main())
