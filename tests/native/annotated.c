/* Every annotation of memlens.h once, in C; prints the same with and without a runtime. With -DWITH_SECOND_FILE it also calls
   annotated_second.c (linked, in a shared library, or opened at run time with -DWITH_DLOPEN). */
#include <stdio.h>
#include <stdlib.h>
#ifdef WITH_DLOPEN
#include <dlfcn.h>
#endif
#include "memlens.h"

#ifdef WITH_SECOND_FILE
int second_file(int value);
#endif

static double matrix[64];

/* An ordinary constructor: the hooks are there already. */
__attribute__((constructor)) static void start(void) {
  memlens_begin("start");
  memlens_end("start");
}

/* Before the search for the runtime (the linker sorts by this number; 100 has no attribute of its own): safe, not recorded. */
static void too_early(void) { memlens_begin("too early"); }
__attribute__((section(".init_array.00100"), used)) static void (*const too_early_entry)(void) = too_early;

static int scoped(int value) {
  MEMLENS_SCOPE("scoped");
  if (value > 3) return value * 2;
  {
    MEMLENS_REGION("inner");
    value += 1;
  }
  return value;
}

/* Not called by anybody: --gc-sections may drop it, with or without its note. */
void unused_function(void);
void unused_function(void) { memlens_begin("unused"); }

int main(int argc, char **argv) {
  char name[32];
  (void)argv;
  memlens_phase("assembly");
  memlens_tag("matrix", matrix, sizeof matrix);
  snprintf(name, sizeof name, "solve-%d", argc);
  memlens_begin(name);
  memlens_begin("nested");
  matrix[0] = scoped(2) + scoped(5);
  memlens_end("nested");
  memlens_end(name);
  memlens_untag(matrix);
#ifdef WITH_DLOPEN
  {
    void *library = dlopen(WITH_DLOPEN, RTLD_NOW | RTLD_LOCAL);
    int (*second)(int);
    if (!library) return fprintf(stderr, "%s\n", dlerror()), 1;
    *(void **)&second = dlsym(library, "second_file");
    printf("second %d\n", second(4));
    dlclose(library);
  }
#elif defined(WITH_SECOND_FILE)
  printf("second %d\n", second_file(4));
#endif
  memlens_phase("done");
  printf("result %g\n", matrix[0]);
  return 0;
}
