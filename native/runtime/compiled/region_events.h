/* What region_events.c provides and a program may replace; its head explains. */
#ifndef MEMLENS_REGION_EVENTS_H
#define MEMLENS_REGION_EVENTS_H
#include <stdint.h>

struct ml_count_header;
#define MEMLENS_EVENT_STATE_WORDS 16

unsigned memlens_region_events_open(uint64_t *state, const struct ml_count_header *asked, int *error);
void memlens_region_events_begin(uint64_t *state, uint64_t *begun);
void memlens_region_events_end(uint64_t *state, const uint64_t *begun, uint64_t *spent);
void memlens_region_events_close(uint64_t *state);
#endif
