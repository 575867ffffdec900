"""Real bad places: a small file system that is full, a limit of file sizes, folders and files
that nobody may write. Root can make all of them; what cannot be made is told and left out.
"""
import contextlib
import ctypes
import os
import resource
import subprocess

from rig import Ended

EX_IOERR = 74
PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 24, 1, 2
PATIENT = ("bad_disk", "skip_naps")
FREE_KIB = (0, 16, 40, 100, 220, 300, 380, 460)
FREE_KIB_QUICK = (100, 380)
LIMITS_KIB = (1, 8, 40, 200, 240, 270, 300, 330, 360)
LIMITS_KIB_QUICK = (24, 300)


@contextlib.contextmanager
def small_disk(place, kib):
    """A file system of its own at the place; None where it cannot be made."""
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kib}k,mode=700", "tmpfs",
                           place], check=False, stderr=subprocess.DEVNULL).returncode == 0
    try:
        yield place if made else None
    finally:
        if made:
            subprocess.run(["umount", "-l", place], check=True)


def fill(path, kib_free):
    """All but the given room, as a foreign file would."""
    room = os.statvfs(os.path.dirname(path))
    with open(path, "wb") as file:
        file.write(bytes(max(0, room.f_bavail * room.f_bsize - kib_free * 1024)))


def run_watched(rig, place, on_retry, before=None):
    """A run that talks; on_retry(its pid) is called when it first waits for a better time."""
    command = [part for part in rig.command(place) if part != "--quiet"]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE, text=True, preexec_fn=before,
                               env=rig.environment(place))
    lines, retried = [], False
    for line in process.stderr:
        lines.append(line.rstrip("\n"))
        if "trying again" in line and not retried:
            retried = True
            on_retry(process.pid)
    return Ended(process.wait(), "\n".join(lines), {}), retried


def full(rig, tally, args, say):
    """Full in the middle; space comes back while the program waits for it, or does not."""
    retries = 0
    for kib in FREE_KIB_QUICK if args.quick else FREE_KIB:
        for comes_back in (True, False):
            place = rig.new_place("full")
            with small_disk(place, 2048) as disk:
                if not disk:
                    return say("no small file system can be mounted here: not tried")
                case = f"{kib} KiB free, {'later more' if comes_back else 'for good'}"
                filler = f"{place}/filler"
                fill(filler, kib)
                if comes_back:
                    ended, retried = run_watched(rig, place, lambda _, f=filler: os.unlink(f))
                    retries += retried
                    codes = {0} if retried else {0, EX_IOERR}
                else:
                    ended = rig.run(place, preload=PATIENT)
                    codes = {0, EX_IOERR}
                # Room for the judge and for the run after it.
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(filler)
                stored = rig.judge_wreck(tally, case, place, ended, codes)
                rig.judge_resumed(tally, case, place, stored)
                tally.count(2, 1, ended.code)
    if not retries:
        tally.blame("lost", "full", "no run met a full disk in its middle")
    return say(f"space came back {retries} times to a run that waited for it")


def limited(rig, tally, args, say):
    """No file may grow beyond a limit; it is lifted while the program waits, or not."""
    retries = 0
    for kib in LIMITS_KIB_QUICK if args.quick else LIMITS_KIB:
        for is_lifted in (True, False):
            def before(bytes_max=kib * 1024):
                resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_max, resource.RLIM_INFINITY))

            def lift(pid):
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)

            place = rig.new_place("limited")
            case = f"files of {kib} KiB at most, {'later more' if is_lifted else 'for good'}"
            if is_lifted:
                ended, retried = run_watched(rig, place, lift, before)
                retries += retried
                codes = {0} if retried else {0, EX_IOERR}
            else:
                ended = rig.run(place, preload=PATIENT, before=before)
                codes = {0, EX_IOERR}
            stored = rig.judge_wreck(tally, case, place, ended, codes)
            rig.judge_resumed(tally, case, place, stored)
            tally.count(2, 1, ended.code)
    if not retries:
        tally.blame("lost", "limited", "no run met a limit in its middle")
    say(f"a limit was lifted {retries} times while a run waited")


def drop_rights():
    """Root may write anywhere; without these it may what the permissions say."""
    libc = ctypes.CDLL(None, use_errno=True)
    for capability in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH):
        libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)


def forbidden(rig, tally, _args, say):
    """A folder, a database or an answers' file that may not be written: told at once, and
    nothing that was there is touched."""
    for what in ("", "x.db", "out.jsonl"):
        place = rig.new_place("forbidden")
        case = f"read-only: {what or 'the folder'}"
        stopped = rig.run(place, preload=PATIENT, BAD_DISK_NTH=200, BAD_DISK_COUNT=0,
                          BAD_DISK_ERROR="EIO") if what else None
        if stopped is not None:
            rig.judge_code(tally, case, stopped, {EX_IOERR})
        path = os.path.join(place, what)
        os.chmod(path, 0o555 if not what else 0o444)
        ended = rig.run(place, before=drop_rights)
        os.chmod(path, 0o700 if not what else 0o600)
        rig.judge_code(tally, case, ended, {EX_IOERR})
        if what not in ended.talk or "ermission denied" not in ended.talk and \
                "readonly" not in ended.talk:
            tally.blame("code", case, f"does not say what is wrong: {ended.talk}")
        stored = rig.judge_wreck(tally, case, place, ended, {EX_IOERR})
        rig.judge_resumed(tally, case, place, stored)
        tally.count(2, 1, ended.code)
    say("a read-only folder, database and answers' file")


def full_stdout(rig, tally, _args, say):
    """Answers to a full device."""
    place = rig.new_place("stdout")
    command = rig.command(place)
    command[command.index("-o") + 1] = "-"
    with open("/dev/full", "wb") as full_device:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=full_device,
                              stderr=subprocess.PIPE, text=True, check=False)
    ended = Ended(done.returncode, done.stderr.strip(), {})
    stored = rig.judge_wreck(tally, "-o - to /dev/full", place, ended, {EX_IOERR})
    if stored.published:
        tally.blame("lost", "-o - to /dev/full", "marked as written and written nowhere")
    rig.judge_resumed(tally, "-o - to /dev/full", place, stored)
    tally.count(2, 1, ended.code)
    say("answers to /dev/full")


def places(rig, tally, args, _draw):
    for part in (full, limited, forbidden, full_stdout):
        part(rig, tally, args, lambda text, name=part.__name__: print(f"{name}: {text}",
                                                                      flush=True))
