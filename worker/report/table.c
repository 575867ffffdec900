#include "report/table.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"

struct table {
    const struct table_column *columns;
    size_t n_columns;
    char **cells; /* owned; [n_cells] */
    size_t n_cells, capacity;
    bool failed;
};

struct range {
    uint32_t first, last;
};

/* Coarse, after Unicode's East Asian Width and general category Mn: what terminals agree on. */
static const struct range wide[] = {{0x1100, 0x115f},   {0x2e80, 0x303e},   {0x3041, 0xa4cf},
                                    {0xac00, 0xd7a3},   {0xf900, 0xfaff},   {0xfe30, 0xfe6f},
                                    {0xff00, 0xff60},   {0xffe0, 0xffe6},   {0x1f300, 0x1f64f},
                                    {0x1f680, 0x1f6ff}, {0x1f900, 0x1faff}, {0x20000, 0x3fffd}};
static const struct range zero[] = {{0x0300, 0x036f}, {0x0483, 0x0489}, {0x0591, 0x05bd},
                                    {0x064b, 0x065f}, {0x1ab0, 0x1aff}, {0x1dc0, 0x1dff},
                                    {0x200b, 0x200f}, {0x202a, 0x202e}, {0x2060, 0x2069},
                                    {0x20d0, 0x20ff}, {0xfe00, 0xfe0f}, {0xfeff, 0xfeff}};

static bool is_in(const struct range *ranges, size_t n, uint32_t c)
{
    for (size_t i = 0; i < n; i++)
        if (c >= ranges[i].first && c <= ranges[i].last)
            return true;
    return false;
}

static int width_of(uint32_t c)
{
    if (is_in(zero, sizeof zero / sizeof zero[0], c))
        return 0;
    return is_in(wide, sizeof wide / sizeof wide[0], c) ? 2 : 1;
}

/* One character of text; bytes that form none come one by one as U+FFFD. */
static size_t decode(const unsigned char *text, uint32_t *c)
{
    const size_t n = text[0] < 0x80   ? 1
                     : text[0] < 0xc2 ? 0
                     : text[0] < 0xe0 ? 2
                     : text[0] < 0xf0 ? 3
                     : text[0] < 0xf5 ? 4
                                      : 0;
    *c = n == 1 ? text[0] : n ? text[0] & (0x7fu >> n) : 0xfffd;
    for (size_t i = 1; i < n; i++) {
        if ((text[i] & 0xc0) != 0x80) {
            *c = 0xfffd;
            return 1;
        }
        *c = *c << 6 | (text[i] & 0x3f);
    }
    return n ? n : 1;
}

static bool is_control(uint32_t c)
{
    return c < 0x20 || (c >= 0x7f && c < 0xa0) || (c >= 0x202a && c <= 0x202e) ||
           (c >= 0x2066 && c <= 0x2069);
}

int table_text_width(const char *text)
{
    int width = 0;
    for (uint32_t c; *text;) {
        text += decode((const unsigned char *)text, &c);
        width += width_of(c);
    }
    return width;
}

/* Printable and not wider than width_max (0: any). */
static char *clean(const char *text, int width_max)
{
    struct buf out = {0};
    const bool must_cut = width_max && table_text_width(text) > width_max;
    int width = must_cut ? 1 : 0; /* of the ellipsis */
    while (*text) {
        uint32_t c;
        const size_t n = decode((const unsigned char *)text, &c);
        const int w = is_control(c) ? 1 : width_of(c);
        if (must_cut && width + w > width_max)
            break;
        if (is_control(c))
            buf_append_char(&out, ' ');
        else if (c == 0xfffd)
            buf_append_str(&out, "\xef\xbf\xbd");
        else
            buf_append(&out, text, n);
        width += w;
        text += n;
    }
    if (must_cut)
        buf_append_str(&out, "\xe2\x80\xa6");
    buf_append(&out, "", 0);
    return buf_take(&out);
}

struct table *table_open(const struct table_column *columns, size_t n)
{
    struct table *t = calloc(1, sizeof *t);
    if (t) {
        t->columns = columns;
        t->n_columns = n;
    }
    return t;
}

void table_add(struct table *t, const char *text)
{
    if (t->failed)
        return;
    if (t->n_cells == t->capacity) {
        const size_t capacity = t->capacity ? 2 * t->capacity : 64;
        char **cells = realloc(t->cells, capacity * sizeof *cells);
        t->failed = !cells;
        if (!cells)
            return;
        t->cells = cells;
        t->capacity = capacity;
    }
    char *cell = clean(text, t->columns[t->n_cells % t->n_columns].width_max);
    t->failed = !cell;
    if (cell)
        t->cells[t->n_cells++] = cell;
}

static void print_cell(FILE *out, const char *text, int width, bool is_right, bool is_last)
{
    const int pad = width - table_text_width(text);
    if (is_right)
        fprintf(out, "%*s%s", pad, "", text);
    else
        fprintf(out, "%s%*s", text, is_last ? 0 : pad, "");
    fputs(is_last ? "\n" : "  ", out);
}

static void print_row(const struct table *t, FILE *out, const int *widths, char *const *cells)
{
    for (size_t i = 0; i < t->n_columns; i++)
        print_cell(out, cells ? cells[i] : t->columns[i].name, widths[i],
                   t->columns[i].is_right, i + 1 == t->n_columns);
}

int table_print(const struct table *t, FILE *out, struct err *e)
{
    int *widths = calloc(t->n_columns, sizeof *widths);
    if (t->failed || !widths) {
        free(widths);
        return ERR_SET(e, ERR_NOMEM, "out of memory");
    }
    for (size_t i = 0; i < t->n_columns; i++)
        widths[i] = table_text_width(t->columns[i].name);
    for (size_t i = 0; i < t->n_cells; i++) {
        const int width = table_text_width(t->cells[i]);
        if (width > widths[i % t->n_columns])
            widths[i % t->n_columns] = width;
    }
    print_row(t, out, widths, NULL);
    for (size_t i = 0; i + t->n_columns <= t->n_cells; i += t->n_columns)
        print_row(t, out, widths, t->cells + i);
    free(widths);
    return ferror(out) ? ERR_SET(e, ERR_IO, "cannot write the table") : 0;
}

void table_close(struct table *t)
{
    if (!t)
        return;
    for (size_t i = 0; i < t->n_cells; i++)
        free(t->cells[i]);
    free(t->cells);
    free(t);
}
