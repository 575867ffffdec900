"""speed_limits.py kernels|roofline FILE: what `sheaf bench kernels --json` or `sheaf bench
roofline --json` wrote, held against the limits below.

Prints one line for each figure that has a limit, then all in one; exits 1 when one is missed.
"""
import json
import sys

REPEATS_MIN = 5
BYTE_TYPES = {"Q4_0", "Q4_1", "Q8_0"}
FLOAT_TYPES = {"BF16", "F32"}
ROOFLINE = 0.75
SIZES = {1, 8, 32}


def kernel_limit(figure):
    """(ratio's key, limit, group) of a figure, or None."""
    rows = figure["rows"]
    if figure["op"] == "attention":
        return "peak_ratio", 0.65, "attention"
    if figure["type"] in FLOAT_TYPES:
        return "peak_ratio", 0.80, "float products"
    if rows >= 128:
        return "peak_ratio", 0.75, "128 rows and more"
    if rows == 8:
        return "peak_ratio", 0.60, "8 rows"
    if rows <= 4:
        return "read_ratio", 0.85, "1-4 rows"
    return None


def check_complete(bench):
    assert bench["repeats"] >= REPEATS_MIN, f"{bench['repeats']} repeats"
    assert bench["kernels"] != "ref", "plain C was measured against plain C"
    seen = {(f["op"], f["type"], f["rows"], f.get("inputs")) for f in bench["figures"]}
    wanted = {("product", t, r, k) for t in BYTE_TYPES for r in (1, 2, 4, 8, 32, 128, 256)
              for k in (576, 1536)}
    wanted |= {("product", t, 128, k) for t in FLOAT_TYPES for k in (576, 1536)}
    wanted |= {("attention", t, 96, None) for t in ("bf16", "f32", "int8")}
    assert wanted <= seen, f"not measured: {sorted(wanted - seen)}"


def kernels(bench):
    """[(group, name, ratio, spread, limit)]"""
    check_complete(bench)
    rows = []
    for figure in bench["figures"]:
        if not kernel_limit(figure):
            continue
        key, limit, group = kernel_limit(figure)
        name = " ".join(str(figure[k]) for k in ("op", "type", "inputs", "outputs", "keys",
                                                 "rows") if figure.get(k))
        if figure["op"] == "product" and figure["rows"] == 8:
            name += f" (read at {figure['read_ratio']:.2f} of the bandwidth)"
        rows.append((group, name, figure[key], figure[key.replace("ratio", "spread")], limit))
    return rows


def roofline(bench):
    assert bench["repeats"] >= REPEATS_MIN, f"{bench['repeats']} repeats"
    assert bench["prompt_tokens"] == 2000 and bench["prefix_tokens"] == 2048, "other lengths"
    decode = {f["sequences"]: f for f in bench["decode"]}
    assert decode.keys() == SIZES, sorted(decode)
    rows = [("prefill", "prefill", bench["prefill"])]
    rows += [(f"decode {n}", f"decode {n}", decode[n]) for n in sorted(decode)]
    return [(group, f"{name}: {f['tok_s']:.0f} of {f['roofline_tok_s']:.0f} tok/s",
             f["ratio"], f["spread"], ROOFLINE) for group, name, f in rows]


def holds(row):
    return row[2] >= row[4]


def main():
    judge = {"kernels": kernels, "roofline": roofline}[sys.argv[1]]
    with open(sys.argv[2], encoding="utf-8") as file:
        rows = judge(json.load(file))
    for group, name, ratio, spread, limit in rows:
        verdict = "holds" if ratio >= limit else "MISSES"
        print(f"{verdict:7} {name}: {ratio:.2f} (spread {spread:.2f}), limit {limit:.2f}")
    parts = []
    for group in dict.fromkeys(row[0] for row in rows):
        worst = min((row for row in rows if row[0] == group), key=lambda row: row[2])
        parts.append(f"{group} {worst[2]:.2f}"
                     + ("" if holds(worst) else f" (not {worst[4]:.2f})"))
    print("; ".join(parts))
    sys.exit(0 if all(map(holds, rows)) else 1)


main()
