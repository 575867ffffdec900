/* Header bytes -> tensors. Only for safetensors*.c. */
#ifndef SHEAF_SAFETENSORS_INT_H
#define SHEAF_SAFETENSORS_INT_H

#include "model/safetensors.h"

struct safetensors_list {
    struct safetensors_tensor *items; /* owned, names too */
    size_t length;
};

/* 0 for OTHER. */
size_t safetensors_type_bytes(enum safetensors_type type);

/* text: the header; data_bytes: what follows it in the file. */
int safetensors_parse_header(const char *text, size_t length, uint64_t data_bytes,
                             struct safetensors_list *out, struct err *e);
void safetensors_list_fini(struct safetensors_list *list);

#endif
