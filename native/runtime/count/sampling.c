/* Which executions of a region are counted, where the code has an untouched copy. Decided for each place: a region that runs a
 * few times in a thread is counted there. */
#include "count.h"

#define BOTH_FIRST 8     /* a budget begins with as many, counted and untouched by turns */
#define RARE_UNTOUCHED 16 /* one in so many is untouched although there is budget for counting it */
#define RARE_COUNTED 1024 /* and the other way round */

static uint64_t next_random(struct ml_thread *self) {
  uint64_t x = self->random;
  x ^= x << 13;
  x ^= x >> 7;
  x ^= x << 17;
  return self->random = x;
}

/* Integers only: a program may have asked for a signal at inexact results. */
static bool within_budget(const struct ml_count_place *place, uint64_t budget_ppm) {
  const uint64_t ended = place->counted + place->untouched;
  if (ended < BOTH_FIRST || place->counted == 0 || place->untouched == 0) return (place->entered & 1) == 0;
  const uint64_t counted_mean = place->counted_ticks / place->counted;
  const uint64_t untouched_mean = place->untouched_ticks / place->untouched;
  const uint64_t cost = counted_mean > untouched_mean ? counted_mean - untouched_mean : 0;
  const unsigned __int128 spent = (unsigned __int128)(place->counted + 1) * cost * 1000000u;
  const unsigned __int128 allowed = (unsigned __int128)(ended + 1) * untouched_mean * budget_ppm;
  if (spent <= allowed) return place->entered % RARE_UNTOUCHED != 0;
  return place->entered % RARE_COUNTED == 0;
}

bool ml_sampled(struct ml_thread *self, const struct ml_count_place *place) {
  const struct ml_count_header *header = ml_arena_header;
  if (header->sampling == ML_SAMPLE_ALL) return true;
  if (place->entered < header->sample_first) return true;
  const uint64_t every = header->sample_every;
  if (header->sampling == ML_SAMPLE_BUDGET) return within_budget(place, header->budget_ppm);
  if (every <= 1) return true;
  if (header->sampling == ML_SAMPLE_RANDOM) return (uint64_t)(((unsigned __int128)next_random(self) * every) >> 64) == 0;
  return (place->entered - header->sample_first) % every == 0;
}
