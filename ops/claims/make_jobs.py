"""make_jobs.py N MAX_TOKENS: prints N short RAG jobs, the same ones each time.

Three jobs in a row share a document. Every other job samples, with and without a seed of its
own; the rest are greedy.
"""
import json
import random
import sys

PLACES = ["harbour", "mill", "library", "quarry", "orchard", "station", "market", "bridge"]
FACTS = ["The {a} was built in {y} beside the {b}.",
         "In {y} the {a} sold {n} crates of apples to the {b}.",
         "The keeper of the {a} walks {n} steps to the {b} each morning.",
         "A flood of {y} took the roof of the {a} and left the {b} dry."]


def sentence(draw):
    a, b = draw.sample(PLACES, 2)
    return draw.choice(FACTS).format(a=a, b=b, y=draw.randint(1700, 1990),
                                     n=draw.randint(2, 90))


def make_params(i, max_tokens):
    params = {"max_tokens": max_tokens, "temperature": 0}
    if i % 2:
        params.update(temperature=0.8, top_p=0.95)
    if i % 4 == 1:
        params["seed"] = 1000 + i
    return params


def main():
    n, max_tokens = int(sys.argv[1]), int(sys.argv[2])
    draw = random.Random(17)
    documents = []
    for i in range(n):
        if i % 3 == 0:
            text = " ".join(sentence(draw) for _ in range(draw.randint(2, 12)))
            documents = [{"id": f"doc-{i // 3}", "title": "A village", "text": text}]
        place = draw.choice(PLACES)
        print(json.dumps({"custom_id": f"job-{i:04}", "documents": documents,
                          "question": f"What do we know about the {place}?",
                          "params": make_params(i, max_tokens)}))


if __name__ == "__main__":
    main()
