/* The probe of the emulated device, which is always there. */
#include <stdio.h>

#include "../port.cuh"
#include "../probe.cuh"

extern "C" int probe_device(size_t ordinal, struct device_info *info, struct err *e)
{
    device_facts facts;
    *info = {};
    if (!device_use((int)ordinal, &facts))
        return ERR_SET(e, ERR_UNSUPPORTED, "%s", last_error());
    snprintf(info->name, sizeof info->name, "%s", facts.name);
    info->compute_capability = facts.compute_capability;
    info->memory_bytes = facts.memory_bytes;
    info->free_bytes = facts.free_bytes;
    return 0;
}
