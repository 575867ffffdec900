/*
 * sheaf-device-check: what a device computes and how fast, without Kafka and SQLite.
 *
 * Results are lines of JSON on stdout, one object each; ops/gpu-check and the claims read them.
 * "cpu" is a device like another, so that everything here runs without one.
 */
#ifndef SHEAF_CHECK_PROGRAM_H
#define SHEAF_CHECK_PROGRAM_H

#include "base/err.h"
#include "device.h"
#include "device_check/rig.h"
#include "model/heads.h"

struct check_options {
    struct rig_options rig;
    const char *model; /* path */
    size_t repeats;
    struct device_peak_sizes peaks; /* copy_bytes 0: they are not measured */
    bool plants_error;              /* the comparison has to find a wrong token */
};

/* Steps of a known make-up, each with its time, its counters and the least that it can take. */
int check_steps(const struct check_options *o, struct err *e);
/* Answers under all levers, and beside the CPU's; *differs: some are not explained. */
int check_equal(const struct check_options *o, bool *differs, struct err *e);

/* Random heads over the model's own output; close them with heads_close, whatever is returned.
 */
int check_heads_open(const struct model *m, struct heads **out, struct err *e);

#endif
