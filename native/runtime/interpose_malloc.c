/* malloc and its family, before the ones of the C library or of another allocator. */
#include "runtime.h"

#include <dlfcn.h>
#include <errno.h>
#include <string.h>

#define OPERATION(name) ML_ENUM_allocation_operation_##name

static void *first_malloc(size_t bytes);
static void *first_calloc(size_t count, size_t bytes);
static void *first_realloc(void *address, size_t bytes);
static void first_free(void *address);
static int first_posix_memalign(void **address, size_t alignment, size_t bytes);
static void *first_aligned_alloc(size_t alignment, size_t bytes);
static void *first_memalign(size_t alignment, size_t bytes);
static void *first_valloc(size_t bytes);
static void *first_pvalloc(size_t bytes);

static void *(*real_malloc)(size_t) = first_malloc;
static void *(*real_calloc)(size_t, size_t) = first_calloc;
static void *(*real_realloc)(void *, size_t) = first_realloc;
static void (*real_free)(void *) = first_free;
static int (*real_posix_memalign)(void **, size_t, size_t) = first_posix_memalign;
static void *(*real_aligned_alloc)(size_t, size_t) = first_aligned_alloc;
static void *(*real_memalign)(size_t, size_t) = first_memalign;
static void *(*real_valloc)(size_t) = first_valloc;
static void *(*real_pvalloc)(size_t) = first_pvalloc;

/* ---- before the real functions are known ------------------------------------------------------- */
/* dlsym may allocate. What it gets comes from here and is never given back. */
static unsigned char early[65536] __attribute__((aligned(16)));
static _Atomic size_t early_used;

static bool is_early(const void *address) {
  return (const unsigned char *)address >= early && (const unsigned char *)address < early + sizeof early;
}

static void *early_alloc(size_t alignment, size_t bytes) {
  if (bytes > sizeof early || alignment > 4096) return NULL;
  if (alignment < 16) alignment = 16;
  size_t used = atomic_load(&early_used), at;
  do {
    at = ((used + 16 + alignment - 1) & ~(alignment - 1)); /* 16 bytes in front hold the size */
    if (at + bytes > sizeof early) return NULL;
  } while (!atomic_compare_exchange_weak(&early_used, &used, at + bytes));
  memcpy(early + at - 16, &bytes, sizeof bytes);
  ml_filter[ml_pointer_hash(early + at) >> (64 - ML_FILTER_BITS)] = 255; /* free must look closer, for ever */
  return early + at;
}

static size_t early_bytes(const void *address) {
  size_t bytes;
  memcpy(&bytes, (const unsigned char *)address - 16, sizeof bytes);
  return bytes;
}

/* False while this thread is in the middle of it. */
static bool resolve(void) {
  if (ml_self.resolving) return false;
  ml_self.resolving = true;
  ml_self.inside++;
  const int saved = errno;
#define FIND(name)                                                 \
  do {                                                             \
    void *found = dlsym(RTLD_NEXT, #name);                         \
    if (found != NULL) memcpy(&real_##name, &found, sizeof found); \
  } while (0)
  FIND(malloc);
  FIND(calloc);
  FIND(realloc);
  FIND(free);
  FIND(posix_memalign);
  FIND(aligned_alloc);
  FIND(memalign);
  FIND(valloc);
  FIND(pvalloc);
#undef FIND
  errno = saved;
  ml_self.inside--;
  ml_self.resolving = false;
  return true;
}

void ml_malloc_start(void) { resolve(); }

static void *first_malloc(size_t bytes) {
  return resolve() && real_malloc != first_malloc ? real_malloc(bytes) : early_alloc(16, bytes);
}
static void *first_calloc(size_t count, size_t bytes) {
  if (resolve() && real_calloc != first_calloc) return real_calloc(count, bytes);
  /* zero: never used before */
  return bytes != 0 && count > sizeof early / bytes ? NULL : early_alloc(16, count * bytes);
}
static void *first_realloc(void *address, size_t bytes) {
  if (resolve() && real_realloc != first_realloc) return real_realloc(address, bytes);
  void *moved = early_alloc(16, bytes);
  if (moved != NULL && address != NULL && is_early(address)) {
    const size_t old = early_bytes(address);
    memcpy(moved, address, old < bytes ? old : bytes);
  }
  return moved;
}
static void first_free(void *address) {
  if (resolve() && real_free != first_free) real_free(address);
}
static int first_posix_memalign(void **address, size_t alignment, size_t bytes) {
  if (resolve() && real_posix_memalign != first_posix_memalign) return real_posix_memalign(address, alignment, bytes);
  *address = early_alloc(alignment, bytes);
  return *address == NULL ? ENOMEM : 0;
}
static void *first_aligned_alloc(size_t alignment, size_t bytes) {
  return resolve() && real_aligned_alloc != first_aligned_alloc ? real_aligned_alloc(alignment, bytes)
                                                                : early_alloc(alignment, bytes);
}
static void *first_memalign(size_t alignment, size_t bytes) {
  return resolve() && real_memalign != first_memalign ? real_memalign(alignment, bytes) : early_alloc(alignment, bytes);
}
static void *first_valloc(size_t bytes) {
  return resolve() && real_valloc != first_valloc ? real_valloc(bytes) : early_alloc(4096, bytes);
}
static void *first_pvalloc(size_t bytes) {
  return resolve() && real_pvalloc != first_pvalloc ? real_pvalloc(bytes)
                                                    : early_alloc(4096, (bytes + 4095) & ~(size_t)4095);
}

/* ---- the hooks ------------------------------------------------------------------------------------ */
/* operator new calls malloc: the record names the outer one. After a failure operator new may throw,
 * past the place where it would take its mark back: what comes next is no `new` any more. */
static struct ml_what what_is(unsigned operation, const void *address) {
  struct ml_what what = {.operation = operation};
  if (ml_self.operation != 0) {
    what.operation = ml_self.operation;
    what.flags = ml_self.operation_flags;
    if (address == NULL) ml_self.operation = 0;
  }
  return what;
}

static __attribute__((noinline)) void *malloc_slowly(size_t bytes) {
  const struct ml_birth birth = ml_choose(bytes);
  void *address = real_malloc(bytes);
  if (birth.wanted) ml_record_birth(birth, address, bytes, what_is(OPERATION(MALLOC), address));
  return address;
}

ML_EXPORT void *malloc(size_t bytes) {
  if (ML_LIKELY(!ml_look_closer(bytes))) return real_malloc(bytes);
  return malloc_slowly(bytes);
}

static __attribute__((noinline)) void *calloc_slowly(size_t count, size_t bytes, size_t total) {
  const struct ml_birth birth = ml_choose(total);
  void *address = real_calloc(count, bytes);
  if (birth.wanted) ml_record_birth(birth, address, total, what_is(OPERATION(CALLOC), address));
  return address;
}

ML_EXPORT void *calloc(size_t count, size_t bytes) {
  size_t total;
  if (__builtin_mul_overflow(count, bytes, &total)) return real_calloc(count, bytes); /* it says ENOMEM */
  if (ML_LIKELY(!ml_look_closer(total))) return real_calloc(count, bytes);
  return calloc_slowly(count, bytes, total);
}

static __attribute__((noinline)) void free_slowly(void *address) {
  if (is_early(address)) return;
  if (ML_LIKELY(!ml_own_thread() || ml_self.deleting != address || address == NULL)) {
    if (ml_take_release(address)) ml_record_release(address, 0, 0, OPERATION(FREE), 0);
  }
  real_free(address);
}

ML_EXPORT void free(void *address) {
  if (ML_LIKELY(!ml_maybe_sampled(address))) {
    real_free(address);
    return;
  }
  free_slowly(address);
}

static __attribute__((noinline)) void *realloc_slowly(void *address, size_t bytes, bool closer) {
  if (is_early(address)) {
    void *moved = malloc(bytes);
    if (moved != NULL) memcpy(moved, address, early_bytes(address) < bytes ? early_bytes(address) : bytes);
    return moved;
  }
  const bool release_due = ml_take_release(address);
  const struct ml_birth birth = closer ? ml_choose(bytes) : (struct ml_birth){0};
  const uint64_t before = release_due ? ml_now_ns() : 0;
  void *moved = real_realloc(address, bytes);
  if (moved == NULL && bytes != 0) { /* failed: the old object lives on */
    if (release_due) ml_sampled_add(address);
    return moved;
  }
  if (release_due)
    ml_record_release(address, 0, before, OPERATION(FREE), moved != NULL ? ML_ENUM_allocation_flags_IN_REALLOC : 0);
  if (birth.wanted && moved != NULL) {
    struct ml_what what = {.operation = OPERATION(REALLOC), .old_address = (uint64_t)(uintptr_t)address};
    ml_record_birth(birth, moved, bytes, what);
  }
  return moved;
}

ML_EXPORT void *realloc(void *address, size_t bytes) {
  const bool closer = ml_look_closer(bytes);
  if (ML_LIKELY(!closer && !ml_maybe_sampled(address))) return real_realloc(address, bytes);
  return realloc_slowly(address, bytes, closer);
}

ML_EXPORT void *reallocarray(void *address, size_t count, size_t bytes) {
  size_t total;
  if (__builtin_mul_overflow(count, bytes, &total)) {
    errno = ENOMEM;
    return NULL;
  }
  return realloc(address, total);
}

static void record_aligned(struct ml_birth birth, void *address, size_t alignment, size_t bytes) {
  struct ml_what what = what_is(OPERATION(ALIGNED), address);
  what.alignment = alignment;
  ml_record_birth(birth, address, bytes, what);
}

ML_EXPORT int posix_memalign(void **address, size_t alignment, size_t bytes) {
  if (ML_LIKELY(!ml_look_closer(bytes))) return real_posix_memalign(address, alignment, bytes);
  const struct ml_birth birth = ml_choose(bytes);
  const int error = real_posix_memalign(address, alignment, bytes);
  if (birth.wanted && error != EINVAL) record_aligned(birth, error == 0 ? *address : NULL, alignment, bytes);
  return error;
}

#define ALIGNED(name, ...)                                                  \
  do {                                                                      \
    if (ML_LIKELY(!ml_look_closer(bytes))) return real_##name(__VA_ARGS__); \
    const struct ml_birth birth = ml_choose(bytes);                         \
    void *address = real_##name(__VA_ARGS__);                               \
    if (birth.wanted) record_aligned(birth, address, alignment, bytes);     \
    return address;                                                         \
  } while (0)

ML_EXPORT void *aligned_alloc(size_t alignment, size_t bytes) { ALIGNED(aligned_alloc, alignment, bytes); }
ML_EXPORT void *memalign(size_t alignment, size_t bytes) { ALIGNED(memalign, alignment, bytes); }
ML_EXPORT void *valloc(size_t bytes) {
  const size_t alignment = 4096;
  ALIGNED(valloc, bytes);
}
ML_EXPORT void *pvalloc(size_t bytes) {
  const size_t alignment = 4096;
  ALIGNED(pvalloc, bytes);
}
