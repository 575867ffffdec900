"""What is changed in the peers' sources before they are built, so that they are right and fast.

llama.cpp: where a CPU has AVX512-FP16, it adds values in runs of 128 and those that are left
one by one. A head of the demo model has 64. So attention is built without that extension.

ik_llama.cpp: its attention leaves out blocks of keys at the end by a look at the first key of
each and at the last row only. That is right for one sequence. For several on a shared prefix it
leaves out their own tokens, which lie in the same blocks: texts go wrong. Later versions leave
out nothing, which costs speed; here every key and row is looked at, so that it stays as fast
as it is for one sequence. ik_attention.cpp takes the place of kernels that nobody needs here.
"""
from pathlib import Path

HERE = Path(__file__).resolve().parent
CPU_FLAGS = Path("ggml/src/ggml-cpu/CMakeLists.txt")
NATIVE = "list(APPEND ARCH_FLAGS -march=native)"
ATTENTION = Path("ggml/src/iqk/fa")
TEMPLATES = ATTENTION / "iqk_fa_templates.h"
LAST_ROW = "auto Mc = (const uint16_t *)(mr + (q_step - 1)*stride_m);"
LOOP = "for (; ik >=0 && Mc[ik] != 0; ik -= k_step);"
LOOPS = 4
# A mask has 0 where a row sees a key and minus infinity elsewhere.
IS_HIDDEN = """namespace {

inline bool is_hidden(const char * mask, int n_rows, int stride_m, int first, int n_keys) {
    for (int row = n_rows - 1; row >= 0; --row) {
        auto keys = (const uint16_t *)(mask + row*stride_m) + first;
        int n_seen = 0;
        for (int i = 0; i < n_keys; ++i) n_seen += keys[i] == 0;
        if (n_seen > 0) return false;
    }
    return true;
}
"""


def replace(text, old, new, times):
    assert text.count(old) == times, f"another version: not {times} times {old}"
    return text.replace(old, new)


def cpu_flags(text):
    wanted = NATIVE.replace(")", " -mno-avx512fp16)")
    return text if wanted in text else replace(text, NATIVE, wanted, 1)


def fixed_templates(text):
    if "is_hidden" in text:
        return text
    text = replace(text, LAST_ROW, "", LOOPS)
    text = replace(text, LOOP, "for (; ik >= 0 && is_hidden(mr, q_step, stride_m, ik, k_step); "
                   "ik -= k_step);", LOOPS)
    return replace(text, "namespace {\n", IS_HIDDEN, 1)


def wanted_texts(name, source):
    """{file: what is to be in it}"""
    if name == "llama.cpp":
        return {source / CPU_FLAGS: cpu_flags((source / CPU_FLAGS).read_text())}
    texts = {path: f"// {path.name}: iqk_fa_64_64.cpp has it.\n"
             for path in (source / ATTENTION).glob("iqk_fa_*.cpp")}
    texts[source / ATTENTION / "iqk_fa_64_64.cpp"] = (HERE / "ik_attention.cpp").read_text()
    texts[source / TEMPLATES] = fixed_templates((source / TEMPLATES).read_text())
    return texts


def change(name, source):
    """-> whether anything was not as it should be."""
    changed = {path: text for path, text in wanted_texts(name, source).items()
               if path.read_text() != text}
    for path, text in changed.items():
        path.write_text(text)
    return bool(changed)
