/* What a reader must know of the process: which memory is ours, where thread-local variables lie,
 * and, when no recorder watches, what is mapped. */
#include "runtime.h"

#include <fcntl.h>
#include <link.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static struct {
  uint64_t address, bytes;
} own[16];
static _Atomic uint32_t own_count;

static void write_own(uint64_t address, uint64_t bytes) {
  if (bytes == 0) return;
  struct ml_ticket ticket = ml_reserve(ML_KIND_TAG_EVENT, sizeof(struct ml_tag_event));
  if (ticket.record == NULL) return;
  *(struct ml_tag_event *)ticket.record = (struct ml_tag_event){.time_ns = ml_now_ns(),
                                                                .address = address,
                                                                .bytes = bytes,
                                                                .thread = ml_self.tid,
                                                                .operation = ML_ENUM_tag_operation_OWN};
  ml_commit(ticket);
  ml_runtime.slot->own_bytes += bytes;
}

void ml_remember_own(const void *address, size_t bytes) {
  const uint32_t at = atomic_fetch_add(&own_count, 1);
  if (at >= sizeof own / sizeof *own) return;
  own[at].address = (uint64_t)(uintptr_t)address;
  own[at].bytes = bytes;
  if (ml_recording() && ml_self.inside != 0) write_own(own[at].address, bytes); /* else all are written on attaching */
}

static int write_tls(struct dl_phdr_info *info, size_t bytes, void *unused) {
  (void)bytes;
  (void)unused;
  if (info->dlpi_tls_data == NULL) return 0;
  uint64_t size = 0;
  for (int i = 0; i < info->dlpi_phnum; i++)
    if (info->dlpi_phdr[i].p_type == PT_TLS) size = info->dlpi_phdr[i].p_memsz;
  if (size == 0) return 0;
  const char *path = info->dlpi_name != NULL ? info->dlpi_name : "";
  const uint32_t name = ml_string(path, strlen(path));
  struct ml_ticket ticket = ml_reserve(ML_KIND_TLS_MODULE, sizeof(struct ml_tls_module));
  if (ticket.record == NULL) return 1;
  *(struct ml_tls_module *)ticket.record =
      (struct ml_tls_module){.time_ns = ml_now_ns(),
                             .module_address = info->dlpi_addr,
                             .offset = (int64_t)((uint64_t)(uintptr_t)info->dlpi_tls_data - ml_thread_pointer()),
                             .bytes = size,
                             .path = name};
  ml_commit(ticket);
  return 0;
}

void ml_write_own_memory(void) {
  const uint32_t count = atomic_load(&own_count);
  ml_runtime.slot->own_bytes = 0;
  for (uint32_t i = 0; i < count && i < sizeof own / sizeof *own; i++) write_own(own[i].address, own[i].bytes);
  write_own(ml_runtime.text_begin, ml_runtime.text_end - ml_runtime.text_begin);
  dl_iterate_phdr(write_tls, NULL);
}

/* ---- /proc/self/maps ------------------------------------------------------------------------------- */
static bool parse(const char **at, uint64_t *value, unsigned base) {
  const char *begin = *at;
  *value = 0;
  for (;; (*at)++) {
    const char c = **at;
    const unsigned digit = c >= '0' && c <= '9'   ? (unsigned)(c - '0')
                           : c >= 'a' && c <= 'f' ? (unsigned)(c - 'a') + 10
                                                  : 99;
    if (digit >= base) break;
    *value = *value * base + digit;
  }
  return *at != begin;
}

/* Lines already written, by hash: small, and a line written twice does no harm. */
static uint64_t written[256];

static void write_line(const char *line, size_t length) {
  uint64_t hash = 1469598103934665603u;
  for (size_t i = 0; i < length; i++) hash = (hash ^ (unsigned char)line[i]) * 1099511628211u;
  uint64_t *seen = &written[hash % (sizeof written / sizeof *written)];
  if (*seen == hash) return;
  uint64_t begin, end, offset, major, minor, inode;
  const char *at = line;
  if (!parse(&at, &begin, 16) || *at++ != '-' || !parse(&at, &end, 16) || *at++ != ' ') return;
  const char *protection = at;
  if (length < 40) return;
  at += 5;
  if (!parse(&at, &offset, 16) || *at++ != ' ' || !parse(&at, &major, 16) || *at++ != ':' || !parse(&at, &minor, 16) ||
      *at++ != ' ' || !parse(&at, &inode, 10))
    return;
  while (*at == ' ') at++;
  *seen = hash;
  const size_t path_bytes = (size_t)(line + length - at);
  const uint32_t path = path_bytes != 0 ? ml_string(at, path_bytes) : ml_string("//anon", 6);
  struct ml_ticket ticket = ml_reserve(ML_KIND_MAPPING, sizeof(struct ml_mapping));
  if (ticket.record == NULL) return;
  *(struct ml_mapping *)ticket.record = (struct ml_mapping){
      .time_ns = ml_now_ns(),
      .address = begin,
      .bytes = end - begin,
      .file_offset = offset,
      .inode = inode,
      .device_major = (uint32_t)major,
      .device_minor = (uint32_t)minor,
      .path = path,
      .thread = ml_self.tid,
      .protection = (uint8_t)((protection[0] == 'r') | (protection[1] == 'w') << 1 | (protection[2] == 'x') << 2),
      .shared = protection[3] == 's',
      .operation = ML_ENUM_mapping_operation_FOUND};
  ml_commit(ticket);
}

void ml_write_maps(void) {
  char text[4096 + 256];
  size_t have = 0;
  const int fd = (int)syscall(SYS_openat, AT_FDCWD, "/proc/self/maps", O_RDONLY | O_CLOEXEC, 0);
  if (fd < 0) return;
  for (;;) {
    const long got = syscall(SYS_read, fd, text + have, sizeof text - 1 - have);
    if (got <= 0) break;
    have += (size_t)got;
    text[have] = 0;
    char *line = text;
    for (char *end; (end = memchr(line, '\n', have - (size_t)(line - text))) != NULL; line = end + 1) {
      *end = 0;
      write_line(line, (size_t)(end - line));
    }
    have -= (size_t)(line - text);
    memmove(text, line, have);
    if (have == sizeof text - 1) have = 0; /* a path longer than a page: leave it out */
  }
  syscall(SYS_close, fd);
}

/* The number of KiB of a line of /proc/self/status, 0 if there is none. */
static uint64_t status_bytes(const char *text, const char *name) {
  const char *at = strstr(text, name);
  if (at == NULL) return 0;
  uint64_t value = 0;
  for (at += strlen(name); *at == ' ' || *at == '\t'; at++) {
  }
  while (*at >= '0' && *at <= '9') value = value * 10 + (uint64_t)(*at++ - '0');
  return value << 10;
}

/* RSS and its high-water mark now, at most once a millisecond: a phase's growth is known at its ends. Without a recorder
 * there are no readings in between, and ends alone would look like a curve. */
void ml_write_rss(void) {
  static _Atomic uint64_t last_ns;
  const uint64_t now = ml_now_ns();
  uint64_t before = atomic_load_explicit(&last_ns, memory_order_relaxed);
  if (ml_emulated || ml_runtime.sandboxed || ml_runtime.standalone || now - before < 1000000 ||
      !atomic_compare_exchange_strong(&last_ns, &before, now))
    return;
  char text[2048];
  const int fd = (int)syscall(SYS_openat, AT_FDCWD, "/proc/self/status", O_RDONLY | O_CLOEXEC, 0);
  if (fd < 0) return;
  const long length = syscall(SYS_read, fd, text, sizeof text - 1);
  syscall(SYS_close, fd);
  if (length <= 0) return;
  text[length] = '\0';
  const uint64_t resident = status_bytes(text, "\nVmRSS:");
  if (resident == 0) return;
  const struct {
    uint16_t metric;
    uint64_t bytes;
  } values[] = {{ML_ENUM_metric_RSS_BYTES, resident},
                {ML_ENUM_metric_SHARED_BYTES, status_bytes(text, "\nRssFile:") + status_bytes(text, "\nRssShmem:")},
                {ML_ENUM_metric_PEAK_RSS_BYTES, status_bytes(text, "\nVmHWM:")}};
  for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
    struct ml_ticket ticket = ml_reserve(ML_KIND_TIMELINE, sizeof(struct ml_timeline));
    if (ticket.record == NULL) return;
    *(struct ml_timeline *)ticket.record =
        (struct ml_timeline){.time_ns = now, .value = (int64_t)values[i].bytes, .metric = values[i].metric, .node = -1};
    ml_commit(ticket);
  }
}
