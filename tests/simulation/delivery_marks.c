#include "delivery_world.h"

void marks_store(struct marks *m, uint8_t jobs)
{
    m->stored |= jobs;
}

void marks_offer(struct marks *m, uint8_t jobs)
{
    m->offered |= jobs & (uint8_t)~m->published;
}

void marks_publish(struct marks *m, uint8_t jobs)
{
    m->published |= jobs;
    m->superseded &= (uint8_t)~jobs;
}

void marks_supersede(struct marks *m, uint8_t jobs)
{
    m->superseded |= jobs & (uint8_t)~m->published;
}

void marks_reconcile(struct marks *m, uint8_t settled)
{
    const uint8_t open = m->stored & settled & (uint8_t) ~(m->published | m->superseded);
    marks_publish(m, open & m->offered);
    marks_supersede(m, open & (uint8_t)~m->offered);
}
