#!/usr/bin/env python3
"""readme.py: runs what README.md says, in a copy of the checkout.

Every ```sh block of README.md is run in order by one shell after another, each stopping at the
first command that fails, in a fresh copy of the source with the environment of a new login
(PATH and HOME only). A block is left out only behind <!-- not run: reason -->, just before it.
Links to files must lead somewhere. Ends with N passed, N failed.
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

BLOCK_SECONDS_MAX = 900
NOT_SOURCE = shutil.ignore_patterns("build*", ".sheaf", ".git", "__pycache__")


def blocks_of(text):
    """-> (line, reason or None, commands) of each shell block."""
    pattern = r"(?:<!-- not run: ([^\n]+?) -->\n+)?```sh\n(.*?)```"
    for match in re.finditer(pattern, text, re.DOTALL):
        yield text.count("\n", 0, match.start(2)), match.group(1), match.group(2)


def broken_links(root, text):
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        if not (root / target).exists():
            yield target


def login_environment():
    environment = {name: os.environ[name] for name in os.environ
                   if name in ("PATH", "HOME", "LANG") or name.startswith("SHEAF_")
                   or name.startswith("PIP_") or name.lower().endswith("_proxy")}
    environment["TERM"] = "dumb"
    return environment


def run_block(folder, commands):
    try:
        run = subprocess.run(["bash", "-e", "-u", "-x", "-o", "pipefail", "-c", commands],
                             cwd=folder, env=login_environment(), timeout=BLOCK_SECONDS_MAX,
                             stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, check=False)
    except subprocess.TimeoutExpired as error:
        return False, (error.output or b"") + b"\ntoo long"
    return run.returncode == 0, run.stdout


def main():
    root = Path(__file__).resolve().parent.parent
    text = (root / "README.md").read_text(encoding="utf-8")
    passed = failed = 0
    for target in broken_links(root, text):
        failed += 1
        print(f"README.md links to {target}, which is not there")
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "sheaf"
        shutil.copytree(root, copy, ignore=NOT_SOURCE, symlinks=True)
        for line, reason, commands in blocks_of(text):
            if reason:
                print(f"README.md:{line}: not run: {reason}")
                continue
            right, output = run_block(copy, commands)
            passed, failed = passed + right, failed + (not right)
            print(f"README.md:{line}: {'ok' if right else 'FAILED'}")
            if not right:
                print(commands + output.decode(errors="replace")[-4000:])
        # A block that failed may have left its broker behind.
        run_block(copy, "ops/kafka/broker stop")
    print(f"{passed} passed, {failed} failed")
    return 0 if failed == 0 and passed > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
