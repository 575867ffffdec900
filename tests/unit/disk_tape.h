/*
 * What a program does to the files of a folder, recorded call by call, and what a power cut may
 * leave of it: everything that was synced, and of the rest any part.
 *
 * A test that calls these gets open, pwrite, ftruncate, unlink, fsync and
 * fdatasync from here, for SQLite too. One thread.
 */
#ifndef SHEAF_DISK_TAPE_H
#define SHEAF_DISK_TAPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum disk_tape_rest {
    DISK_TAPE_ALL,  /* what was not synced is there nevertheless */
    DISK_TAPE_NONE, /* all of it is gone */
    DISK_TAPE_SOME, /* each write is there, gone, or there in half, as the seed says */
};

/* Records from here on; what was recorded before is forgotten. Files that memory stands behind
 * (-shm) are left out. */
void disk_tape_begin(const char *folder);
void disk_tape_end(void);
/* Calls recorded so far. */
size_t disk_tape_length(void);
/* Of the calls before the one with this number, how many were syncs? */
size_t disk_tape_syncs(size_t length);

/* Makes the files as a power cut after that many calls leaves them, in another folder that is
 * there and holds none of them. */
void disk_tape_image(size_t length, enum disk_tape_rest rest, uint64_t seed, const char *into);

#endif
