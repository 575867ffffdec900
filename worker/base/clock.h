/* Time as integers: microseconds of a monotonic clock for intervals, of the wall for dates. */
#ifndef SHEAF_CLOCK_H
#define SHEAF_CLOCK_H

#include <stdint.h>

int64_t clock_mono_us(void);
int64_t clock_wall_us(void);   /* since 1970 */
int64_t clock_thread_us(void); /* that the calling thread has computed */

#endif
