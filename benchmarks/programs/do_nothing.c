/* The least that an interposer can do. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>

static void *(*real_malloc)(size_t);
static void (*real_free)(void *);

__attribute__((constructor)) static void find(void) {
  real_malloc = (void *(*)(size_t))dlsym(RTLD_NEXT, "malloc");
  real_free = (void (*)(void *))dlsym(RTLD_NEXT, "free");
}

void *malloc(size_t bytes) {
  if (__builtin_expect(real_malloc == NULL, 0)) find();
  return real_malloc(bytes);
}

void free(void *block) {
  if (__builtin_expect(real_free == NULL, 0)) find();
  real_free(block);
}
