"""peer_goals.py FILE: what `ops/bench/peers --json` wrote, held against the goals below.

A goal against "the best" is held against the peer nearest to Sheaf of those whose texts were
checked; a peer that was not measured misses every goal that it could have decided. Sheaf's
figure is that of its default settings, unless the peer's best settings keep keys and values in
8 bits: against those, and those only, kv.type=int8 counts where it is better. Prints one line
for each goal, which names what was used, then all in one; exits 1 when one is missed.
"""
import json
import sys

REPEATS_MIN = 5
PEERS = ("llama.cpp", "ik_llama.cpp", "OpenVINO GenAI")
WORK = {"documents": 4, "questions": 128, "answer_tokens": 64}

# measure, whom against, Sheaf's least ratio
GOALS = [
    ("prefill", "best", 2.0),
    ("prefill", "OpenVINO GenAI", 1.5),
    ("decode_32", "best", 3.0),
    ("decode_32", "llama.cpp", 5.0),
    ("decode_8", "best", 3.0),
    ("decode_1", "best", 1.5),
    ("job", "best", 3.0),
    ("job", "llama.cpp", 6.0),
    ("job", "server without prompt cache", 40.0),
]


def check_complete(report):
    assert report["repeats"] >= REPEATS_MIN, f"{report['repeats']} repeats"
    for name, value in WORK.items():
        assert report["work"][name] == value, f"{report['work'][name]} {name}, not {value}"
    for figure in report["figures"]:
        assert figure["pairs"] >= REPEATS_MIN, f"{figure['pairs']} pairs: {figure}"


def has_8_bit_kv(figure):
    return bool({"kv=q8_0", "kv=u8"} & set(figure["settings"].split()))


def held(figure):
    """What counts of a figure. -> (ratio, spread, name)"""
    int8 = figure.get("int8")
    assert not int8 or has_8_bit_kv(figure), f"int8 KV against {figure['settings']}"
    name = f"{figure['peer']} {figure['settings']}"
    if int8 and int8["ratio"] > figure["ratio"]:
        return (int8["ratio"], int8["spread"],
                f"{name}; Sheaf's kv.type=int8, {figure['ratio']:.2f} by default")
    return figure["ratio"], figure["spread"], f"{name}; Sheaf by default"


def best_of(report, measure):
    """The least of the checked peers' ratios. -> (ratio, spread, name) or None, reason"""
    found = [f for f in report["figures"] if f["measure"] == measure and f["sound"]]
    if not found:
        return None, "no peer's texts were checked"
    nearest = min(map(held, found))
    absent = [peer for peer in PEERS if not any(
        f["peer"] == peer and f["measure"] == measure for f in report["figures"])]
    if absent:
        return None, (f"{nearest[0]:.2f} against {nearest[2]}, but no "
                      f"{' and no '.join(absent)}")
    return nearest, ""


def one_of(report, measure, peer):
    found = [f for f in report["figures"] if f["measure"] == measure and f["peer"] == peer]
    if not found:
        return None, f"{peer} was not measured"
    if peer == "llama.cpp" and not found[0]["sound"]:
        return None, "llama.cpp's texts were not checked"
    return held(found[0]), ""


def server_of(report):
    found = [s for s in report["servers"] if not s["prompt_cache"]]
    if not found or "ratio" not in found[0]:
        return None, found[0]["error"] if found else "it was not measured"
    return (found[0]["ratio"], 0.0, f"scaled up from {found[0]['asked']} questions"), ""


def judge(report):
    """[(goal's name, ratio or None, limit, detail)]"""
    rows = []
    for measure, whom, limit in GOALS:
        if whom == "best":
            found, why = best_of(report, measure)
        elif whom.startswith("server"):
            found, why = server_of(report)
        else:
            found, why = one_of(report, measure, whom)
        name = f"{measure.replace('_', ' ')}, {whom}"
        if found:
            ratio, spread, detail = found
            rows.append((name, ratio, limit, f"spread {spread:.2f}, {detail}"))
        else:
            rows.append((name, None, limit, why))
    return rows


def holds(row):
    return row[1] is not None and row[1] >= row[2]


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        report = json.load(file)
    check_complete(report)
    rows = judge(report)
    for row in rows:
        name, ratio, limit, detail = row
        shown = "not shown" if ratio is None else f"{ratio:.2f}"
        print(f"{'holds' if holds(row) else 'MISSES':7} {name}: {shown}, goal {limit:g} "
              f"({detail})")
    print("; ".join(f"{name} {'-' if ratio is None else f'{ratio:.2f}'}"
                    + ("" if holds(row) else f" (not {row[2]:g})")
                    for row in rows for name, ratio in [row[:2]]))
    sys.exit(0 if all(map(holds, rows)) else 1)


main()
