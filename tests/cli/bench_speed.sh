. "$CLI_TESTS/lib.sh"
tiny="$CLI_TESTS/../golden/tiny/tiny-llama-q8_0.gguf"
judge() { run python3 "$CLI_TESTS/../../ops/claims/speed_limits.py" "$@"; }

it 'measures a kernel beside its peak and the read bandwidth'
run sheaf bench kernels 'Q8_0 576x1536, rows 4' --repeats 1
code_is 0
lines_are 2 out
out_has 'product Q8_0 576x1536, rows 4 .* of the int8 peak .* of the read bandwidth'

it 'measures attention for every KV type beside the peak of its instructions'
run sheaf bench kernels attention --repeats 1 --threads 1 --json
code_is 0
python3 - out <<'PY' || complain 'the JSON is not as it should be'
import json, sys
bench = json.load(open(sys.argv[1]))
assert bench["threads"] == 1 and bench["repeats"] == 1, bench
figures = {f["type"]: f for f in bench["figures"]}
assert {"bf16", "f32", "int8"} == figures.keys(), figures.keys()
for f in figures.values():
    assert f["op"] == "attention" and f["rows"] == 96 and f["keys"] == 2048, f
    assert f["gop_s"] > 0 and 0 < f["peak_ratio"] and "read_ratio" not in f, f
assert figures["bf16"]["peak"] == figures["f32"]["peak"] == "f32"
assert figures["int8"]["peak"] == "int16"
PY

it 'measures products in bytes and in floats beside different peaks'
run sheaf bench kernels '1536x576, rows 128' --repeats 1 --json
code_is 0
python3 - out <<'PY' || complain 'the JSON is not as it should be'
import json, sys
peaks = {f["type"]: f["peak"] for f in json.load(open(sys.argv[1]))["figures"]}
assert peaks == {"Q4_0": "int8", "Q4_1": "int8", "Q8_0": "int8", "BF16": "f32",
                 "F32": "f32"}, peaks
PY

it 'refuses a kernel that there is none of'
run sheaf bench kernels gearbox
code_is 2
err_has 'gearbox'
run sheaf bench kernels --repeats 0
code_is 2

it 'measures the engine beside its roofline, on a prefix that is shared'
run sheaf bench roofline --model "$tiny" --prompt-tokens 64 --answer-tokens 4 --repeats 1 --json
code_is 0
cp out roofline.json
python3 - out <<'PY' || complain 'the JSON is not as it should be'
import json, sys
bench = json.load(open(sys.argv[1]))
assert [f["sequences"] for f in bench["decode"]] == [1, 8, 32], bench
assert bench["prompt_tokens"] == bench["prefix_tokens"] == 64
for f in [bench["prefill"], *bench["decode"]]:
    assert 0 < f["tok_s"] and 0 < f["roofline_tok_s"] and 0 < f["ratio"], f
    assert abs(f["ratio"] * f["roofline_tok_s"] / f["tok_s"] - 1) < 1e-6, f
PY

it 'measures the engine beside the roofline of KV in bytes'
run sheaf bench roofline --model "$tiny" --prompt-tokens 64 --answer-tokens 4 --repeats 1 \
    --kv-type int8 --json
code_is 0
out_has '"tok_s": [0-9.]*[1-9]'

it 'refuses a roofline of nothing'
run sheaf bench roofline --model "$tiny" --prompt-tokens 5
code_is 2
run sheaf bench roofline --model "$tiny" --prompt-tokens 500 --answer-tokens 100 --repeats 1
code_is 65
err_has 'prompt-tokens'

# The emulated device stands for any: it is beside the program when C++ was there to build it.
if [ -e "$(dirname -- "$SHEAF")/sheaf-cuda-emu.so" ]; then
    it 'holds no device against the peaks of the CPU'
    run sheaf bench engine --model "$tiny" --device cuda-emu --prompt-tokens 32 \
        --answer-tokens 1 --json
    code_is 0
    python3 - out <<'PY' || complain 'the JSON is not as it should be'
import json, sys
bench = json.load(open(sys.argv[1]))
assert bench["kernels"] == "cuda-emu", bench
assert bench["prefill"].keys() == {"tok_s"} and bench["prefill"]["tok_s"] > 0, bench
assert [f["sequences"] for f in bench["decode"]] == [1, 8, 32], bench
assert all(f.keys() == {"tok_s", "sequences"} and f["tok_s"] > 0 for f in bench["decode"])
PY
    run sheaf bench roofline --model "$tiny" --device cuda-emu --repeats 1
    code_is 78
    err_has 'cuda-emu computes; ops/gpu-check'
fi

it 'measures no step in which a sequence has ended already'
run sheaf bench engine --model "$tiny" --prompt-tokens 450 --answer-tokens 100
code_is 65
err_has 'answer-tokens'

it 'has a judge that lets kernels pass only when each limit is reached'
python3 - <<'PY'
import json
figures = [{"op": "product", "type": t, "inputs": 576, "outputs": 1536, "rows": r,
            "peak_ratio": 0.9, "peak_spread": 0.1, "read_ratio": 0.9, "read_spread": 0.1}
           for t in ("Q4_0", "Q4_1", "Q8_0") for r in (1, 2, 4, 8, 32, 128, 256)]
figures += [{"op": "product", "type": t, "inputs": 576, "outputs": 1536, "rows": 128,
             "peak_ratio": 0.9, "peak_spread": 0.1} for t in ("BF16", "F32")]
figures += [{"op": "attention", "type": t, "keys": 2048, "outputs": 0, "rows": 96,
             "peak_ratio": 0.7, "peak_spread": 0.1} for t in ("bf16", "f32", "int8")]
figures += [dict(f, inputs=1536, outputs=576) for f in figures if f["op"] == "product"]
bench = {"repeats": 5, "kernels": "avx2", "figures": figures}
json.dump(bench, open("good.json", "w"))
low = [(0, "read_ratio", 0.84), (3, "peak_ratio", 0.59), (5, "peak_ratio", 0.74),
       (6, "peak_ratio", 0.74), (21, "peak_ratio", 0.79), (24, "peak_ratio", 0.64),
       (4, "peak_ratio", 0.1)]  # the last has no limit
for i, (index, key, ratio) in enumerate(low):
    bad = json.loads(json.dumps(bench))
    bad["figures"][index][key] = ratio
    json.dump(bad, open(f"low{i}.json", "w"))
json.dump(dict(bench, repeats=4), open("few.json", "w"))
json.dump(dict(bench, figures=figures[1:]), open("less.json", "w"))
json.dump(dict(bench, kernels="ref"), open("ref.json", "w"))
PY
judge kernels good.json
code_is 0
out_has '^128 rows and more 0.90|; 128 rows and more 0.90'
for i in 0 1 2 3 4 5; do
    judge kernels low$i.json
    code_is 1
    out_has '^MISSES'
    out_has 'not 0\.'
done
judge kernels low6.json
code_is 0
judge kernels few.json
code_is 1
judge kernels less.json
code_is 1
judge kernels ref.json
code_is 1

it 'has a judge that lets a roofline pass only when all four are reached'
python3 - <<'PY'
import json
figure = {"tok_s": 80, "roofline_tok_s": 100, "ratio": 0.8, "spread": 0.1}
bench = {"repeats": 5, "prompt_tokens": 2000, "prefix_tokens": 2048, "prefill": figure,
         "decode": [dict(figure, sequences=n) for n in (1, 8, 32)]}
json.dump(bench, open("good.json", "w"))
json.dump(dict(bench, prefill=dict(figure, ratio=0.74)), open("low0.json", "w"))
bench["decode"][1]["ratio"] = 0.74
json.dump(bench, open("low1.json", "w"))
PY
judge roofline good.json
code_is 0
out_has '^prefill 0.80; decode 1 0.80; decode 8 0.80; decode 32 0.80$'
judge roofline low0.json
code_is 1
judge roofline low1.json
code_is 1
out_has 'decode 8 0.74 \(not 0.75\)'
judge roofline roofline.json
code_is 1

it 'has a judge that lets a run pass only when the engine computes nearly all of the time'
judge_idle() { run python3 "$CLI_TESTS/../../ops/claims/idle_stages.py" "$@"; }
python3 "$CLI_TESTS/../../ops/claims/make_documents.py" --documents 1 --questions 1000 \
    --words 20 --answer 1 >many.jsonl
run sheaf run -q -i many.jsonl -o many.out --db many.db --model "$tiny" --chat-template chatml
code_is 0
judge_idle many.db 1000
code_is 1
out_has 'not 0\.97'
out_has 'most of the rest: process start and end'
# A second for the engine, 20 ms for all else.
sqlite3 many.db "UPDATE runs SET counters_json = json_set(counters_json, '\$.busy_us', 980000,
    '\$.stages', json('{\"start_us\": 5000, \"wait_us\": 4000, \"window_us\": 3000,
        \"step_us\": 982000, \"collect_us\": 1000, \"other_us\": 1000, \"close_us\": 2000,
        \"parse_us\": 0, \"lookup_us\": 0, \"emit_us\": 0, \"store_us\": 0,
        \"deliver_us\": 0}'))"
judge_idle many.db 1.0
code_is 0
out_has '^planning, accepting tokens +0\.00 s +0\.20%'
out_has '^process start and end +0\.00 s +0\.20%'
out_has '^the engine computes 0\.9800 of 1\.0 s; most of the rest: start-up'
judge_idle many.db 1.02
code_is 1
judge_idle many.db 0.9
code_is 1
