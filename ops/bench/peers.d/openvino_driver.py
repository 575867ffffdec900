"""openvino_driver.py MODEL job FILE|speed [name=value]...: driver.c's work by OpenVINO GenAI.

Its continuous batching with prefix caching: a document first, alone, then all its questions at
a time, so that they find it in the cache. Run with the packages of install.py on PYTHONPATH.
Options: threads, documents, answer, steps, prefill, kv (u8, f16, bf16 or f32) and reader
(LEGACY or FRONTEND); by default the library's own choices.
"""
import json
import sys
import time

import numpy
import openvino
import openvino_genai

PROMPT_TOKENS = 2000
PREFIX_TOKENS = 2048
OWN_TOKENS = 8
SIZES = (1, 8, 32)
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
    if "kv" in options:
        properties["KV_CACHE_PRECISION"] = options["kv"]
    if "reader" in options:
        properties["GGUF_READER"] = options["reader"]
    return openvino_genai.ContinuousBatchingPipeline(model, scheduler, "CPU", properties)


def tokens_of(results):
    return [list(result.m_generation_ids[0]) for result in results]


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


def run_job(pipeline, path, options):
    answer = int(options.get("answer", 64))
    answers, prefill_s, began = [], 0, time.monotonic()
    jobs = read_job(path, int(options.get("documents", 64)))
    for document, asks in jobs:
        alone = time.monotonic()
        pipeline.generate([tensor(document)], [greedy(1)])
        prefill_s += time.monotonic() - alone
        answers += tokens_of(pipeline.generate([tensor(document + ask) for ask in asks],
                                               [greedy(answer)] * len(asks)))
    return {"answers": answers, "seconds": time.monotonic() - began, "prefill_s": prefill_s}


def make_tokens(seed, n):
    return [int(x) for x in numpy.random.default_rng(seed).integers(0, VOCABULARY, n)]


def time_prefill(pipeline):
    pipeline.generate([tensor(make_tokens(1, PROMPT_TOKENS))], [greedy(1)])
    prompt = tensor(make_tokens(2, PROMPT_TOKENS))
    began = time.monotonic()
    pipeline.generate([prompt], [greedy(1)])
    return PROMPT_TOKENS / (time.monotonic() - began)


def time_decode(pipeline, prefix, n, steps):
    """From the step after which each sequence has a token to that with `steps` more."""
    handles = [pipeline.add_request(1000 * n + i,
                                    tensor(prefix + make_tokens(100 + i, OWN_TOKENS)),
                                    greedy(steps + 1)) for i in range(n)]
    counts = [0] * n

    def step():
        pipeline.step()
        for i, handle in enumerate(handles):
            while handle.can_read():
                for output in handle.read().values():
                    counts[i] += len(output.generated_ids)

    while min(counts) == 0:
        step()
    first, began = sum(counts), time.monotonic()
    while pipeline.has_non_finished_requests():
        step()
    return (sum(counts) - first) / (time.monotonic() - began)


def run_speed(pipeline, options):
    steps, out = int(options.get("steps", 64)), {}
    if int(options.get("prefill", 1)):
        out["prefill"] = time_prefill(pipeline)
    if steps:
        prefix = make_tokens(3, PREFIX_TOKENS)
        pipeline.generate([tensor(prefix)], [greedy(1)])
        for n in SIZES:
            out[f"decode_{n}"] = time_decode(pipeline, prefix, n, steps)
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
