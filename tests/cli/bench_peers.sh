. "$CLI_TESTS/lib.sh"
# The parts of ops/bench/peers that need no peer; its judge.
parts="$CLI_TESTS/../../ops/bench/peers.d"
judge() { run python3 "$CLI_TESTS/../../ops/claims/peer_goals.py" "$@"; }

it 'refuses what it cannot measure'
run python3 "$CLI_TESTS/../../ops/bench/peers" --repeats 0
code_is 2
run python3 "$CLI_TESTS/../../ops/bench/peers" --only gearbox
code_is 2
err_has 'gearbox'

it 'gives the same job to Sheaf and to the drivers'
model=${SHEAF_CACHE:-$HOME/.cache/sheaf}/SmolLM2-135M-Instruct.Q4_1.gguf
PYTHONPATH=$parts run python3 - "$SHEAF" "$model" <<'PY'
import json
import sys
import work

jobs = work.make(*sys.argv[1:])
work.write_driver_file(jobs, "job.txt")
work.write_sheaf_file(jobs, "job.jsonl")
prompts, document = [], None
for line in open("job.txt"):
    kind, *ids = line.split()
    ids = [int(word) for word in ids]
    if kind == "DOC":
        document = ids
    else:
        prompts.append(document + ids)
bodies = [json.loads(line)["body"] for line in open("job.jsonl")]
assert [body["prompt"] for body in bodies] == prompts and len(prompts) == 128
assert all(body["ignore_eos"] and body["max_tokens"] == 64 for body in bodies)
assert {len(d) for d, _ in jobs} == {2064} and len({tuple(d) for d, _ in jobs}) == 4
assert all(0 not in prompt for prompt in prompts), "a text has the parting token"
alone = work.tokenize(*sys.argv[1:], [work.texts()[2][1][7]])[0]
assert alone == jobs[2][1][7], "a text is other tokens by itself"
PY
code_is 0

it 'compares texts by their first tokens and whole'
PYTHONPATH=$parts run python3 - <<'PY'
import texts

pieces = [b"", b"a", b"b", b"\xc3", b"\xa9", b" "]
ours = [[1] * 9, [1, 2, 3, 4], [2, 2]]
assert texts.with_texts(ours, ["aaaaaaaaa", "ab\u00e9", "bb"], pieces) == {
    "n": 3, "first": 1, "all": 1}
# The ninth token differs, the first does, a character is cut.
found = texts.with_texts(ours, ["aaaaaaaab", "bb\u00e9", "bb"], pieces)
assert found == {"n": 3, "first": 2 / 3, "all": 1 / 3}, found
found = texts.with_texts([[1, 3]], ["a\ufffd"], pieces)
assert found == {"n": 1, "first": 1, "all": 1}, found
# An answer of the quick pass is shorter.
found = texts.with_texts([[1, 2], [1, 1]], ["abb", "abb"], pieces)
assert found == {"n": 2, "first": 0.5, "all": 0.5}, found
found = texts.with_tokens([[1] * 9, [2]], [[1] * 8 + [2], [1]])
assert found == {"n": 2, "first": 0.5, "all": 0}, found
same = "x" * texts.FIRST_CHARACTERS
found = texts.with_strings([same, same + "a", "y"], [same, same + "b", "z"])
assert found == {"n": 3, "first": 2 / 3, "all": 1 / 3}, found
bad, good, none = ({"n": n, "first": f, "all": 0} for n, f in ((9, 0.4), (9, 0.5), (0, None)))
assert texts.is_sound(good) and texts.is_sound(bad, good) and not texts.is_sound(bad, None)
assert not texts.is_sound(none)
PY
code_is 0

it 'takes the best settings of a peer from those whose texts are sound'
PYTHONPATH=$parts run python3 - <<'PY'
import plan


def row(peer, sound, fast, **more):
    return {"peer": peer, "file": "Q4_0", "options": {"flash": 1}, "sound": sound, "job": fast,
            "answers": [], "speed": {m: fast for m in plan.SPEEDS}, **more}


wrong, right, other = row("ik", False, 9), row("ik", True, 5), row("ik", True, 4)
other["job"] = 6
only = row("ov", False, 7)
failed = {"peer": "x", "error": "no"}
chosen = plan.choose([wrong, right, other, only, failed])
assert [(r is right, r is other, r is only, m) for r, m in chosen] == [
    (True, False, False, list(plan.SPEEDS)), (False, True, False, ["job"]),
    (False, False, True, list(plan.MEASURES))], chosen
pairs = [{"sheaf": {"job": a, "prefill": 10 * a}, "peer": {"job": b, "prefill": 5 * b}}
         for a, b in ((1, 2), (2, 3), (1, 3))]
assert plan.sum_up(right, "job", pairs)["ratio"] == 2  # of 2, 1.5 and 3
assert plan.sum_up(right, "job", pairs)["spread"] == 0.75
assert plan.sum_up(right, "prefill", pairs)["ratio"] == 1  # of 1, 4 / 3 and 2 / 3


class Program:
    def __init__(self, calls):
        self.calls = calls

    def speed(self, *args):
        self.calls.append(("speed", *args[1:]))
        return {"prefill": 1, "decode_1": 1, "decode_8": 1, "decode_32": 1}

    def job(self, *args):
        self.calls.append(("job", *args[1:]))
        if len(self.calls) > 5:
            raise plan.Failed("it broke")
        return {"seconds": 1, "answers": [[1]]}


# Settings on one file share Sheaf's turn.
ours, theirs = [], []
figures, answers = plan.measure_pairs([(right, ["prefill"]), (other, ["job"])],
                                      Program(ours), {"ik": Program(theirs)}, 2)
assert theirs == [("speed", 0, 1, []), ("job",)] * 2, theirs
assert ours == [("speed", None), ("job", None)] * 2, ours
assert [f["measure"] for f in figures] == ["prefill", "job"] and answers == {
    1: {"sheaf": [[1]], "peer": [[1]]}}
figures, answers = plan.measure_pairs([(right, ["prefill"]), (other, ["job"])],
                                      Program([]), {"ik": Program(theirs)}, 2)
assert [f["measure"] for f in figures] == ["prefill"] and answers == {}, figures
assert "int8" not in figures[0], figures
# Only what a peer was chosen for is run, and int8 KV beside a peer that has it too.
ours, theirs = [], []
bytes_kv = {**right, "options": {"kv": "q8_0"}}
figures, _ = plan.measure_pairs([(bytes_kv, ["decode_8", "decode_32"])], Program(ours),
                                {"ik": Program(theirs)}, 1)
assert theirs == [("speed", 64, 0, [8, 32])], theirs
assert ours == [("speed", None), ("speed", "int8")], ours
assert [f["int8"]["ratio"] for f in figures] == [1, 1], figures
# 2 s of which 1.5 went into 15 of 63 steps.
assert abs(plan.whole_seconds({"seconds": 2, "decode_s": 1.5}) - 6.8) < 1e-9
PY
code_is 0

it 'has a judge that lets the peers pass only when each goal is reached'
python3 - <<'PY'
import json

ratios = {"prefill": (5, 3, 2), "decode_1": (4, 1.6, 1.2), "decode_8": (9, 3.2, 2),
          "decode_32": (6, 3.2, 2), "job": (7, 3.4, 2.2)}
peers = ("llama.cpp", "ik_llama.cpp", "OpenVINO GenAI")
figures = [{"peer": peer, "settings": "Q4_0", "measure": measure, "pairs": 5, "ratio": ratio,
            "spread": 0.1, "sheaf": 1, "value": 1, "sound": peer != "OpenVINO GenAI"}
           for measure, values in ratios.items() for peer, ratio in zip(peers, values)]
report = {"repeats": 5, "figures": figures,
          "work": {"documents": 4, "questions": 128, "answer_tokens": 64},
          "servers": [{"prompt_cache": True, "ratio": 1, "asked": 128},
                      {"prompt_cache": False, "ratio": 50, "asked": 4}]}


def save(name, change):
    other = json.loads(json.dumps(report))
    change(other)
    json.dump(other, open(f"{name}.json", "w"))


def low(measure, peer, ratio):
    def change(other):
        for figure in other["figures"]:
            if (figure["measure"], figure["peer"]) == (measure, peer):
                figure["ratio"] = ratio
    return change


def in_bytes(peer, settings, ratio):
    def change(other):
        low("decode_8", peer, 2)(other)
        for figure in other["figures"]:
            if (figure["measure"], figure["peer"]) == ("decode_8", peer):
                figure["settings"] = settings
                figure["int8"] = {"sheaf": 1, "ratio": ratio, "spread": 0.1}
    return change


def without(peer):
    return lambda other: other.update(
        figures=[f for f in other["figures"] if f["peer"] != peer])


save("good", lambda other: None)
lows = [("prefill", "ik_llama.cpp", 1.9), ("prefill", "OpenVINO GenAI", 1.4),
        ("decode_32", "ik_llama.cpp", 2.9), ("decode_32", "llama.cpp", 4.9),
        ("decode_8", "ik_llama.cpp", 2.9), ("decode_1", "ik_llama.cpp", 1.4),
        ("job", "ik_llama.cpp", 2.9), ("job", "llama.cpp", 5.9)]
for i, (measure, peer, ratio) in enumerate(lows):
    save(f"low{i}", low(measure, peer, ratio))
save("low8", lambda other: other["servers"][1].update(ratio=39))
save("low9", lambda other: other["servers"].clear())
save("low10", without("OpenVINO GenAI"))
save("low11", lambda other: [f.update(sound=False) for f in other["figures"]])
save("low12", lambda other: [f.update(sound=True) for f in other["figures"]])
save("low13", in_bytes("ik_llama.cpp", "Q4_0 repack=1 kv=q8_0", 2.9))
save("bytes", in_bytes("ik_llama.cpp", "Q4_0 repack=1 kv=q8_0", 3.1))
save("unequal", in_bytes("ik_llama.cpp", "Q4_0 repack=1 kv=bf16", 3.1))
save("few", lambda other: other.update(repeats=4))
save("pairs", lambda other: other["figures"][3].update(pairs=4))
save("short", lambda other: other["work"].update(questions=32))
PY
judge good.json
code_is 0
out_has '^prefill, best 3.00; prefill, OpenVINO GenAI 2.00; .*without prompt cache 50.00$'
judge bytes.json
code_is 0
out_has "decode 8, best: 3.10, .*kv=q8_0; Sheaf's kv.type=int8, 2.00 by default"
for i in $(seq 0 13); do
    judge low$i.json
    code_is 1
    out_has '^MISSES'
    out_has 'not [0-9]'
done
judge low10.json
out_has 'prefill, best: not shown, .*no OpenVINO GenAI'
for i in few pairs short unequal; do
    judge $i.json
    code_is 1
    err_has 'AssertionError'
done

it 'shows every figure and every peer that was not measured'
PYTHONPATH=$parts run python3 - <<'PY'
import json
import table

report = json.load(open("bytes.json"))
speed = {"prefill": 1, "decode_1": 2, "decode_8": 3, "decode_32": 4}
found = {"n": 128, "first": 0.75, "all": None}
report["work"].update(document_tokens=2064, question_tokens=17.2)
report.update(machine={"cpu": "A CPU"}, threads=2, foreign_load=0.01,
              peers=[{"peer": "x", "version": "1", "note": "NOT MEASURED: no wheel"}],
              quick=[{"peer": "x", "settings": "Q4_0", "speed": speed, "job": 5,
                      "texts": {"sheaf": found}},
                     {"peer": "y", "settings": "Q8_0", "error": "exit code 1: no"}],
              job_texts=[{"peer": "x", "settings": "Q4_0", "sheaf": found}],
              servers=[{"name": "prompt cache", "error": "no port"},
                       {"name": "no prompt cache", "settings": "Q4_0", "asked": 4,
                        "scaled": True, "seconds": 800, "sheaf": 10, "ratio": 80}])
print("\n".join(table.show(report)))
PY
code_is 0
out_has 'NOT MEASURED: no wheel'
out_has 'exit code 1: no'
out_has ' 75%    -'
out_has 'OpenVINO GenAI .* NOT VERIFIED; default$'
out_has 'the whole job, s +ik_llama.cpp .* checked; default$'
out_has 'decode, 8 on .* kv=q8_0 .* 2.00x .* checked; default$'
out_has 'decode, 8 on .* kv=q8_0 .* 3.10x .* checked; kv.type=int8$'
out_has 'scaled up from 4 questions; Sheaf 10.0 s, 80.0x'
