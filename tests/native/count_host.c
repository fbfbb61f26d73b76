/* A program that is not counted and loads libraries that are: count_host WHAT LIBRARY... */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef COUNTED_HOST
#include "count_by_hand.h"
COUNTED(host, 1);
REGION(host_region, "host");
#define BEGIN() ENTER(host_region), ADD(host, 0, 1)
#define END() LEAVE(host_region)
#else
#define BEGIN() ((void)0)
#define END() ((void)0)
#endif

static void *open_library(const char *path) {
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    exit(9);
  }
  return library;
}

static void call(void *library, const char *name, long n) {
  void (*function)(long);
  *(void **)&function = dlsym(library, name);
  function(n);
}

static void *in_thread(void *library) {
  call(library, "library_work", 9);
  call(library, "library_region", 9);
  return NULL;
}

int main(int argc, char **argv) {
  if (strcmp(argv[1], "again") == 0) /* load, count, unload, five times */
    for (int i = 0; i < 5; i++) {
      void *library = open_library(argv[2]);
      BEGIN();
      call(library, "library_work", 9);
      END();
      call(library, "library_region", 99);
      if (dlclose(library) != 0) return 3;
    }
  else if (strcmp(argv[1], "both") == 0) { /* every library, from this thread and one that only the host knows */
    for (int i = 2; i < argc; i++) {
      void *library = open_library(argv[i]);
      pthread_t thread;
      call(library, "library_work", 9);
      call(library, "library_region", 99);
      call(library, "library_thread", 49);
      pthread_create(&thread, NULL, in_thread, library);
      pthread_join(thread, NULL);
    }
  }
  puts("done");
  return 0;
}
