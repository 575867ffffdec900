"""Figures of lines that `sheaf-device-check` prints, beside what is to be reached.

A share of the roofline is the least time that the measured ceilings leave (worker/device_check/
roof.h) divided by the time that it took.
"""
from statistics import median

# performance.md's first goals for a GPU.
PREFILL_MIN, GROUPED_MIN, SHARING_MIN, SINGLE_MIN = 0.70, 0.65, 4.0, 0.65


def samples(lines, what, **wanted):
    found = [line for line in lines if line["what"] == what
             and all(line[key] == value for key, value in wanted.items())]
    if not found:
        raise ValueError(f"no line says {what} {wanted}")
    return found


def once(sample):
    """Seconds of what was computed once."""
    return sample["seconds"] / sample["times"]


def launches(sample):
    if "cost" not in sample or not sample["cost"]["steps"]:
        return None
    total = sum(cost["launches"] for cost in sample["cost"]["of"].values())
    return total / sample["cost"]["steps"]


def calls(sample):
    """What the host asks for: a graph is one call, whatever it launches."""
    if launches(sample) is None:
        return None
    cost = sample["cost"]
    return launches(sample) - (cost["graph_launches"] - cost["graphs_replayed"]) / cost["steps"]


def figure(name, found, goal=None):
    """Medians of samples of one kind."""
    row = {"name": name, "samples": len(found), "rows": found[0]["rows"],
           "ms": 1000 * median(map(once, found)),
           "tokens_s": median(sample["rows"] / once(sample) for sample in found),
           "launches_per_step": launches(found[-1]), "calls_per_step": calls(found[-1])}
    if "roof_seconds" in found[0]:
        row["share"] = median(sample["roof_seconds"] / once(sample) for sample in found)
        row["roof_tokens_s"] = median(s["rows"] / s["roof_seconds"] for s in found)
        row["bound"] = found[0]["bound"]
    if goal is not None:
        row["goal"] = goal
    return row


def bandwidth_figure(found, copy_peak):
    """What a sequence alone reads in a second, as a share of a copy's speed."""
    row = figure("decode, 1 sequence", found)
    row["bytes_s"] = median(sample["roof_bytes"] / once(sample) for sample in found)
    if copy_peak:
        row["share_of_copy"] = row["bytes_s"] / copy_peak
        row["goal_of_copy"] = SINGLE_MIN
    return row


def all_figures(lines):
    """From the lines of one run of `steps`."""
    head = samples(lines, "device")[0]
    usual = [line for line in lines if line.get("graphs")] or lines
    launched = [line for line in lines if line.get("graphs") is False]
    shared = [line for line in usual if line.get("shares")]
    apart = [line for line in usual if line.get("shares") is False]
    groups = max(line["groups"] for line in shared)
    size = max(line["group_size"] for line in shared)
    tokens = shared[0]["prefix_tokens"]
    prefills = samples(shared, "prefill")
    many = {"groups": groups, "group_size": size}
    out = [figure(f"prefill of {tokens}", prefills[1:] or prefills, PREFILL_MIN),
           bandwidth_figure(samples(shared, "decode", groups=1, group_size=1),
                            head["copy_peak"])]
    if launched and launched[0] not in usual:
        out.append(figure("the same, without graphs", samples(launched, "decode")))
        out.append({"name": "graphs against launches", "ratio": out[-1]["ms"] / out[-2]["ms"]})
    if groups > 1:
        out.append(figure(f"decode, 1 group of {size}",
                          samples(shared, "decode", groups=1, group_size=size)))
    out.append(figure(f"decode, {groups} groups of {size}", samples(shared, "decode", **many),
                      GROUPED_MIN))
    out.append(figure("the same, each over its prefix", samples(apart, "decode", **many)))
    ratio = out[-1]["ms"] / out[-2]["ms"]
    out.append({"name": "grouped against per sequence", "ratio": ratio, "goal": SHARING_MIN})
    return out


def product_table(lines):
    """The fastest way for each type and number of rows, with what was measured of each."""
    kinds = sorted({(line["type"], line["rows"]) for line in lines})
    for kind, rows in kinds:
        ways = sorted((line["us"], line["way"]) for line in lines
                      if (line["type"], line["rows"]) == (kind, rows))
        yield f"{kind:5} {rows:5} rows  " + ", ".join(f"{way} {us:.1f} us" for us, way in ways)


def goals(row):
    """(what, reached, wanted) of a figure."""
    if "ratio" in row and "goal" in row:
        yield row["name"], row["ratio"], row["goal"]
    if "goal" in row and "share" in row:
        yield row["name"] + ", of the roofline", row["share"], row["goal"]
    if "share_of_copy" in row:
        yield row["name"] + ", of a copy's speed", row["share_of_copy"], row["goal_of_copy"]


def steps_without_graphs(lines):
    """Kinds of decoding that should have run as graphs, and of which no step did."""
    return [f"decode {line['groups']} x {line['group_size']} ran without graphs"
            for line in lines if line["what"] == "decode" and line["graphs"]
            and "cost" in line and line["cost"]["steps"] and
            not line["cost"]["graphs_replayed"]]


def missed(rows):
    return [f"{what}: {reached:.2f}, wanted {wanted}" for row in rows
            for what, reached, wanted in goals(row) if not reached >= wanted]


def table(rows):
    """Lines of text."""
    yield f"{'':34} {'tokens/s':>10} {'ms':>9} {'roofline':>10} {'share':>6} {'goal':>5} " \
          f"{'launches':>8} {'calls':>5}"
    for row in rows:
        if "ratio" in row:
            goal = f"{row['goal']:4.0f}x" if "goal" in row else ""
            yield f"{row['name']:34} {'':10} {'':9} {'':10} {row['ratio']:5.2f}x {goal}"
            continue
        share = row.get("share_of_copy", row.get("share"))
        goal = row.get("goal_of_copy", row.get("goal"))
        counts = [row["launches_per_step"], row["calls_per_step"]]
        n_launches, n_calls = ["" if n is None else round(n) for n in counts]
        yield f"{row['name']:34} {row['tokens_s']:10.0f} {row['ms']:9.3f} " \
              f"{row.get('roof_tokens_s', 0):10.0f} " \
              f"{'' if share is None else format(share, '.2f'):>6} " \
              f"{'' if goal is None else format(goal, '.2f'):>5} " \
              f"{n_launches:>8} {n_calls:>5}"
