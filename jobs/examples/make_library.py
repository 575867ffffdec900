#!/usr/bin/env python3
"""Writes library.jsonl: one native job for each row of questions.tsv.

A row is: names of documents (files of documents/), question, reference answers divided by "|".
Rows of one document follow each other as they stand in the file. Run it after a change of
either: ./make_library.py
"""
import csv
import json
import pathlib

HERE = pathlib.Path(__file__).resolve().parent
SYSTEM = (
    "You answer questions about the documents that you are given. Use only what they say. "
    "Answer in one short sentence."
)


def read_document(name):
    """The first line of a file is its title."""
    title, text = (HERE / "documents" / f"{name}.txt").read_text("utf-8").split("\n", 1)
    return {"id": name, "title": title, "text": text.strip()}


def make_job(number, names, question, answers):
    return {
        "custom_id": f"{names.replace(' ', '-')}-{number:03d}",
        "system": SYSTEM,
        "documents": [read_document(name) for name in names.split(" ")],
        "question": question,
        "params": {"max_tokens": 48, "temperature": 0},
        "metadata": {"documents": names},
        "expect": answers.split("|"),
    }


def main():
    with open(HERE / "questions.tsv", encoding="utf-8", newline="") as rows:
        jobs = [
            make_job(number, *row)
            for number, row in enumerate(
                csv.reader(rows, delimiter="\t", quoting=csv.QUOTE_NONE), start=1
            )
        ]
    with open(HERE / "library.jsonl", "w", encoding="utf-8", newline="\n") as out:
        for job in jobs:
            out.write(json.dumps(job, ensure_ascii=False) + "\n")
    print(f"{len(jobs)} jobs")


if __name__ == "__main__":
    main()
