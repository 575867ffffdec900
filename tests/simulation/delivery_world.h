/*
 * A small world in which jobs are delivered exactly once, one action at a time: a group with
 * two workers, their databases, and a Kafka that keeps jobs, results, committed offsets and
 * transactions. Trackers, partitions, the text beside the offsets and the plan of a burst are
 * the program's own code; threads, brokers and disks are what is modelled.
 *
 * A world is plain bytes without padding: copied, compared and hashed as such. Offsets are
 * those of jobs 0, 1, 2, 3 at 0, 1, 3, 4: the gap is a transaction's marker.
 *
 * What a worker does of its own is one action each, so that every other action can come between
 * any two of them; a crash among them.
 *
 *     poll thread   notice that the group moves on, join, take the assignment over (read what
 * is committed, reconcile the database), receive, reach the end engine        compute one of
 * the jobs in hand delivery      store what is computed; make a producer; find out what an
 * unheard commit did; plan; produce; send the offsets; ask for the commit; hear of it; settle;
 * mark
 */
#ifndef SHEAF_DELIVERY_WORLD_H
#define SHEAF_DELIVERY_WORLD_H

#include <stdbool.h>
#include <stdint.h>

#include "io/kafka_burst.h"

enum { WORLD_WORKERS = 2, WORLD_PARTITIONS = 2, WORLD_JOBS = 4, WORLD_ENTRIES = 10 };

/* What the delivery rests on; a twin leaves one out. */
enum world_guard {
    GUARD_RESULTS_WITH_OFFSETS, /* in one transaction; out: offsets are committed before it */
    GUARD_BITS,                 /* what is settled above the offset is taken over */
    GUARD_COMMITTED_READ,       /* no assignment without knowing what is committed */
    GUARD_GENERATION,           /* offsets of a stale generation are refused */
    GUARD_LOOK_UP,              /* a record is looked up in the database first */
    GUARD_FIND_OUT,             /* an unheard commit may have come true */
    GUARD_SETTLE_LAST,          /* after the commit; out: when the burst is planned */
    GUARD_STABLE,               /* no offsets are read while a transaction holds newer ones */
    GUARD_MARK_LAST,            /* after the commit; out: when the result is stored */
    GUARD_STORE_FIRST,          /* before the burst; out: after it */
    GUARD_RECONCILE,    /* rows that were committed unheard are marked at the assignment */
    GUARD_DROP_REVOKED, /* what did not come back is forgotten */
    N_GUARDS
};

struct world_limits {
    int partitions, jobs; /* jobs: of each partition */
    int crashes, kicks, unheard, timeouts;
    /* Steps that nobody else can see go with the one before, and workers join as soon as they
     * notice: what can come in between has the same ends. Jobs whose partition went are dropped
     * at once, as if none was begun. */
    bool is_coarse;
    bool all_arrived; /* no job arrives later */
    /* Also whose answers the databases take for visible. They go by what they offered, which a
     * crash or an unheard commit makes a guess: this finds where it is wrong. */
    bool checks_marks;
    unsigned guards_off; /* bits of enum world_guard */
};

enum entry_stage { ENTRY_WAITS, ENTRY_COMPUTED, ENTRY_KNOWN, ENTRY_KNOWN_PUBLISHED };
struct entry {
    uint8_t partition, job, stage;
    uint8_t is_held;    /* the partition's lease is the one that it was received under */
    uint8_t was_stored; /* when it was received */
    uint8_t is_in_batch, state;
};

enum place { PLACE_OUT, PLACE_JOINED, PLACE_GRANTED, PLACE_ASSIGNED };
enum delivery_step {
    STEP_GATHER,
    STEP_SEND,
    STEP_PRODUCE,
    STEP_OFFSETS,
    STEP_COMMIT,
    STEP_HEAR,
    STEP_SETTLE,
    STEP_MARK
};
struct settled {
    uint8_t is_set, bits; /* bit i: offset base + i */
    int8_t base;
};
struct worker {
    uint8_t is_alive, has_producer, is_unsure;
    uint8_t place, granted;              /* granted: partitions, a bit each */
    uint8_t is_current, plan_is_current; /* the generation that it speaks for */
    uint8_t step, n_entries;
    struct {
        uint8_t exists, is_owned, unsettled, known; /* bits by offset */
        int8_t watermark, next, known_end;
    } held[WORLD_PARTITIONS];
    struct settled plan[WORLD_PARTITIONS];
    struct entry entries[WORLD_ENTRIES];
};

/* The answers in a database, bits by job: stands for the real one, which is compared with it in
 * test_delivery_store.c. */
struct marks {
    uint8_t stored, offered, published, superseded;
};
void marks_store(struct marks *m, uint8_t jobs);
void marks_offer(struct marks *m, uint8_t jobs);
void marks_publish(struct marks *m, uint8_t jobs);
void marks_supersede(struct marks *m, uint8_t jobs);
void marks_reconcile(struct marks *m, uint8_t settled);

enum transaction_stage {
    TRANSACTION_NONE,
    TRANSACTION_OPEN,
    TRANSACTION_ASKED,
    TRANSACTION_DONE
};
struct transaction {
    uint8_t stage, is_fenced;
    uint8_t results[WORLD_PARTITIONS]; /* bits by job */
    struct settled offsets[WORLD_PARTITIONS];
};

struct world {
    struct worker workers[WORLD_WORKERS];
    struct marks databases[WORLD_WORKERS][WORLD_PARTITIONS];
    struct transaction transactions[WORLD_WORKERS]; /* by the database's id */
    struct {
        uint8_t is_preparing, members, joined, ghosts; /* bits by worker */
    } group;
    struct settled committed[WORLD_PARTITIONS];
    uint8_t answers[WORLD_PARTITIONS][WORLD_JOBS];     /* committed ones */
    uint8_t answered_by[WORLD_PARTITIONS][WORLD_JOBS]; /* bits by worker */
    uint8_t arrived[WORLD_PARTITIONS];
    uint8_t crashes, kicks, unheard, timeouts; /* that are left */
};

enum action_kind {
    /* the world */
    ACTION_ARRIVE,
    ACTION_APPLY,    /* the coordinator carries a commit out */
    ACTION_TIME_OUT, /* or ends a transaction that takes too long */
    ACTION_KICK,     /* the group gives a worker up, dead or alive */
    ACTION_COMPLETE, /* a new generation */
    ACTION_CRASH,
    ACTION_START,
    /* a worker */
    ACTION_NOTICE,
    ACTION_JOIN,
    ACTION_ASSIGN,
    ACTION_RECEIVE,
    ACTION_END,
    ACTION_COMPUTE,
    ACTION_DELIVER,
    N_ACTIONS
};
struct action {
    uint8_t kind, worker, choice;
};

/* Both workers have joined, and the first has what it is given; nothing is received. */
void world_begin(struct world *w, const struct world_limits *limits);
/* How many choices there may be; each worker may or may not matter. */
int world_choices(const struct world_limits *limits, enum action_kind kind);
/* False: not possible in this world, or it changes nothing. *w is changed only when true. */
bool world_act(struct world *w, const struct world_limits *limits, struct action a);
/* A crash, a kick, ...: not what would happen by itself sooner or later. */
bool world_is_fault(const struct world *before, struct action a);
const char *world_action_name(enum action_kind kind);

/* NULL, or what is wrong. world_act may have found more: it counts here too. */
const char *world_violation(const struct world *w, const struct world_limits *limits);
/* The same for a world in which nothing more happens by itself. */
const char *world_violation_at_rest(const struct world *w, const struct world_limits *limits);
void world_forget_violation(void);

void world_free_scratch(void);

#endif
