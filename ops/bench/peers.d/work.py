"""The job that every program answers: documents of jobs/examples, joined and cut to 2,064
tokens, and 32 questions on each, as token ids.
"""
import json
import subprocess
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[3] / "jobs" / "examples"
JOINED = (("ferry", "lighthouse", "clock"), ("cheese", "seedbank", "ferry"),
          ("library", "clock", "cheese"), ("observatory", "ferry", "library"))
DOCUMENT_TOKENS = 2064
QUESTIONS = 32
ANSWER_TOKENS = 64
# Special tokens part texts before they are tokenized: one call of `sheaf` for all texts.
PART = "<|endoftext|>"
PART_ID = 0


def questions_of(names):
    """Those on the documents first, then others: answers are the same work either way."""
    own, others = [], []
    for line in (EXAMPLES / "questions.tsv").read_text(encoding="utf-8").splitlines():
        name, question = line.split("\t")[:2]
        (own if set(name.split("+")) & set(names) else others).append(question)
    return (own + others)[:QUESTIONS]


def texts():
    """[(document, [question])]"""
    work = []
    for names in JOINED:
        document = "\n\n".join((EXAMPLES / "documents" / f"{name}.txt").read_text("utf-8")
                               for name in names)
        work.append((document, [f"\n\nQuestion: {question}\nAnswer:"
                                for question in questions_of(names)]))
    return work


def tokenize(sheaf, model, parts):
    """[[id]]: each text by itself."""
    done = subprocess.run([sheaf, "model", "tokenize", model, "--special"], check=True,
                          input=PART.join(parts).encode(), stdout=subprocess.PIPE)
    lists = [[]]
    for word in done.stdout.split():
        if int(word) == PART_ID:
            lists.append([])
        else:
            lists[-1].append(int(word))
    assert len(lists) == len(parts), f"{len(lists)} lists of tokens for {len(parts)} texts"
    return lists


def make(sheaf, model):
    """[(document ids, [question ids])]"""
    work = texts()
    flat = [text for document, asks in work for text in (document, *asks)]
    lists = iter(tokenize(sheaf, model, flat))
    jobs = []
    for _, asks in work:
        document = next(lists)
        assert len(document) >= DOCUMENT_TOKENS, f"a document of {len(document)} tokens"
        jobs.append((document[:DOCUMENT_TOKENS], [next(lists) for _ in asks]))
    return jobs


def write_driver_file(jobs, path):
    with open(path, "w", encoding="ascii") as out:
        for document, asks in jobs:
            print("DOC", *document, file=out)
            for ask in asks:
                print("ASK", *ask, file=out)


def write_sheaf_file(jobs, path):
    """OpenAI completions with prompts of token ids. `ignore_eos` makes the end token one like
    any other, as the driver has it; nothing is added to its logit."""
    with open(path, "w", encoding="ascii") as out:
        for d, (document, asks) in enumerate(jobs):
            for q, ask in enumerate(asks):
                body = {"prompt": document + ask, "max_tokens": ANSWER_TOKENS,
                        "temperature": 0, "ignore_eos": True}
                print(json.dumps({"custom_id": f"{d}-{q}", "method": "POST",
                                  "url": "/v1/completions", "body": body}), file=out)


def describe(jobs):
    asks = [len(ask) for _, asks in jobs for ask in asks]
    return {"documents": len(jobs), "document_tokens": DOCUMENT_TOKENS,
            "questions": len(asks), "question_tokens": sum(asks) / len(asks),
            "answer_tokens": ANSWER_TOKENS}
