/*
 * libFuzzer target: any bytes as a safetensors file; whatever is accepted is read through, and
 * its names are asked for heads. Build with clang and -DSHEAF_FUZZ=ON, then
 *   fuzz_safetensors -dict=tests/fuzz/safetensors.dict NEW_CORPUS tests/fuzz/corpus/safetensors
 */
#include "fuzz.h"

#include <stdlib.h>

#include "base/check.h"
#include "model/heads_names.h"
#include "model/safetensors.h"

static void visit(const struct safetensors *s, const struct safetensors_tensor *t)
{
    struct heads_name name;
    char text[HEADS_NAME_BYTES];
    if (heads_name_parse(t->name, &name))
        heads_name_print(&name, text);
    enum { N = 512 };
    float floats[N];
    int64_t integers[N];
    for (uint64_t first = 0; first < t->n_elems; first += N) {
        const size_t n = t->n_elems - first < N ? (size_t)(t->n_elems - first) : N;
        int code = 0;
        if (t->type <= SAFETENSORS_BF16)
            code = safetensors_read_floats(s, t, first, floats, n, NULL);
        else if (t->type != SAFETENSORS_OTHER)
            code = safetensors_read_integers(s, t, first, integers, n, NULL);
        else
            return;
        ASSERT(code == 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    struct safetensors *s = NULL;
    struct err e = {0};
    const int code = safetensors_parse(bytes, size, &s, &e);
    ASSERT((code == 0) == (s != NULL) && (code == 0) == (e.text[0] == '\0'));
    for (size_t i = 0; s && i < safetensors_count(s); i++)
        visit(s, safetensors_at(s, i));
    safetensors_close(s);
    return 0;
}
