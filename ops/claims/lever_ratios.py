"""lever_ratios.py FILE METRIC RATIO [METRIC RATIO]...: judges `sheaf bench levers --json`.

Every answer must be the same in every half, none refused, and each metric at least RATIO times
better with the lever on. Prints one line.
"""
import json
import sys


def show(pair):
    return (f"{pair['metric']} {pair['ratio']:.2f}x (off {pair['median_off']:.4g}, "
            f"on {pair['median_on']:.4g}, spread {100 * pair['spread']:.0f} %)")


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        bench = json.load(file)
    pairs = {pair["metric"]: pair for pair in bench["pairs"]}
    lever = bench["halves"][0]["lever"]
    parts, holds = [], True
    for metric, least in zip(sys.argv[2::2], map(float, sys.argv[3::2])):
        pair = pairs[metric]
        good = (pair["ratio"] or 0) >= least
        holds = holds and good
        parts.append(show(pair) + ("" if good else f", not {least:g}x"))
    shares = [half["identical_share"] for half in bench["halves"][1:]]
    if not shares or min(shares) < 1:
        holds = False
        parts.append(f"answers differ: {shares} are the same")
    if any(half["refused"] for half in bench["halves"]):
        holds = False
        parts.append("some jobs were refused")
    note = f" ({bench['note']})" if bench["note"] else ""
    print(f"{lever}: {'; '.join(parts)}{note}")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
