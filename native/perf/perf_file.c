/* The container perf.data: both forms, with a table of sections (perf record -o FILE) and as a stream (perf record -o -).
 * Records are read through a buffer, never the whole file; every size is bounded by what the file has. */
#include "memlens_perf.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
  STREAM_HEADER_BYTES = 16,
  FILE_HEADER_BYTES = 104,
  BUFFER_BYTES = 1 << 20,
  MOST_ATTRIBUTE_BYTES = 1 << 24,
  MOST_ID_BYTES = 1 << 20,
  AUXTRACE_BODY_BYTES = 40,
};

int64_t mp_file_bytes(struct mp_file *file, uint64_t at, void *to, size_t bytes) {
  size_t done = 0;
  if (at > (uint64_t)INT64_MAX) return 0;
  while (done < bytes) {
    const ssize_t got = pread(file->fd, (char *)to + done, bytes - done, (off_t)(at + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return -1;
    if (got == 0) break;
    done += (size_t)got;
  }
  return (int64_t)done;
}

static uint64_t u64_at(const unsigned char *bytes, size_t at) {
  uint64_t value;
  memcpy(&value, bytes + at, sizeof value);
  return value;
}

/* ---- events ---------------------------------------------------------------- */
static enum mp_file_error add_event(struct mp_file *file, const unsigned char *attr, size_t attr_bytes, uint64_t *ids,
                                    size_t id_count) {
  if (file->event_count == file->event_capacity) {
    const size_t capacity = file->event_capacity ? 2 * file->event_capacity : 8;
    struct mp_event *grown = realloc(file->events, capacity * sizeof *grown);
    if (grown == NULL) {
      free(ids);
      return MP_FILE_MEMORY;
    }
    file->events = grown;
    file->event_capacity = capacity;
  }
  struct mp_event *event = &file->events[file->event_count];
  if (!mp_attr_read(&event->attr, attr, attr_bytes)) {
    free(ids);
    return MP_FILE_EVENTS;
  }
  event->ids = ids;
  event->id_count = id_count;
  file->event_count++;
  file->all_identified = file->all_identified && (event->attr.sample_type & MP_SAMPLE_IDENTIFIER);
  return MP_FILE_FINE;
}

static enum mp_file_error read_events(struct mp_file *file, uint64_t each, uint64_t at, uint64_t bytes) {
  if (each < MP_ATTR_SIZE_VER0 + 16 || each > 4096 || bytes > MOST_ATTRIBUTE_BYTES) {
    file->error_at = each;
    return MP_FILE_EVENTS;
  }
  unsigned char raw[4096];
  for (uint64_t left = bytes; left >= each; left -= each, at += each) {
    const int64_t got = mp_file_bytes(file, at, raw, (size_t)each);
    if (got < 0) return MP_FILE_READ;
    if ((uint64_t)got < each) return MP_FILE_SHORT;
    uint64_t id_bytes = u64_at(raw, (size_t)each - 8);
    const uint64_t ids_at = u64_at(raw, (size_t)each - 16);
    if (id_bytes > MOST_ID_BYTES) id_bytes = MOST_ID_BYTES;
    /* ids of events lie side by side: shared ones are damage */
    if (id_bytes > file->ids_left) id_bytes = file->ids_left;
    uint64_t *ids = NULL;
    size_t id_count = 0;
    if (id_bytes >= 8) {
      ids = malloc((size_t)id_bytes);
      if (ids == NULL) return MP_FILE_MEMORY;
      const int64_t there = mp_file_bytes(file, ids_at, ids, (size_t)id_bytes);
      if (there < 0) {
        free(ids);
        return MP_FILE_READ;
      }
      id_count = (size_t)there / 8;
      file->ids_left -= (uint64_t)there;
    }
    const enum mp_file_error error = add_event(file, raw, (size_t)each - 16, ids, id_count);
    if (error != MP_FILE_FINE) return error;
  }
  return MP_FILE_FINE;
}

/* PERF_RECORD_HEADER_ATTR of a stream: an attribute of the size that it gives, then ids. */
static enum mp_file_error add_streamed_event(struct mp_file *file, const unsigned char *body, size_t bytes) {
  uint32_t size;
  if (bytes < MP_ATTR_SIZE_VER0) return MP_FILE_FINE;
  memcpy(&size, body + 4, 4);
  if (size < MP_ATTR_SIZE_VER0 || size > bytes) return MP_FILE_FINE;
  const size_t id_count = (bytes - size) / 8;
  uint64_t *ids = NULL;
  if (id_count > 0) {
    ids = malloc(8 * id_count);
    if (ids == NULL) return MP_FILE_MEMORY;
    memcpy(ids, body + size, 8 * id_count);
  }
  return add_event(file, body, size, ids, id_count);
}

static const struct mp_event *event_of_id(const struct mp_file *file, uint64_t id) {
  for (size_t e = 0; e < file->event_count; e++)
    for (size_t i = 0; i < file->events[e].id_count; i++)
      if (file->events[e].ids[i] == id) return &file->events[e];
  return file->event_count ? &file->events[0] : NULL;
}

/* The event of a record. With several events of which not all have MP_SAMPLE_IDENTIFIER the id is where the first one's sample_type says:
 * perf writes such files only where the layouts agree up to it. */
static const struct mp_event *event_of(const struct mp_file *file, const struct mp_header *header,
                                       const unsigned char *body, size_t bytes) {
  if (file->event_count < 2) return file->event_count ? &file->events[0] : NULL;
  const uint64_t kind = file->events[0].attr.sample_type;
  const bool is_sample = header->type == MP_RECORD_SAMPLE;
  size_t at;
  if (file->all_identified) {
    if (bytes < 8) return &file->events[0];
    at = is_sample ? 0 : bytes - 8;
  } else {
    if (!(kind & MP_SAMPLE_ID)) return &file->events[0];
    const uint64_t before = MP_SAMPLE_IDENTIFIER | MP_SAMPLE_IP | MP_SAMPLE_TID | MP_SAMPLE_TIME | MP_SAMPLE_ADDR;
    const uint64_t behind = MP_SAMPLE_ID | MP_SAMPLE_STREAM_ID | MP_SAMPLE_CPU | MP_SAMPLE_IDENTIFIER;
    const size_t words = (size_t)__builtin_popcountll(kind & (is_sample ? before : behind));
    if (8 * words > bytes || (is_sample && 8 * words + 8 > bytes)) return &file->events[0];
    at = is_sample ? 8 * words : bytes - 8 * words;
  }
  return event_of_id(file, u64_at(body, at));
}

/* ---- the file ---------------------------------------------------------------- */
enum mp_file_error mp_file_open(struct mp_file *file, int fd) {
  unsigned char head[FILE_HEADER_BYTES];
  struct stat status;
  memset(file, 0, sizeof *file);
  file->fd = fd;
  file->truncated_at = UINT64_MAX;
  file->all_identified = true;
  if (fstat(fd, &status) != 0) return MP_FILE_READ;
  file->file_bytes = status.st_size > 0 ? (uint64_t)status.st_size : 0;
  file->ids_left = file->file_bytes;
  const int64_t got = mp_file_bytes(file, 0, head, sizeof head);
  if (got < 0) return MP_FILE_READ;
  file->head_bytes = got < (int64_t)sizeof file->head ? (size_t)got : sizeof file->head;
  memcpy(file->head, head, file->head_bytes);
  if (got < STREAM_HEADER_BYTES || memcmp(head, "PERFILE2", 8) != 0) return MP_FILE_MAGIC;
  file->is_stream = u64_at(head, 8) == STREAM_HEADER_BYTES;
  if (file->is_stream) {
    file->begin = file->next = STREAM_HEADER_BYTES;
    file->end = file->file_bytes;
    return MP_FILE_FINE;
  }
  if (got < FILE_HEADER_BYTES) {
    file->error_at = (uint64_t)got;
    return MP_FILE_SHORT;
  }
  const uint64_t data_bytes = u64_at(head, 48);
  file->begin = file->next = u64_at(head, 40);
  if (data_bytes == 0) return MP_FILE_UNFINISHED;
  file->end = file->begin + data_bytes;
  if (file->end < file->begin || file->end > file->file_bytes) {
    file->end = file->file_bytes;
    file->truncated_at = file->file_bytes;
  }
  return read_events(file, u64_at(head, 16), u64_at(head, 24), u64_at(head, 32));
}

/* Bytes of the file in the buffer; NULL: not all of them are there. */
static const unsigned char *window(struct mp_file *file, uint64_t at, size_t bytes, bool *failed) {
  if (at >= file->buffer_at && at + bytes <= file->buffer_at + file->buffer_bytes)
    return file->buffer + (at - file->buffer_at);
  if (file->buffer == NULL) {
    file->buffer = malloc(BUFFER_BYTES);
    if (file->buffer == NULL) {
      *failed = true;
      errno = ENOMEM;
      return NULL;
    }
    file->buffer_capacity = BUFFER_BYTES;
  }
  const int64_t got = mp_file_bytes(file, at, file->buffer, file->buffer_capacity);
  file->buffer_at = at;
  file->buffer_bytes = got > 0 ? (size_t)got : 0;
  *failed = got < 0;
  return file->buffer_bytes >= bytes ? file->buffer : NULL;
}

int mp_file_next(struct mp_file *file, struct mp_file_record *record, enum mp_file_error *error) {
  const uint64_t at = file->next;
  bool failed = false;
  *error = MP_FILE_FINE;
  file->error_at = at;
  memset(record, 0, sizeof *record);
  if (at >= file->end || file->end - at < sizeof record->header) {
    if (at < file->end) file->truncated_at = at;
    return 0;
  }
  const unsigned char *head = window(file, at, sizeof record->header, &failed);
  if (failed) {
    *error = MP_FILE_READ;
    return -1;
  }
  if (head == NULL) {
    file->truncated_at = at;
    file->next = file->end;
    return 0;
  }
  memcpy(&record->header, head, sizeof record->header);
  const uint16_t size = record->header.size;
  if (size < sizeof record->header) {
    *error = MP_FILE_RECORD;
    return -1;
  }
  const unsigned char *whole = file->end - at < size ? NULL : window(file, at, size, &failed);
  if (failed) {
    *error = MP_FILE_READ;
    return -1;
  }
  if (whole == NULL) {
    file->truncated_at = at;
    file->next = file->end;
    return 0;
  }
  record->body = whole + sizeof record->header;
  record->body_bytes = size - sizeof record->header;
  record->after = at + size;
  const uint32_t type = record->header.type;
  if (type == MP_RECORD_COMPRESSED || type == MP_RECORD_COMPRESSED2) {
    *error = MP_FILE_COMPRESSED;
    return -1;
  }
  if (type == MP_RECORD_AUXTRACE) {
    if (record->body_bytes < AUXTRACE_BODY_BYTES) {
      *error = MP_FILE_RECORD;
      return -1;
    }
    record->following_bytes = u64_at(record->body, 0);
    if (record->following_bytes > file->end - record->after) {
      file->truncated_at = at;
      record->following_bytes = file->end - record->after;
    }
  }
  if (type == MP_RECORD_HEADER_ATTR) {
    *error = add_streamed_event(file, record->body, record->body_bytes);
    if (*error == MP_FILE_MEMORY) return -1;
    *error = MP_FILE_FINE;
  }
  record->identity = (struct mp_identity){.pid = MP_NOBODY, .tid = MP_NOBODY, .cpu = MP_NOBODY};
  if (type < MP_RECORD_USER) {
    record->event = event_of(file, &record->header, record->body, record->body_bytes);
    size_t own_bytes;
    if (record->event != NULL && type != MP_RECORD_SAMPLE)
      (void)mp_identity_read(&record->event->attr, record->body, record->body_bytes, &record->identity, &own_bytes);
  }
  file->next = record->after + record->following_bytes;
  return 1;
}

void mp_file_close(struct mp_file *file) {
  for (size_t e = 0; e < file->event_count; e++) free(file->events[e].ids);
  free(file->events);
  free(file->buffer);
  file->events = NULL;
  file->buffer = NULL;
  file->event_count = 0;
}
