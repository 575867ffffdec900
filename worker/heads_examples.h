/* From a user's texts to the examples of training and measuring: a corpus read and prepared,
 * and a model's hidden states over it. */
#ifndef SHEAF_HEADS_EXAMPLES_H
#define SHEAF_HEADS_EXAMPLES_H

#include "cli.h"
#include "train/hidden_set.h"

struct heads_examples {
    struct corpus corpus;
    char corpus_sha256[SHA256_HEX_BYTES];
    struct hidden_set set;
};

/* The corpus, by the options --jobs, --input and --positions. */
int heads_examples_read(const struct cli *cli, const struct model *m,
                        struct heads_examples *out, struct err *e);
/* Then the set. The model keeps its weights. */
int heads_examples_run(const struct cli *cli, const struct model *m, struct heads_examples *x,
                       struct err *e);
void heads_examples_fini(struct heads_examples *x); /* accepts zeroed */

#endif
