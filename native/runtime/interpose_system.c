/* Mappings, threads, pinning and policy, unloading of code, and leaving. Rare calls: all recorded. */
#include "runtime.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <link.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "memlens_emulator.h"

#define OPERATION(name) ML_ENUM_allocation_operation_##name

/* Looked up when the library is loaded: later the caller may be a vfork's child, or a thread with foreign thread-local memory. What
 * not every C library has is looked up at its first call instead (a failed look-up would change what dlerror() says). */
#define EACH_FUNCTION(X) \
  X(mmap)                \
  X(mmap64)              \
  X(munmap) X(mremap) X(sched_setaffinity) X(pthread_setaffinity_np) X(pthread_create) X(dlclose) X(_exit) X(prctl)
#define KEPT(name) static _Atomic(void *) kept_##name;
EACH_FUNCTION(KEPT)
#undef KEPT
#define REAL(name)                            \
  void *found = ml_next(&kept_##name, #name); \
  __typeof__(&name) function;                 \
  __builtin_memcpy(&function, &found, sizeof function)

void *ml_next(_Atomic(void *) *kept, const char *name) {
  void *function = atomic_load_explicit(kept, memory_order_relaxed);
  if (ML_LIKELY(function != NULL)) return function;
  if (!ml_own_thread() || ml_self.resolving) return NULL;
  ml_self.resolving = true;
  ml_self.inside++;
  const int saved = errno;
  function = dlsym(RTLD_NEXT, name);
  atomic_store(kept, function);
  errno = saved;
  ml_self.inside--;
  ml_self.resolving = false;
  return function;
}

static bool wanted(void) {
  if (ML_UNLIKELY(!ml_own_thread())) return false;
  if (ml_self.inside != 0) { /* a signal handler that interrupted us: we and dlsym make bare system calls */
    ml_note_missed();
    return false;
  }
  ml_self.inside++;
  const int saved = errno;
  const bool recording = ml_attached() && (ml_runtime.flags & ML_CHANNEL_ALLOC) != 0;
  errno = saved;
  ml_self.inside--;
  return recording;
}

/* ---- mappings ------------------------------------------------------------------------------------ */
typedef void *(*mmap_type)(void *, size_t, int, int, int, off_t);

static void *map(mmap_type function, void *hint, size_t bytes, int protection, int flags, int fd, off_t offset) {
  const bool record = wanted();
  void *address;
  if (function != NULL) address = function(hint, bytes, protection, flags, fd, offset);
  else address = (void *)syscall(SYS_mmap, hint, bytes, protection, flags, fd, offset);
  if (record && address != MAP_FAILED)
    ml_record_birth((struct ml_birth){.wanted = true}, address, bytes,
                    (struct ml_what){.operation = OPERATION(MMAP),
                                     .protection = (uint32_t)protection,
                                     .map_flags = (uint64_t)(unsigned)flags});
  return address;
}

ML_EXPORT void *mmap(void *hint, size_t bytes, int protection, int flags, int fd, off_t offset) {
  REAL(mmap);
  return map(function, hint, bytes, protection, flags, fd, offset);
}

ML_EXPORT void *mmap64(void *hint, size_t bytes, int protection, int flags, int fd, off_t offset) {
  REAL(mmap64);
  return map(function, hint, bytes, protection, flags, fd, offset);
}

ML_EXPORT int munmap(void *address, size_t bytes) {
  REAL(munmap);
  const uint64_t before = wanted() ? ml_now_ns() : 0;
  const int result = function != NULL ? function(address, bytes) : (int)syscall(SYS_munmap, address, bytes);
  if (before != 0 && result == 0) ml_record_release(address, bytes, before, OPERATION(MUNMAP), 0);
  return result;
}

ML_EXPORT void *mremap(void *old_address, size_t old_bytes, size_t bytes, int flags, ...) {
  REAL(mremap);
  va_list arguments;
  va_start(arguments, flags);
  void *fixed = (flags & MREMAP_FIXED) != 0 ? va_arg(arguments, void *) : NULL;
  va_end(arguments);
  const uint64_t before = wanted() ? ml_now_ns() : 0;
  void *address = function != NULL ? function(old_address, old_bytes, bytes, flags, fixed)
                                   : (void *)syscall(SYS_mremap, old_address, old_bytes, bytes, flags, fixed);
  const uint64_t old_units = ((uint64_t)old_bytes + 4095) / 4096;
  if (before != 0 && address != MAP_FAILED)
    ml_record_birth((struct ml_birth){.wanted = true}, address, bytes,
                    (struct ml_what){.operation = OPERATION(MREMAP),
                                     .old_address = (uint64_t)(uintptr_t)old_address,
                                     .protection = old_units < UINT32_MAX ? (uint32_t)old_units : 0,
                                     .map_flags = (uint64_t)(unsigned)flags});
  return address;
}

/* ---- pinning and policy --------------------------------------------------------------------------- */
/* `thread` 0: the one whose thread pointer is `address`. */
static void write_pinning(unsigned operation, uint32_t thread, const void *mask, size_t mask_bytes, uint64_t address,
                          uint64_t bytes, unsigned policy, uint64_t flags, long result) {
  if (!wanted()) return;
  const int saved = errno;
  ml_self.inside++;
  if (mask == NULL) mask_bytes = 0;
  if (mask_bytes > 1024) mask_bytes = 1024;
  struct ml_ticket ticket = ml_reserve(ML_KIND_PINNING, sizeof(struct ml_pinning) + ((mask_bytes + 7) & ~(size_t)7));
  if (ticket.record != NULL) {
    struct ml_pinning *record = ticket.record;
    *record = (struct ml_pinning){.time_ns = ml_now_ns(),
                                  .address = address,
                                  .bytes = bytes,
                                  .thread = thread,
                                  .tail_bytes = (uint32_t)mask_bytes,
                                  .operation = (uint16_t)operation,
                                  .policy = (uint16_t)policy,
                                  .result = (int32_t)(result < 0 ? -saved : result),
                                  .flags = flags};
    if (mask_bytes != 0) memcpy(record + 1, mask, mask_bytes);
    ml_commit(ticket);
  }
  ml_self.inside--;
  errno = saved;
}

/* `thread` 0: the calling one. */
static void record_pinning(unsigned operation, uint32_t thread, const void *mask, size_t mask_bytes, uint64_t address,
                           uint64_t bytes, unsigned policy, uint64_t flags, long result) {
  if (!wanted()) return;
  if (thread == 0 || thread == ml_self.tid) ml_stamp_trace();
  write_pinning(operation, thread != 0 ? thread : ml_self.tid, mask, mask_bytes, address, bytes, policy, flags, result);
}

/* Affinity that another thread gets: only the thread itself knows its kernel id, which `thread_memory` has beside its thread pointer. */
static void record_pinning_of(pthread_t thread, const void *mask, size_t mask_bytes) {
  write_pinning(ML_ENUM_pinning_operation_SCHED_SETAFFINITY, 0, mask, mask_bytes, (uint64_t)thread, 0, 0, 0, 0);
}

/* Under the emulator, which has none of these calls, its plugin makes them. */
#define GUEST_POLICY(name, ...) ml_guest_policy(ML_POLICY_##name, (const uint64_t[6]){__VA_ARGS__})
#define POINTER(pointer) (uint64_t)(uintptr_t)(pointer)

/* The words of a node mask of `max_node` bits, as the system calls count them. */
static size_t node_mask_bytes(unsigned long max_node) {
  return max_node == 0 ? 0 : (max_node + 8 * sizeof(long) - 1) / (8 * sizeof(long)) * sizeof(long);
}

ML_EXPORT int sched_setaffinity(pid_t pid, size_t bytes, const cpu_set_t *mask) {
  REAL(sched_setaffinity);
  const int result =
      function != NULL ? function(pid, bytes, mask) : (int)syscall(SYS_sched_setaffinity, pid, bytes, mask);
  if (result == 0 || errno != EFAULT)
    record_pinning(ML_ENUM_pinning_operation_SCHED_SETAFFINITY, (uint32_t)pid, mask, bytes, 0, 0, 0, 0, result);
  return result;
}

ML_EXPORT int pthread_setaffinity_np(pthread_t thread, size_t bytes, const cpu_set_t *mask) {
  REAL(pthread_setaffinity_np);
  if (function == NULL) return ENOSYS;
  const int error = function(thread, bytes, mask);
  if (error != 0) return error;
  if (pthread_equal(thread, pthread_self()))
    record_pinning(ML_ENUM_pinning_operation_SCHED_SETAFFINITY, 0, mask, bytes, 0, 0, 0, 0, 0);
  else record_pinning_of(thread, mask, bytes);
  return 0;
}

ML_EXPORT long set_mempolicy(int mode, const unsigned long *mask, unsigned long max_node) {
  ML_NEXT(set_mempolicy);
  long result;
  if (ML_UNLIKELY(ml_emulated)) result = GUEST_POLICY(SET_MEMPOLICY, (uint64_t)mode, POINTER(mask), max_node);
  else result = function != NULL ? function(mode, mask, max_node) : syscall(SYS_set_mempolicy, mode, mask, max_node);
  if (result == 0)
    record_pinning(ML_ENUM_pinning_operation_SET_MEMPOLICY, 0, mask, node_mask_bytes(max_node), 0, 0,
                   (unsigned)mode & 0xff, (unsigned)mode & ~0xffu, result);
  return result;
}

ML_EXPORT long mbind(void *address, unsigned long bytes, int mode, const unsigned long *mask, unsigned long max_node,
                     unsigned flags) {
  ML_NEXT(mbind);
  long result;
  if (ML_UNLIKELY(ml_emulated))
    result = GUEST_POLICY(MBIND, POINTER(address), bytes, (uint64_t)mode, POINTER(mask), max_node, flags);
  else
    result = function != NULL ? function(address, bytes, mode, mask, max_node, flags)
                              : syscall(SYS_mbind, address, bytes, mode, mask, max_node, flags);
  if (result == 0)
    record_pinning(ML_ENUM_pinning_operation_MBIND, 0, mask, node_mask_bytes(max_node), (uint64_t)(uintptr_t)address,
                   bytes, (unsigned)mode & 0xff, flags, result);
  return result;
}

/* Sets nothing: hooked for the emulator only. */
ML_EXPORT long get_mempolicy(int *mode, unsigned long *mask, unsigned long max_node, void *address, unsigned flags) {
  if (ML_UNLIKELY(ml_emulated))
    return GUEST_POLICY(GET_MEMPOLICY, POINTER(mode), POINTER(mask), max_node, POINTER(address), flags);
  ML_NEXT(get_mempolicy);
  return function != NULL ? function(mode, mask, max_node, address, flags)
                          : syscall(SYS_get_mempolicy, mode, mask, max_node, address, flags);
}

ML_EXPORT long migrate_pages(int pid, unsigned long max_node, const unsigned long *from, const unsigned long *to) {
  ML_NEXT(migrate_pages);
  long result;
  if (ML_UNLIKELY(ml_emulated))
    result = GUEST_POLICY(MIGRATE_PAGES, (uint64_t)pid, max_node, POINTER(from), POINTER(to));
  else
    result = function != NULL ? function(pid, max_node, from, to) : syscall(SYS_migrate_pages, pid, max_node, from, to);
  if (result >= 0)
    record_pinning(ML_ENUM_pinning_operation_MIGRATE_PAGES, (uint32_t)pid, to, node_mask_bytes(max_node), 0, 0, 0, 0,
                   result);
  return result;
}

ML_EXPORT long move_pages(int pid, unsigned long count, void **pages, const int *nodes, int *status, int flags) {
  ML_NEXT(move_pages);
  long result;
  if (ML_UNLIKELY(ml_emulated))
    result = GUEST_POLICY(MOVE_PAGES, (uint64_t)pid, count, POINTER(pages), POINTER(nodes), POINTER(status),
                          (uint64_t)flags);
  else
    result = function != NULL ? function(pid, count, pages, nodes, status, flags)
                              : syscall(SYS_move_pages, pid, count, pages, nodes, status, flags);
  if (result >= 0 && nodes != NULL && count > 0) {
    uint64_t mask = 0, low = UINT64_MAX, high = 0;
    for (unsigned long i = 0; i < count; i++) {
      const uint64_t page = (uint64_t)(uintptr_t)pages[i] / 4096;
      low = page < low ? page : low;
      high = page > high ? page : high;
      if (nodes[i] >= 0 && nodes[i] < 64) mask |= UINT64_C(1) << nodes[i];
    }
    const uint64_t span = high - low < UINT32_MAX ? high - low + 1 : 0;
    record_pinning(ML_ENUM_pinning_operation_MOVE_PAGES, (uint32_t)pid, &mask, sizeof mask, low * 4096, count, 0,
                   (uint64_t)(unsigned)flags | span << 32, result);
  }
  return result;
}

/* CPUs that a thread's attributes give it, as OpenMP's runtimes do: the C library sets them inside pthread_create. All of them: none were given. */
extern int pthread_attr_getaffinity_np(const pthread_attr_t *, size_t, cpu_set_t *)
    __attribute__((weak)); /* not in musl */

static void record_attribute(pthread_t thread, const pthread_attr_t *attributes) {
  if (pthread_attr_getaffinity_np == NULL) return;
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  if (pthread_attr_getaffinity_np(attributes, sizeof cpus, &cpus) != 0) return;
  if (CPU_COUNT(&cpus) == CPU_SETSIZE) return;
  size_t bytes = sizeof cpus;
  while (bytes > 8 && ((const unsigned char *)&cpus)[bytes - 1] == 0) bytes--;
  record_pinning_of(thread, &cpus, bytes);
}

/* ---- threads, unloading, leaving ------------------------------------------------------------------- */
ML_EXPORT int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *),
                             void *argument) {
  REAL(pthread_create);
  if (function == NULL) return EAGAIN;
  const int error = function(thread, attributes, start, argument);
  if (error != 0) return error;
  const pthread_t created = *thread;
  if (wanted()) {
    const int saved = errno;
    ml_self.inside++;
    struct ml_ticket ticket = ml_reserve(ML_KIND_THREAD_MEMORY, sizeof(struct ml_thread_memory));
    if (ticket.record != NULL) {
      *(struct ml_thread_memory *)ticket.record = (struct ml_thread_memory){.time_ns = ml_now_ns(),
                                                                            .thread_pointer = (uint64_t)created,
                                                                            .creator = ml_self.tid};
      ml_commit(ticket);
    }
    ml_self.inside--;
    errno = saved;
    if (attributes != NULL) record_attribute(created, attributes);
  }
  return 0;
}

ML_EXPORT int dlclose(void *handle) {
  REAL(dlclose);
  if (function == NULL) return -1;
  const int result = function(handle);
  ml_unwind_forget();
  ml_stacks_forget();
  return result;
}

/* Tells the recorder that the slot is free soon; it checks that the process is gone. */
static void leave(void) {
  if (!ml_recording() || ml_runtime.standalone || ml_runtime.slot == NULL) return;
  atomic_fetch_or(&ml_runtime.slot->flags, (uint32_t)ML_ENUM_runtime_flags_ENDED_IN_ORDER);
  atomic_store(&ml_runtime.slot->state, ML_CLAIM_LEAVING);
}

/* Also of a child that shares our memory (vfork), perhaps on thread-local memory of its own: it leaves nothing behind. */
ML_EXPORT void _exit(int status) {
  REAL(_exit);
  if (ml_recording() && ml_runtime.slot != NULL && ml_runtime.slot_pid == (uint32_t)getpid()) {
    leave();
    if (ml_own_thread()) ml_standalone_end();
  }
  if (function != NULL) function(status);
  for (;;) syscall(SYS_exit_group, status);
}
ML_EXPORT void _Exit(int status) __attribute__((alias("_exit")));

/* A sandbox that kills for an unexpected system call must not meet ours: recording ends before it begins. A filter of nothing
 * is how programs ask whether there are filters. */
static bool enters_sandbox(int option, unsigned long mode, unsigned long filter) {
  return option == PR_SET_SECCOMP && (mode != SECCOMP_MODE_FILTER || filter != 0);
}

ML_EXPORT int prctl(int option, ...) {
  REAL(prctl);
  va_list arguments;
  va_start(arguments, option);
  unsigned long values[4];
  for (int i = 0; i < 4; i++) values[i] = va_arg(arguments, unsigned long);
  va_end(arguments);
  if (enters_sandbox(option, values[0], values[1])) ml_enter_sandbox();
  return function != NULL ? function(option, values[0], values[1], values[2], values[3])
                          : (int)syscall(SYS_prctl, option, values[0], values[1], values[2], values[3]);
}

int seccomp_load(const void *context); /* of libseccomp */
ML_EXPORT int seccomp_load(const void *context) {
  ML_NEXT(seccomp_load);
  if (function == NULL) return -EOPNOTSUPP;
  ml_enter_sandbox();
  return function(context);
}

/* A non-PIE executable that takes malloc's address has a symbol for its own PLT entry, undefined but with a value, and dlsym()
 * finds that first. The entry leads to the first definition after the executable, which is ours: we are preloaded first. */
struct plt_search {
  uint64_t address;
  bool is_import;
};

static int search_imports(struct dl_phdr_info *info, size_t bytes, void *context) {
  (void)bytes;
  struct plt_search *search = context;
  const ElfW(Dyn) *dynamic = NULL;
  bool holds = false;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const ElfW(Phdr) *header = &info->dlpi_phdr[i];
    const uint64_t begin = info->dlpi_addr + header->p_vaddr;
    if (header->p_type == PT_LOAD && search->address >= begin && search->address - begin < header->p_memsz)
      holds = true;
    if (header->p_type == PT_DYNAMIC) dynamic = (const ElfW(Dyn) *)begin;
  }
  if (!holds) return 0;
  const ElfW(Sym) *symbols = NULL;
  const ElfW(Rela) * relocations[2] = {NULL, NULL}; /* of the PLT, and the others: a PLT entry may use either */
  uint64_t relocation_bytes[2] = {0, 0};
  bool has_addends = true;
  for (; dynamic != NULL && dynamic->d_tag != DT_NULL; dynamic++) {
    /* glibc has added the load address to pointers, musl and some architectures have not; of an executable that is not
     * position-independent it is 0. */
    if (dynamic->d_tag == DT_SYMTAB) symbols = (const ElfW(Sym) *)dynamic->d_un.d_ptr;
    if (dynamic->d_tag == DT_JMPREL) relocations[0] = (const ElfW(Rela) *)dynamic->d_un.d_ptr;
    if (dynamic->d_tag == DT_PLTRELSZ) relocation_bytes[0] = dynamic->d_un.d_val;
    if (dynamic->d_tag == DT_RELA) relocations[1] = (const ElfW(Rela) *)dynamic->d_un.d_ptr;
    if (dynamic->d_tag == DT_RELASZ) relocation_bytes[1] = dynamic->d_un.d_val;
    if (dynamic->d_tag == DT_PLTREL) has_addends = dynamic->d_un.d_val == DT_RELA;
  }
  if (info->dlpi_addr != 0 || symbols == NULL || !has_addends) return 1;
  for (int table = 0; table < 2; table++)
    for (uint64_t i = 0; relocations[table] != NULL && i < relocation_bytes[table] / sizeof(ElfW(Rela)); i++) {
      const ElfW(Sym) *symbol = &symbols[relocations[table][i].r_info >> 32];
      if (symbol->st_shndx == SHN_UNDEF && symbol->st_value == search->address) search->is_import = true;
    }
  return 1;
}

static bool is_import(uint64_t address) {
  struct plt_search search = {.address = address};
  dl_iterate_phdr(search_imports, &search);
  return search.is_import;
}

__attribute__((constructor)) static void load(void) {
  ml_self.inside++;
  ml_runtime_start();
  /* A malloc inside the program itself (clang's sanitizers, an allocator linked in) comes before ours. */
  ml_self.resolving = true;
  const uint64_t malloc_seen = (uint64_t)(uintptr_t)dlsym(RTLD_DEFAULT, "malloc");
  ml_self.resolving = false;
  ml_runtime.other_malloc =
      (malloc_seen < ml_runtime.text_begin || malloc_seen >= ml_runtime.text_end) && !is_import(malloc_seen);
  ml_malloc_start();
#define LOOK_UP(name) ml_next(&kept_##name, #name);
  EACH_FUNCTION(LOOK_UP)
#undef LOOK_UP
  ml_attached();
  ml_exec_start();
  if (ml_runtime.other_malloc && ml_recording())
    atomic_fetch_or(&ml_runtime.slot->flags, (uint32_t)ML_ENUM_runtime_flags_OTHER_MALLOC);
  ml_self.inside--;
}

__attribute__((destructor)) static void unload(void) {
  leave();
  ml_standalone_end();
}
