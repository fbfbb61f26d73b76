/* A library that was linked with -Bsymbolic-functions calls its own copy of the runtime, while its base is still the process's: both
 * must be of one copy. Its copy then hands every call to the one that the base belongs to. */
#include "count.h"

#include <stddef.h>

static struct {
  const char *name;
  void *function;
} others[ML_DELEGATED] = {
    {"__memlens_count_enter", NULL},      {"__memlens_count_enter_sampled", NULL}, {"__memlens_count_leave", NULL},
    {"__memlens_count_unwound", NULL},    {"__memlens_count_mark", NULL},          {"__memlens_count_returned", NULL},
    {"__memlens_count_begin", NULL},      {"__memlens_count_end", NULL},           {"__memlens_count_register", NULL},
    {"__memlens_count_unregister", NULL}, {"__memlens_trace_room", NULL}};
uint32_t ml_delegate_state;

static bool ask(void) {
  bool delegates = &ml_find_in_process != NULL && !ml_base_is_own();
  for (unsigned i = 0; i < ML_DELEGATED && delegates; i++) {
    others[i].function = ml_find_in_process(others[i].name);
    delegates = others[i].function != NULL;
  }
  __atomic_store_n(&ml_delegate_state, delegates ? 2 : 1, __ATOMIC_RELEASE);
  return delegates;
}

void *ml_delegate_asked(enum ml_delegated what) {
  return __atomic_load_n(&ml_delegate_state, __ATOMIC_ACQUIRE) == 2 || ask() ? others[what].function : NULL;
}
