/* Which executions of a region are counted, where the code has an untouched copy. Decided for each place: a region that runs a
 * few times in a thread is counted there. */
#include "count.h"

#define BOTH_FIRST 8      /* a budget begins with as many, counted and untouched by turns */
#define RARE_UNTOUCHED 16 /* one in so many, at random, is untouched although there is budget for counting it */
#define RARE_COUNTED 1024 /* and the other way round */

bool ml_is_sampling;

static uint64_t next_random(struct ml_thread *self) {
  /* splitmix64: threads whose seeds are neighbours draw unlike numbers from the first on. */
  uint64_t x = self->random += UINT64_C(0x9e3779b97f4a7c15);
  x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
  x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
  return x ^ x >> 31;
}

static bool one_in(struct ml_thread *self, uint64_t number) {
  return (uint64_t)(((unsigned __int128)next_random(self) * number) >> 64) == 0;
}

/* Integers only: a program may have asked for a signal at inexact results. */
static bool within_budget(struct ml_thread *self, const struct ml_count_place *place, uint64_t budget_ppm) {
  /* Each is read once: a child that was forked before it gave up its privileges can write here. */
  const uint64_t counted = __atomic_load_n(&place->counted, __ATOMIC_RELAXED);
  const uint64_t untouched = __atomic_load_n(&place->untouched, __ATOMIC_RELAXED), ended = counted + untouched;
  if (ended < BOTH_FIRST || counted == 0 || untouched == 0) return (place->entered & 1) == 0;
  const uint64_t counted_mean = place->counted_ticks / counted;
  const uint64_t untouched_mean = place->untouched_ticks / untouched;
  const uint64_t cost = counted_mean > untouched_mean ? counted_mean - untouched_mean : 0;
  const unsigned __int128 spent = (unsigned __int128)(counted + 1) * cost * 1000000u;
  const unsigned __int128 allowed = (unsigned __int128)(ended + 1) * untouched_mean * budget_ppm;
  if (spent <= allowed) return !one_in(self, RARE_UNTOUCHED);
  return one_in(self, RARE_COUNTED);
}

uint32_t ml_draw_group(struct ml_thread *self) {
  const uint64_t groups = ml_arena_settings.sample_groups;
  if (groups == 0 || groups > ML_COUNT_GROUPS_MAX) return 0;
  return 1 + (uint32_t)(((unsigned __int128)next_random(self) * groups) >> 64);
}

enum ml_choice ml_sampled(struct ml_thread *self, const struct ml_count_place *place) {
  const struct ml_count_header *header = &ml_arena_settings;
  if (header->sampling == ML_SAMPLE_ALL) return ML_COUNT;
  if (place->entered < header->sample_first) return ML_COUNT;
  const uint64_t every = header->sample_every;
  if (header->sampling == ML_SAMPLE_BUDGET) return within_budget(self, place, header->budget_ppm) ? ML_COUNT : ML_SKIP;
  if (every <= 1) return ML_COUNT;
  /* Not every N-th: executions that repeat in a pattern would be counted always or never. */
  if (header->sampling == ML_SAMPLE_RANDOM) return one_in(self, every) ? ML_COUNT_BY_CHANCE : ML_SKIP;
  return (place->entered - header->sample_first) % every == 0 ? ML_COUNT : ML_SKIP;
}
