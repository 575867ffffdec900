"""make_documents.py --documents N --questions N [--words N] [--answer N] [--seed N]
                  [--shuffle SEED] [--salt TEXT] [--prefix TEXT]

Prints native job lines: every question over every document, document by document unless
shuffled. The text is made up from a seed, the same on every machine.
"""
import argparse
import json
import random

SUBJECTS = ("the harbour", "a baker", "the council", "her brother", "the mill", "a surveyor")
VERBS = ("bought", "repaired", "described", "counted", "left", "painted", "measured", "copied")
OBJECTS = ("a ledger", "three boats", "the north gate", "a map of the coast", "twelve lamps")
TIMES = ("in spring", "before noon", "after the flood", "every Friday", "in 1871")
ASKS = ("Who {} {}?", "When was it that somebody {} {}?", "Why has nobody {} {}?")


def sentence(rng):
    return " ".join(rng.choice(words) for words in (SUBJECTS, VERBS, OBJECTS, TIMES))


def document(seed, number, n_words):
    rng = random.Random(f"document {seed} {number}")
    text, words = [], 0
    while words < n_words:
        text.append(sentence(rng).capitalize() + ".")
        words += text[-1].count(" ") + 1
    return " ".join(text)


def jobs(args):
    for d in range(args.documents):
        text = document(args.seed, d, args.words)
        for q in range(args.questions):
            rng = random.Random(f"question {args.seed} {d} {q}")
            job = {
                "custom_id": f"{args.prefix}d{d}-q{q}",
                "documents": [{"id": f"d{d}", "title": f"Chronicle {d}", "text": text}],
                "question": f"({q}) "
                + rng.choice(ASKS).format(rng.choice(VERBS), rng.choice(OBJECTS)),
                "params": {"max_tokens": args.answer},
            }
            if args.salt:
                job["cache_salt"] = args.salt
            yield job


def main():
    parser = argparse.ArgumentParser()
    for name, default in (("documents", 8), ("questions", 40), ("words", 300), ("answer", 8)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--shuffle", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--salt", default="")
    parser.add_argument("--prefix", default="")
    args = parser.parse_args()
    lines = [json.dumps(job) for job in jobs(args)]
    if args.shuffle is not None:
        random.Random(args.shuffle).shuffle(lines)
    print("\n".join(lines))


main()
