/*
 * What the program says on stderr: one line a message, readable text on a terminal, one JSON
 * object a line otherwise (time, level, msg). Job text and secrets never go through here.
 *
 * Thread: any; lines are written whole.
 */
#ifndef SHEAF_LOG_H
#define SHEAF_LOG_H

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR };

void log_set_level(enum log_level lowest);
void log_line(enum log_level level, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#define log_info(...)  log_line(LOG_INFO, __VA_ARGS__)
#define log_warn(...)  log_line(LOG_WARN, __VA_ARGS__)
#define log_error(...) log_line(LOG_ERROR, __VA_ARGS__)

#endif
