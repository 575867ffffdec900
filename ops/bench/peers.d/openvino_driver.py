"""openvino_driver.py MODEL job FILE|speed [name=value]...: driver.c's work by OpenVINO GenAI.

Its continuous batching with prefix caching: a document first, alone, as far as it fills whole
blocks, then all its questions at a time, so that they find it in the cache. Run with the
packages of install.py on PYTHONPATH. Options: threads, documents, answer, steps, prefill, sizes
(1,8,32), kv (u8, f16, bf16 or f32), precision (f32, bf16), group (inputs that share a scale of
quantised activations; 0: they stay floats) and reader (LEGACY or FRONTEND); by default the
library's own choices.
"""
import itertools
import json
import sys
import time

import numpy
import openvino
import openvino_genai

PROMPT_TOKENS = 2000
PREFIX_TOKENS = 2048
OWN_TOKENS = 8
PROPERTIES = {"kv": "KV_CACHE_PRECISION", "precision": "INFERENCE_PRECISION_HINT",
              "group": "DYNAMIC_QUANTIZATION_GROUP_SIZE", "reader": "GGUF_READER"}
# Tokens of a KV block. A block that is not full is shared too, but then all that share it write
# into it: answers of documents that end inside a block are wrong.
BLOCK = 32
VOCABULARY = 49152  # the demo model's


def tensor(ids):
    return openvino.Tensor(numpy.array([ids], dtype=numpy.int64))


def greedy(tokens):
    return openvino_genai.GenerationConfig(max_new_tokens=tokens, ignore_eos=True,
                                           do_sample=False, apply_chat_template=False)


def open_pipeline(model, options):
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.enable_prefix_caching = True
    scheduler.max_num_batched_tokens = 4096
    scheduler.max_num_seqs = 64
    scheduler.cache_size = 2
    properties = {"INFERENCE_NUM_THREADS": int(options.get("threads", 2)),
                  "PERFORMANCE_HINT": "LATENCY"}
    properties.update({PROPERTIES[name]: value for name, value in options.items()
                       if name in PROPERTIES})
    return openvino_genai.ContinuousBatchingPipeline(model, scheduler, "CPU", properties)


def read_job(path, limit):
    jobs = []
    with open(path, encoding="ascii") as file:
        for line in file:
            kind, *ids = line.split()
            ids = [int(word) for word in ids]
            if kind == "DOC":
                if len(jobs) == limit:
                    break
                jobs.append((ids, []))
            else:
                jobs[-1][1].append(ids)
    return jobs


class Group:
    """Prompts that are answered together."""
    numbers = itertools.count(1000)  # generate() counts from 0

    def __init__(self, pipeline, prompts, tokens):
        self.pipeline, self.answers = pipeline, [[] for _ in prompts]
        self.handles = [pipeline.add_request(next(self.numbers), tensor(prompt), greedy(tokens))
                        for prompt in prompts]

    def step(self):
        self.pipeline.step()
        for handle, answer in zip(self.handles, self.answers):
            while handle.can_read():
                for output in handle.read().values():
                    answer += output.generated_ids

    def begin(self):
        """Until each has a token."""
        while not all(self.answers):
            self.step()

    def end(self):
        while self.pipeline.has_non_finished_requests():
            self.step()

    def count(self):
        return sum(map(len, self.answers))


def run_job(pipeline, path, options):
    answer = int(options.get("answer", 64))
    answers, times, began = [], {"prefill_s": 0, "asks_s": 0, "decode_s": 0}, time.monotonic()
    jobs = read_job(path, int(options.get("documents", 64)))
    for document, asks in jobs:
        marks = [time.monotonic()]
        pipeline.generate([tensor(document[:len(document) // BLOCK * BLOCK])], [greedy(1)])
        marks.append(time.monotonic())
        group = Group(pipeline, [document + ask for ask in asks], answer)
        group.begin()
        marks.append(time.monotonic())
        group.end()
        marks.append(time.monotonic())
        answers += group.answers
        for name, since, until in zip(times, marks, marks[1:]):
            times[name] += until - since
    return {"answers": answers, "seconds": time.monotonic() - began, **times}


def make_tokens(seed, n):
    return [int(x) for x in numpy.random.default_rng(seed).integers(0, VOCABULARY, n)]


def time_prefill(pipeline, is_memory_touched):
    if not is_memory_touched:
        pipeline.generate([tensor(make_tokens(1, PROMPT_TOKENS))], [greedy(1)])
    prompt = tensor(make_tokens(2, PROMPT_TOKENS))
    began = time.monotonic()
    pipeline.generate([prompt], [greedy(1)])
    return PROMPT_TOKENS / (time.monotonic() - began)


def time_decode(pipeline, prefix, n, steps):
    """From the step after which each sequence has a token to that with `steps` more."""
    group = Group(pipeline, [prefix + make_tokens(100 + i, OWN_TOKENS) for i in range(n)],
                  steps + 1)
    group.begin()
    first, began = group.count(), time.monotonic()
    group.end()
    return (group.count() - first) / (time.monotonic() - began)


def run_speed(pipeline, options):
    steps, out = int(options.get("steps", 64)), {}
    decodes = steps > 0 and options.get("sizes") != ""
    if decodes:
        prefix = make_tokens(3, PREFIX_TOKENS)
        pipeline.generate([tensor(prefix)], [greedy(1)])
        for n in map(int, options.get("sizes", "1,8,32").split(",")):
            out[f"decode_{n}"] = time_decode(pipeline, prefix, n, steps)
    if int(options.get("prefill", 1)):
        out["prefill"] = time_prefill(pipeline, decodes)
    return {**out, "steps": steps}


def main():
    model, mode = sys.argv[1:3]
    words = sys.argv[4:] if mode == "job" else sys.argv[3:]
    options = dict(word.split("=") for word in words)
    pipeline = open_pipeline(model, options)
    out = run_job(pipeline, sys.argv[3], options) if mode == "job" else run_speed(pipeline,
                                                                                 options)
    json.dump({"peer": "OpenVINO GenAI", **out}, sys.stdout)
    print()


main()
