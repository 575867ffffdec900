/* The worker that may be broken: the product's sources with SHEAF_FAULTS (worker/base/fault.h)
 * and the fake engine. */
#include "cli.h"

extern const struct command cmd_work;

const struct command *const commands[] = {&cmd_work, NULL};

int main(int argc, char **argv)
{
    return cli_main(argc, argv);
}
