"""gpu_counts.py FILE...: what steps on a device have counted, beside arithmetic on paper.

FILE has the lines of `sheaf-device-check steps`. What they must come to follows from a model's
shape alone, which stands below as its makers give it, and from a step's rows and keys. Prints
a table for each file, then the least times of an 8B model on an H200, whose figures are those
of the table that the project plans by; fails when any two differ, and when a counter that is
wrong by one would not be seen.
"""
import json
import sys
from copy import deepcopy

# Layers, width, query heads, KV heads, head width, inner width, vocabulary.
SHAPES = {"random-tiny": (2, 64, 4, 2, 16, 128, 512),
          "random-135m": (30, 576, 9, 3, 64, 1536, 49152),
          "8b": (32, 4096, 32, 8, 128, 14336, 128256)}
# Bytes of 32 weights.
BLOCK_BYTES = {"BF16": 64, "Q8_0": 34, "Q4_0": 18}
# Numbers that are known from elsewhere: weights of a layer and of the head, bytes of a token's
# keys and values, operations of a row and key in all layers.
KNOWN = {"random-135m": (3_538_944, 28_311_552, 23_040, 69_120),
         "8b": (218_103_808, 525_336_576, 131_072, 524_288)}
BF16, F32, INT32 = 2, 4, 4
# Blocks are multiplied as they are for so many rows, else turned into bfloat16 before.
BLOCKS_ROWS_MAX = 64


class Model:
    def __init__(self, name, quant):
        self.name, self.quant = name, quant
        (self.layers, self.dim, self.heads, self.kv_heads, self.head_dim, self.inner,
         self.vocabulary) = SHAPES[name]
        self.q, self.kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        self.qkv = self.q + 2 * self.kv
        self.layer_weights = self.dim * (self.qkv + self.q + 3 * self.inner)
        self.head_weights = self.dim * self.vocabulary
        self.kv_token_bytes = 2 * self.kv * BF16 * self.layers
        self.row_key_flops = 4 * self.q * self.layers
        counted = (self.layer_weights, self.head_weights, self.kv_token_bytes,
                   self.row_key_flops)
        if name in KNOWN and KNOWN[name] != counted:
            raise ValueError(f"{name}: {counted} is not {KNOWN[name]}")

    def stored(self, weights):
        return weights // 32 * BLOCK_BYTES[self.quant]

    def is_dequantised(self, rows):
        return self.quant != "BF16" and rows > BLOCKS_ROWS_MAX

    def multiplied(self, weights, rows):
        """Bytes of them that a product reads."""
        return weights * BF16 if self.is_dequantised(rows) else self.stored(weights)


def of_products(m, rows, logits):
    """A layer has four: into heads, out of them, into the inner width, out of it. Two of them
    add to what is there."""
    per_row = BF16 * (m.dim + m.q + m.dim + m.inner) + 2 * F32 * m.dim
    read = m.layers * (m.multiplied(m.layer_weights, rows) + rows * per_row) + \
        m.multiplied(m.head_weights, logits) + logits * BF16 * m.dim
    written = m.layers * rows * (F32 * m.qkv + 2 * F32 * m.dim + BF16 * 2 * m.inner) + \
        logits * F32 * m.vocabulary
    flops = 2 * (rows * m.layers * m.layer_weights + logits * m.head_weights)
    return 4 * m.layers + 1, read, written, flops


def of_dequantising(m, rows, logits):
    parts = [(4 * m.layers, m.layers * m.layer_weights, rows), (1, m.head_weights, logits)]
    parts = [(n, weights) for n, weights, n_rows in parts if m.is_dequantised(n_rows)]
    return (sum(n for n, _ in parts), sum(m.stored(weights) for _, weights in parts),
            sum(weights * BF16 for _, weights in parts))


def of_attention(m, rows, row_keys, block_keys):
    """block_keys: what all blocks of rows go over, an even share of it for each layer."""
    rows_bytes = rows * m.q * BF16 * m.layers
    return m.layers, block_keys * m.kv_token_bytes + rows_bytes, rows_bytes, \
        row_keys * m.row_key_flops


def with_splits(m, line, attention):
    """Where few rows have many keys, these are cut into parts that go out and in once more:
    the sums of every head, a maximum and a weight. How many parts is the device's choice."""
    got = line["cost"]["of"]["attend"]
    if got["launches"] != 2 * line["times"] * attention[0]:
        return attention
    part = line["rows"] * m.heads * (m.head_dim + 2) * F32 * m.layers
    n_parts = (got["bytes_written"] / line["times"] - attention[2]) // part
    bytes_read = attention[1] if attention[1] is None else attention[1] + n_parts * part
    return 2 * attention[0], bytes_read, attention[2] + max(n_parts, 2) * part, attention[3]


def of_the_rest(m, rows, logits):
    """Launches, bytes read and written of what is neither; operations are not compared."""
    return {
        "embed": (1, rows * (m.stored(m.dim) + INT32), rows * F32 * m.dim),
        "norm": (2 * m.layers + 1,
                 F32 * m.dim * (2 * m.layers * (rows + 1) + logits + 1) + INT32 * logits,
                 m.dim * (2 * m.layers * rows * BF16 + logits * (BF16 + F32))),
        "heads": (m.layers,
                  m.layers * rows * (F32 * (m.qkv + m.head_dim) + INT32),
                  m.layers * rows * BF16 * m.qkv),
        "silu": (m.layers, 2 * m.layers * rows * BF16 * m.inner,
                 m.layers * rows * BF16 * m.inner),
    }


def expected(m, line):
    """Of all that a line computed; what stands in no tuple is not compared. Rows fill their
    graph's number of rows here (1, 2, 4, 64, 128), else what fills up were counted too."""
    times, rows, logits = line["times"], line["rows"], line["logits_rows"]
    steps = line["steps"]
    if line["what"] == "prefill" and steps != 1:
        raise ValueError("a prompt of several chunks is not what is compared here")
    out = {"product": of_products(m, rows, logits),
           "dequantize": of_dequantising(m, rows, logits), **of_the_rest(m, rows, logits)}
    attention = of_attention(m, rows, line["row_keys"], line["kv_tokens"])
    if line["what"] == "prefill":
        # Several blocks of rows, each over what it sees: how many is the engine's choice.
        attention = (attention[0], None, attention[2], attention[3])
    out["attend"] = with_splits(m, line, attention)
    return {family: tuple(None if value is None else times * value for value in values)
            for family, values in out.items()}


FIELDS = ("launches", "bytes_read", "bytes_written", "flops")


def expected_graphs(line):
    """Steps that were captured, replayed, and launches of the latter: decoding is replayed,
    every step of it, unless graphs are off. None: a prompt of few rows may be either."""
    if not line["graphs"]:
        return 0, 0, 0
    if line["what"] == "prefill":
        return None
    n_launches = sum(cost["launches"] for cost in line["cost"]["of"].values())
    return 0, line["times"], n_launches


GRAPH_FIELDS = ("graphs_captured", "graphs_replayed", "graph_launches")


def calls(line):
    """What the host asks for in a step: a graph is one call, whatever it launches."""
    n_launches = sum(cost["launches"] for cost in line["cost"]["of"].values())
    return (n_launches - line["cost"]["graph_launches"] + line["cost"]["graphs_replayed"]) \
        / line["times"]


def differences(m, line):
    for family, values in expected(m, line).items():
        got = line["cost"]["of"][family]
        for field, value in zip(FIELDS, values):
            if value is not None and got[field] != value:
                yield f"{field} of {family} is {got[field]}, not {value:.0f}"
    for field, value in zip(GRAPH_FIELDS, expected_graphs(line) or ()):
        if line["cost"][field] != value:
            yield f"{field} is {line['cost'][field]}, not {value}"
    attend = line["cost"]["of"]["attend"]
    if attend["bytes_read"] < line["times"] * line["kv_tokens"] * m.kv_token_bytes:
        yield "attention read less than every key once"


def sees_wrong_counters(m, line):
    """The twin: each counter in turn is off by one."""
    for family, values in expected(m, line).items():
        for field, value in zip(FIELDS, values):
            if value is None:
                continue
            wrong = deepcopy(line)
            wrong["cost"]["of"][family][field] += 1
            if not any(differences(m, wrong)):
                raise ValueError(f"{field} of {family} off by one is not seen")
    for field in GRAPH_FIELDS if expected_graphs(line) else ():
        wrong = deepcopy(line)
        wrong["cost"][field] += 1
        if not any(differences(m, wrong)):
            raise ValueError(f"{field} off by one is not seen")


def kind(line):
    if line["what"] == "prefill":
        return f"prefill of {line['rows']:.0f}"
    how = "grouped" if line["shares"] else "each alone"
    if not line["graphs"]:
        how = "no graphs"
    return f"decode {line['groups']} x {line['group_size']}, {how}"


def check_file(path):
    lines = [json.loads(text) for text in open(path, encoding="utf-8")]
    head = lines[0]["model"]
    m = Model(head["name"], head["quant"])
    print(f"\n{m.name} {m.quant} on {lines[0]['device']}, a step:")
    print(f"{'':34} {'launches':>8} {'calls':>5} {'read':>12} {'of it weights':>13} "
          f"{'keys':>10} {'written':>11} {'operations':>14}")
    n_wrong, shown = 0, set()
    for line in lines[1:]:
        for text in differences(m, line):
            n_wrong += 1
            print(f"{kind(line)}: {text}")
        sees_wrong_counters(m, line)
        if kind(line) in shown:
            continue
        shown.add(kind(line))
        total = {field: sum(cost[field] for cost in line["cost"]["of"].values()) / line["times"]
                 for field in FIELDS}
        weights = m.layers * m.stored(m.layer_weights) + m.stored(m.head_weights)
        print(f"{kind(line):34} {total['launches']:8.0f} {calls(line):5.0f} "
              f"{total['bytes_read']:12.0f} "
              f"{weights:13.0f} {line['kv_tokens'] * m.kv_token_bytes:10.0f} "
              f"{total['bytes_written']:11.0f} {total['flops']:14.0f}")
    return n_wrong, len(lines) - 1


# ---- the 8B model on an H200

COPY, PRODUCT, ATTENTION = 4.3e12, 790e12, 600e12  # bytes and operations a second, assumed
PREFIX, OWN = 8192, 96
# (sequences, groups): milliseconds of a step, grouped and each alone, to three digits.
PLANNED = {(1, 1): (3.74, 3.74), (8, 1): (3.76, 5.51), (64, 2): (4.18, 19.7),
           (256, 8): (7.61, 69.5)}
PLANNED_PREFILL = {2048: 53_900, 8192: 47_100}


def least_ms(m, rows, row_keys, kv_tokens, logits):
    parts = ((2 * rows * m.layers * m.layer_weights / PRODUCT,
              m.layers * m.stored(m.layer_weights) / COPY),
             (2 * logits * m.head_weights / PRODUCT, m.stored(m.head_weights) / COPY),
             (row_keys * m.row_key_flops / ATTENTION, kv_tokens * m.kv_token_bytes / COPY))
    return 1000 * sum(map(max, parts))


def is_near(value, planned, within=0.005):
    return abs(value / planned - 1) <= within


def roofline_of_8b():
    m = Model("8b", "BF16")
    n_wrong = 0
    print("\n8B, bf16, on an H200 (4.3 TB/s, 790 TFLOP/s, attention 600), prefix of 8,192, "
          "a step:")
    print(f"{'sequences':>9} {'groups':>6} {'launches':>8} {'weights GB':>10} {'keys GB':>8} "
          f"{'alone':>7} {'TFLOP':>6} {'grouped ms':>10} {'tok/s':>7} {'alone ms':>8} "
          f"{'ratio':>6}")
    for (n, groups), planned in PLANNED.items():
        keys = n * (PREFIX + OWN)
        shared = groups * PREFIX + n * OWN
        both = [least_ms(m, n, keys, tokens, n) for tokens in (shared, keys)]
        launches = 9 * m.layers + 4
        weights = (m.layers * m.stored(m.layer_weights) + m.stored(m.head_weights)) / 1e9
        flops = of_products(m, n, n)[3] + keys * m.row_key_flops
        print(f"{n:9} {groups:6} {launches:8} {weights:10.2f} "
              f"{shared * m.kv_token_bytes / 1e9:8.2f} {keys * m.kv_token_bytes / 1e9:7.2f} "
              f"{flops / 1e12:6.2f} {both[0]:10.2f} {1000 * n / both[0]:7.0f} {both[1]:8.2f} "
              f"{both[1] / both[0]:6.2f}")
        for value, plan in zip(both, planned):
            if not is_near(value, plan):
                n_wrong += 1
                print(f"{n} sequences take {value:.3f} ms, planned were {plan}")
    for tokens, planned in PLANNED_PREFILL.items():
        # Weights are read for many rows, so reading counts as nothing; no head but one row's.
        us = 1e6 * (2 * m.layers * m.layer_weights / PRODUCT +
                    (tokens / 2) * m.row_key_flops / ATTENTION)
        print(f"prefill of {tokens}: {1e6 / us:,.0f} tokens/s at most")
        if not is_near(1e6 / us, planned):
            n_wrong += 1
            print(f"planned were {planned}")
    return n_wrong


def main():
    n_wrong = n_lines = 0
    for path in sys.argv[1:]:
        wrong, lines = check_file(path)
        n_wrong += wrong
        n_lines += lines
    n_wrong += roofline_of_8b()
    if n_wrong or not n_lines:
        sys.exit(f"{n_wrong} counters differ from the arithmetic, of {n_lines} measurements")
    print(f"\n{n_lines} measurements of {len(sys.argv) - 1} models: launches, bytes and "
          "operations are what the arithmetic says; no GPU, no speed")


if __name__ == "__main__":
    main()
