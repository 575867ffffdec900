#include "cli.h"

extern const struct command cmd_run, cmd_work, cmd_submit, cmd_check, cmd_status, cmd_dlq,
    cmd_sink, cmd_results, cmd_stats, cmd_db, cmd_model, cmd_heads, cmd_bench;

const struct command *const commands[] = {
    &cmd_run,     &cmd_work,  &cmd_submit, &cmd_check, &cmd_status, &cmd_dlq,   &cmd_sink,
    &cmd_results, &cmd_stats, &cmd_db,     &cmd_model, &cmd_heads,  &cmd_bench, NULL,
};

int main(int argc, char **argv)
{
    return cli_main(argc, argv);
}
