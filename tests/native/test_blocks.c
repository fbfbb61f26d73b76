/* Memory for batches of windows: no block is handed out twice, what is given back comes again with its pages, and what is out when nobody
 * records any more is not lost. */
#include "internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#undef NDEBUG
#include <assert.h>

#define MOST 100

static unsigned char *wait_for_block(void) {
  const struct timespec moment = {.tv_nsec = 1000000};
  for (int i = 0; i < 60000; i++) { /* its thread runs when a CPU is idle: that may take a while */
    unsigned char *block = ml_block_take();
    if (block != NULL) return block;
    nanosleep(&moment, NULL);
  }
  return NULL;
}

static void *use(void *argument) {
  for (int i = 0; i < 20000; i++) {
    unsigned char *block = ml_block_take();
    if (block == NULL) continue;
    const unsigned char mine = (unsigned char)(uintptr_t)argument;
    memset(block, mine, 64);
    block[ML_BLOCK_BYTES - 1] = mine;
    for (int at = 0; at < 64; at++) assert(block[at] == mine);
    assert(block[ML_BLOCK_BYTES - 1] == mine);
    ml_batch_data_free(block);
  }
  return NULL;
}

int main(void) {
  assert(ml_block_take() == NULL); /* nobody wants any */
  ml_batch_data_free(NULL);
  ml_batch_data_free(malloc(10));
  ml_blocks_want();
  unsigned char *taken[MOST];
  size_t count = 0;
  for (; count < 64; count++) { /* all that there are */
    taken[count] = wait_for_block();
    assert(taken[count] != NULL);
    memset(taken[count], (int)count, ML_BLOCK_BYTES);
  }
  assert(ml_block_take() == NULL);
  for (size_t i = 0; i < count; i++) assert(taken[i][0] == i && taken[i][ML_BLOCK_BYTES - 1] == i);
  ml_batch_data_free(taken[--count]);
  assert(ml_block_take() == taken[count]);
  for (size_t i = 0; i < 32; i++) ml_batch_data_free(taken[i]);
  pthread_t threads[4];
  for (uintptr_t i = 0; i < 4; i++) assert(pthread_create(&threads[i], NULL, use, (void *)(i + 1)) == 0);
  for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
  ml_blocks_unwant();
  assert(ml_block_take() == NULL);                               /* their pages are given up */
  for (size_t i = 32; i < 64; i++) ml_batch_data_free(taken[i]); /* a batch that outlives the recording */
  assert(ml_block_take() == NULL);
  ml_blocks_want(); /* and another recording has them all */
  for (count = 0; count < 64; count++) assert((taken[count] = wait_for_block()) != NULL);
  /* A fork has blocks of its own. */
  const pid_t child = fork();
  if (child == 0) {
    assert(ml_block_take() == NULL);
    ml_batch_data_free(taken[0]); /* what its parent had: nothing to do */
    ml_blocks_unwant();
    ml_blocks_want();
    unsigned char *block = wait_for_block();
    assert(block != NULL);
    memset(block, 1, ML_BLOCK_BYTES);
    ml_batch_data_free(block);
    ml_blocks_unwant();
    _exit(0);
  }
  int status = -1;
  assert(child > 0 && waitpid(child, &status, 0) == child && status == 0);
  for (size_t i = 0; i < 64; i++) ml_batch_data_free(taken[i]);
  ml_blocks_unwant();
  puts("blocks: ok");
  return 0;
}
