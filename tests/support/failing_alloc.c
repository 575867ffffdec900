#include "failing_alloc.h"

void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *memory, size_t size);
char *__real_strdup(const char *text);
char *__real_strndup(const char *text, size_t n);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *memory, size_t size);
char *__wrap_strdup(const char *text);
char *__wrap_strndup(const char *text, size_t n);

static bool armed, fails_for_good;
static long failing;
static size_t n_asked, n_refused;

void failing_alloc_arm(long nth, bool for_good)
{
    failing = nth;
    fails_for_good = for_good;
    n_asked = n_refused = 0;
    armed = true;
}

void failing_alloc_disarm(void)
{
    armed = false;
}

size_t failing_alloc_asked(void)
{
    return n_asked;
}

size_t failing_alloc_refused(void)
{
    return n_refused;
}

static bool fails_now(void)
{
    if (!armed)
        return false;
    const long nth = (long)++n_asked;
    const bool fails = nth == failing || (fails_for_good && nth > failing);
    n_refused += fails;
    return fails;
}

void *__wrap_malloc(size_t size)
{
    return fails_now() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t n, size_t size)
{
    return fails_now() ? NULL : __real_calloc(n, size);
}

void *__wrap_realloc(void *memory, size_t size)
{
    return fails_now() ? NULL : __real_realloc(memory, size);
}

char *__wrap_strdup(const char *text)
{
    return fails_now() ? NULL : __real_strdup(text);
}

char *__wrap_strndup(const char *text, size_t n)
{
    return fails_now() ? NULL : __real_strndup(text, n);
}
