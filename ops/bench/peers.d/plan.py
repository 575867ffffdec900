"""What is measured: a quick pass that finds each peer's best settings, then pairs by turns."""
import statistics
import time

import texts
from install import say
from programs import Failed

MEASURES = ("prefill", "decode_1", "decode_8", "decode_32", "job")
SPEEDS = MEASURES[:-1]
QUICK_STEPS = 16


def candidates():
    def of(peer, file, **options):
        return {"peer": peer, "file": file, "options": options}
    return [of("llama.cpp", file, flash=flash, kv="f16")
            for file in ("Q4_0", "Q8_0", "Q4_1") for flash in (1, 0)] + [
        of("ik_llama.cpp", "Q4_0", repack=1, kv="f16"),
        of("ik_llama.cpp", "Q4_0", repack=1, kv="q8_0"),
        of("ik_llama.cpp", "Q4_0", repack=0, kv="q8_0"),
        of("ik_llama.cpp", "Q8_0", repack=1, kv="f16"),
        of("ik_llama.cpp", "Q8_0", repack=1, kv="q8_0"),
        of("ik_llama.cpp", "Q4_1", repack=0, kv="q8_0"),
        of("OpenVINO GenAI", "Q4_0"),
        of("OpenVINO GenAI", "Q8_0"),
    ]


def settings_of(config):
    return " ".join([config["file"], *(f"{k}={v}" for k, v in config["options"].items())])


def value_of(row, measure):
    """Greater is better; the job's is answers a second."""
    return row["job"] if measure == "job" else row["speed"][measure]


# ---- the quick pass --------------------------------------------------------------------------


def quick(config, peer, documents):
    row = dict(config)
    try:
        row["speed"] = peer.speed(config, steps=QUICK_STEPS)
        job = peer.job(config, documents=documents)
        row["answers"] = job["answers"]
        row["job"] = len(job["answers"]) / job["seconds"]
        say(f"quick: {row['peer']} {settings_of(row)}: prefill {row['speed']['prefill']:.0f}, "
            f"decode {row['speed']['decode_32']:.0f} tok/s, {row['job']:.2f} answers/s")
    except Failed as error:
        row["error"] = str(error)
        say(f"quick: {row['peer']} {settings_of(row)}: {error}")
    return row


def check_texts(row, sheaf_texts, llama_answers, pieces):
    """llama.cpp is held against Sheaf, the others against both; the same file each time."""
    row["texts"] = {"sheaf": texts.with_texts(row["answers"], sheaf_texts[row["file"]], pieces)}
    others = llama_answers.get(row["file"])
    if row["peer"] != "llama.cpp" and others:
        row["texts"]["llama"] = texts.with_tokens(row["answers"], others)
    row["sound"] = texts.is_sound(*row["texts"].values())


def quick_pass(peers, sheaf_texts, pieces, documents=1):
    rows = [quick(config, peers[config["peer"]], documents) for config in candidates()
            if config["peer"] in peers]
    llama_answers = {}
    for row in rows:
        if row["peer"] == "llama.cpp" and "answers" in row:
            llama_answers.setdefault(row["file"], row["answers"])
    for row in rows:
        if "answers" in row:
            check_texts(row, sheaf_texts, llama_answers, pieces)
    return rows


def choose(rows):
    """[(config, [measures it is best at])], of settings with sound texts if there are any."""
    chosen = []
    for peer in dict.fromkeys(row["peer"] for row in rows):
        good = [row for row in rows if row["peer"] == peer and "answers" in row]
        good = [row for row in good if row["sound"]] or good
        for measure in MEASURES if good else ():
            best = max(good, key=lambda row: value_of(row, measure))
            for row, measures in chosen:
                if row is best:
                    measures.append(measure)
                    break
            else:
                chosen.append((best, [measure]))
    return chosen


# ---- pairs -----------------------------------------------------------------------------------


def take_turn(run_speed, run_job, measures):
    out = {}
    if set(measures) & set(SPEEDS):
        out.update(run_speed())
    if "job" in measures:
        job = run_job()
        out["job"], out["answers"] = job["seconds"], job["answers"]
    return out


def take_pair(sheaf, peer, row, measures, is_swapped):
    """Both sides within minutes, the other one first every other time."""
    steps = 64 if set(measures) & set(SPEEDS[1:]) else 0
    sides = [("sheaf", lambda: sheaf.speed(row["file"]), lambda: sheaf.job(row["file"])),
             ("peer", lambda: peer.speed(row, steps, int("prefill" in measures)),
              lambda: peer.job(row))]
    return {side: take_turn(speed, job, measures)
            for side, speed, job in (reversed(sides) if is_swapped else sides)}


def spread(values):
    return (max(values) - min(values)) / statistics.median(values)


def sum_up(row, measure, pairs):
    ours = [pair["sheaf"][measure] for pair in pairs]
    theirs = [pair["peer"][measure] for pair in pairs]
    ratios = [b / a if measure == "job" else a / b for a, b in zip(ours, theirs)]
    return {"peer": row["peer"], "file": row["file"], "settings": settings_of(row),
            "measure": measure, "pairs": len(pairs), "sheaf": statistics.median(ours),
            "value": statistics.median(theirs), "ratio": statistics.median(ratios),
            "spread": spread(ratios), "sound": row["sound"]}


def measure_pairs(chosen, sheaf, peers, repeats):
    """-> figures, {index in chosen: the peer's answers to the whole job}. Settings that fail
    on the way have no figures."""
    pairs, broken = [[] for _ in chosen], {}
    for repeat in range(repeats):
        for i, (row, measures) in enumerate(chosen):
            if i in broken:
                continue
            began = time.monotonic()
            try:
                pairs[i].append(take_pair(sheaf, peers[row["peer"]], row, measures,
                                          repeat % 2))
            except Failed as error:
                broken[i] = str(error)
            say(f"pair {repeat + 1} of {repeats}: {row['peer']} {settings_of(row)} "
                f"({', '.join(measures)}): {broken.get(i, '')}"
                f"{time.monotonic() - began:.0f} s")
    whole = [i for i in range(len(chosen)) if i not in broken and pairs[i]]
    figures = [sum_up(chosen[i][0], measure, pairs[i]) for i in whole
               for measure in chosen[i][1]]
    answers = {i: pairs[i][-1]["peer"]["answers"] for i in whole if "job" in chosen[i][1]}
    return figures, answers
