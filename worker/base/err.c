#include "base/err.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

int err_set(struct err *e, int code, unsigned flags, const char *file, int line,
            const char *format, ...)
{
    if (!e || e->code != 0)
        return code;
    e->code = code;
    e->flags = flags;
    e->file = file;
    e->line = line;
    va_list args;
    va_start(args, format);
    vsnprintf(e->text, sizeof e->text, format, args);
    va_end(args);
    return code;
}

void err_prefix(struct err *e, const char *format, ...)
{
    if (!e || e->code == 0)
        return;
    char old[ERR_TEXT_BYTES];
    memcpy(old, e->text, sizeof old);
    va_list args;
    va_start(args, format);
    const int written = vsnprintf(e->text, sizeof e->text, format, args);
    va_end(args);
    if (written < 0 || (size_t)written >= sizeof e->text - 2)
        return;
    snprintf(e->text + written, sizeof e->text - (size_t)written, ": %.*s",
             (int)(sizeof e->text - (size_t)written - 3), old);
}

void err_clear(struct err *e)
{
    if (e)
        *e = (struct err){0};
}

const char *err_name(int code)
{
    switch (code) {
    case 0: return "ok";
    case ERR_NOMEM: return "out of memory";
    case ERR_IO: return "io";
    case ERR_FORMAT: return "format";
    case ERR_UNSUPPORTED: return "unsupported";
    case ERR_LIMIT: return "limit";
    case ERR_INVALID: return "invalid";
    case ERR_NOTFOUND: return "not found";
    case ERR_STATE: return "state";
    case ERR_CONTEXT: return "context";
    case ERR_BROKER: return "broker";
    case ERR_DB: return "database";
    case ERR_CONFIG: return "config";
    case ERR_CANCELLED: return "cancelled";
    case ERR_USAGE: return "usage";
    default: return "unknown";
    }
}

const char *err_advice(int error)
{
    switch (error) {
    case ENOENT: return "; is the path right?";
    case ENOSPC: return "; make room there";
    case EDQUOT: return "; make room, or have the quota raised";
    case EFBIG: return "; raise the limit of file sizes (ulimit -f)";
    case EIO: return "; the disk fails: look into the kernel's log";
    case EROFS:
        return "; it is on a read-only file system: mount it anew, or name another place";
    case EACCES:
    case EPERM: return "; let this user use it, or name another place";
    case EMFILE: return "; raise the limit of open files (ulimit -n)";
    default: return "";
    }
}
