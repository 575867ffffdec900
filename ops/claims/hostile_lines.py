"""hostile_lines.py write FILE | verify OUTPUT DB: the traps of JSON Lines and their fate.

Each trap stands between two good jobs. GOOD: it is answered. REFUSED: an error with a code.
BLANK: it is no job and gets no result.
"""
import json
import sqlite3
import sys

GOOD, REFUSED, BLANK = "good", "refused", "blank"


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
    # Two jobs of one name are two jobs; `sheaf check` tells.
    ("same-id", text("same-id"), GOOD),
    ("same-id", text("same-id"), GOOD),
    ("not-json", b"yes", REFUSED),
    ("half", text("half")[:-7], REFUSED),
    ("array", b'["custom_id", "array"]', REFUSED),
    ("trailing", text("trailing") + b" {}", REFUSED),
    ("invalid-utf8", raw("invalid-utf8", b"Say \xc3\x28 \xff."), REFUSED),
    ("overlong-utf8", raw("overlong-utf8", b"Say \xc0\xaf."), REFUSED),
    ("utf8-surrogate", raw("utf8-surrogate", b"Say \xed\xa0\x80."), REFUSED),
    ("nul-byte", raw("nul-byte", b"Say \x00yes."), REFUSED),
    ("nul-escape", raw("nul-escape", rb"Say \u0000yes."), REFUSED),
    ("control", raw("control", b"Say \x01yes."), REFUSED),
    ("lone-surrogate", raw("lone-surrogate", rb"Say \ud800."), REFUSED),
    ("duplicate-key", b'{"custom_id": "duplicate-key", "question": "a", "question": "b"}',
     REFUSED),
    ("deep", b'{"custom_id": "deep", "question": "x", "metadata": ' + b"[" * 5000 + b"]" * 5000
     + b"}", REFUSED),
    ("deepest", b"[" * 1000000, REFUSED),
    ("huge-integer", number("huge-integer", b"9" * 400), REFUSED),
    ("huge-float", number("huge-float", b"1e999"), REFUSED),
    ("negative", number("negative", b"-1"), REFUSED),
    ("20-mb", text("20-mb", metadata={"pad": "x" * (20 << 20)}), REFUSED),
    ("no-question", b'{"custom_id": "no-question"}', REFUSED),
    ("wrong-type", b'{"custom_id": "wrong-type", "question": 7}', REFUSED),
    ("utf-16", text("utf-16").decode().encode("utf-16"), REFUSED),
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


def check_line(name, fate, row, result):
    """-> what is wrong, or None."""
    if fate == BLANK:
        return "a blank line has a result" if row else None
    if row is None:
        return "no result"
    status, code, message, answer = row
    if fate == GOOD:
        right = status == "succeeded" and answer and result.get("custom_id") == name
        return None if right else f"{status} {code}: {message}"
    if status != "failed" or not code or not message:
        return f"{status} {code}: {message}"
    return None if code in json.dumps(result) else "the output line does not name the code"


def verify(output, database):
    rows = {row[0]: row[1:] for row in sqlite3.connect(database).execute(
        "SELECT offset, status, error_code, error_message, answer FROM v_jobs")}
    ids = dict(sqlite3.connect(database).execute("SELECT offset, custom_id FROM v_jobs"))
    results = {}
    with open(output, encoding="utf-8") as file:
        for result in map(json.loads, file):
            results.setdefault(result["custom_id"], []).append(result)
    wrong = []
    count = {GOOD: 0, REFUSED: 0, BLANK: 0}
    for number, (name, _, fate) in enumerate(lines(), 1):
        mine = results.get(ids.get(number), [])
        problem = check_line(name, fate, rows.get(number), mine.pop(0) if mine else {})
        count[fate] += problem is None
        if problem:
            wrong.append(f"line {number} ({name}, should be {fate}): {problem}")
        if fate == REFUSED and number in rows:
            print(f"line {number:3} {name:16} {rows[number][1]}: {rows[number][2]}")
    for line in wrong:
        print(line)
    print(f"{count[GOOD]} good jobs answered, {count[REFUSED]} broken lines refused with a "
          f"code, {count[BLANK]} blank lines passed over, {len(wrong)} wrong")
    expected = sum(fate != BLANK for _, _, fate in lines())
    return not wrong and len(rows) == expected and not any(results.values())


def main():
    if sys.argv[1] == "write":
        write(sys.argv[2])
        return 0
    return 0 if verify(sys.argv[2], sys.argv[3]) else 1


if __name__ == "__main__":
    sys.exit(main())
