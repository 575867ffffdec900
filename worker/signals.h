/* SIGINT and SIGTERM as a count: the first asks for a drain, the second for an end at once. */
#ifndef SHEAF_SIGNALS_H
#define SHEAF_SIGNALS_H

void signals_install(void);
int signals_received(void);

#endif
