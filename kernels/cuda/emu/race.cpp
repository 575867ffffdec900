/*
 * Races between the threads of a kernel. Kernels are compiled with -fsanitize=thread, so that
 * every access calls a function of the thread sanitizer; here are those functions, and the
 * sanitizer itself is not linked.
 *
 * Two accesses race when different threads make them, one of them writes, not both are atomic,
 * and nothing orders them: within a block a sync_block() between them, within a warp a
 * sync_warp(); between blocks memory_fence() after the first and an atomic operation before the
 * second. Shuffles, votes and matrix products order nothing, as on a device. Races are found in
 * whatever order fibres ran, for what counts is which barriers lie between two accesses.
 *
 * Of every four bytes, two writes and two reads are remembered: enough to find most races, and
 * never one that is none. Memory that is neither the device's nor the kernel's own is refused.
 *
 * Not seen: calls of memcpy() and memset() that the compiler leaves as calls.
 */
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "block_int.h"

enum { CELL_BYTES = 4, PAGE_CELLS = 256, TABLE_SLOTS = 1 << 16, PAGES_MAX = TABLE_SLOTS / 4 };

struct access {
    const void *pc;
    uint64_t block; /* emu_block_serial; 0: none */
    uint32_t barrier, warp_barrier;
    uint16_t thread;
    uint8_t mask; /* of the cell's bytes */
    bool is_atomic;
};

struct cell {
    uint64_t launch; /* nothing is known when another one runs */
    access writes[2], reads[2];
};

/* Neighbours of one kilobyte, for kernels go through memory in order. */
struct page {
    uintptr_t number; /* address / (PAGE_CELLS * CELL_BYTES) */
    cell cells[PAGE_CELLS];
};

static struct {
    page *table[TABLE_SLOTS];
    size_t n_pages;
    page *last;           /* that was asked for */
    uint64_t launch;      /* counts up */
    uint64_t first_block; /* serial of the launch's first */
    bool *has_fenced;     /* [serial - first_block] */
    size_t fenced_capacity;
    uint64_t acquired_by; /* serial of the last block that had an atomic operation */
} race;

/* ------------------------------------------------------------------ where it was */

/* "rows.cu:41", by addr2line if there is one. */
static void tell_line(const void *pc, char *out, size_t capacity)
{
    Dl_info image;
    snprintf(out, capacity, "%p", pc);
    if (!dladdr(pc, &image) || !image.dli_fname)
        return;
    char command[512];
    const char *file = strchr(image.dli_fname, '/') ? image.dli_fname : "/proc/self/exe";
    char path[256];
    if (!realpath(file, path))
        return;
    snprintf(command, sizeof(command), "addr2line -s -e '%s' %#tx 2>/dev/null", path,
             (const char *)pc - (const char *)image.dli_fbase - 1);
    FILE *answer = popen(command, "r");
    if (!answer)
        return;
    char line[128];
    if (fgets(line, sizeof(line), answer) && line[0] != '?') {
        line[strcspn(line, " \n")] = '\0';
        snprintf(out, capacity, "%s", line);
    }
    pclose(answer);
}

[[noreturn]] static void fail_race(const void *p, const access *before, const char *was,
                                   const char *is, const void *pc)
{
    char here[128], there[128], whose[64];
    tell_line(pc, here, sizeof(here));
    tell_line(before->pc, there, sizeof(there));
    if (before->block == emu_block_serial)
        snprintf(whose, sizeof(whose), "%s",
                 thread_name(thread_now() - thread_now()->linear + before->thread));
    else
        snprintf(whose, sizeof(whose), "thread %u of another block", before->thread);
    emu_fail({}, "race at %s memory %p: %s at %s, and %s %s at %s with no barrier between",
             is_shared_memory(p, 1) ? "shared" : "device", p, is, here, whose, was, there);
}

/* ------------------------------------------------------------------ what was before */

static void begin_launch(uint64_t launch, uint64_t first_block)
{
    race.launch = launch;
    race.first_block = first_block;
    race.acquired_by = 0;
    if (race.has_fenced)
        memset(race.has_fenced, 0, race.fenced_capacity);
}

static bool has_fenced(uint64_t block)
{
    const uint64_t i = block - race.first_block;
    return i < race.fenced_capacity && race.has_fenced[i];
}

static void note_fence()
{
    const uint64_t i = emu_block_serial - race.first_block;
    if (i >= race.fenced_capacity) {
        const size_t capacity = 2 * (i + 1);
        race.has_fenced = (bool *)realloc(race.has_fenced, capacity);
        if (!race.has_fenced)
            emu_fail({}, "no memory for the fences of %zu blocks", capacity);
        memset(race.has_fenced + race.fenced_capacity, 0, capacity - race.fenced_capacity);
        race.fenced_capacity = capacity;
    }
    race.has_fenced[i] = true;
}

/* Memory has its limit: what was known is forgotten now and then. */
static void forget_all()
{
    for (page *&p : race.table) {
        free(p);
        p = nullptr;
    }
    race.n_pages = 0;
    race.last = nullptr;
}

static page *page_of(uintptr_t number)
{
    if (race.last && race.last->number == number)
        return race.last;
    if (race.n_pages == PAGES_MAX)
        forget_all();
    size_t at = number * 0x9e3779b97f4a7c15u >> 20;
    while (race.table[at % TABLE_SLOTS] && race.table[at % TABLE_SLOTS]->number != number)
        at++;
    page *&found = race.table[at % TABLE_SLOTS];
    if (!found) {
        found = (page *)calloc(1, sizeof(page));
        if (!found)
            emu_fail({}, "no memory to look for races");
        found->number = number;
        race.n_pages++;
    }
    race.last = found;
    return found;
}

static cell *cell_of(uintptr_t address)
{
    const uintptr_t number = address / CELL_BYTES;
    cell *c = &page_of(number / PAGE_CELLS)->cells[number % PAGE_CELLS];
    if (c->launch != race.launch) {
        memset(c, 0, sizeof(*c));
        c->launch = race.launch;
    }
    return c;
}

/* ------------------------------------------------------------------ one access */

static bool is_ordered(const access *before, const access *now, const thread *t)
{
    if (before->block != now->block)
        return has_fenced(before->block) && race.acquired_by == now->block;
    return before->thread == now->thread || before->barrier < now->barrier ||
           (before->thread / EMU_WARP == now->thread / EMU_WARP &&
            before->warp_barrier < t->warp->n_barriers);
}

/* Does not count: none yet, or of a block whose shared memory this was. */
static bool is_nothing(const access *a, const access *now, bool is_shared)
{
    return a->block == 0 || (is_shared && a->block != now->block);
}

static const access *racing(const access *before, const access *now, bool is_shared)
{
    const thread *t = thread_now();
    for (unsigned i = 0; i < 2; i++)
        if (!is_nothing(&before[i], now, is_shared) && (before[i].mask & now->mask) &&
            !(before[i].is_atomic && now->is_atomic) && !is_ordered(&before[i], now, t))
            return &before[i];
    return nullptr;
}

/* Takes the place of one that it stands for as well, or else of the older. */
static void remember(access *slots, const access *now, bool is_shared)
{
    const thread *t = thread_now();
    for (unsigned i = 0; i < 2; i++)
        if (is_nothing(&slots[i], now, is_shared) ||
            ((slots[i].mask & ~now->mask) == 0 && is_ordered(&slots[i], now, t))) {
            slots[i] = *now;
            return;
        }
    slots[0] = slots[1];
    slots[1] = *now;
}

static void note(const char *p, bool is_shared, bool is_write, const access *now)
{
    cell *c = cell_of((uintptr_t)p);
    const char *is = now->is_atomic ? "an atomic operation" : is_write ? "a write" : "a read";
    const access *before = racing(c->writes, now, is_shared);
    if (before)
        fail_race(p, before, "wrote", is, now->pc);
    before = is_write ? racing(c->reads, now, is_shared) : nullptr;
    if (before)
        fail_race(p, before, "read", is, now->pc);
    remember(is_write ? c->writes : c->reads, now, is_shared);
}

/* ------------------------------------------------------------------ all accesses */

static struct image_range {
    uintptr_t begin, end;
} images[16];
static unsigned n_images;

static int add_image(dl_phdr_info *image, size_t, void *)
{
    for (int i = 0; i < image->dlpi_phnum && n_images < 16; i++) {
        const ElfW(Phdr) *part = &image->dlpi_phdr[i];
        const uintptr_t begin = image->dlpi_addr + part->p_vaddr;
        if (part->p_type == PT_LOAD)
            images[n_images++] = {begin, begin + part->p_memsz};
    }
    return 1; /* the program is the first; libraries hold nothing that kernels read */
}

/* Constants, and what the emulation itself keeps. */
static bool is_of_program(const void *p)
{
    for (unsigned i = 0; i < n_images; i++)
        if ((uintptr_t)p >= images[i].begin && (uintptr_t)p < images[i].end)
            return true;
    return false;
}

static bool is_own(const char *p, const thread *t)
{
    const char *stack = (const char *)t->stack->stack;
    return (p >= stack && p < stack + t->stack->stack_bytes) || is_launch_argument(p);
}

static void note_access(const void *address, size_t bytes, unsigned kind, const void *pc)
{
    const thread *t = thread_now();
    const char *p = (const char *)address;
    if (!t || is_own(p, t))
        return;
    const bool is_shared = is_shared_memory(p, bytes);
    if (!is_shared && is_of_program(p))
        return;
    if (!is_shared && !is_device_memory(p, bytes) && !is_pinned_memory(p, bytes)) {
        char here[128];
        tell_line(pc, here, sizeof(here));
        emu_fail({}, "uses %p at %s, which is not memory of the device", address, here);
    }
    access now = {
        pc, emu_block_serial,     block_barriers(), t->warp->n_barriers, (uint16_t)t->linear,
        0,  kind == ACCESS_ATOMIC};
    for (size_t done = 0; done < bytes;) {
        const size_t offset = ((uintptr_t)p + done) % CELL_BYTES;
        const size_t n =
            bytes - done < CELL_BYTES - offset ? bytes - done : CELL_BYTES - offset;
        now.mask = (uint8_t)(((1u << n) - 1) << offset);
        note(p + done, is_shared, kind != ACCESS_READ, &now);
        done += n;
    }
    if (kind == ACCESS_ATOMIC)
        race.acquired_by = emu_block_serial;
}

static const race_hooks hooks = {begin_launch, note_access, note_fence};

/* ------------------------------------------------------------------ what the compiler calls */

/* A device faults where this processor takes what lies across. */
static void check_alignment(const void *p, size_t bytes, const void *pc)
{
    char here[128];
    if ((uintptr_t)p % bytes == 0)
        return;
    tell_line(pc, here, sizeof(here));
    emu_fail({}, "uses %zu bytes at %p at %s, which are not aligned to as many", bytes, p,
             here);
}

#define HERE __builtin_return_address(0)
#define ACCESSES(n)                                                                            \
    void __tsan_read##n(void *p)                                                               \
    {                                                                                          \
        check_alignment(p, n, HERE);                                                           \
        note_access(p, n, ACCESS_READ, HERE);                                                  \
    }                                                                                          \
    void __tsan_write##n(void *p)                                                              \
    {                                                                                          \
        check_alignment(p, n, HERE);                                                           \
        note_access(p, n, ACCESS_WRITE, HERE);                                                 \
    }                                                                                          \
    void __tsan_unaligned_read##n(void *p)                                                     \
    {                                                                                          \
        note_access(p, n, ACCESS_READ, HERE);                                                  \
    }                                                                                          \
    void __tsan_unaligned_write##n(void *p)                                                    \
    {                                                                                          \
        note_access(p, n, ACCESS_WRITE, HERE);                                                 \
    }

extern "C" {
ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)

void __tsan_read_range(void *p, size_t bytes)
{
    note_access(p, bytes, ACCESS_READ, HERE);
}

void __tsan_write_range(void *p, size_t bytes)
{
    note_access(p, bytes, ACCESS_WRITE, HERE);
}

void __tsan_init()
{
    if (n_images == 0)
        dl_iterate_phdr(add_image, nullptr);
    race_of_launches = &hooks;
}

void __tsan_func_entry(void *)
{
}

void __tsan_func_exit()
{
}

/* Of a static local's guard. */
int8_t __tsan_atomic8_load(const volatile int8_t *p, int)
{
    return __atomic_load_n(p, __ATOMIC_SEQ_CST);
}
}
