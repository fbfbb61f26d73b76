/* The kernel's rings: records of any content, in a ring that is not the kernel's. The input is options and a program of records; some are
 * as the kernel writes them, with fields from the input, some are bytes.
 *
 * Oracles: every drain ends and empties the ring; batches hold whole records; as many faults come out as were counted. */
#include "../../native/recorder/drain.c"

#include <stdio.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

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

#define RING_BYTES 4096
#define RINGS 2

/* A record being made; the kernel's are at most 64 KiB. */
struct record {
  struct perf_event_header header;
  unsigned char body[2048];
  size_t bytes;
};

static void add(struct record *record, uint64_t value, size_t bytes) {
  if (record->bytes + bytes > sizeof record->body) return;
  memcpy(record->body + record->bytes, &value, bytes);
  record->bytes += bytes;
}

static void add_trailer(struct record *record, struct input *input) {
  const uint64_t pid = 1 + take(input, 1);
  add(record, pid, 4), add(record, pid, 4), add(record, 1000 + take(input, 2), 8), add(record, take(input, 1), 8);
}

static void make(struct record *record, struct input *input, const struct ml_session *session) {
  const uint8_t what = (uint8_t)take(input, 1);
  record->bytes = 0;
  record->header.misc = (uint16_t)(what >= 128 ? take(input, 2) : PERF_RECORD_MISC_USER);
  switch (what % 8) {
    case 0:
    case 1:
    case 2: { /* a sample as the options say */
      record->header.type = PERF_RECORD_SAMPLE;
      const uint64_t id = 1 + take(input, 1) % 8, pid = 1 + take(input, 1) % 8;
      add(record, id, 8);
      const int role = ml_role_of(session, id);
      if (role != ML_ROLE_BEFORE) add(record, take(input, 3), 8);
      add(record, pid, 4), add(record, pid, 4), add(record, 1000 + take(input, 2), 8),
          add(record, take(input, 2) << 3, 8);
      if (role >= ML_ROLE_STACK_0) {
        const uint64_t count = take(input, 1);
        add(record, what >= 240 ? take(input, 8) : count, 8);
        for (uint64_t i = 0; i < count % 64; i++) add(record, take(input, 1), 8);
      } else {
        add(record, take(input, 1) % 3, 8), add(record, take(input, 3), 8),
            add(record, UINT64_C(1) << take(input, 1) % 64, 8);
      }
      break;
    }
    case 3: {
      record->header.type = PERF_RECORD_MMAP2;
      const uint64_t pid = 1 + take(input, 1) % 8;
      add(record, pid, 4), add(record, pid, 4), add(record, take(input, 2) << 12, 8),
          add(record, take(input, 2) << 12, 8);
      add(record, take(input, 2), 8), add(record, 8, 8), add(record, take(input, 1), 8), add(record, 0, 8),
          add(record, take(input, 2), 8);
      for (uint64_t i = take(input, 1) % 40; i > 0; i--) add(record, take(input, 1), 1);
      record->bytes = (record->bytes + 8) & ~(size_t)7;
      add_trailer(record, input);
      break;
    }
    case 4:
    case 5: {
      record->header.type = what % 8 == 4 ? PERF_RECORD_FORK : PERF_RECORD_EXIT;
      for (int i = 0; i < 4; i++) add(record, 1 + take(input, 1) % 8, 4);
      add(record, 1000 + take(input, 2), 8);
      add_trailer(record, input);
      break;
    }
    case 6: {
      record->header.type = what < 64 ? PERF_RECORD_COMM : what < 128 ? PERF_RECORD_LOST : PERF_RECORD_THROTTLE;
      add(record, 1 + take(input, 1) % 8, 8), add(record, take(input, 8), 8);
      add_trailer(record, input);
      break;
    }
    default: { /* anything */
      record->header.type = (uint32_t)take(input, 1) % 24;
      for (uint64_t i = take(input, 1); i > 0; i--) add(record, take(input, 1), 1);
    }
  }
  record->bytes = (record->bytes + 7) & ~(size_t)7;
  record->header.size = (uint16_t)(sizeof record->header + record->bytes);
  if (what % 32 == 31) record->header.size = (uint16_t)(take(input, 2) & ~7u); /* a length that is not its own */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct input input = {data, size};
  const uint8_t how = (uint8_t)take(&input, 1);
  const struct ml_session_options options = {.faults = 1,
                                             .fault_before = how & 1,
                                             .include_kernel = how >> 1 & 1,
                                             .stack_mode = how / 4 % 3,
                                             .emulated = 1,
                                             .stack_dump_bytes = 1024};
  struct ml_session *session = ml_session_new(&options);
  require(session != NULL, "a session");
  session->facts.page_size_known = how >> 4 & 1;
  session->facts.include_kernel = options.include_kernel;
  ml_decode_roles(session);
  session->budget.level = how >> 6 == 3 ? 0 : how >> 6;
  session->by_id = calloc(16, sizeof *session->by_id);
  session->by_id_mask = 15;
  for (uint64_t id = 1; id <= ML_ROLE_COUNT; id++)
    session->by_id[id] = (struct ml_event){.fd = -1, .id = id, .role = (uint8_t)(id - 1)};
  session->rings = calloc(RINGS, sizeof *session->rings);
  session->ring_count = RINGS;
  struct perf_event_mmap_page *meta[RINGS];
  unsigned char *ring_data[RINGS];
  for (int r = 0; r < RINGS; r++) {
    meta[r] = calloc(1, sizeof *meta[r]);
    ring_data[r] = calloc(1, RING_BYTES);
    session->rings[r] = (struct ml_ring){.cpu = (uint32_t)r,
                                         .stacks = r == 1,
                                         .fd = -1,
                                         .meta = meta[r],
                                         .data = ring_data[r],
                                         .data_bytes = RING_BYTES,
                                         .unwrapped = malloc(65536 + 8)};
    meta[r]->data_head = meta[r]->data_tail = take(&input, 2) & ~7u;
  }
  while (input.left > 0) {
    struct record record;
    const int r = how >> 5 & 1 ? (int)take(&input, 1) % RINGS : 0;
    make(&record, &input, session);
    const size_t bytes = sizeof record.header + record.bytes;
    if (meta[r]->data_head + bytes - meta[r]->data_tail > RING_BYTES) {
      ml_drain_all(session);
      require(meta[r]->data_tail == meta[r]->data_head, "a drain empties the ring");
    }
    const unsigned char *from = (const unsigned char *)&record;
    for (size_t i = 0; i < bytes; i++) ring_data[r][(meta[r]->data_head + i) % RING_BYTES] = from[i];
    meta[r]->data_head += bytes;
  }
  ml_drain_all(session);
  struct ml_session_counts counts;
  ml_session_get_counts(session, &counts);
  uint64_t faults = 0;
  struct ml_batch *batches = ml_session_take(session);
  for (struct ml_batch *at = batches; at != NULL; at = at->next)
    if (at->kind == ML_KIND_FAULT || at->kind == ML_KIND_SAMPLED_FAULT) {
      require(at->bytes == at->record_count * sizeof(struct ml_fault), "a batch has whole records");
      faults += at->record_count;
    }
  ml_batches_free(batches);
  require(faults == counts.faults, "as many faults come out as were counted");
  for (int r = 0; r < RINGS; r++) {
    session->rings[r].meta = NULL; /* not mapped: ours */
    free(meta[r]);
    free(ring_data[r]);
  }
  ml_session_free(session);
  return 0;
}
