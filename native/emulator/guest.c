/* The guest's memory as the host sees it: modules, mappings, functions that are regions. */
#include "emulator.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

struct function {
  uint64_t file_offset;
  char *name;
};
struct function_file {
  char *path;
  struct function *functions;
  size_t count;
};
static struct function_file *function_files;
static size_t function_file_count;

struct code_range {
  uint64_t begin, end, file_offset;
  bool anonymous, own;
  const struct function_file *functions;
};
static struct code_range *ranges;
static size_t range_count, range_capacity;
static pthread_mutex_t range_lock = PTHREAD_MUTEX_INITIALIZER; /* translation is serial, system calls are not */

void *ml_host(uint64_t guest_address) { return (void *)(uintptr_t)(guest_address + ml_plugin.guest_base); }

/* The whole of a file of /proc, to be freed. */
static char *read_whole(const char *path, size_t *bytes) {
  const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
  if (fd < 0) return NULL;
  size_t capacity = 1u << 16, used = 0;
  char *text = malloc(capacity);
  for (;;) {
    if (text == NULL) break;
    if (used + 4096 > capacity) {
      char *grown = realloc(text, capacity *= 2);
      if (grown == NULL) break;
      text = grown;
    }
    const ssize_t got = read(fd, text + used, capacity - used - 1);
    if (got <= 0) break;
    used += (size_t)got;
  }
  close(fd);
  if (text != NULL) text[used] = 0;
  *bytes = used;
  return text;
}

static char *read_maps(void) {
  size_t bytes;
  return read_whole("/proc/self/maps", &bytes);
}

/* The emulator's words are ours: -0 NAME -- PROGRAM. Newer emulators have no call that tells. */
char *ml_program_path(void) {
  size_t bytes = 0;
  char *words = read_whole("/proc/self/cmdline", &bytes), *path = NULL;
  const char *before[3] = {"", "", ""};
  for (const char *at = words; at != NULL && at < words + bytes && path == NULL; at += strlen(at) + 1) {
    if (strcmp(before[0], "-0") == 0 && strcmp(before[2], "--") == 0) path = realpath(at, NULL);
    before[0] = before[1], before[1] = before[2], before[2] = at;
  }
  free(words);
  return path;
}

struct map_line {
  uint64_t begin, end, offset, inode; /* the guest's addresses */
  unsigned major, minor;
  bool readable, writable, shared;
  char path[1024];
};

static bool next_line(char **at, struct map_line *line) {
  while (*at != NULL && **at != 0) {
    char *end = strchr(*at, '\n');
    if (end != NULL) *end = 0;
    char protection[8] = "";
    unsigned long long begin, stop, offset, inode;
    int path_at = 0;
    const int fields = sscanf(*at, "%llx-%llx %7s %llx %x:%x %llu %n", &begin, &stop, protection, &offset, &line->major,
                              &line->minor, &inode, &path_at);
    line->path[0] = 0;
    if (fields >= 7 && path_at > 0) {
      strncpy(line->path, *at + path_at, sizeof line->path - 1);
      line->path[sizeof line->path - 1] = 0;
    }
    *at = end != NULL ? end + 1 : NULL;
    if (fields < 7) continue;
    line->begin = begin - ml_plugin.guest_base;
    line->end = stop - ml_plugin.guest_base;
    line->offset = offset;
    line->inode = inode;
    line->readable = protection[0] == 'r';
    line->writable = protection[1] == 'w';
    line->shared = protection[3] == 's';
    return true;
  }
  return false;
}

bool ml_mapping_at(uint64_t address, uint64_t *begin, uint64_t *end) {
  char *text = read_maps(), *at = text;
  struct map_line line;
  bool found = false;
  while (!found && next_line(&at, &line))
    if (line.begin <= address && address < line.end) {
      *begin = line.begin;
      *end = line.end;
      found = true;
    }
  free(text);
  return found;
}

/* ---- functions that are regions -------------------------------------------------------------------------------- */
static void read_functions(void) {
  static bool done;
  if (done || ml_settings.functions[0] == 0) return;
  done = true;
  FILE *file = fopen(ml_settings.functions, "re");
  if (file == NULL) return;
  char *line = NULL;
  size_t size = 0;
  ssize_t length;
  struct function_file *current = NULL;
  while ((length = getline(&line, &size, file)) > 0) {
    if (line[length - 1] == '\n') line[length - 1] = 0;
    if (line[0] == '@') {
      struct function_file *grown = realloc(function_files, (function_file_count + 1) * sizeof *grown);
      if (grown == NULL) break;
      function_files = grown;
      current = &function_files[function_file_count++];
      *current = (struct function_file){.path = strdup(line + 1)};
      continue;
    }
    char *space = strchr(line, ' ');
    if (current == NULL || space == NULL) continue;
    struct function *grown = realloc(current->functions, (current->count + 1) * sizeof *grown);
    if (grown == NULL) break;
    current->functions = grown;
    current->functions[current->count++] =
        (struct function){.file_offset = strtoull(line, NULL, 16), .name = strdup(space + 1)};
  }
  free(line);
  fclose(file);
}

uint32_t ml_function_region(uint64_t pc) {
  for (size_t i = 0; i < range_count; i++) {
    const struct code_range *range = &ranges[i];
    if (pc < range->begin || pc >= range->end) continue;
    const struct function_file *file = range->functions;
    const uint64_t offset = pc - range->begin + range->file_offset;
    for (size_t low = 0, high = file != NULL ? file->count : 0; low < high;) { /* sorted by the recorder */
      const size_t middle = (low + high) / 2;
      if (file->functions[middle].file_offset == offset)
        return ml_region_number(file->functions[middle].name, strlen(file->functions[middle].name));
      if (file->functions[middle].file_offset < offset) low = middle + 1;
      else high = middle;
    }
    return 0;
  }
  return 0;
}

/* ---- modules ---------------------------------------------------------------------------------------------------- */
static void write_mapping(const struct map_line *line, bool executed) {
  struct ml_mapping mapping = {0};
  mapping.time_ns = ml_now_ns();
  mapping.address = line->begin;
  mapping.bytes = line->end - line->begin;
  mapping.file_offset = line->offset;
  mapping.inode = line->inode;
  mapping.device_major = line->major;
  mapping.device_minor = line->minor;
  mapping.path = ml_string(line->path, strlen(line->path));
  mapping.thread = (uint32_t)getpid();
  mapping.protection = (uint8_t)((line->readable ? 1 : 0) | (line->writable ? 2 : 0) | (executed ? 4 : 0));
  mapping.shared = line->shared;
  mapping.operation = ML_ENUM_mapping_operation_FOUND;
  ml_write(ML_KIND_MAPPING, &mapping, sizeof mapping, NULL, 0, true);
}

/* Names a thread's stack for the recorder. To the host it is any anonymous memory. */
void ml_write_stack(const struct vcpu *vcpu) {
  if (vcpu->stack_whole == 0) return;
  const uint32_t thread = (uint32_t)syscall(SYS_gettid);
  struct ml_mapping mapping = {0};
  mapping.time_ns = vcpu->born_ns; /* its first accesses come before its id is known */
  mapping.address = vcpu->stack_low;
  mapping.bytes = vcpu->stack_whole;
  mapping.path = ml_string("[stack]", 7);
  mapping.thread = thread;
  mapping.protection = 3;
  mapping.operation = ML_ENUM_mapping_operation_FOUND;
  ml_write(ML_KIND_MAPPING, &mapping, sizeof mapping, NULL, 0, true);
  struct ml_thread_memory memory = {0};
  memory.time_ns = vcpu->born_ns;
  memory.stack_address = memory.thread_pointer = vcpu->stack_low; /* an address in it */
  memory.thread = thread;
  ml_write(ML_KIND_THREAD_MEMORY, &memory, sizeof memory, NULL, 0, true);
}

/* The emulator may have the same library loaded for itself, somewhere else. */
static bool is_near(const struct map_line *a, const struct map_line *b) {
  const int64_t difference = (int64_t)((a->begin - a->offset) - (b->begin - b->offset));
  return difference > -(INT64_C(1) << 28) && difference < INT64_C(1) << 28;
}

static const struct code_range *learn(uint64_t pc) {
  char *text = read_maps(), *copy = text != NULL ? strdup(text) : NULL, *at = text;
  struct map_line line, other;
  const struct code_range *result = NULL;
  bool found = false;
  while (!found && next_line(&at, &line)) found = line.begin <= pc && pc < line.end;
  if (found) {
    const bool is_file = line.inode != 0 && line.path[0] == '/';
    if (range_count == range_capacity) {
      const size_t capacity = range_capacity != 0 ? 2 * range_capacity : 64;
      struct code_range *grown = realloc(ranges, capacity * sizeof *grown);
      if (grown == NULL) found = false;
      else {
        ranges = grown;
        range_capacity = capacity;
      }
    }
    if (found) {
      struct code_range *range = &ranges[range_count++];
      *range =
          (struct code_range){.begin = line.begin, .end = line.end, .file_offset = line.offset, .anonymous = !is_file};
      const char *name = strrchr(line.path, '/');
      range->own = is_file && name != NULL && strncmp(name, "/libmemlens", 11) == 0;
      result = range;
      if (is_file) {
        read_functions();
        for (size_t i = 0; i < function_file_count; i++)
          if (strcmp(function_files[i].path, line.path) == 0) range->functions = &function_files[i];
        at = copy; /* the module's other parts hold its variables */
        while (next_line(&at, &other))
          if (other.inode == line.inode && other.begin != line.begin && strcmp(other.path, line.path) == 0 &&
              is_near(&other, &line))
            write_mapping(&other, false);
        write_mapping(&line, true);
      }
    }
  }
  free(text);
  free(copy);
  return result;
}

struct code_place ml_code_place(uint64_t pc) {
  static size_t last;
  pthread_mutex_lock(&range_lock);
  const struct code_range *range = NULL;
  if (last < range_count && ranges[last].begin <= pc && pc < ranges[last].end) range = &ranges[last];
  for (size_t i = 0; range == NULL && i < range_count; i++)
    if (ranges[i].begin <= pc && pc < ranges[i].end) range = &ranges[last = i];
  if (range == NULL) range = learn(pc);
  const struct code_place place = {range == NULL || range->anonymous, range != NULL && range->own};
  pthread_mutex_unlock(&range_lock);
  return place;
}

void ml_code_unmapped(uint64_t address, uint64_t bytes) {
  pthread_mutex_lock(&range_lock);
  for (size_t i = 0; i < range_count;) {
    if (ranges[i].begin < address + bytes && address < ranges[i].end) ranges[i] = ranges[--range_count];
    else i++;
  }
  pthread_mutex_unlock(&range_lock);
}

/* In a forked child: the recorder must be told again, for the child's own slot. */
void ml_guest_after_fork(void) {
  uint64_t begins[64];
  size_t count = 0;
  pthread_mutex_init(&range_lock, NULL);
  char *text = read_maps();
  if (text == NULL) return; /* no descriptor is left, or another root directory: what is known stays so */
  free(text);
  for (; count < range_count && count < 64; count++) begins[count] = ranges[count].begin;
  range_count = 0;
  for (size_t i = 0; i < count; i++) ml_code_place(begins[i]);
}
