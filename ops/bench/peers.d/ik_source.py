"""What is changed in ik_llama.cpp's source before it is built.

Its attention on CPUs leaves out blocks of keys at the end by looking at the first key of each
and at the last row only. That is right for one sequence. For several on a shared prefix it
leaves out their own tokens, which lie in the same blocks: texts go wrong. Later versions leave
out nothing, which costs speed; here every key and row is looked at, so that it stays as fast
as it is for one sequence. ik_attention.cpp takes the place of kernels that nobody needs here.
"""
from pathlib import Path

HERE = Path(__file__).resolve().parent
ATTENTION = Path("ggml/src/iqk/fa")
TEMPLATES = ATTENTION / "iqk_fa_templates.h"
LOOP = "for (; ik >=0 && Mc[ik] != 0; ik -= k_step);"
LOOPS = 4
# Looks at keys as numbers: a mask has 0 where a row sees a key and minus infinity elsewhere.
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


def fixed_templates(text):
    if "is_hidden" in text:
        return text
    assert text.count(LOOP) == LOOPS, "another version of iqk_fa_templates.h"
    text = text.replace("auto Mc = (const uint16_t *)(mr + (q_step - 1)*stride_m);", "")
    text = text.replace("auto Mc = (const uint16_t *)(mask + (q_step - 1)*stride_m);", "")
    text = text.replace(LOOP, "for (; ik >= 0 && is_hidden(mr, q_step, stride_m, ik, k_step); "
                        "ik -= k_step);")
    return text.replace("namespace {\n", IS_HIDDEN, 1)


def change(source):
    """-> whether anything was not as it should be."""
    texts = {source / TEMPLATES: fixed_templates((source / TEMPLATES).read_text())}
    for path in (source / ATTENTION).glob("iqk_fa_*.cpp"):
        texts[path] = f"// {path.name}: iqk_fa_64_64.cpp has it.\n"
    texts[source / ATTENTION / "iqk_fa_64_64.cpp"] = (HERE / "ik_attention.cpp").read_text()
    changed = {path: text for path, text in texts.items() if path.read_text() != text}
    for path, text in changed.items():
        path.write_text(text)
    return bool(changed)
