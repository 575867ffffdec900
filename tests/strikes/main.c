/* The commands that work on jobs, for sheaf_breakable. */
#include "cli.h"

extern const struct command cmd_run, cmd_work, cmd_submit;

const struct command *const commands[] = {&cmd_run, &cmd_work, &cmd_submit, NULL};

int main(int argc, char **argv)
{
    return cli_main(argc, argv);
}
