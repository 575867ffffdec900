#!/usr/bin/env python3
"""run_ctest.py BUILD_DIR [ctest arguments]: runs ctest and counts the cmocka tests inside.

Prints the output of programs that failed, then `N passed, N failed[, N skipped]`. A program
that dies, runs too long or is no cmocka program counts as one test.
"""
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree

SECONDS_MAX = 600
OUTPUT_BYTES_MAX = 4 << 20


def run_ctest(build_dir, arguments, junit_path):
    environment = dict(os.environ)
    environment.setdefault("ASAN_OPTIONS", "detect_stack_use_after_return=1")
    environment.setdefault("UBSAN_OPTIONS", "print_stacktrace=1")
    environment.setdefault("TSAN_OPTIONS", "halt_on_error=1:second_deadlock_stack=1")
    command = ["ctest", "--test-dir", build_dir, "--output-junit", junit_path,
               "--timeout", str(SECONDS_MAX), "--no-tests=error",
               "-j", str((os.cpu_count() or 1) + 1),  # some only wait
               "--test-output-size-passed", str(OUTPUT_BYTES_MAX),
               "--test-output-size-failed", str(OUTPUT_BYTES_MAX)]
    return subprocess.run(command + arguments, env=environment, check=False,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def count_case(case):
    """-> (passed, failed, skipped) of one ctest entry."""
    output = case.findtext("system-out") or ""
    passed = len(re.findall(r"^\[ +OK +\] ", output, re.MULTILINE))
    skipped = len(set(re.findall(r"^\[ +SKIPPED +\] (\S+)$", output, re.MULTILINE)))
    failed = len(set(re.findall(r"^\[ +FAILED +\] (\S+)$", output, re.MULTILINE)))
    if case.get("status") == "run":
        return (passed or int(skipped == 0)), failed, skipped
    return passed, max(failed, 1), skipped


def main():
    build_dir, arguments = sys.argv[1], sys.argv[2:]
    with tempfile.TemporaryDirectory() as folder:
        junit_path = os.path.join(folder, "junit.xml")
        run = run_ctest(build_dir, arguments, junit_path)
        if not os.path.exists(junit_path):
            print(run.stdout)
            return run.returncode or 1
        cases = ElementTree.parse(junit_path).getroot().findall("testcase")
    passed = failed = skipped = 0
    outputs = []
    for case in sorted(cases, key=lambda c: c.get("name")):
        p, f, s = count_case(case)
        passed, failed, skipped = passed + p, failed + f, skipped + s
        print(f"{case.get('name'):32} {p:4} passed {f:3} failed {s:3} skipped"
              f" {float(case.get('time') or 0):8.2f} s")
        if f > 0:
            outputs.append(f"{case.get('name')}:\n"
                           f"{case.findtext('system-out') or case.get('status')}")
    print("\n".join(outputs))
    if not cases or (run.returncode != 0 and failed == 0):
        print(run.stdout)
        failed = max(failed, 1)
    print(f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
