/* A counted shared library, written by hand. */
#define _GNU_SOURCE
#include <pthread.h>

#include "count_by_hand.h"

#ifndef NAME
#define NAME "library"
#endif
COUNTED(library_work, 2);
REGION(region, NAME);

void library_work(long n);
void library_region(long n);
void library_thread(long n);

void library_work(long n) {
  ADD(library_work, 0, 1);
  for (long i = 0; i < n; i++) ADD(library_work, 1, 1);
}

void library_region(long n) {
  ENTER(region);
  library_work(n);
  LEAVE(region);
}

static void *start(void *argument) {
  library_work((long)argument);
  return NULL;
}

void library_thread(long n) {
  pthread_t thread;
  ENTER(region);
  pthread_create(&thread, NULL, start, (void *)n);
  pthread_join(thread, NULL);
  LEAVE(region);
}
