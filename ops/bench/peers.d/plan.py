"""What is measured: a quick pass that finds each peer's best settings, then pairs by turns."""
import statistics
import time

import texts
from install import say
from programs import SIZES, Failed
from work import ANSWER_TOKENS

MEASURES = ("prefill", "decode_1", "decode_8", "decode_32", "job")
SPEEDS = MEASURES[:-1]
SPEED_STEPS = 64
QUICK_STEPS = 8
QUICK_ANSWER_TOKENS = 16
# Settings of peers that keep keys and values in 8 bits; Sheaf's that do.
KV_8_BITS = ("q8_0", "u8")
SHEAF_KV_8_BITS = "int8"


def candidates():
    def of(peer, file, **options):
        return {"peer": peer, "file": file, "options": options}
    return [
        of("llama.cpp", "Q4_0", flash=1, kv="f16"),
        of("llama.cpp", "Q4_0", flash=0, kv="f16"),
        of("llama.cpp", "Q8_0", flash=0, kv="f16"),
        of("llama.cpp", "Q4_1", flash=0, kv="f16"),
        of("ik_llama.cpp", "Q4_0", repack=1, kv="q8_0"),
        of("ik_llama.cpp", "Q4_0", repack=1, kv="bf16"),
        of("ik_llama.cpp", "Q4_0", repack=1, kv="f16"),
        of("ik_llama.cpp", "Q4_0", repack=0, kv="q8_0"),
        of("ik_llama.cpp", "Q8_0", repack=1, kv="q8_0"),
        of("ik_llama.cpp", "Q4_1", repack=0, kv="q8_0"),
        of("OpenVINO GenAI", "Q4_0", kv="u8", precision="f32"),
        of("OpenVINO GenAI", "Q4_0", kv="f16", precision="f32"),
        of("OpenVINO GenAI", "Q8_0", kv="u8", precision="f32"),
        # What it chooses where a CPU has instructions for bf16.
        of("OpenVINO GenAI", "Q4_0", kv="u8", precision="bf16"),
    ]


def settings_of(config):
    return " ".join([config["file"], *(f"{k}={v}" for k, v in config["options"].items())])


def has_8_bit_kv(config):
    return config["options"].get("kv") in KV_8_BITS


def value_of(row, measure):
    """Greater is better; the job's is answers a second."""
    return row["job"] if measure == "job" else row["speed"][measure]


# ---- the quick pass --------------------------------------------------------------------------


def whole_seconds(job):
    """Of answers as long as the whole job's, from shorter ones: their first token is the
    question's, the others take the time of decoding."""
    steps = (ANSWER_TOKENS - 1) / (QUICK_ANSWER_TOKENS - 1)
    return job["seconds"] + (steps - 1) * job["decode_s"]


def quick(config, peer, documents):
    row = dict(config)
    try:
        row["speed"] = peer.speed(config, steps=QUICK_STEPS)
        job = peer.job(config, documents=documents, answer=QUICK_ANSWER_TOKENS)
        row["answers"] = job["answers"]
        row["job"] = len(job["answers"]) / whole_seconds(job)
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


def peers_turn(peer, row, measures):
    """No speed is run for nothing."""
    sizes = [size for size in SIZES if f"decode_{size}" in measures]
    return take_turn(lambda: peer.speed(row, SPEED_STEPS if sizes else 0,
                                        int("prefill" in measures), sizes),
                     lambda: peer.job(row), measures)


def sheafs_turns(sheaf, entries):
    """{side: what one peer's entries, all on one file, are held against}"""
    file = entries[0][0]["file"]
    needs = {"sheaf": {m for _, measures in entries for m in measures},
             "sheaf_int8": {m for row, measures in entries if has_8_bit_kv(row)
                            for m in measures}}
    kvs = {"sheaf": None, "sheaf_int8": SHEAF_KV_8_BITS}
    return {side: take_turn(lambda kv=kvs[side]: sheaf.speed(file, kv),
                            lambda kv=kvs[side]: sheaf.job(file, kv), measures)
            for side, measures in needs.items() if measures}


def take_pairs(sheaf, peer, entries, is_swapped):
    """Both sides within minutes, the other one first every other time. -> a pair for each
    entry; in place of one that fails, the reason."""
    ours = None if is_swapped else sheafs_turns(sheaf, entries)
    theirs = []
    for row, measures in entries:
        try:
            theirs.append({"peer": peers_turn(peer, row, measures)})
        except Failed as error:
            theirs.append(str(error))
    ours = ours or sheafs_turns(sheaf, entries)
    return [{**ours, **turn} if isinstance(turn, dict) else turn for turn in theirs]


def spread(values):
    return (max(values) - min(values)) / statistics.median(values)


def compare(measure, pairs, side):
    ours = [pair[side][measure] for pair in pairs]
    theirs = [pair["peer"][measure] for pair in pairs]
    ratios = [b / a if measure == "job" else a / b for a, b in zip(ours, theirs)]
    return {"sheaf": statistics.median(ours), "ratio": statistics.median(ratios),
            "spread": spread(ratios)}


def sum_up(row, measure, pairs):
    out = {"peer": row["peer"], "file": row["file"], "settings": settings_of(row),
           "measure": measure, "pairs": len(pairs), "sound": row["sound"],
           "value": statistics.median(pair["peer"][measure] for pair in pairs),
           **compare(measure, pairs, "sheaf")}
    if has_8_bit_kv(row):
        out["int8"] = compare(measure, pairs, "sheaf_int8")
    return out


def say_pair(name, entry, pair, seconds):
    row, measures = entry
    outcome = pair if isinstance(pair, str) else ", ".join(
        f"{measure} {pair['peer'][measure]:.1f} to Sheaf's {pair['sheaf'][measure]:.1f}"
        for measure in measures)
    say(f"{name}: {row['peer']} {settings_of(row)}: {outcome} ({seconds:.0f} s)")


def measure_pairs(chosen, sheaf, peers, repeats):
    """-> figures, {index in chosen: {side: its answers to the whole job}}. Settings that fail
    on the way have no figures."""
    groups, pairs, broken = {}, [[] for _ in chosen], set()
    for i, (row, _) in enumerate(chosen):
        groups.setdefault((row["peer"], row["file"]), []).append(i)
    for repeat in range(repeats):
        for (peer, _), members in groups.items():
            whole = [i for i in members if i not in broken]
            began = time.monotonic()
            taken = whole and take_pairs(sheaf, peers[peer], [chosen[i] for i in whole],
                                         repeat % 2)
            for i, pair in zip(whole, taken):
                say_pair(f"pair {repeat + 1} of {repeats}", chosen[i], pair,
                         time.monotonic() - began)
                if isinstance(pair, str):
                    broken.add(i)
                else:
                    pairs[i].append(pair)
    whole = [i for i in range(len(chosen)) if i not in broken]
    figures = [sum_up(chosen[i][0], measure, pairs[i]) for i in whole
               for measure in chosen[i][1]]
    answers = {i: {side: turn["answers"] for side, turn in pairs[i][-1].items()
                   if "answers" in turn}
               for i in whole if "job" in chosen[i][1]}
    return figures, answers
