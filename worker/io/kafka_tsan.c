/*
 * ThreadSanitizer builds only. librdkafka makes its threads and locks with C11's functions, of
 * which GCC 12's sanitizer knows nothing: a thread it has not seen begin crashes it. Here they
 * are over the pthread functions that it knows. The rest of librdkafka is not instrumented, so
 * what is reported from inside it is left out.
 */
#include "kafka_int.h"

#ifdef __SANITIZE_THREAD__
#include <errno.h>
#include <stdlib.h>
#include <threads.h>

struct start {
    thrd_start_t run;
    void *argument;
};

static void *run_start(void *argument)
{
    const struct start start = *(struct start *)argument;
    free(argument);
    return (void *)(intptr_t)start.run(start.argument);
}

int thrd_create(thrd_t *thread, thrd_start_t run, void *argument)
{
    struct start *start = malloc(sizeof *start);
    if (!start)
        return thrd_nomem;
    *start = (struct start){run, argument};
    if (pthread_create(thread, NULL, run_start, start) == 0)
        return thrd_success;
    free(start);
    return thrd_error;
}

int thrd_join(thrd_t thread, int *result)
{
    void *value;
    if (pthread_join(thread, &value) != 0)
        return thrd_error;
    if (result)
        *result = (int)(intptr_t)value;
    return thrd_success;
}

/* glibc's mtx_t and cnd_t are its pthread types under other names. */
static int result_of(int error)
{
    return error == 0 ? thrd_success : error == ETIMEDOUT ? thrd_timedout : thrd_error;
}

int mtx_lock(mtx_t *mutex)
{
    return result_of(pthread_mutex_lock((pthread_mutex_t *)mutex));
}

int mtx_unlock(mtx_t *mutex)
{
    return result_of(pthread_mutex_unlock((pthread_mutex_t *)mutex));
}

int cnd_wait(cnd_t *condition, mtx_t *mutex)
{
    return result_of(pthread_cond_wait((pthread_cond_t *)condition, (pthread_mutex_t *)mutex));
}

int cnd_timedwait(cnd_t *restrict condition, mtx_t *restrict mutex,
                  const struct timespec *restrict until)
{
    return result_of(
        pthread_cond_timedwait((pthread_cond_t *)condition, (pthread_mutex_t *)mutex, until));
}

int cnd_signal(cnd_t *condition)
{
    return result_of(pthread_cond_signal((pthread_cond_t *)condition));
}

int cnd_broadcast(cnd_t *condition)
{
    return result_of(pthread_cond_broadcast((pthread_cond_t *)condition));
}

const char *__tsan_default_suppressions(void);
const char *__tsan_default_suppressions(void)
{
    return "deadlock:mtx_lock\nrace:librdkafka.so\nmutex:librdkafka.so\n";
}
#endif

void kafka_tsan_link(void)
{
}
