/* The recorder's side of the channel: the input is a program of what processes do to the shared memory, with drains in between. They claim
 * slots, write records right, stop in the middle of one, leave, and overwrite anything.
 *
 * Oracles: nothing crashes and every drain ends; what was committed right in a slot that nobody damaged is all there, also from behind a
 * record that was never finished; holes and damage are counted only where there are any.
 *
 * The source is included, so that drains happen when the program says, not when a thread does. */
#include "../../native/recorder/channel.c"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define SLOTS 4

struct input {
  const uint8_t *at;
  size_t left;
};

static uint64_t take(struct input *input, size_t bytes) {
  uint64_t value = 0;
  for (size_t i = 0; i < bytes && input->left > 0; i++, input->left--) value |= (uint64_t)*input->at++ << (8 * i);
  return value;
}

static void require(bool holds, const char *what) {
  if (holds) return;
  fprintf(stderr, "property failed: %s\n", what);
  abort();
}

static bool room(struct ml_channel *channel, const struct ml_channel_ring *ring, uint64_t bytes) {
  return atomic_load(&ring->head) + bytes - atomic_load(&ring->tail) <= channel->options.ring_bytes;
}

/* As native/runtime writes; false: no room. */
static bool put(struct ml_channel *channel, struct ml_channel_slot *slot, uint32_t number, uint16_t kind,
                const void *record, uint32_t bytes, bool commit) {
  struct ml_channel_ring *ring = &slot->rings[number];
  const uint64_t capacity = channel->options.ring_bytes, need = 8 + ((bytes + 7) & ~UINT64_C(7));
  unsigned char *ring_data = (unsigned char *)slot + ML_CHANNEL_SLOT_HEADER_BYTES + number * capacity;
  const uint64_t head = atomic_load(&ring->head), offset = head & (capacity - 1);
  const uint64_t padding = offset + need > capacity ? capacity - offset : 0;
  if (head % 8 != 0 || !room(channel, ring, padding + need)) return false; /* a writer takes whole words */
  if (padding) {
    struct ml_ring_record *filler = (void *)(ring_data + offset);
    filler->kind = 0;
    atomic_store(&filler->commit, (uint32_t)padding | ML_RING_COMMITTED);
  }
  struct ml_ring_record *at = (void *)(ring_data + ((head + padding) & (capacity - 1)));
  at->kind = kind;
  memcpy(at + 1, record, bytes);
  if (commit) atomic_store(&at->commit, (uint32_t)need | ML_RING_COMMITTED);
  atomic_store(&ring->head, head + padding + need);
  return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct input input = {data, size};
  const uint8_t how = (uint8_t)take(&input, 1);
  const struct ml_channel_options options = {.sample_bytes = 4096,
                                             .large_bytes = 65536,
                                             .ring_bytes = UINT64_C(1) << (10 + how % 4),
                                             .ring_count = 1 + how / 4 % 3,
                                             .slot_max = SLOTS,
                                             .wait_ms = 10,
                                             .alloc = 1};
  struct ml_channel *channel = ml_channel_new(&options);
  require(channel != NULL, "a channel");
  const struct ml_session_options session_options = {.emulated = 1}; /* /proc/PID/maps would be the fuzzer's */
  struct ml_session *session = ml_session_new(&session_options);
  require(session != NULL, "a session");
  ml_session_use_channel(session, channel);
  channel->session = session;
  bool hostile = false, unfinished = false;
  uint64_t expected = 0, clock = 1;
  while (input.left > 0) {
    const uint8_t what = (uint8_t)take(&input, 1);
    struct ml_channel_slot *slot = slot_at(channel, what / 16 % SLOTS);
    const uint32_t ring = what / 64 % options.ring_count;
    const bool is_taken = atomic_load(&slot->state) == ML_CLAIM_TAKEN;
    switch (what % 16) {
      case 0: /* a process comes */
        if (is_taken) break;
        slot->pid = what >= 128 ? (uint32_t)take(&input, 2) : (uint32_t)getpid();
        slot->pid_namespace = what == 240 ? take(&input, 1) : channel->pid_namespace;
        slot->writer = what / 32 % 2;
        __atomic_store_n(&slot->claimed_ns, clock++, __ATOMIC_RELEASE);
        atomic_store(&slot->state, ML_CLAIM_TAKEN);
        break;
      /* an allocation, as it should be, with small numbers: no part of it looks like a record */
      case 1:
      case 2:
      case 3:
      case 4: {
        const struct ml_allocation allocation = {.time_ns = clock++,
                                                 .address = 16 * take(&input, 2),
                                                 .bytes = 1 + take(&input, 1),
                                                 .stack = 1 + (uint32_t)take(&input, 1) % 50,
                                                 .operation = 1};
        const bool commit = what % 16 != 4 || what < 192;
        if (is_taken && put(channel, slot, ring, ML_KIND_ALLOCATION, &allocation, sizeof allocation, commit)) {
          expected += commit;
          unfinished |= !commit;
        }
        break;
      }
      case 5: { /* a stack and a string */
        struct {
          struct ml_stack stack;
          uint64_t ips[3];
        } record = {{.id = 1 + (uint32_t)take(&input, 1), .tail_bytes = 24}, {1, 2, 3}};
        if (is_taken) put(channel, slot, ring, ML_KIND_STACK, &record, sizeof record, true);
        struct {
          struct ml_string string;
          char text[8];
        } name = {{.id = 1 + (uint32_t)take(&input, 1), .tail_bytes = 7}, "a name"};
        if (is_taken) put(channel, slot, ring, ML_KIND_STRING, &name, sizeof name, true);
        break;
      }
      case 6:
      case 7: { /* a record of any kind and content */
        unsigned char record[256];
        const uint16_t kind = (uint16_t)(take(&input, 1) % 128);
        const uint32_t bytes = (uint32_t)take(&input, 1);
        for (uint32_t i = 0; i < bytes; i++) record[i] = (unsigned char)take(&input, 1);
        hostile = true;
        if (is_taken) put(channel, slot, ring, kind, record, bytes, what < 224);
        break;
      }
      case 8: /* the process says that it leaves */
        if (is_taken) atomic_store(&slot->state, ML_CLAIM_LEAVING);
        break;
      case 9:
      case 10:
      case 11: drain_channel(channel, false); break;
      case 12: { /* a word anywhere in a ring */
        unsigned char *ring_data = (unsigned char *)slot + ML_CHANNEL_SLOT_HEADER_BYTES + ring * options.ring_bytes;
        const uint64_t offset = take(&input, 2) % (options.ring_bytes / 8) * 8, word = take(&input, 8);
        memcpy(ring_data + offset, &word, 8);
        hostile = true;
        break;
      }
      case 13: { /* a word of the slot's state */
        const uint64_t offset = take(&input, 2) % (sizeof(struct ml_channel_slot) / 8) * 8,
                       word = what >= 128 ? take(&input, 8) : take(&input, 2);
        memcpy((unsigned char *)slot + offset, &word, 8);
        hostile = true;
        break;
      }
      case 14: { /* a word of the header */
        const uint64_t offset = take(&input, 1) % (sizeof(struct ml_channel_header) / 8) * 8, word = take(&input, 8);
        memcpy((unsigned char *)channel->header + offset, &word, 8);
        hostile = true;
        break;
      }
      default: { /* head and tail, near each other or not */
        const uint64_t tail = take(&input, 2), distance = what >= 128 ? take(&input, 8) : take(&input, 2);
        atomic_store(&slot->rings[ring].tail, what >= 192 ? tail - 4096 : tail);
        atomic_store(&slot->rings[ring].head, tail + distance);
        hostile = true;
      }
    }
  }
  drain_channel(channel, true);
  uint64_t taken = 0;
  struct ml_batch *batches = ml_session_take(session);
  for (struct ml_batch *at = batches; at != NULL; at = at->next) {
    require(at->bytes == 0 || at->data != NULL, "a batch has its bytes");
    if (at->kind == ML_KIND_ALLOCATION) {
      taken += at->record_count;
      require(at->bytes == at->record_count * sizeof(struct ml_allocation), "a batch has whole records");
    }
  }
  ml_batches_free(batches);
  struct ml_channel_counts counts;
  ml_channel_get_counts(channel, &counts);
  if (!hostile) {
    require(taken == expected, "what was written right is all there");
    require(counts.damaged == 0, "nothing was damaged");
    require((counts.holes > 0) == unfinished || !unfinished, "holes are records that were not finished");
    require(unfinished || counts.holes == 0, "no holes without unfinished records");
  }
  ml_session_free(session);
  ml_channel_free(channel);
  return 0;
}
