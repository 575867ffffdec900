#!/usr/bin/env python3
"""tidy.py [--self-test]: the rules of the house that a compiler does not know.

Prints `path:line: what is wrong`, then `N passed, N failed`, one for each rule. --self-test
shows every rule a text that breaks it and one that keeps it.
"""
import os
import re
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

FILE_LINES_MAX = 1000
FUNCTION_LINES_MAX = 100
COLUMNS_MAX = 96

# Who may include whom. A room may always include itself.
ROOMS = {
    "schema": [],
    "worker/base": ["schema"],
    "jobs": ["worker/base", "schema"],
    "kernels": ["worker/base"],
    "worker/model": ["worker/base", "kernels"],
    "worker/engine": ["worker/base", "worker/model", "kernels"],
    "worker/device_check": ["worker/base", "worker/model", "worker/engine", "kernels"],
    "worker/train": ["worker/base", "worker/model", "worker/engine", "kernels"],
    "worker/io": ["worker/base", "schema", "jobs"],
    "worker/report": ["worker/base", "worker/io"],
    "worker": ["worker/base", "schema", "jobs", "kernels", "worker/model", "worker/engine",
               "worker/train", "worker/io", "worker/report"],
}
INCLUDE_FOLDERS = ["worker", ".", "jobs", "kernels"]

# Libraries and the rooms that know them.
LIBRARIES = {
    r"jansson\.h": ["jobs", "worker/model", "worker/device_check", "worker/report", "worker"],
    r"librdkafka/": ["worker/io"],
    r"sqlite3\.h": ["worker/io", "worker/report"],
    r"pcre2\.h": ["worker/model"],
    r"xxhash\.h": ["worker/base", "jobs", "worker/engine"],
    r"openssl/": ["worker/base"],
    r"microhttpd\.h": ["worker/io"],
    r"cu(da|blas)\w*(\.h|/)": ["kernels"],
}

# Function: what to use in its place.
BANNED_CALLS = {
    "strcpy": "memcpy with a checked length, or buf_append",
    "strcat": "buf_append",
    "strncpy": "memcpy with a checked length",
    "strncat": "buf_append",
    "sprintf": "snprintf, or buf_printf",
    "vsprintf": "vsnprintf",
    "gets": "getline",
    "scanf": "strtoll with an end pointer",
    "sscanf": "strtoll with an end pointer",
    "strtok": "strchr or strcspn",
    "atoi": "strtoll with an end pointer",
    "atol": "strtoll with an end pointer",
    "atoll": "strtoll with an end pointer",
    "atof": "strtod with an end pointer",
    "rand": "rng_draw",
    "srand": "rng_draw",
    "random": "rng_draw",
    "alloca": "an arena or a fixed array",
    "assert": "ASSERT of base/check.h",
    "signal": "sigaction",
    "tmpnam": "mkstemp",
    "mktemp": "mkstemp",
    "system": "posix_spawn",
    "popen": "posix_spawn",
    "localtime": "localtime_r",
    "gmtime": "gmtime_r",
    "ctime": "strftime",
    "asctime": "strftime",
}
# Allowed in these files only.
PLACED_CALLS = {
    "exit": r"worker/main\.c",
    "_exit": r"worker/(main|pipeline_delivery)\.c",
    "abort": r"worker/main\.c|worker/base/check\.[ch]",
    "getenv": r"worker/base/\w+\.c|kernels/kernels\.c|worker/\w+\.c",
}
# Spelled so that this file does not trip over itself.
BANNED_TEXT = {
    r"\bTO" + r"DO\b|\bFIX" + r"ME\b|\bXX" + r"X\b": "an open end; finish it or open an issue",
    r"https?://[^/ ]*(py" + r"pi|python-?ho" + r"sted|mav" + r"en|np" + r"mjs|deb" +
    r"ian|cra" + r"tes|gol" + r"ang)(?!.*POM/4)": "a registry's host; its client knows it",
    r"(?<![\w.])/(wo" + r"rk|ro" + r"ot|ho" + r"me)/[\w.]": "a path of one machine",
    r"-ff" + r"ast-math": "floating-point order is part of every contract",
}
INTRINSICS = r"\b_mm(256|512)?_\w+|\b__m(128|256|512)\w*|immintrin\.h"
REQUIRED_FILES = {"LICENSE": "Apache License", "README.md": "Sheaf",
                  "CONTRIBUTING.md": "tests/tidy.py", "CHANGELOG.md": "Unreleased"}

C_SUFFIXES = {".c", ".h", ".cu", ".cuh"}
PROSE_SUFFIXES = {".md", ".def", ".sql", ".txt", ".service", ".timer", ".properties"}

Source = namedtuple("Source", "path text lines known")
Problem = namedtuple("Problem", "path line text")


def make_source(path, text, known):
    return Source(path, text, text.split("\n"), known)


def suffix_of(source):
    return os.path.splitext(source.path)[1]


def is_c(source):
    return suffix_of(source) in C_SUFFIXES


def is_script(source):
    return suffix_of(source) in {".py", ".sh"} or source.text.startswith("#!")


def is_code(source):
    return is_c(source) or is_script(source)


def is_product(source):
    """C that is part of the program, not of its tests."""
    return is_c(source) and not source.path.startswith("tests/")


def room_of(path):
    folder = os.path.dirname(path)
    while folder and folder not in ROOMS:
        folder = os.path.dirname(folder)
    return folder


def strip_c(text):
    """Blanks comments, strings and characters; lines stay where they are."""
    pattern = r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\''

    def blank(match):
        return re.sub(r"[^\n]", " ", match.group())
    return re.sub(pattern, blank, text, flags=re.DOTALL)


def find_all(source, pattern, text, in_text=None):
    for match in re.finditer(pattern, source.text if in_text is None else in_text):
        line = source.text.count("\n", 0, match.start()) + 1
        yield Problem(source.path, line, f"{match.group().strip()}: {text}")


def functions_of(source):
    """-> (first line, lines) of each function: a body is between { and } in column 0."""
    start = None
    for number, line in enumerate(source.lines, 1):
        if line == "{":
            start = number
        elif line == "}" and start is not None:
            yield start, number - start + 1
            start = None


def includes_of(source):
    """-> (line, "quoted" or <system> name with its delimiters)."""
    for number, line in enumerate(source.lines, 1):
        match = re.match(r'\s*#\s*include\s+([<"][^>"]+[>"])', line)
        if match:
            yield number, match.group(1)


def resolve(source, name):
    folders = [os.path.dirname(source.path)] + INCLUDE_FOLDERS
    for folder in folders:
        path = os.path.normpath(os.path.join(folder, name))
        if path in source.known:
            return path
    return None


# ---- the rules: each takes a Source and yields Problems -------------------------------------


def rule_file_length(source):
    if is_code(source) and len(source.lines) - 1 > FILE_LINES_MAX:
        yield Problem(source.path, 1, f"{len(source.lines) - 1} lines; stop at "
                      f"{FILE_LINES_MAX}")


def rule_function_length(source):
    if not is_c(source) or source.path.startswith("kernels/"):
        return
    for start, lines in functions_of(source):
        if lines > FUNCTION_LINES_MAX:
            yield Problem(source.path, start, f"function of {lines} lines; stop at "
                          f"{FUNCTION_LINES_MAX}")


def rule_columns(source):
    if not is_code(source):
        return
    for number, line in enumerate(source.lines, 1):
        if len(line) > COLUMNS_MAX:
            yield Problem(source.path, number, f"{len(line)} columns; stop at {COLUMNS_MAX}")


def rule_blanks(source):
    for number, line in enumerate(source.lines, 1):
        if "\t" in line:
            yield Problem(source.path, number, "a tab")
        if line != line.rstrip():
            yield Problem(source.path, number, "blanks at the end")
    if source.text and not source.text.endswith("\n"):
        yield Problem(source.path, len(source.lines), "no newline at the end")


def rule_rooms(source):
    room = room_of(source.path)
    if not is_product(source) or not room:
        return
    allowed = ROOMS[room] + [room]
    for number, name in includes_of(source):
        if name.startswith("<"):
            continue
        path = resolve(source, name[1:-1])
        if path is None:
            yield Problem(source.path, number, f"{name} is no file of the project")
        elif room_of(path) not in allowed:
            yield Problem(source.path, number, f"{room} may not include {path}")
        elif path.endswith("_int.h") and room_of(path) != room:
            yield Problem(source.path, number, f"{path} is private to its room")


def rule_libraries(source):
    room = room_of(source.path)
    if not is_product(source) or not room:
        return
    for number, name in includes_of(source):
        for pattern, rooms in LIBRARIES.items():
            if re.match(pattern, name[1:-1]) and room not in rooms:
                yield Problem(source.path, number, f"{room} may not know {name}")


def rule_own_header_first(source):
    stem = os.path.splitext(source.path)[0]
    own = stem + ".h"
    if suffix_of(source) != ".c" or own not in source.known:
        return
    for number, name in includes_of(source):
        # The private header of a module includes its public one.
        if name.startswith("<") or resolve(source, name[1:-1]) not in (own, stem + "_int.h"):
            yield Problem(source.path, number, f"the first include is not {own}")
        return


def rule_banned_calls(source):
    if not is_product(source):
        return
    stripped = strip_c(source.text)
    for name, instead in BANNED_CALLS.items():
        yield from find_all(source, rf"(?<![\w.>]){name}\s*\(", f"use {instead}", stripped)


def rule_placed_calls(source):
    if not is_product(source):
        return
    stripped = strip_c(source.text)
    for name, places in PLACED_CALLS.items():
        if not re.fullmatch(places, source.path):
            yield from find_all(source, rf"(?<![\w.>]){name}\s*\(", "not in this file",
                                stripped)


def rule_language(source):
    if not is_c(source):
        return
    stripped = strip_c(source.text)
    # The AVX-512 twin of this one is a plain vector type, so it needs a name without a tag.
    if source.path != "kernels/lanes_avx2.h":
        yield from find_all(source, r"\btypedef\s+(struct|union)\b", "name it by its tag",
                            stripped)
    yield from find_all(source, r"#\s*if\s+0\b", "delete it", stripped)
    if source.path.endswith(".h") and not re.search(r"#ifndef (SHEAF_\w+_H)\n#define \1\n",
                                                    source.text):
        yield Problem(source.path, 1, "no include guard SHEAF_..._H")


def rule_intrinsics(source):
    if is_product(source) and "_avx" not in source.path and not source.path.endswith(".cu"):
        yield from find_all(source, INTRINSICS, "only in *_avx*.c", strip_c(source.text))


def rule_banned_text(source):
    for pattern, why in BANNED_TEXT.items():
        yield from find_all(source, pattern, why)


def rule_required_files(sources):
    by_path = {source.path: source for source in sources}
    for path, content in REQUIRED_FILES.items():
        if path not in by_path or content not in by_path[path].text:
            yield Problem(path, 1, f"is missing, or does not say {content}")


FILE_RULES = [rule_file_length, rule_function_length, rule_columns, rule_blanks, rule_rooms,
              rule_libraries, rule_own_header_first, rule_banned_calls, rule_placed_calls,
              rule_language, rule_intrinsics, rule_banned_text]


# ---- the tree -----------------------------------------------------------------------------


def is_looked_at(path):
    """Data of tests and examples has its own rules; what a person wrote has ours."""
    name = os.path.basename(path)
    if Path(path).suffix in C_SUFFIXES | {".py", ".sh"} or name == "CMakeLists.txt":
        return True
    if path.startswith(("tests/", "jobs/examples/")):
        return Path(path).suffix == "" and os.access(path, os.X_OK)
    return Path(path).suffix in PROSE_SUFFIXES | {""}


def read_tree():
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "-z"], check=True,
                            stdout=subprocess.PIPE).stdout.decode()
    paths = sorted(p for p in set(listed.split("\0")) if p and os.path.isfile(p))
    known = set(paths)
    return [make_source(p, Path(p).read_text(encoding="utf-8"), known)
            for p in paths if is_looked_at(p)]


def print_sizes(sources):
    lengths = sorted(n for s in sources if is_product(s) for _, n in functions_of(s))
    code = sum(len(s.lines) - 1 for s in sources if is_product(s))
    if lengths:
        print(f"{code} lines of C, {len(lengths)} functions, median "
              f"{lengths[len(lengths) // 2]} lines, longest {lengths[-1]}")


def check_tree():
    os.chdir(Path(__file__).resolve().parent.parent)
    sources = read_tree()
    print_sizes(sources)
    failed = 0
    for rule in FILE_RULES:
        problems = [p for source in sources for p in rule(source)]
        failed += bool(problems)
        for problem in problems:
            print(f"{problem.path}:{problem.line}: {problem.text}")
    problems = list(rule_required_files(sources))
    failed += bool(problems)
    for problem in problems:
        print(f"{problem.path}: {problem.text}")
    return len(FILE_RULES) + 1 - failed, failed


# ---- the self-test ------------------------------------------------------------------------

KNOWN = {"worker/base/buf.h", "worker/base/buf.c", "jobs/job.h", "worker/engine/engine.h",
         "worker/io/store.h", "worker/model/gguf.h",
         "kernels/kernels.h", "kernels/kernels_int.h"}
BODY = "    x();\n"

# (rule, path, a text that breaks it, a text that keeps it)
CASES = [
    (rule_file_length, "jobs/a.c", "\n" * 1001, "\n" * 1000),
    (rule_function_length, "jobs/a.c", "int f(void)\n{\n" + BODY * 99 + "}\n",
     "int f(void)\n{\n" + BODY * 98 + "}\n"),
    (rule_function_length, "tests/unit/test_a.c", "int f(void)\n{\n" + BODY * 200 + "}\n", ""),
    (rule_columns, "jobs/a.c", "x" * 97 + "\n", "x" * 96 + "\n"),
    (rule_columns, "ops/setup", "#!/bin/bash\n" + "x" * 97 + "\n", "#!/bin/bash\n"),
    (rule_blanks, "jobs/a.c", "\tx;\n", "    x;\n"),
    (rule_blanks, "README.md", "two  \n", "two\n"),
    (rule_blanks, "jobs/a.c", "x;", "x;\n"),
    (rule_rooms, "worker/engine/a.c", '#include "job.h"\n', '#include "kernels.h"\n'),
    (rule_rooms, "worker/io/a.c", '#include "engine/engine.h"\n', '#include "job.h"\n'),
    (rule_rooms, "kernels/a.c", '#include "../jobs/job.h"\n', '#include "base/buf.h"\n'),
    (rule_rooms, "worker/base/a.c", '#include "nowhere.h"\n', '#include "buf.h"\n'),
    (rule_rooms, "worker/model/a.c", '#include "kernels_int.h"\n', '#include "kernels.h"\n'),
    (rule_libraries, "worker/io/a.c", "#include <pcre2.h>\n", "#include <sqlite3.h>\n"),
    (rule_libraries, "jobs/a.c", "#include <librdkafka/rdkafka.h>\n", "#include <jansson.h>\n"),
    (rule_own_header_first, "worker/base/buf.c", '#include <stdio.h>\n#include "buf.h"\n',
     '#include "buf.h"\n#include <stdio.h>\n'),
    (rule_own_header_first, "worker/base/buf.c", '#include "job.h"\n',
     '#include "base/buf.h"\n'),
    (rule_own_header_first, "kernels/kernels.c", '#include "../worker/base/buf.h"\n',
     '#include "kernels_int.h"\n'),
    (rule_placed_calls, "jobs/a.c", "    exit(1);\n", "    loop_exit(1); /* exit(1) */\n"),
    (rule_placed_calls, "worker/engine/a.c", '    getenv("A");\n', "    x.getenv(1);\n"),
    (rule_placed_calls, "worker/pipeline.c", "    abort();\n", "    queue_abort();\n"),
    (rule_language, "jobs/a.h", "#ifndef A_H\n#define A_H\n",
     "#ifndef SHEAF_A_H\n#define SHEAF_A_H\n"),
    (rule_language, "jobs/a.c", "typedef struct job job;\n", "struct job;\n"),
    (rule_language, "jobs/a.c", "#if 0\n", "#if 1\n"),
    (rule_intrinsics, "kernels/a_ref.c", "    _mm256_add_ps(a, b);\n", "    mm_add(a, b);\n"),
    (rule_intrinsics, "kernels/a.c", "#include <immintrin.h>\n", "/* _mm256_add_ps */\n"),
    (rule_banned_text, "jobs/a.c", "/* TO" + "DO: more */\n", "/* to do */\n"),
    (rule_banned_text, "ops/setup", "https://files.python" + "hosted.org/x\n",
     "https://www.apache.org/\n"),
    (rule_banned_text, "ops/setup", "cd /wo" + "rk/x\n", "cd build/w/x\n"),
    (rule_banned_text, "CMakeLists.txt", "-ff" + "ast-math\n", "-ffp-contract=off\n"),
] + [(rule_banned_calls, "jobs/a.c", f"    {name}(x);\n", f"    my_{name}(x); /* {name}() */\n")
     for name in BANNED_CALLS]


def problems_of(rule, path, text):
    return list(rule(make_source(path, text, KNOWN)))


def self_test():
    passed = failed = 0
    for rule, path, bad, good in CASES:
        right = problems_of(rule, path, bad) and not problems_of(rule, path, good)
        passed, failed = passed + bool(right), failed + (not right)
        if not right:
            print(f"{rule.__name__} does not tell {bad[:40]!r} from {good[:40]!r} in {path}")
    for rule in FILE_RULES:
        if rule not in [case[0] for case in CASES]:
            failed += 1
            print(f"{rule.__name__} has no case")
    full = [make_source(p, text, KNOWN) for p, text in REQUIRED_FILES.items()]
    for missing in range(len(full)):
        right = (len(list(rule_required_files(full[:missing] + full[missing + 1:]))) == 1
                 and not list(rule_required_files(full)))
        passed, failed = passed + right, failed + (not right)
    return passed, failed


def main():
    if sys.argv[1:] not in ([], ["--self-test"]):
        print(__doc__, file=sys.stderr)
        return 2
    passed, failed = self_test() if sys.argv[1:] else check_tree()
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
