"""The GPU and the toolkit of this machine: what they are, or a sentence about what is not."""
import ctypes
import os
import re
import shutil
import subprocess
from pathlib import Path

TOOLKIT_MIN = (12, 4)
TOOLKITS = {100: (12, 8), 103: (12, 9), 120: (12, 8), 121: (12, 9)}
CMAKE_MIN = (3, 22)
CAPABILITY_MIN = 80
ATTRIBUTE_MAJOR, ATTRIBUTE_MINOR = 75, 76  # CUdevice_attribute


class Missing(Exception):
    """A sentence for a person."""


def _ask(driver, call, *arguments):
    code = getattr(driver, call)(*arguments)
    if code != 0:
        name = ctypes.c_char_p()
        driver.cuGetErrorName(code, ctypes.byref(name))
        what = name.value.decode() if name.value else str(code)
        raise Missing(f"the NVIDIA driver says {what} to {call}: is there a GPU, and is it "
                      "free?")


def find_gpu(ordinal=0):
    """Name, memory and compute capability, asked of the driver itself."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise Missing("there is no NVIDIA driver here (libcuda.so.1): the check needs a "
                      "machine with a GPU; --device cuda-emu goes without") from error
    _ask(driver, "cuInit", 0)
    count, version, device = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    _ask(driver, "cuDriverGetVersion", ctypes.byref(version))
    _ask(driver, "cuDeviceGetCount", ctypes.byref(count))
    if ordinal >= count.value:
        raise Missing(f"there is no GPU {ordinal} here, there are {count.value}")
    _ask(driver, "cuDeviceGet", ctypes.byref(device), ordinal)
    name = ctypes.create_string_buffer(128)
    _ask(driver, "cuDeviceGetName", name, len(name), device)
    memory = ctypes.c_size_t()
    _ask(driver, "cuDeviceTotalMem_v2", ctypes.byref(memory), device)
    parts = []
    for attribute in (ATTRIBUTE_MAJOR, ATTRIBUTE_MINOR):
        value = ctypes.c_int()
        _ask(driver, "cuDeviceGetAttribute", ctypes.byref(value), attribute, device)
        parts.append(value.value)
    gpu = {"name": name.value.decode(), "memory_bytes": memory.value,
           "capability": 10 * parts[0] + parts[1],
           "driver_cuda": f"{version.value // 1000}.{version.value % 1000 // 10}"}
    if gpu["capability"] < CAPABILITY_MIN:
        raise Missing(f"{gpu['name']} has compute capability {parts[0]}.{parts[1]}; 8.0 is "
                      "needed")
    return gpu


def architecture(capability):
    """As CMAKE_CUDA_ARCHITECTURES names it, for this GPU alone."""
    return f"{capability}a-real" if capability in (90, 100) else f"{capability}-real"


def nvcc_version(nvcc):
    try:
        text = subprocess.run([nvcc, "--version"], capture_output=True, text=True, timeout=30,
                              check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r"release (\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else None


def cache_folder():
    return Path(os.environ.get("SHEAF_CACHE") or Path.home() / ".cache/sheaf")


def toolkit_min(capability):
    """The first toolkit that has code for such a GPU."""
    return TOOLKITS.get(capability, TOOLKIT_MIN if capability < 100 else (13, 0))


def find_toolkit(gpu):
    """The folder of a toolkit that is there already and fits the GPU and its driver, or None.
    A driver runs what any toolkit of its major version built."""
    places = [os.environ.get("CUDA_HOME"), "/usr/local/cuda", cache_folder() / "cuda"]
    on_path = shutil.which("nvcc")
    if on_path:
        places.append(Path(on_path).resolve().parent.parent)
    for place in filter(None, places):
        root = Path(place)
        version = nvcc_version(root / "bin/nvcc")
        if version and is_fit(version, gpu) and has_cublas(root):
            return root, ".".join(map(str, version))
    return None


def is_fit(version, gpu):
    return version >= toolkit_min(gpu["capability"]) and \
        version[0] <= int(gpu["driver_cuda"].split(".")[0])


def has_cublas(root):
    folders = [root / "include", *root.glob("targets/*/include")]
    return any((folder / "cublasLt.h").is_file() for folder in folders)


def find_sanitizer(toolkit):
    """compute-sanitizer, or None."""
    for place in ("compute-sanitizer/compute-sanitizer", "bin/compute-sanitizer"):
        if toolkit and (Path(toolkit) / place).is_file():
            return str(Path(toolkit) / place)
    return shutil.which("compute-sanitizer")


def cmake_version():
    text = subprocess.run(["cmake", "--version"], capture_output=True, text=True, check=False)
    found = re.search(r"version (\d+)\.(\d+)", text.stdout)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def missing_packages():
    """What the build needs and this machine lacks, as Debian calls it."""
    programs = {"cmake": "cmake", "ninja": "ninja-build", "cc": "build-essential",
                "c++": "build-essential", "pkg-config": "pkg-config"}
    missing = {package for program, package in programs.items() if not shutil.which(program)}
    if "cmake" not in missing and cmake_version() < CMAKE_MIN:
        missing.add(f"cmake of {CMAKE_MIN[0]}.{CMAKE_MIN[1]} or newer")
    libraries = {"jansson": "libjansson-dev", "libpcre2-8": "libpcre2-dev",
                 "libxxhash": "libxxhash-dev", "libcrypto": "libssl-dev",
                 "cmocka": "libcmocka-dev"}
    if shutil.which("pkg-config"):
        missing |= {package for module, package in libraries.items() if subprocess.run(
            ["pkg-config", "--exists", module], check=False).returncode}
    return sorted(missing)
