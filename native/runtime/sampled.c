/* Poisson sampling of small objects, and the set of objects whose release must be recorded. */
#include "runtime.h"

#include <string.h>

/* With sampling most calls of free are for objects that were not recorded. One load in a small table
 * of counts tells so for nearly all; the exact table decides for the rest. When every object is
 * recorded all counts are 1 and the exact table is not used; before the start all are 0. */
#define FILTER_BYTES (1u << ML_FILTER_BITS)
#define BUCKET_SLOTS 8 /* a cache line */
#define PROBES 4
/* The table grows by segments, so that a program with few recorded objects touches few pages. */
#define SEGMENTS 3
static const uint64_t bucket_bits[SEGMENTS] = {8, 13, 18}; /* 16 KiB, 512 KiB, 16 MiB */

static uint8_t filter_memory[FILTER_BYTES] __attribute__((aligned(64)));
uint8_t *ml_filter = filter_memory;
static _Atomic(_Atomic uint64_t *) segments[SEGMENTS];

void ml_sampled_start(void) {
  if (ml_runtime.sample_bytes == 0) {
    memset(filter_memory, 1, sizeof filter_memory);
    return;
  }
}

/* A fork's child goes on with its parent's set: it may release those objects too. */
static _Atomic uint64_t *segment_of(unsigned number) {
  _Atomic uint64_t *segment = atomic_load(&segments[number]);
  if (ML_LIKELY(segment != NULL)) return segment;
  _Atomic uint64_t *made = ml_map_private((UINT64_C(1) << bucket_bits[number]) * BUCKET_SLOTS * sizeof *made, false);
  if (made == NULL || atomic_compare_exchange_strong(&segments[number], &segment, made)) return made;
  return segment;
}

/* Adds to a count of the filter, a byte, by way of the word around it: not every machine has atomic
 * bytes. 255 has lost count and stays. */
static void change_count(uint64_t hash, int delta) {
  const uint64_t at = hash >> (64 - ML_FILTER_BITS);
  _Atomic uint32_t *word = (_Atomic uint32_t *)(void *)(ml_filter + (at & ~UINT64_C(3)));
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
  const unsigned shift = (unsigned)(at & 3) * 8;
#else
  const unsigned shift = 24 - (unsigned)(at & 3) * 8;
#endif
  uint32_t old = atomic_load_explicit(word, memory_order_relaxed), changed;
  do {
    const uint32_t count = old >> shift & 255;
    if (count == 255 || (count == 0 && delta < 0)) return;
    changed = (old & ~(UINT32_C(255) << shift)) | (count + (uint32_t)delta) << shift;
  } while (!atomic_compare_exchange_weak_explicit(word, &old, changed, memory_order_release, memory_order_relaxed));
}

static _Atomic uint64_t *bucket_at(_Atomic uint64_t *segment, unsigned number, uint64_t hash, unsigned probe) {
  return segment + (((hash >> 8) + probe) & ((UINT64_C(1) << bucket_bits[number]) - 1)) * BUCKET_SLOTS;
}

void ml_sampled_add(const void *address) {
  if (ml_runtime.sample_bytes == 0) return;
  const uint64_t hash = ml_pointer_hash(address);
  for (unsigned number = 0; number < SEGMENTS; number++) {
    _Atomic uint64_t *segment = segment_of(number);
    if (segment == NULL) continue;
    for (unsigned probe = 0; probe < PROBES; probe++) {
      _Atomic uint64_t *bucket = bucket_at(segment, number, hash, probe);
      for (unsigned slot = 0; slot < BUCKET_SLOTS; slot++) {
        uint64_t seen = 0;
        if (atomic_load_explicit(&bucket[slot], memory_order_relaxed) != 0 ||
            !atomic_compare_exchange_strong(&bucket[slot], &seen, (uint64_t)(uintptr_t)address))
          continue;
        change_count(hash, 1);
        return;
      }
    }
  }
  if (ml_recording()) atomic_fetch_add_explicit(&ml_runtime.slot->untracked, 1, memory_order_relaxed);
}

bool ml_sampled_remove(const void *address) {
  if (ml_runtime.sample_bytes == 0) return true;
  const uint64_t hash = ml_pointer_hash(address);
  for (unsigned number = 0; number < SEGMENTS; number++) {
    _Atomic uint64_t *segment = atomic_load(&segments[number]);
    if (segment == NULL) continue;
    for (unsigned probe = 0; probe < PROBES; probe++) {
      _Atomic uint64_t *bucket = bucket_at(segment, number, hash, probe);
      for (unsigned slot = 0; slot < BUCKET_SLOTS; slot++) {
        uint64_t seen = (uint64_t)(uintptr_t)address;
        if (atomic_load_explicit(&bucket[slot], memory_order_relaxed) != seen ||
            !atomic_compare_exchange_strong(&bucket[slot], &seen, 0))
          continue;
        change_count(hash, -1);
        return true;
      }
    }
  }
  return false;
}

/* ---- numbers without libm -------------------------------------------------------------------------- */
/* Natural logarithm of x > 0; error below 1e-9, from the series of atanh. */
static double natural_log(double x) {
  uint64_t bits;
  memcpy(&bits, &x, 8);
  int exponent = (int)(bits >> 52 & 0x7ff) - 1023;
  bits = (bits & UINT64_C(0xfffffffffffff)) | UINT64_C(0x3ff0000000000000);
  double mantissa;
  memcpy(&mantissa, &bits, 8);
  if (mantissa > 1.4142135623730951) {
    mantissa *= 0.5;
    exponent++;
  }
  const double z = (mantissa - 1.0) / (mantissa + 1.0), square = z * z;
  double sum = 0.0, power = z;
  for (int k = 1; k < 20; k += 2, power *= square) sum += power / k;
  return 2.0 * sum + exponent * 0.6931471805599453;
}

/* 1 - e^-x for x >= 0. */
static double one_minus_exp(double x) {
  if (x > 40.0) return 1.0;
  double halvings = 1.0, small = x;
  while (small > 0.01) {
    small *= 0.5;
    halvings *= 2.0;
  }
  double result = small * (1.0 - small / 2 * (1.0 - small / 3 * (1.0 - small / 4 * (1.0 - small / 5))));
  for (; halvings > 1.0; halvings *= 0.5) result = result * (2.0 - result); /* 1 - (1 - r)^2 */
  return result;
}

/* The first objects of a process are all recorded: their number is fixed, so what follows stays unbiased. A fork's child
 * goes on with what its parent left. */
static _Atomic int64_t exact_left = ML_EXACT_OBJECTS;

bool ml_in_exact_phase(void) { return atomic_load_explicit(&exact_left, memory_order_relaxed) > 0; }

bool ml_take_exact(void) {
  if (atomic_load_explicit(&exact_left, memory_order_relaxed) > 0 &&
      atomic_fetch_sub_explicit(&exact_left, 1, memory_order_relaxed) > 0)
    return true;
  return false;
}

static void set_flag(uint32_t flag) {
  if (ml_recording()) atomic_fetch_or_explicit(&ml_runtime.slot->flags, flag, memory_order_relaxed);
}

void ml_note_sampled(void) { set_flag((uint32_t)ML_ENUM_runtime_flags_SAMPLED); }

/* The mean distance of samples grows with what the thread has allocated, up to sample_bytes: a few thousand samples
 * describe a short run as well as a long one. It changes only where a distance is drawn anew, and the chance of each
 * object follows from the distance in force, so that weights stay unbiased. */
#define FIRST_RATE UINT64_C(4096)
#define SAMPLES_A_FOLD 1024 /* while the allocated bytes grow by a factor of e */

/* Exponential with this mean: without memory, so it may be drawn anew at any time. */
static int64_t draw(struct ml_thread *self, uint64_t mean) {
  uint64_t x = self->random; /* xorshift64* */
  x ^= x >> 12;
  x ^= x << 25;
  x ^= x >> 27;
  self->random = x;
  const uint64_t bits = (x * UINT64_C(0x2545F4914F6CDD1D)) >> 11;
  const double uniform = ((double)bits + 1.0) / 9007199254740993.0; /* in (0, 1] */
  return (int64_t)(-natural_log(uniform) * (double)mean);
}

static uint64_t weight_of(uint64_t bytes, uint64_t rate) {
  const double size = bytes == 0 ? 1.0 : (double)bytes;
  return (uint64_t)(size / one_minus_exp(size / (double)rate) + 0.5);
}

/* The distance to the next sample: exponential, so that every byte is picked with the same chance whatever the sizes
 * are. */
int64_t ml_next_gap(struct ml_thread *self) {
  if (ml_runtime.sample_bytes == 0) return -1; /* every call goes the slow way */
  uint64_t rate = self->passed_bytes / SAMPLES_A_FOLD;
  if (rate < FIRST_RATE) rate = FIRST_RATE;
  if (rate > ml_runtime.sample_bytes) rate = ml_runtime.sample_bytes;
  if (self->thinned && rate < self->large_rate) rate = self->large_rate;
  self->rate = rate;
  self->gap = draw(self, rate);
  return self->gap; /* an object is sampled when its bytes exceed what is left of the gap */
}

/* The bytes that a sampled object of this size stands for: its size over its chance to be picked. */
uint64_t ml_sample_weight(const struct ml_thread *self, uint64_t bytes) {
  return ml_runtime.sample_bytes == 0 ? 0 : weight_of(bytes, self->rate);
}

/* ---- the budget -------------------------------------------------------------------------------------- */
/* A program that does little but allocate large blocks would spend most of its time in our records. Each thread measures what its
 * records cost; beyond the budget large objects are sampled as small ones are, the rarer the longer it lasts. Whether an object
 * is looked at follows from costs before it, so weights stay unbiased. */
#define FREE_NS UINT64_C(5000000) /* a thread's first records are the dearest: caches and tables are cold */
#define LEAST_LARGE_RATE (UINT64_C(1) << 20)
#define MOST_LARGE_RATE (UINT64_C(1) << 30)
#define CALL_NS 100 /* of a record, outside of what is measured: clocks, and the release to come */

bool ml_take_large(struct ml_thread *self, size_t bytes, uint64_t *weight_bytes) {
  if (ML_LIKELY(!self->thinned)) return true;
  if (bytes <= (size_t)INT64_MAX && (self->large_countdown -= (int64_t)bytes) >= 0) return false;
  *weight_bytes = weight_of(bytes, self->large_rate);
  self->large_countdown = draw(self, self->large_rate);
  return true;
}

void ml_spend(struct ml_thread *self, uint64_t begin_ns) {
  if (ml_runtime.budget_ppm == 0) return;
  const uint64_t now = ml_now_ns();
  self->spent_ns += now - begin_ns + CALL_NS;
  const uint64_t allowed = FREE_NS + (uint64_t)((double)(now - self->begun_ns) * 1e-6 * ml_runtime.budget_ppm);
  if (self->spent_ns > allowed) {
    if (!self->thinned) set_flag((uint32_t)ML_ENUM_runtime_flags_THINNED);
    self->large_rate = !self->thinned                       ? LEAST_LARGE_RATE
                       : self->large_rate < MOST_LARGE_RATE ? 2 * self->large_rate
                                                            : MOST_LARGE_RATE;
  } else if (self->thinned && self->spent_ns < allowed / 4 * 3) {
    if (self->large_rate <= LEAST_LARGE_RATE) {
      self->thinned = false;
      return;
    }
    self->large_rate /= 2;
  } else {
    return;
  }
  self->thinned = true;
  self->large_countdown = draw(self, self->large_rate);
}
