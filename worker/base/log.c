#include "base/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"

enum { LOG_TEXT_BYTES = 1024 };

static _Atomic int lowest_level = LOG_INFO;

static const char *const level_names[] = {"debug", "info", "warn", "error"};

void log_set_level(enum log_level lowest)
{
    atomic_store(&lowest_level, (int)lowest);
}

/* JSON string escapes for the one string that a log line holds. */
static size_t escape(const char *text, char *out, size_t capacity)
{
    size_t n = 0;
    for (const char *c = text; *c && n + 7 < capacity; c++) {
        const unsigned char byte = (unsigned char)*c;
        if (byte == '"' || byte == '\\') {
            out[n++] = '\\';
            out[n++] = *c;
        } else if (byte < 0x20) {
            n += (size_t)snprintf(out + n, capacity - n, "\\u%04x", byte);
        } else {
            out[n++] = *c;
        }
    }
    out[n] = '\0';
    return n;
}

static void write_json(enum log_level level, const char *text)
{
    char escaped[2 * LOG_TEXT_BYTES];
    escape(text, escaped, sizeof escaped);
    char utc[CLOCK_UTC_BYTES];
    fprintf(stderr, "{\"time\":\"%s\",\"level\":\"%s\",\"msg\":\"%s\"}\n",
            clock_format_utc_ms(clock_wall_us(), utc), level_names[level], escaped);
}

void log_line(enum log_level level, const char *format, ...)
{
    if ((int)level < atomic_load(&lowest_level))
        return;
    char text[LOG_TEXT_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (!isatty(STDERR_FILENO))
        write_json(level, text);
    else if (level == LOG_INFO)
        fprintf(stderr, "sheaf: %s\n", text);
    else
        fprintf(stderr, "sheaf: %s: %s\n", level_names[level], text);
}
