/* pthread_create in a program that is linked with --wrap=pthread_create: only then does anything refer to this, and only
 * then is there a __real_ one. For static programs, and for libraries whose host may not let its own pthread_create be seen. */
#include "count.h"

int __real_pthread_create(void *, const void *, void *(*)(void *), void *);
int __wrap_pthread_create(void *, const void *, void *(*)(void *), void *);

int __wrap_pthread_create(void *thread, const void *attributes, void *(*start)(void *), void *argument) {
  return __memlens_count_pthread_create(__real_pthread_create, thread, attributes, start, argument, ML_POOL_NONE);
}
