/* What the compiler plugin makes of a function, written by hand: a descriptor, and adds behind the thread's base. */
#ifndef COUNT_BY_HAND_H
#define COUNT_BY_HAND_H
#include "memlens_count.h"

#ifdef __cplusplus
extern "C" {
#endif
extern __thread uint64_t *__memlens_count_base __attribute__((tls_model("initial-exec")));
int __memlens_count_enter(struct ml_count_region *);
int __memlens_count_enter_sampled(struct ml_count_region *);
void __memlens_count_leave(struct ml_count_region *);
void __memlens_count_unwound(void);
extern const char ML_COUNT_ABI_SYMBOL __attribute__((visibility("hidden")));
#ifdef __cplusplus
}
#endif

static const void *const count_abi __attribute__((used)) = &ML_COUNT_ABI_SYMBOL;

#define COUNTED(function, n)                                                                                      \
  static const unsigned char function##_table[4] __attribute__((section("memlens_tables"), used)) = {1, 0, 0, 0}; \
  static struct ml_count_function function##_counters                                                             \
      __attribute__((section("memlens_functions"), used, aligned(8))) = {0, 0, n, sizeof function##_table}
#define ADD(function, counter, amount) \
  (*(volatile uint64_t *)((char *)__memlens_count_base + function##_counters.offset_bytes + 8 * (counter)) += (amount))
/* Begin and end of regions as the pragma makes them: the call stays a call. */
#define REGION(variable, text) static struct ml_count_region variable = {text, 0}
#define ENTER(region) __memlens_count_enter(&region)
#define LEAVE(region)                  \
  do {                                 \
    __memlens_count_leave(&region);    \
    __asm__ volatile("" ::: "memory"); \
  } while (0)
#endif
