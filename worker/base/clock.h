/* Time as integers: microseconds of a monotonic clock for intervals, of the wall for dates. */
#ifndef SHEAF_CLOCK_H
#define SHEAF_CLOCK_H

#include <stdint.h>

int64_t clock_mono_us(void);
int64_t clock_wall_us(void);   /* since 1970 */
int64_t clock_thread_us(void); /* that the calling thread has computed */

enum { CLOCK_UTC_BYTES = 32 };
/* As RFC 3339 writes it, in whole seconds: 2026-11-30T15:52:42Z. Returns out. */
const char *clock_format_utc(int64_t wall_us, char out[CLOCK_UTC_BYTES]);
/* With milliseconds: 2026-11-30T15:52:42.123Z. */
const char *clock_format_utc_ms(int64_t wall_us, char out[CLOCK_UTC_BYTES]);

#endif
