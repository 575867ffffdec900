/*
 * Which family a model's own template text belongs to, by markers that the text must or must
 * not contain. The text is only searched, never run. White space and "\n" escapes are taken out
 * and quotes made single first, because the same template is spelled in many ways.
 */
#include "model/template.h"

#include <stdlib.h>
#include <string.h>

enum { MARKERS_MAX = 4 };

struct family_markers {
    enum template_family family;
    const char *present[MARKERS_MAX];
    const char *absent[MARKERS_MAX];
};

/*
 * Not ChatML: Phi-4 (<|im_sep|>). Not Mistral: the forms with control tokens for tools or
 * system prompts, which space their turns in another way. Zephyr is known by its turn's end,
 * since other families share its role markers. Not Phi-3: GLM-4, and Phi-4-mini, which puts no
 * newline after its role markers and makes them from the role's name.
 */
static const struct family_markers families[] = {
    {TEMPLATE_CHATML, {"<|im_start|>", "<|im_end|>"}, {"<|im_sep|>"}},
    {TEMPLATE_LLAMA3, {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"}, {NULL}},
    {TEMPLATE_LLAMA2, {"[INST]", "[/INST]", "<<SYS>>"}, {"[AVAILABLE_TOOLS]"}},
    {TEMPLATE_MISTRAL,
     {"[INST]", "[/INST]"},
     {"<<SYS>>", "[AVAILABLE_TOOLS]", "[SYSTEM_PROMPT]"}},
    {TEMPLATE_GEMMA, {"<start_of_turn>", "<end_of_turn>"}, {NULL}},
    {TEMPLATE_PHI3, {"<|user|>", "<|assistant|>", "<|end|>"}, {"[gMASK]"}},
    {TEMPLATE_ZEPHYR, {"'<|user|>'+message['content']+eos_token", "<|assistant|>"}, {NULL}},
};

/* Default system messages, as templates write them between ChatML's markers. */
static const char *const default_systems[] = {
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face",
    "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.",
    "You are a helpful assistant.",
    "You are a helpful assistant",
};

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* A NUL-terminated copy without white space and "\n", with ' for "; NULL without memory. */
static char *squeeze(const char *text, size_t length)
{
    char *out = malloc(length + 1);
    if (!out)
        return NULL;
    size_t n = 0;
    for (size_t i = 0; i < length; i++) {
        if (is_space(text[i]) || text[i] == '\0')
            continue;
        if (text[i] == '\\' && i + 1 < length && text[i + 1] == 'n') {
            i++;
            continue;
        }
        out[n++] = text[i] == '"' ? '\'' : text[i];
    }
    out[n] = '\0';
    return out;
}

static bool matches(const struct family_markers *family, const char *squeezed)
{
    for (size_t i = 0; i < MARKERS_MAX && family->present[i]; i++)
        if (!strstr(squeezed, family->present[i]))
            return false;
    for (size_t i = 0; i < MARKERS_MAX && family->absent[i]; i++)
        if (strstr(squeezed, family->absent[i]))
            return false;
    return true;
}

enum template_family template_detect(const char *text, size_t length)
{
    enum template_family found = TEMPLATE_UNKNOWN;
    char *squeezed = squeeze(text, length);
    if (!squeezed)
        return found;
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        if (!matches(&families[i], squeezed))
            continue;
        if (found != TEMPLATE_UNKNOWN) { /* markers of two families: no guess */
            found = TEMPLATE_UNKNOWN;
            break;
        }
        found = families[i].family;
    }
    free(squeezed);
    return found;
}

static bool has_system_turn(const char *text, size_t length, const char *newline,
                            const char *system)
{
    char turn[160];
    size_t n = 0;
    const char *const parts[] = {"<|im_start|>system", newline, system, "<|im_end|>"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        memcpy(turn + n, parts[i], strlen(parts[i]));
        n += strlen(parts[i]);
    }
    return memmem(text, length, turn, n) != NULL;
}

const char *template_default_system(const char *template_text, size_t length)
{
    for (size_t i = 0; i < sizeof default_systems / sizeof *default_systems; i++)
        if (has_system_turn(template_text, length, "\n", default_systems[i]) ||
            has_system_turn(template_text, length, "\\n", default_systems[i]))
            return default_systems[i];
    return NULL;
}
