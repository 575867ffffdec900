/*
 * Atomic operations: fibres change only where they wait, so plain reads and writes will do.
 */
#include "block_int.h"

#define HERE __builtin_return_address(0)

int32_t emu_atomic_add(int32_t *p, int32_t value)
{
    race_note(p, sizeof(*p), ACCESS_ATOMIC, HERE);
    const int32_t before = *p;
    *p = (int32_t)((uint32_t)before + (uint32_t)value);
    return before;
}

float emu_atomic_add(float *p, float value)
{
    race_note(p, sizeof(*p), ACCESS_ATOMIC, HERE);
    const float before = *p;
    *p = before + value;
    return before;
}

int32_t emu_atomic_max(int32_t *p, int32_t value)
{
    race_note(p, sizeof(*p), ACCESS_ATOMIC, HERE);
    const int32_t before = *p;
    *p = before > value ? before : value;
    return before;
}

void emu_fence()
{
    if (race_of_launches)
        race_of_launches->fence();
}
