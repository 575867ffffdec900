"""Wrecks by our own hand: the judge must see each of them, else it proves nothing."""
import contextlib
import io
import shutil
import sqlite3

from rig import Ended, Tally, whole_lines

EX_IOERR = 74
WELL = Ended(0, "", {})
ILL = Ended(EX_IOERR, "why; what to do", {})


def rewrite(place, change):
    """change(lines) of the answers' file."""
    lines = change(whole_lines(f"{place}/out.jsonl"))
    with open(f"{place}/out.jsonl", "w", encoding="utf-8") as file:
        file.writelines(line + "\n" for line in lines)


def scribble(place):
    with open(f"{place}/x.db", "r+b") as file:
        file.seek(20 * 4096)
        file.write(b"\xff" * 4096)


def orphan(place):
    with contextlib.closing(sqlite3.connect(f"{place}/x.db")) as database:
        database.execute("PRAGMA foreign_keys = OFF")
        database.execute("DELETE FROM jobs WHERE custom_id = 'q3'")
        database.commit()


def other_answer(lines):
    return [lines[0].replace('"answer":"', '"answer":"x')] + lines[1:]


# What is done, what the program would have said, and the kind of blame.
PLANTS = [
    (lambda place: rewrite(place, lambda lines: lines[1:]), WELL, "lost"),
    (lambda place: rewrite(place, lambda lines: lines[1:]), ILL, "lost"),
    (lambda place: rewrite(place, other_answer), WELL, "lost"),
    (lambda place: rewrite(place, lambda lines: lines + lines[:1]), WELL, "twice"),
    (scribble, WELL, "database"),
    (orphan, WELL, "database"),
    (lambda place: None, Ended(-11, "", {}), "code"),
    (lambda place: None, Ended(3, "why", {}), "code"),
    (lambda place: None, Ended(EX_IOERR, "", {}), "code"),
    (lambda place: None, Ended(EX_IOERR, "why", {}), "code"),
]


def planted(rig, tally, _args, _draw):
    good = rig.new_place("good")
    rig.judge_code(tally, "no fault", rig.run(good), {0})
    found = 0
    for i, (plant, ended, kind) in enumerate(PLANTS):
        place = rig.new_place("planted")
        shutil.copytree(good, place, dirs_exist_ok=True)
        plant(place)
        seen = Tally()
        with contextlib.redirect_stdout(io.StringIO()):
            rig.judge_wreck(seen, "planted", place, ended, {0, EX_IOERR})
        if seen.wrong[kind]:
            found += 1
        else:
            tally.blame("lost", f"planted {i}", f"the judge did not see it: {kind}")
    print(f"{len(PLANTS)} wrecks planted, {found} seen", flush=True)
