/* Modules: which counters are whose. A range of counters is never given to another module, so what a library counted
 * stays readable after dlclose; the same library loaded again goes on in its old range. */
#include "count.h"

#include "memlens_trace.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MODULES_MAX 1024
#define RANGE_UNIT 8 /* words: modules do not share a cache line */

static struct module {
  /* of the process image that it was published in; written, not read: forked children can write to it */
  struct ml_count_module *shared;
  struct ml_count_module head;     /* what was published there */
  struct ml_count_function *first; /* NULL: unloaded */
  uint64_t words, sites;           /* that it asked for */
  uint64_t offset, bytes;
  uint32_t generation; /* of forks, when it was published */
} modules[MODULES_MAX];
static uint32_t module_count;
static uint64_t sites_end = ML_TRACE_FIRST_SITE;
uint64_t ml_counters_used = ML_COUNT_MAX_OF_FUNCTION;

uint64_t ml_sites_end(void) { return __atomic_load_n(&sites_end, __ATOMIC_RELAXED); }

/* ---- what the loader knows of a module -------------------------------------------------------------------- */
struct facts {
  const void *inside;
  uint64_t load_bias;
  const char *path;
  uint8_t build_id[64];
  uint32_t build_id_bytes;
};

static void read_notes(struct facts *facts, const unsigned char *notes, uint64_t bytes, uint64_t unit) {
  for (uint64_t at = 0; at + 12 <= bytes;) {
    uint32_t head[3]; /* bytes of the owner, bytes of the descriptor, type */
    memcpy(head, notes + at, sizeof head);
    const uint64_t descriptor = at + (12 + (uint64_t)head[0] + unit - 1) / unit * unit;
    if (descriptor + head[1] > bytes) return;
    if (head[2] == NT_GNU_BUILD_ID && head[0] == 4 && memcmp(notes + at + 12, "GNU", 4) == 0) {
      facts->build_id_bytes = head[1] < sizeof facts->build_id ? head[1] : (uint32_t)sizeof facts->build_id;
      memcpy(facts->build_id, notes + descriptor, facts->build_id_bytes);
      return;
    }
    at = (descriptor + head[1] + unit - 1) / unit * unit;
  }
}

static int visit(struct dl_phdr_info *object, size_t bytes, void *context) {
  struct facts *facts = context;
  bool is_it = false;
  (void)bytes;
  for (int i = 0; i < object->dlpi_phnum; i++) {
    const ElfW(Phdr) *segment = &object->dlpi_phdr[i];
    const uint64_t begin = object->dlpi_addr + segment->p_vaddr;
    if (segment->p_type == PT_LOAD && (uintptr_t)facts->inside - begin < segment->p_memsz) is_it = true;
  }
  if (!is_it) return 0;
  facts->load_bias = object->dlpi_addr;
  facts->path = object->dlpi_name;
  for (int i = 0; i < object->dlpi_phnum && facts->build_id_bytes == 0; i++) {
    const ElfW(Phdr) *segment = &object->dlpi_phdr[i];
    if (segment->p_type == PT_NOTE)
      read_notes(facts, (const void *)(object->dlpi_addr + segment->p_vaddr), segment->p_memsz,
                 segment->p_align == 8 ? 8 : 4);
  }
  return 1;
}

/* ---- registering ------------------------------------------------------------------------------------------- */
static bool publish(struct module *module, const struct ml_count_module *source, uint64_t bytes) {
  struct ml_count_module *shared = ml_arena_room(bytes, &module->offset);
  struct ml_count_entry *entry = shared != NULL ? ml_arena_claim() : NULL;
  if (entry == NULL) return false;
  memcpy(shared, source, bytes);
  memcpy(shared, &module->head, sizeof *shared); /* the source may be what another process image published */
  module->shared = shared;
  module->bytes = bytes;
  module->generation = ml_process.generation;
  entry->offset = module->offset;
  entry->bytes = bytes;
  ml_arena_publish(entry, ML_COUNT_MODULE);
  return true;
}

static struct module *known(const struct facts *facts, uint64_t words, uint64_t sites, size_t path_bytes) {
  for (uint32_t i = 0; i < module_count; i++) {
    const struct ml_count_module *head = &modules[i].head;
    if (modules[i].first != NULL || modules[i].words != words || modules[i].sites != sites) continue;
    if (head->build_id_bytes != facts->build_id_bytes ||
        memcmp(head->build_id, facts->build_id, facts->build_id_bytes) != 0)
      continue;
    if (facts->build_id_bytes == 0 &&
        (head->path_bytes != path_bytes || memcmp(modules[i].shared + 1, facts->path, path_bytes) != 0))
      continue;
    return &modules[i];
  }
  return NULL;
}

static struct module *take_range(const struct facts *facts, uint64_t words, uint64_t sites, size_t path_bytes,
                                 struct ml_count_function *first, struct ml_count_function *end) {
  static uint64_t content[1024]; /* the lock is held */
  struct ml_count_process *process = ml_process.shared;
  struct ml_count_module *source = (void *)content;
  const uint64_t begin = ml_counters_used, room = ml_counter_words - begin;
  memset(source, 0, sizeof *source);
  source->first_counter = begin;
  source->first_site = sites_end;
  source->sites = sites_end + sites <= UINT32_MAX ? sites : 0;
  source->load_bias = facts->load_bias;
  source->build_id_bytes = facts->build_id_bytes;
  memcpy(source->build_id, facts->build_id, facts->build_id_bytes);
  source->path_bytes = (uint32_t)path_bytes;
  memcpy(source + 1, facts->path, path_bytes);
  for (struct ml_count_function *at = first; at < end && at->counters <= room - source->counters; at++) {
    source->counters += at->counters; /* in order, as the reader numbers them: the rest found no room */
    source->functions++;
  }
  const uint64_t refused = (uint64_t)(end - first) - source->functions;
  struct module *module = &modules[module_count];
  if (module_count < MODULES_MAX) module->head = *source;
  if (module_count == MODULES_MAX || !publish(module, source, sizeof *source + path_bytes)) {
    ml_add(&process->functions_refused, (uint64_t)(end - first));
    return NULL;
  }
  module_count++;
  module->words = words;
  module->sites = sites;
  __atomic_store_n(&sites_end, source->first_site + source->sites, __ATOMIC_RELAXED);
  ml_add(&process->functions_refused, refused);
  const uint64_t used = (source->counters + RANGE_UNIT - 1) / RANGE_UNIT * RANGE_UNIT;
  __atomic_store_n(&ml_counters_used, begin + (used < room ? used : room), __ATOMIC_RELEASE);
  __atomic_store_n(&process->counters_used, ml_counters_used, __ATOMIC_RELEASE);
  return module;
}

ML_EXPORT void __memlens_count_register(struct ml_count_function *first, struct ml_count_function *end,
                                        const void *inside) {
  void (*other)(struct ml_count_function *, struct ml_count_function *, const void *) =
      ml_delegate(ML_DELEGATE_REGISTER);
  if (other != NULL) {
    other(first, end, inside);
    return;
  }
  const int saved = errno;
  ml_process_start();
  if (ml_process.shared == NULL || first == end) {
    errno = saved;
    return;
  }
  struct facts facts = {.inside = inside, .path = ""};
  dl_iterate_phdr(visit, &facts); /* takes the loader's lock: before ours */
  static char own_path[4096];
  uint64_t words = 0, sites = 0;
  for (const struct ml_count_function *at = first; at < end; at++) {
    words += at->counters;
    sites += at->trace_sites;
  }
  const uint64_t signals = ml_lock();
  if (facts.path == NULL || facts.path[0] == 0) {
    const long length = syscall(SYS_readlinkat, AT_FDCWD, "/proc/self/exe", own_path, sizeof own_path - 1);
    own_path[length > 0 ? length : 0] = 0;
    facts.path = own_path;
  }
  size_t path_bytes = strlen(facts.path);
  if (path_bytes > 4096) path_bytes = 4096;
  struct module *module = known(&facts, words, sites, path_bytes);
  if (module != NULL) {
    if (module->generation != ml_process.generation && !publish(module, module->shared, module->bytes)) module = NULL;
    else module->shared->load_bias = module->head.load_bias = facts.load_bias;
  } else {
    module = take_range(&facts, words, sites, path_bytes, first, end);
  }
  if (module != NULL) {
    module->first = first;
    const struct ml_count_module *head = &module->head;
    uint64_t at = head->first_counter;
    for (uint64_t i = 0; i < head->functions; i++) {
      first[i].offset_bytes = at * sizeof(uint64_t);
      at += first[i].counters;
    }
    at = head->first_site;
    for (struct ml_count_function *function = first; function < end && head->sites != 0; function++) {
      function->first_site = at;
      at += function->trace_sites;
    }
    ml_trace_module(facts.build_id, facts.build_id_bytes, head->first_site, head->sites);
  }
  ml_unlock(signals);
  ml_process_sync(NULL, 0);
  errno = saved;
}

extern __typeof__(__memlens_count_register) ml_own_register
    __attribute__((alias("__memlens_count_register"), visibility("hidden")));

/* At the end of the process too, while other threads still run the module's code: its offsets stay. */
ML_EXPORT void __memlens_count_unregister(struct ml_count_function *first) {
  void (*other)(struct ml_count_function *) = ml_delegate(ML_DELEGATE_UNREGISTER);
  if (other != NULL) {
    other(first);
    return;
  }
  if (ml_process.shared == NULL || first == NULL) return;
  const uint64_t signals = ml_lock();
  for (uint32_t i = 0; i < module_count; i++)
    if (modules[i].first == first) modules[i].first = NULL;
  ml_unlock(signals);
}

/* What is loaded in a fork's child is loaded in its new process image. */
void ml_modules_forked(void) {
  for (uint32_t i = 0; i < module_count; i++)
    if (modules[i].first != NULL) publish(&modules[i], modules[i].shared, modules[i].bytes);
}
