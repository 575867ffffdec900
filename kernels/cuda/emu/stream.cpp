/*
 * Streams and copies between host and device. The device's side of a copy happens at once; the
 * host's side is as late as a real one may be: what was copied to the host is there after the
 * stream was waited for, and until then poison is; pinned memory that a copy reads has to be
 * the same at that moment as when the copy was asked for. Memory that is not pinned has been
 * read when the call returns, as a driver stages it.
 */
#include <map>

#include <pthread.h>
#include <stdlib.h>

#include "../port.cuh"
#include "block_int.h"

/* A copy whose host side is open. */
struct open_copy {
    bool is_to_host;
    void *host;
    char *bytes; /* what arrives, or what was read */
    size_t n_bytes;
    uint64_t number; /* of the stream's copies, from 1 */
    open_copy *next;
};

struct emu_stream {
    open_copy *first, **last;
    uint64_t n_copies; /* that were ever left open */
};

/* The stream's copies up to one. */
struct emu_event {
    emu_stream *stream; /* or NULL: nothing yet */
    uint64_t n_copies;
};

static pthread_mutex_t stream_lock = PTHREAD_MUTEX_INITIALIZER;
static emu_stream default_stream = {nullptr, &default_stream.first, 0};
static std::map<const char *, size_t> pinned; /* begin -> bytes */

static emu_stream *of(stream_t s)
{
    return s ? s : &default_stream;
}

/* ------------------------------------------------------------------ pinned memory */

void *pinned_alloc(size_t bytes)
{
    void *p = nullptr;
    if (capture_forbids("pinned_alloc()"))
        return nullptr;
    if (posix_memalign(&p, 64, bytes ? bytes : 1) != 0) {
        error_set("no memory for %zu pinned bytes", bytes);
        return nullptr;
    }
    memset(p, EMU_POISON, bytes);
    pthread_mutex_lock(&stream_lock);
    pinned[(const char *)p] = bytes;
    pthread_mutex_unlock(&stream_lock);
    return p;
}

void pinned_free(void *p)
{
    if (capture_forbids("pinned_free()"))
        return;
    pthread_mutex_lock(&stream_lock);
    if (p && pinned.erase((const char *)p) == 0)
        emu_fail({}, "pinned_free() of %p, which pinned_alloc() did not give", p);
    pthread_mutex_unlock(&stream_lock);
    free(p);
}

bool is_pinned_memory(const void *p, size_t bytes)
{
    const auto after = pinned.upper_bound((const char *)p);
    if (after == pinned.begin())
        return false;
    const auto holds = std::prev(after);
    const size_t offset = (size_t)((const char *)p - holds->first);
    return offset <= holds->second && bytes <= holds->second - offset;
}

/* ------------------------------------------------------------------ streams */

stream_t stream_open()
{
    emu_stream *s = (emu_stream *)calloc(1, sizeof(*s));
    if (s)
        s->last = &s->first;
    return s;
}

static void finish(open_copy *copy, bool is_waited_for)
{
    if (is_waited_for && copy->is_to_host)
        memcpy(copy->host, copy->bytes, copy->n_bytes);
    else if (is_waited_for && memcmp(copy->host, copy->bytes, copy->n_bytes) != 0)
        emu_fail({}, "pinned memory at %p was written to while a copy of %zu bytes read it",
                 copy->host, copy->n_bytes);
    free(copy->bytes);
    free(copy);
}

/* The first n_copies of all that were ever left open. */
static void finish_up_to(emu_stream *s, uint64_t n_copies, bool is_waited_for)
{
    while (s->first && s->first->number <= n_copies) {
        open_copy *copy = s->first;
        s->first = copy->next;
        finish(copy, is_waited_for);
    }
    if (!s->first)
        s->last = &s->first;
}

static void finish_all(emu_stream *s, bool is_waited_for)
{
    finish_up_to(s, s->n_copies, is_waited_for);
}

void stream_close(stream_t s)
{
    if (s)
        finish_all(s, false);
    free(s);
}

void stream_wait(stream_t s)
{
    if (capture_forbids("stream_wait()"))
        return;
    pthread_mutex_lock(&stream_lock);
    finish_all(of(s), true);
    pthread_mutex_unlock(&stream_lock);
    device_check_zones();
}

event_t event_open()
{
    return (emu_event *)calloc(1, sizeof(emu_event));
}

void event_close(event_t e)
{
    free(e);
}

void event_record(event_t e, stream_t s)
{
    pthread_mutex_lock(&stream_lock);
    *e = {of(s), of(s)->n_copies};
    pthread_mutex_unlock(&stream_lock);
}

void event_wait(event_t e)
{
    pthread_mutex_lock(&stream_lock);
    if (e->stream)
        finish_up_to(e->stream, e->n_copies, true);
    pthread_mutex_unlock(&stream_lock);
    device_check_zones();
}

/* ------------------------------------------------------------------ copies */

/* Notes the bytes at `from`, which are the host's when the stream is waited for. */
static void leave_open(emu_stream *s, bool is_to_host, void *host, const void *from, size_t n)
{
    open_copy *copy = (open_copy *)malloc(sizeof(*copy));
    char *bytes = (char *)malloc(n);
    if (!copy || !bytes)
        emu_fail({}, "no memory for a copy of %zu bytes", n);
    memcpy(bytes, from, n);
    *copy = {is_to_host, host, bytes, n, ++s->n_copies, nullptr};
    *s->last = copy;
    s->last = &copy->next;
}

void copy_run(emu_stream *s, const copy_request &copy)
{
    pthread_mutex_lock(&stream_lock);
    count_copy(copy.bytes);
    if (copy.kind == copy_request::TO_HOST) {
        leave_open(of(s), true, copy.to, copy.from, copy.bytes);
        memset(copy.to, EMU_POISON, copy.bytes);
    } else {
        memcpy(copy.to, copy.from, copy.bytes);
        if (copy.kind == copy_request::TO_DEVICE && is_pinned_memory(copy.from, copy.bytes))
            leave_open(of(s), false, const_cast<void *>(copy.from), copy.from, copy.bytes);
    }
    pthread_mutex_unlock(&stream_lock);
}

static void ask_for(stream_t s, const copy_request &copy)
{
    if (copy.bytes > 0 && !capture_takes_copy(s, copy))
        copy_run(s, copy);
}

void copy_to_device(stream_t s, void *to, const void *from, size_t bytes)
{
    device_check_range(to, bytes, "copy_to_device()");
    ask_for(s, {copy_request::TO_DEVICE, to, from, bytes});
}

void copy_to_host(stream_t s, void *to, const void *from, size_t bytes)
{
    device_check_range(from, bytes, "copy_to_host()");
    ask_for(s, {copy_request::TO_HOST, to, from, bytes});
}

void copy_on_device(stream_t s, void *to, const void *from, size_t bytes)
{
    device_check_range(to, bytes, "copy_on_device()");
    device_check_range(from, bytes, "copy_on_device()");
    const size_t apart = to > from ? (size_t)((const char *)to - (const char *)from)
                                   : (size_t)((const char *)from - (const char *)to);
    if (apart < bytes)
        emu_fail({}, "copy_on_device() of %zu bytes onto themselves, %zu further", bytes,
                 apart);
    ask_for(s, {copy_request::ON_DEVICE, to, from, bytes});
}
