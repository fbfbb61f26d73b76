/* Without a recorder: the process makes the arena itself, a file in the directory that MEMLENS_OUTPUT names (containers, MPI
 * launchers, anything that memlens cannot start). It stays as it is when the process ends, in order or killed: a reader takes
 * the counters out of it.
 *
 * The file is mapped, so every page that will be written must have its block before: a full disk would be a SIGBUS in the program
 * otherwise. Room is therefore allocated when it is taken, and a step that finds none is refused like one that is beyond the arena. The
 * file grows with what is taken; its directory is shorter than a recorder's for the same reason. */
#include "count.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "memlens_format.h"

#define FIRST_BYTE (ML_COUNT_DIRECTORY_BYTE + (uint64_t)ML_COUNT_ENTRIES * sizeof(struct ml_count_entry))
#define FILE_BYTES (UINT64_C(1) << 40) /* where claims end; the file is as long as what was taken */
#define THREADS 1024

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

static uint64_t number_of(const char *name, uint64_t otherwise) {
  const char *text = getenv(name);
  if (text == NULL || *text < '0' || *text > '9') return otherwise;
  uint64_t value = 0;
  for (; *text >= '0' && *text <= '9' && value < UINT64_C(1) << 40; text++)
    value = value * 10 + (uint64_t)(*text - '0');
  return value;
}

/* The range is fresh: nobody has written to it. */
bool ml_standalone_allocate(int fd, uint64_t offset, uint64_t bytes) {
  struct rlimit limit;
  /* Writing beyond it would be a signal. */
  if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || (limit.rlim_cur != RLIM_INFINITY && offset + bytes > limit.rlim_cur))
    return false;
  long result;
  do result = syscall(SYS_fallocate, fd, 0, offset, bytes);
  while (result != 0 && errno == EINTR);
  if (result == 0) return true;
  if (errno != EOPNOTSUPP && errno != ENOSYS) return false;
  static const unsigned char zeros[4096]; /* a file system that promises nothing: blocks come with what is written */
  while (bytes > 0) {
    const uint64_t part = bytes < sizeof zeros ? bytes : sizeof zeros;
    const long wrote = syscall(SYS_pwrite64, fd, zeros, part, offset);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return false;
    offset += (uint64_t)wrote;
    bytes -= (uint64_t)wrote;
  }
  return true;
}

/* meta.json, by whoever comes first: another process, or the library that records allocations. */
static void write_meta(const char *directory, uint64_t monotonic_ns, uint64_t unix_ns) {
  char path[320], text[1024];
  append(append(path, path + sizeof path, directory), path + sizeof path, "/meta.json");
  const int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return;
  syscall(SYS_fchmod, fd, 0600); /* captures are private, whatever the umask */
  char *at = text;
  const char *end = text + sizeof text;
  at = append(at, end, "{\"format_version\": ");
  at = append_number(at, end, ML_FORMAT_CURRENT);
  at = append(at, end, ", \"state\": \"standalone\", \"begin_ns\": ");
  at = append_number(at, end, monotonic_ns);
  at = append(at, end, ", \"started_unix_ns\": ");
  at = append_number(at, end, unix_ns);
  at = append(at, end, ", \"collectors\": {\"count\": {\"sampling\": \"all\"}}, \"machine\": {\"page_bytes\": ");
  at = append_number(at, end, (uint64_t)sysconf(_SC_PAGESIZE));
  at = append(at, end, "}, \"unsupported\": []}\n");
  if (syscall(SYS_write, fd, text, (size_t)(at - text)) < 0) { /* a reader says what is missing */
  }
  syscall(SYS_close, fd);
}

bool ml_standalone_make(char *path, uint64_t path_bytes, uint64_t token[2]) {
  const char *output = getenv("MEMLENS_OUTPUT");
  if (output == NULL || *output != '/' || strlen(output) > 200 || getauxval(AT_SECURE)) return false;
  const char *count = getenv("MEMLENS_COUNTING");
  if (count != NULL && count[0] == '0') return false;
  if (syscall(SYS_mkdirat, AT_FDCWD, output, 0700) == 0) syscall(SYS_fchmodat, AT_FDCWD, output, 0700);
  else if (errno != EEXIST) return false;
  struct utsname machine = {0};
  uname(&machine);
  struct timespec wall;
  clock_gettime(CLOCK_REALTIME, &wall);
  const uint64_t unix_ns = (uint64_t)wall.tv_sec * 1000000000u + (uint64_t)wall.tv_nsec, now = ml_now_ns();
  const char *end = path + path_bytes;
  char *at = append(path, end, output);
  at = append(at, end, "/counts-");
  at = append(at, end, machine.nodename);
  at = append(at, end, "-");
  at = append_number(at, end, (uint64_t)getpid());
  at = append(at, end, "-");
  at = append_number(at, end, unix_ns);
  append(at, end, ".mla");
  const int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return false;
  syscall(SYS_fchmod, fd, 0600);
  token[0] = unix_ns;
  token[1] = now;
  uint64_t counters = number_of("MEMLENS_COUNTERS", 2 * ML_COUNT_MAX_OF_FUNCTION) + ML_COUNT_MAX_OF_FUNCTION;
  if (counters > ML_COUNT_WORDS_MAX) counters = ML_COUNT_WORDS_MAX;
  const struct ml_count_header header = {.magic = ML_COUNT_MAGIC,
                                         .version = ML_COUNT_VERSION,
                                         .token = {token[0], token[1]},
                                         .file_bytes = FILE_BYTES,
                                         .next_byte = FIRST_BYTE,
                                         .counters_max = counters,
                                         .sampling = ML_SAMPLE_ALL,
                                         .threads_max = number_of("MEMLENS_THREADS", THREADS)};
  const bool made = ml_standalone_allocate(fd, 0, ML_STANDALONE_ENTRIES * sizeof(struct ml_count_entry) + 65536) &&
                    syscall(SYS_pwrite64, fd, &header, sizeof header, 0L) == (long)sizeof header;
  syscall(SYS_close, fd);
  if (!made) {
    syscall(SYS_unlinkat, AT_FDCWD, path, 0);
    return false;
  }
  write_meta(output, now, unix_ns);
  return true;
}
