/* sheaf heads train: from a user's texts to a file of heads. */
#ifndef SHEAF_HEADS_TRAIN_H
#define SHEAF_HEADS_TRAIN_H

#include "cli.h"
#include "model/model.h"

/* The model keeps its weights. ERR_CANCELLED when it was stopped: the same command goes on. */
int heads_train(const struct cli *cli, const struct model *m, struct err *e);

#endif
