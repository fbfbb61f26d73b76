/* The same as threads_static.c for --wrap=thrd_create. Apart from it: a program may use only one of them. */
#include "count.h"

int __real_thrd_create(void *, int (*)(void *), void *);
int __wrap_thrd_create(void *, int (*)(void *), void *);

int __wrap_thrd_create(void *thread, int (*start)(void *), void *argument) {
  return __memlens_count_thrd_create(__real_thrd_create, thread, start, argument);
}
