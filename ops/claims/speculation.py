"""What the claims on speculation share.

speculation.py equal FOLDER OFF NAME...  FOLDER/NAME.db hold the answers of FOLDER/OFF.db, byte
                                         for byte; each NAME accepted drafted tokens
speculation.py distribution LOG SEEDS    what test_spec_distribution printed
speculation.py acceptance LOG RECORD     tokens a step of the demo model that
                                         test_spec_acceptance printed: near the record, whatever
                                         the batch
speculation.py speed FILE:BATCH...       judges `sheaf bench levers --lever speculation
                                         --experiment spec --json` by LIMITS
"""
import json
import re
import sqlite3
import sys

# (kind of jobs, batch or None for every one, metric, least): of the ratio on / off, but for
# tokens_per_step, which is the figure itself.
LIMITS = [
    ("extraction", 1, "tokens_per_step", 2.0),
    ("extraction", 1, "wall_s", 1.5),
    ("extraction", 8, "wall_s", 1.0),
    ("extraction", 32, "wall_s", 0.98),
    ("open", 32, "wall_s", 0.99),  # enabled, and next to nothing is drafted
    ("open", None, "wall_s", 0.97),
]
IDLE_DRAFTED_MAX = 0.02  # of the answers' tokens, where it counts as idle
RECORD_DIFFERS_MAX = 0.03
BATCHES_DIFFER_MAX = 0.01


def answers(path):
    rows = sqlite3.connect(f"file:{path}?mode=ro", uri=True).execute(
        "SELECT custom_id, answer, finish_reason, stop_reason, completion_tokens, status,"
        " draft_tokens, accepted_tokens FROM v_jobs").fetchall()
    assert rows and all(row[5] == "succeeded" for row in rows), f"{path}: a job failed"
    return {row[0]: row[1:5] for row in rows}, sum(row[6] for row in rows), \
        sum(row[7] for row in rows)


def equal(folder, off, *names):
    plain, drafted, _ = answers(f"{folder}/{off}.db")
    assert drafted == 0, f"{off}: {drafted} tokens were drafted"
    total = 0
    for name in names:
        other, _, accepted = answers(f"{folder}/{name}.db")
        differ = [i for i in plain if plain[i] != other.get(i)]
        assert len(other) == len(plain) and not differ, f"{name} differs from {off} in {differ}"
        assert accepted > 0, f"{name}: no drafted token was accepted"
        total += accepted
    assert len({a[0] for a in plain.values()}) > len(plain) // 2, "the answers are all alike"
    print(f"{len(plain)} jobs of the demo model in {len(names)} settings: {total} drafted "
          f"tokens accepted, 0 bytes differ")
    return True


def read_bench(path):
    with open(path, encoding="utf-8") as file:
        bench = json.load(file)
    assert not any(half["refused"] for half in bench["halves"]), f"{path}: jobs were refused"
    shares = [half["identical_share"] for half in bench["halves"]]
    assert all(share is None or share == 1 for share in shares), f"{path}: answers differ"
    return bench


def figure(pair):
    return pair["median_on"] if pair["metric"] == "tokens_per_step" else pair["ratio"]


def drafted_share(bench, kind):
    halves = [h for h in bench["halves"] if h["lever_on"] and h["job_kind"] == kind]
    return max(h["draft_tokens"] / h["completion_tokens"] for h in halves)


def speed(*arguments):
    holds, parts = True, []
    for argument in arguments:
        path, batch = argument.rsplit(":", 1)
        bench = read_bench(path)
        pairs = {(p["job_kind"], p["metric"]): p for p in bench["pairs"]}
        for kind, of_batch, metric, least in LIMITS:
            if of_batch not in (None, int(batch)):
                continue
            pair = pairs[kind, metric]
            good = (figure(pair) or 0) >= least
            holds = holds and good
            parts.append(f"{kind} at batch {batch}: {figure(pair):.2f} "
                         f"{'tokens a step' if metric == 'tokens_per_step' else 'x'}"
                         f" (spread {100 * pair['spread']:.0f} %)"
                         + ("" if good else f", not {least:g}"))
            if least == 0.99 and drafted_share(bench, kind) > IDLE_DRAFTED_MAX:
                holds = False
                share = drafted_share(bench, kind)
                parts.append(f"not idle: {share:.2f} tokens drafted for one")
    print("; ".join(parts))
    return holds


def distribution(log, seeds):
    with open(log, encoding="utf-8") as file:
        rows = re.findall(r"^(.+): (\d+) seeds, \d+ cells, chi-square ([\d.]+) of at most "
                          r"([\d.]+)$", file.read(), re.MULTILINE)
    assert len(rows) >= 7 and all(row[1] == seeds for row in rows), f"not all: {rows}"
    print(f"{seeds} seeds: " + "; ".join(f"{name} {chi} (limit {limit})"
                                         for name, _, chi, limit in rows))
    return True


def acceptance(log, record):
    with open(log, encoding="utf-8") as file:
        found = re.findall(r"demo: (\w+), batch (\d+): ([\d.]+) tokens a step", file.read())
    with open(record, encoding="utf-8") as file:
        recorded = json.load(file)["tokens_per_step"]
    assert found, "the test printed no figure of the demo model"
    holds, parts = True, []
    for source in sorted({row[0] for row in found}):
        rates = [float(row[2]) for row in found if row[0] == source]
        width = max(rates) / min(rates) - 1
        away = rates[0] / recorded[source] - 1 if source in recorded else float("nan")
        good = width <= BATCHES_DIFFER_MAX and abs(away) <= RECORD_DIFFERS_MAX
        holds = holds and good
        parts.append(f"{source}: {rates[0]:.3f} tokens a step, {100 * away:+.1f} % from the "
                     f"record, batches differ by {100 * width:.2f} %"
                     + ("" if good else ": too much"))
    print("; ".join(parts))
    return holds


def main():
    commands = {"equal": equal, "distribution": distribution, "acceptance": acceptance,
                "speed": speed}
    try:
        return 0 if commands[sys.argv[1]](*sys.argv[2:]) else 1
    except AssertionError as error:
        print(error)
        return 1


if __name__ == "__main__":
    sys.exit(main())
