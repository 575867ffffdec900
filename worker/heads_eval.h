/* sheaf heads eval: how often heads are right over a user's texts, and what a step would
 * yield. */
#ifndef SHEAF_HEADS_EVAL_H
#define SHEAF_HEADS_EVAL_H

#include "cli.h"
#include "model/model.h"

/* The model keeps its weights. */
int heads_eval(const struct cli *cli, const struct model *m, struct err *e);

#endif
