/* Record buffers, and the queue of full ones that the recorder takes. */
#include "internal.h"

#include <stdlib.h>
#include <string.h>

/* A batch becomes one chunk, and a write that fails loses one: the first are small, later ones at most a quarter of what was
 * written before, and all are small enough to skip. */
#define FIRST_SPLIT_BYTES (16u << 10)
#define SPLIT_BYTES (4u << 20)
#define LEAST_FOR_BLOCK (ML_BLOCK_BYTES / 4) /* of the batch before: blocks are few, and are not cut up */

#define SLOT_KIND(KIND) [ML_SLOT_##KIND] = ML_KIND_##KIND,
static const uint16_t slot_kind[ML_SLOT_COUNT] = {ML_SLOTS(SLOT_KIND)};
#undef SLOT_KIND

static const enum ml_slot first_slots[] = {ML_SLOT_PROCESS_EVENT, ML_SLOT_TIMELINE, ML_SLOT_MAPPING};

static size_t split_bytes(const struct ml_session *session) {
  const uint64_t part = session->flushed_bytes / 4;
  return part < FIRST_SPLIT_BYTES ? FIRST_SPLIT_BYTES : part < SPLIT_BYTES ? (size_t)part : SPLIT_BYTES;
}

/* Moves a buffer's content to the queue. Locked. */
static void flush(struct ml_session *session, struct ml_buffer *buffer, uint16_t kind, uint32_t process) {
  if (buffer->count == 0 && buffer->dropped == 0) return;
  struct ml_batch *batch = calloc(1, sizeof *batch);
  if (batch == NULL) return;
  batch->data = buffer->data;
  batch->bytes = buffer->bytes;
  batch->record_count = buffer->count;
  batch->process = process;
  batch->dropped = buffer->dropped;
  batch->begin_ns = buffer->begin_ns;
  batch->end_ns = buffer->end_ns;
  batch->kind = kind;
  *buffer = (struct ml_buffer){.before = buffer->bytes};
  *session->ready_last = batch;
  session->ready_last = &batch->next;
  session->flushed_bytes += batch->bytes;
  session->take_generation++;
}

/* Whoever asks fills all of it. */
static void *reserve(struct ml_session *session, struct ml_buffer *buffer, size_t bytes, uint64_t time_ns) {
  if (session->queued_bytes + bytes > session->options.queue_bytes) {
    buffer->dropped++;
    session->counts.queue_dropped++;
    return NULL;
  }
  if (buffer->bytes + bytes > buffer->capacity) {
    size_t capacity = buffer->capacity != 0   ? 2 * buffer->capacity
                      : buffer->before > 4096 ? buffer->before + buffer->before / 4
                                              : 4096;
    while (capacity < buffer->bytes + bytes) capacity *= 2;
    unsigned char *grown = buffer->is_block ? NULL : realloc(buffer->data, capacity);
    if (grown == NULL) {
      buffer->dropped++;
      session->counts.queue_dropped++;
      return NULL;
    }
    buffer->data = grown;
    buffer->capacity = capacity;
  }
  void *record = buffer->data + buffer->bytes;
  buffer->bytes += bytes;
  buffer->count++;
  if (time_ns != 0) {
    if (buffer->begin_ns == 0 || time_ns < buffer->begin_ns) buffer->begin_ns = time_ns;
    if (time_ns > buffer->end_ns) buffer->end_ns = time_ns;
  }
  session->queued_bytes += bytes;
  return record;
}

void *ml_buffer_reserve(struct ml_session *session, struct ml_buffer *buffer, size_t bytes, uint64_t time_ns) {
  void *record = reserve(session, buffer, bytes, time_ns);
  if (record != NULL) memset(record, 0, bytes);
  return record;
}

void ml_buffer_append(struct ml_session *session, struct ml_process *process, enum ml_slot slot, const void *record,
                      size_t bytes, uint64_t time_ns) {
  struct ml_buffer *buffer = &process->buffers[slot];
  if (buffer->bytes + bytes > (buffer->is_block ? ML_BLOCK_BYTES : split_bytes(session))) {
    /* Copies of stacks fill their buffer long before the faults that they belong to: those come first. */
    if (slot == ML_SLOT_STACK_DUMP) {
      flush(session, &process->buffers[ML_SLOT_FAULT], ML_KIND_FAULT, process->info.process);
      flush(session, &process->buffers[ML_SLOT_SAMPLED_FAULT], ML_KIND_SAMPLED_FAULT, process->info.process);
    }
    flush(session, buffer, slot_kind[slot], process->info.process);
  }
  if (slot == ML_SLOT_WINDOW && buffer->data == NULL && buffer->before >= LEAST_FOR_BLOCK && bytes <= ML_BLOCK_BYTES &&
      (buffer->data = ml_block_take()) != NULL) {
    buffer->is_block = true;
    buffer->capacity = ML_BLOCK_BYTES;
  }
  void *into = reserve(session, buffer, bytes, time_ns);
  if (into != NULL) memcpy(into, record, bytes);
}

void ml_string_write(struct ml_session *session, uint32_t id, const char *text, size_t bytes) {
  const size_t padded = (bytes + 7) & ~(size_t)7;
  struct ml_string *record = ml_buffer_reserve(session, &session->string_buffer, sizeof *record + padded, 0);
  if (record == NULL) return;
  record->id = id;
  record->tail_bytes = (uint32_t)bytes;
  memcpy(record + 1, text, bytes);
}

uint32_t ml_string_locked(struct ml_session *session, const char *text, size_t bytes) {
  if (bytes == 0) return 0;
  int is_new = 0;
  const uint32_t id = ml_intern_bytes(session->strings, text, bytes, &is_new);
  if (is_new) ml_string_write(session, id, text, bytes);
  return id;
}

uint32_t ml_session_string(struct ml_session *session, const char *text, size_t bytes) {
  pthread_mutex_lock(&session->lock);
  const uint32_t id = ml_string_locked(session, text, bytes);
  pthread_mutex_unlock(&session->lock);
  return id;
}

void ml_loss_add(struct ml_session *session, uint64_t begin_ns, uint64_t end_ns, uint64_t count, unsigned kind,
                 unsigned cause, uint32_t cpu) {
  struct ml_loss *record = ml_buffer_reserve(session, &session->loss_buffer, sizeof *record, end_ns);
  if (record == NULL) return;
  record->begin_ns = begin_ns;
  record->end_ns = end_ns;
  record->count = count;
  record->kind = (uint16_t)kind;
  record->cause = (uint16_t)cause;
  record->cpu = cpu;
}

struct ml_batch *ml_session_take(struct ml_session *session) {
  pthread_mutex_lock(&session->lock);
  /* Strings and stacks go to the head of the queue: nothing points to an id not yet written. */
  struct ml_batch *rest = session->ready_first;
  struct ml_batch **rest_last = session->ready_last;
  session->ready_first = NULL;
  session->ready_last = &session->ready_first;
  flush(session, &session->string_buffer, ML_KIND_STRING, 0);
  flush(session, &session->stack_buffer, ML_KIND_STACK, 0);
  /* Then what the others are read with, and the small timeline: a capture that ends here shows something already. */
  for (size_t s = 0; s < sizeof first_slots / sizeof *first_slots; s++)
    for (size_t i = 0; i < session->process_count; i++)
      flush(session, &session->processes[i]->buffers[first_slots[s]], slot_kind[first_slots[s]],
            session->processes[i]->info.process);
  if (rest != NULL) {
    *session->ready_last = rest;
    session->ready_last = rest_last;
  }
  flush(session, &session->loss_buffer, ML_KIND_LOSS, 0);
  flush(session, &session->level_buffer, ML_KIND_FAULT_LEVEL, 0);
  for (int slot = 0; slot < ML_SLOT_COUNT; slot++)
    for (size_t i = 0; i < session->process_count; i++)
      flush(session, &session->processes[i]->buffers[slot], slot_kind[slot], session->processes[i]->info.process);
  struct ml_batch *taken = session->ready_first;
  session->ready_first = NULL;
  session->ready_last = &session->ready_first;
  session->queued_bytes = 0;
  pthread_mutex_unlock(&session->lock);
  return taken;
}

void ml_batches_free(struct ml_batch *batches) {
  while (batches != NULL) {
    struct ml_batch *next = batches->next;
    ml_batch_data_free(batches->data);
    free(batches);
    batches = next;
  }
}
