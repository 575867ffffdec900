/* A prompt as counting and advice see it: tokens, and the salt that sets it apart. */
#ifndef SHEAF_GROUP_PROMPT_H
#define SHEAF_GROUP_PROMPT_H

#include <stddef.h>
#include <stdint.h>

struct group_prompt {
    const int32_t *tokens; /* borrowed; NULL only when n_tokens is 0 */
    size_t n_tokens;
    const char *salt; /* or NULL */
};

#endif
