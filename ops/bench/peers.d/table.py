"""The figures as text."""

NAMES = {"prefill": "prefill of 2,000", "decode_1": "decode, 1 on 2,048",
         "decode_8": "decode, 8 on 2,048", "decode_32": "decode, 32 on 2,048",
         "job": "the whole job, s"}


def percent(value):
    return "   -" if value is None else f"{100 * value:3.0f}%"


def agreement(found):
    return f"{percent(found['first'])} {percent(found['all'])}" if found else "   -    -"


def figure_lines(figures):
    yield (f"{'':22}{'peer':16}{'settings':26}{'Sheaf':>9}{'peer':>9}{'ratio':>8}{'spread':>8}"
           "  texts; Sheaf's settings")
    for measure, name in NAMES.items():
        for f in sorted((f for f in figures if f["measure"] == measure),
                        key=lambda f: f["ratio"]):
            for kv, ours in (("default", f), ("kv.type=int8", f.get("int8"))):
                if not ours:
                    continue
                yield (f"{name:22}{f['peer']:16}{f['settings']:26}{ours['sheaf']:9.1f}"
                       f"{f['value']:9.1f}{ours['ratio']:7.2f}x{ours['spread']:8.2f}  "
                       f"{'checked' if f['sound'] else 'NOT VERIFIED'}; {kv}")


def server_lines(servers):
    for s in servers:
        if "error" in s:
            yield f"llama-server, {s['name']}: not measured: {s['error']}"
            continue
        scaled = f", scaled up from {s['asked']} questions" if s["scaled"] else ""
        yield (f"llama-server, {s['name']} ({s['settings']}), one slot, in order: "
               f"{s['seconds']:.0f} s for the job{scaled}; Sheaf {s['sheaf']:.1f} s, "
               f"{s['ratio']:.1f}x")


def quick_lines(rows):
    yield (f"{'quick pass':16}{'settings':26}{'prefill':>8}{'1':>7}{'8':>7}{'32':>7}"
           f"{'answers':>9}   first 8, all as Sheaf's; as llama.cpp's")
    for row in rows:
        if "error" in row:
            yield f"{row['peer']:16}{row['settings']:26}{row['error']}"
            continue
        speed = row["speed"]
        yield (f"{row['peer']:16}{row['settings']:26}{speed['prefill']:8.0f}"
               f"{speed['decode_1']:7.1f}{speed['decode_8']:7.1f}{speed['decode_32']:7.1f}"
               f"{row['job']:8.2f}/s   {agreement(row['texts']['sheaf'])}   "
               f"{agreement(row['texts'].get('llama'))}")


def job_text_lines(rows):
    for row in rows:
        yield (f"{row['peer']} {row['settings']}, whole job, {row['sheaf']['n']} answers: "
               f"first 8 and all tokens as Sheaf's by default {agreement(row['sheaf'])}; as "
               f"llama.cpp's {agreement(row.get('llama'))}")


def show(report):
    work, machine = report["work"], report["machine"]
    yield (f"{machine['cpu']}, {report['threads']} threads, foreign CPU load "
           f"{100 * report['foreign_load']:.1f} %; medians of {report['repeats']} pairs by "
           "turns")
    yield (f"job: {work['documents']} documents of {work['document_tokens']} tokens, "
           f"{work['questions']} questions of {work['question_tokens']:.0f}, answers of "
           f"{work['answer_tokens']}, greedy, the end token ignored")
    for peer in report["peers"]:
        yield f"{peer['peer']} {peer['version']}: {peer['note']}"
    for lines in (quick_lines(report["quick"]), figure_lines(report["figures"]),
                  job_text_lines(report["job_texts"]), server_lines(report["servers"])):
        yield ""
        yield from lines
