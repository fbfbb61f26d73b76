/* Without a recorder: the process writes its records itself, into MEMLENS_OUTPUT (containers, MPI
 * launchers, anything that memlens cannot start).
 *
 * The rings lie in a file of that directory, preallocated, so that what is in them outlives a kill.
 * A thread that finds its ring full writes it out as plain chunks with pwrite, into space that was
 * allocated before: a full file system ends the recording and never raises a signal. */
#include "runtime.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "memlens_checksum.h"

#define RING_BYTES (UINT64_C(1) << 20)
#define RINGS 4
#define SLOT_BYTES (ML_CHANNEL_SLOT_HEADER_BYTES + RINGS * RING_BYTES)
#define AHEAD_BYTES (UINT64_C(4) << 20)
#define FIRST_DESCRIPTOR 512 /* out of the way of the program's own numbers, where the limit allows */

static char directory[256], record_path[400], ring_path[400];
static int record_fd = -1;
static uint64_t record_inode, record_offset, allocated, sequence, reported_dropped;
static unsigned char *scratch;
static _Atomic uint32_t writing;
static bool failed, ended;

static uint64_t number_of(const char *name, uint64_t otherwise) {
  const char *text = getenv(name);
  if (text == NULL || *text == 0) return otherwise;
  uint64_t value = 0;
  for (; *text >= '0' && *text <= '9'; text++) value = value * 10 + (uint64_t)(*text - '0');
  if (*text == 'K' || *text == 'k') value <<= 10;
  else if (*text == 'M' || *text == 'm') value <<= 20;
  else if (*text == 'G' || *text == 'g') value <<= 30;
  return value;
}

static char *append(char *at, const char *end, const char *text) {
  while (*text != 0 && at + 1 < end) *at++ = *text++;
  *at = 0;
  return at;
}

static char *append_number(char *at, const char *end, uint64_t value) {
  char digits[24];
  int count = 0;
  do digits[count++] = (char)('0' + value % 10);
  while ((value /= 10) != 0);
  while (count > 0 && at + 1 < end) *at++ = digits[--count];
  *at = 0;
  return at;
}

/* The program may have closed our descriptor and opened something else under its number. */
static bool have_descriptor(void) {
  struct stat status;
  if (record_fd >= 0 && fstat(record_fd, &status) == 0 && (uint64_t)status.st_ino == record_inode) return true;
  const int low = open(record_path, O_WRONLY | O_CLOEXEC | O_CREAT, 0600);
  if (low < 0) return false;
  syscall(SYS_fchmod, low, 0600); /* captures are private, whatever the umask */
  record_fd = fcntl(low, F_DUPFD_CLOEXEC, FIRST_DESCRIPTOR);
  if (record_fd >= 0) syscall(SYS_close, low);
  else record_fd = low;
  if (fstat(record_fd, &status) != 0) return false;
  record_inode = (uint64_t)status.st_ino;
  return true;
}

static bool write_all(const void *bytes, size_t count) {
  if (failed || !have_descriptor()) return false;
  while (record_offset + count > allocated) {
    const uint64_t more = count > AHEAD_BYTES ? count : AHEAD_BYTES;
    if (syscall(SYS_fallocate, record_fd, 1 /* KEEP_SIZE */, allocated, more) != 0 && errno != EOPNOTSUPP &&
        errno != ENOSYS && errno != EINTR) {
      failed = true;
      return false;
    }
    if (errno != EINTR) allocated += more;
  }
  const unsigned char *at = bytes;
  uint64_t offset = record_offset;
  for (size_t left = count; left > 0;) {
    const long wrote = syscall(SYS_pwrite64, record_fd, at, left, offset);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) {
      failed = true;
      if (ftruncate(record_fd, (off_t)record_offset) != 0) { /* a reader skips what is torn */
      }
      return false;
    }
    at += wrote;
    offset += (uint64_t)wrote;
    left -= (size_t)wrote;
  }
  record_offset = offset;
  return true;
}

/* Writes one kind's records of [tail, until) of a ring as one chunk. */
static void write_kind(uint16_t kind, const unsigned char *ring, uint64_t tail, uint64_t until) {
  struct ml_chunk_header *header = (void *)scratch;
  unsigned char *payload = scratch + sizeof *header;
  size_t bytes = 0;
  uint32_t count = 0;
  uint64_t begin_ns = 0, end_ns = 0;
  const bool timed = kind != ML_KIND_STRING && kind != ML_KIND_STACK;
  for (uint64_t at = tail; at < until;) {
    const struct ml_ring_record *record = (const void *)(ring + (at & (RING_BYTES - 1)));
    const uint32_t length = atomic_load_explicit(&record->commit, memory_order_relaxed) & ~ML_RING_COMMITTED;
    if (record->kind == kind) {
      memcpy(payload + bytes, record + 1, length - sizeof *record);
      if (timed) {
        uint64_t time_ns;
        memcpy(&time_ns, record + 1, 8); /* every timed record begins with it */
        if (begin_ns == 0 || time_ns < begin_ns) begin_ns = time_ns;
        if (time_ns > end_ns) end_ns = time_ns;
      }
      bytes += length - sizeof *record;
      count++;
    }
    at += length;
  }
  if (count == 0) return;
  const uint64_t dropped = atomic_load(&ml_runtime.slot->dropped);
  *header = (struct ml_chunk_header){.magic = ML_CHUNK_MAGIC,
                                     .header_bytes = sizeof *header,
                                     .kind = kind,
                                     .record_version = 1,
                                     .encoding = ML_ENCODING_PLAIN,
                                     .stored_bytes = (uint32_t)bytes,
                                     .payload_bytes = (uint32_t)bytes,
                                     .record_count = count,
                                     .process = 1,
                                     .sequence = sequence,
                                     .dropped = dropped - reported_dropped,
                                     .begin_ns = begin_ns,
                                     .end_ns = end_ns,
                                     .payload_checksum = ml_checksum(payload, bytes)};
  header->header_checksum = ml_checksum(header, offsetof(struct ml_chunk_header, header_checksum));
  if (write_all(scratch, sizeof *header + bytes)) {
    sequence++;
    reported_dropped = dropped;
  } else {
    atomic_fetch_add(&ml_runtime.slot->dropped, count);
  }
}

static void write_ring(uint32_t number) {
  struct ml_channel_ring *ring = &ml_runtime.slot->rings[number];
  unsigned char *data = ml_runtime.rings + (uint64_t)number * RING_BYTES;
  const uint64_t tail = atomic_load(&ring->tail), head = atomic_load(&ring->head);
  uint64_t until = tail, kinds = 0;
  while (until < head) {
    const struct ml_ring_record *record = (const void *)(data + (until & (RING_BYTES - 1)));
    const uint32_t commit = atomic_load_explicit(&record->commit, memory_order_acquire);
    if ((commit & ML_RING_COMMITTED) == 0) break; /* being written */
    if (record->kind < 64) kinds |= UINT64_C(1) << record->kind;
    until += commit & ~ML_RING_COMMITTED;
  }
  for (uint16_t kind = 1; kind < 64; kind++)
    if (kinds >> kind & 1) write_kind(kind, data, tail, until);
  for (uint64_t at = tail; at < until;) {
    const uint64_t offset = at & (RING_BYTES - 1);
    const uint64_t length = until - at < RING_BYTES - offset ? until - at : RING_BYTES - offset;
    memset(data + offset, 0, length);
    at += length;
  }
  atomic_store_explicit(&ring->tail, until, memory_order_release);
}

static bool take_turn(void) {
  for (int tries = 0; tries < 500; tries++) {
    uint32_t expected = 0;
    if (atomic_compare_exchange_strong(&writing, &expected, 1)) return true;
    const struct timespec pause = {.tv_nsec = 200000};
    syscall(SYS_nanosleep, &pause, NULL);
  }
  return false; /* perhaps we interrupted the writer: its turn cannot end before ours */
}

void ml_standalone_room(uint32_t ring) {
  const int saved = errno;
  if (!failed && take_turn()) {
    write_ring(ring);
    atomic_store(&writing, 0);
  }
  errno = saved;
}

static void write_status(void) {
  struct ml_ticket ticket = ml_reserve(ML_KIND_RUNTIME_STATUS, sizeof(struct ml_runtime_status));
  if (ticket.record == NULL) return;
  const struct ml_channel_slot *slot = ml_runtime.slot;
  *(struct ml_runtime_status *)ticket.record = (struct ml_runtime_status){.time_ns = ml_now_ns(),
                                                                          .sample_bytes = ml_runtime.sample_bytes,
                                                                          .large_bytes = ml_runtime.large_bytes,
                                                                          .dropped = atomic_load(&slot->dropped),
                                                                          .nested = atomic_load(&slot->nested),
                                                                          .untracked = atomic_load(&slot->untracked),
                                                                          .stacks = atomic_load(&slot->stacks),
                                                                          .pid = slot->pid,
                                                                          .flags = atomic_load(&slot->flags),
                                                                          .own_bytes = slot->own_bytes};
  ml_commit(ticket);
}

static void write_process_event(unsigned operation, const char *name) {
  const uint32_t id = name != NULL ? ml_string(name, strlen(name)) : 0;
  struct ml_ticket ticket = ml_reserve(ML_KIND_PROCESS_EVENT, sizeof(struct ml_process_event));
  if (ticket.record == NULL) return;
  *(struct ml_process_event *)ticket.record = (struct ml_process_event){.time_ns = ml_now_ns(),
                                                                        .pid = (uint32_t)getpid(),
                                                                        .thread = ml_self.tid,
                                                                        .name = id,
                                                                        .status = -1,
                                                                        .operation = (uint16_t)operation};
  ml_commit(ticket);
}

void ml_standalone_end(void) {
  if (!ml_runtime.standalone || !ml_recording() || ml_runtime.slot_pid != (uint32_t)getpid() || ended) return;
  ml_self.inside++;
  const int saved = errno;
  ended = true;
  atomic_fetch_or(&ml_runtime.slot->flags, (uint32_t)ML_ENUM_runtime_flags_ENDED_IN_ORDER);
  ml_write_maps();
  write_status();
  write_process_event(ML_ENUM_process_operation_EXIT, NULL);
  if (take_turn()) {
    for (uint32_t ring = 0; ring < RINGS; ring++) write_ring(ring);
    atomic_store(&writing, 0);
  }
  bool empty = true;
  for (uint32_t ring = 0; ring < RINGS; ring++)
    empty = empty && atomic_load(&ml_runtime.slot->rings[ring].tail) == atomic_load(&ml_runtime.slot->rings[ring].head);
  if (empty) {
    unlink(ring_path);
    /* keeps the space that was allocated ahead */
    if (record_fd >= 0 && ftruncate(record_fd, (off_t)record_offset) != 0) {
    }
  }
  errno = saved;
  ml_self.inside--;
}

/* meta.json, by whoever comes first. */
static void write_meta(uint64_t monotonic_ns, uint64_t unix_ns) {
  char path[320], text[2048];
  append(append(path, path + sizeof path, directory), path + sizeof path, "/meta.json");
  const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return;
  syscall(SYS_fchmod, fd, 0600);
  char *at = text;
  const char *end = text + sizeof text;
  at = append(at, end, "{\"format_version\": ");
  at = append_number(at, end, ML_FORMAT_CURRENT);
  at = append(at, end, ", \"state\": \"standalone\", \"begin_ns\": ");
  at = append_number(at, end, monotonic_ns);
  at = append(at, end, ", \"started_unix_ns\": ");
  at = append_number(at, end, unix_ns);
  at = append(at, end, ", \"collectors\": {\"alloc\": {\"sample_bytes\": ");
  at = append_number(at, end, ml_runtime.sample_bytes);
  at = append(at, end, ", \"large_bytes\": ");
  at = append_number(at, end, ml_runtime.large_bytes);
  at = append(at, end, "}}, \"machine\": {\"page_bytes\": ");
  at = append_number(at, end, (uint64_t)sysconf(_SC_PAGESIZE));
  at = append(at, end, "}, \"unsupported\": []}\n");
  if (write(fd, text, (size_t)(at - text)) < 0) { /* a reader says what is missing */
  }
  close(fd);
}

bool ml_standalone_attach(void) {
  const bool is_child = ml_runtime.standalone; /* it goes on as its parent, whose variables may be gone */
  if (!is_child) {
    const char *output = getenv("MEMLENS_OUTPUT");
    if (output == NULL || *output != '/' || strlen(output) >= sizeof directory || getauxval(AT_SECURE)) return false;
    strcpy(directory, output);
  }
  /* the umask may have taken our own permission */
  if (mkdir(directory, 0700) == 0) syscall(SYS_fchmodat, AT_FDCWD, directory, 0700);
  else if (errno != EEXIST) return false;
  struct utsname machine = {0};
  uname(&machine);
  struct timespec wall;
  clock_gettime(CLOCK_REALTIME, &wall);
  const uint64_t unix_ns = (uint64_t)wall.tv_sec * 1000000000u + (uint64_t)wall.tv_nsec;
  for (int kind = 0; kind < 2; kind++) {
    char *path = kind == 0 ? record_path : ring_path;
    const char *end = path + sizeof record_path;
    char *at = append(path, end, directory);
    at = append(at, end, kind == 0 ? "/records-" : "/rings-");
    at = append(at, end, machine.nodename);
    at = append(at, end, "-");
    at = append_number(at, end, (uint64_t)getpid());
    at = append(at, end, "-");
    at = append_number(at, end, unix_ns);
    append(at, end, kind == 0 ? ".mlc" : ".mlr");
  }
  /* A fork's child starts anew; its parent's descriptor and memory are left to the parent. */
  if (record_fd >= 0) syscall(SYS_close, record_fd);
  record_fd = -1;
  record_offset = allocated = sequence = reported_dropped = 0;
  failed = ended = false;
  atomic_store(&writing, 0);
  unsigned char *memory = MAP_FAILED;
  const int fd = open(ring_path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return false;
  syscall(SYS_fchmod, fd, 0600);
  if (syscall(SYS_fallocate, fd, 0, 0L, (long)SLOT_BYTES) == 0)
    memory = (void *)syscall(SYS_mmap, NULL, SLOT_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0L);
  syscall(SYS_close, fd);
  /* A child that drops its privileges could write to what its parent reads. It makes rings of its own. */
  if (memory != MAP_FAILED) syscall(SYS_madvise, memory, SLOT_BYTES, MADV_DONTFORK);
  if (memory == MAP_FAILED) { /* no room, or a file system that cannot promise it */
    unlink(ring_path);
    memory = ml_map_private(SLOT_BYTES, false);
    if (memory == NULL) return false;
  }
  if (scratch == NULL) scratch = ml_map_private(RING_BYTES + 4096, false);
  if (scratch == NULL) return false;
  ml_runtime.standalone = true;
  ml_runtime.slot = (void *)memory;
  ml_runtime.rings = memory + ML_CHANNEL_SLOT_HEADER_BYTES;
  ml_runtime.ring_bytes = RING_BYTES;
  ml_runtime.ring_count = RINGS;
  ml_runtime.slot->pid = ml_runtime.slot_pid = (uint32_t)getpid();
  ml_runtime.slot->claimed_ns = ml_now_ns();
  atomic_store(&ml_runtime.slot->flags, (uint32_t)ML_ENUM_runtime_flags_STANDALONE);
  atomic_store(&ml_runtime.slot->state, ML_CLAIM_TAKEN);
  if (!is_child) {
    ml_runtime.sample_bytes = number_of("MEMLENS_SAMPLE_BYTES", 512 << 10);
    ml_runtime.large_bytes = number_of("MEMLENS_LARGE_BYTES", 64 << 10);
    const char *alloc = getenv("MEMLENS_ALLOC");
    ml_runtime.flags = ML_CHANNEL_ANNOTATIONS | (alloc != NULL && alloc[0] == '0' ? 0 : ML_CHANNEL_ALLOC);
  }
  const struct ml_file_header header = {.magic = ML_FILE_MAGIC,
                                        .format_version = ML_FORMAT_CURRENT,
                                        .header_bytes = sizeof header,
                                        .created_monotonic_ns = ml_now_ns(),
                                        .created_unix_ns = unix_ns,
                                        .pid = (uint32_t)getpid(),
                                        .writer = ML_WRITER_RUNTIME};
  struct ml_file_header sealed = header;
  sealed.checksum = ml_checksum(&sealed, offsetof(struct ml_file_header, checksum));
  if (!write_all(&sealed, sizeof sealed)) {
    unlink(ring_path);
    return false;
  }
  write_meta(header.created_monotonic_ns, unix_ns);
  return true;
}

void ml_standalone_begun(void) {
  char name[64] = "";
  const int fd = open("/proc/self/comm", O_RDONLY | O_CLOEXEC);
  if (fd >= 0) {
    const long got = syscall(SYS_read, fd, name, sizeof name - 1);
    syscall(SYS_close, fd);
    if (got > 0) name[name[got - 1] == '\n' ? got - 1 : got] = 0;
  }
  /* The first attachment of a program image is its start; a later one is a fork's child. */
  write_process_event(ml_runtime.generation <= 1 ? ML_ENUM_process_operation_EXEC : ML_ENUM_process_operation_FORK,
                      name);
  ml_write_maps();
}
