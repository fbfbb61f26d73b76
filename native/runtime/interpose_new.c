/* C++ operator new and delete.
 *
 * The standard library's call malloc and free, which are hooked: here they only say that the malloc
 * below is a `new`. An allocator with operators of its own (tcmalloc, jemalloc, mimalloc) does not
 * call malloc, so its objects are recorded here. Exceptions pass through these frames. */
#include "runtime.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum way { WAY_UNKNOWN = 0, WAY_PASS, WAY_RECORD };

struct real_operator {
  const char *name;
  _Atomic(void *) function;
  _Atomic int way;
};

static int way_of(void *function) {
  Dl_info here, allocator;
  void *malloc_function = dlsym(RTLD_NEXT, "malloc");
  return malloc_function != NULL && dladdr(function, &here) != 0 && dladdr(malloc_function, &allocator) != 0 &&
                 here.dli_fbase == allocator.dli_fbase
             ? WAY_RECORD
             : WAY_PASS;
}

static bool is_ours(const void *code) {
  return (uint64_t)(uintptr_t)code >= ml_runtime.text_begin && (uint64_t)(uintptr_t)code < ml_runtime.text_end;
}

/* What the object around `code` sees under a name, without us. */
static void *seen_from(const void *code, const char *name) {
  Dl_info info;
  if (code == NULL || is_ours(code) || dladdr(code, &info) == 0 || info.dli_fname == NULL) return NULL;
  void *handle = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
  if (handle == NULL) return NULL;
  void *function = dlsym(handle, name);
  dlclose(handle);
  return function != NULL && !is_ours(function) ? function : NULL;
}

/* The operator that the caller would have got without us. It is not always in the global scope: a
 * plug-in's C++ library may be visible to the plug-in only. One operator calls another, by a jump
 * even, so that the caller seems to be us: then it is the library of the operator that we called. */
static __attribute__((noinline)) void *find_real(struct real_operator *real, const void *caller) {
  static _Atomic(void *) last_found;
  void *function = atomic_load(&real->function);
  if (function != NULL || !ml_own_thread()) return function;
  ml_runtime_start();
  ml_self.inside++;
  ml_self.resolving = true;
  const int saved = errno;
  function = dlsym(RTLD_NEXT, real->name);
  if (function == NULL || is_ours(function)) function = seen_from(caller, real->name);
  if (function == NULL) function = seen_from(atomic_load(&last_found), real->name);
  if (function != NULL) {
    atomic_store(&last_found, function);
    atomic_store(&real->way, way_of(function));
    atomic_store(&real->function, function);
  }
  errno = saved;
  ml_self.resolving = false;
  ml_self.inside--;
  return function;
}

static __attribute__((noinline)) void *without_library(size_t bytes, size_t alignment, bool may_fail) {
  /* No C++ library defines the operator: the program could not have been linked; or it is not looked up yet, and this thread
   * has no thread-local memory for that. Do what it would. */
  void *address =
      alignment > 16 ? aligned_alloc(alignment, (bytes + alignment - 1) & ~(alignment - 1)) : malloc(bytes ? bytes : 1);
  if (address == NULL && !may_fail) abort();
  return address;
}

/* NEW(symbol, parameters after the size, arguments, alignment, array flag, may fail) */
#define NEW(symbol, parameters, arguments, alignment_value, array, may_fail)                              \
  static struct real_operator real_##symbol = {.name = #symbol};                                          \
  ML_EXPORT void *symbol parameters;                                                                      \
  ML_EXPORT void *symbol parameters {                                                                     \
    void *function = atomic_load_explicit(&real_##symbol.function, memory_order_relaxed);                 \
    if (ML_UNLIKELY(function == NULL)) function = find_real(&real_##symbol, __builtin_return_address(0)); \
    if (function == NULL) return without_library(bytes, alignment_value, may_fail);                       \
    void *(*call)parameters;                                                                              \
    __builtin_memcpy(&call, &function, sizeof call);                                                      \
    if (ML_LIKELY(atomic_load_explicit(&real_##symbol.way, memory_order_relaxed) == WAY_PASS)) {          \
      if (ML_UNLIKELY(!ml_own_thread())) return call arguments;                                           \
      if (ml_self.operation == 0) { /* not below another operator: new[] calls new */                     \
        ml_self.operation = ML_ENUM_allocation_operation_NEW;                                             \
        ml_self.operation_flags = (array) ? ML_ENUM_allocation_flags_ARRAY : 0;                           \
      }                                                                                                   \
      void *address = call arguments;                                                                     \
      ml_self.operation = 0;                                                                              \
      return address;                                                                                     \
    }                                                                                                     \
    if (ML_LIKELY(!ml_look_closer(bytes))) return call arguments;                                         \
    const struct ml_birth birth = ml_choose(bytes);                                                       \
    void *address = call arguments;                                                                       \
    if (birth.wanted)                                                                                     \
      ml_record_birth(birth, address, bytes,                                                              \
                      (struct ml_what){.operation = ML_ENUM_allocation_operation_NEW,                     \
                                       .flags = (array) ? ML_ENUM_allocation_flags_ARRAY : 0,             \
                                       .alignment = alignment_value});                                    \
    return address;                                                                                       \
  }

NEW(_Znwm, (size_t bytes), (bytes), 0, 0, false)
NEW(_Znam, (size_t bytes), (bytes), 0, 1, false)
NEW(_ZnwmRKSt9nothrow_t, (size_t bytes, const void *nothrow), (bytes, nothrow), 0, 0, true)
NEW(_ZnamRKSt9nothrow_t, (size_t bytes, const void *nothrow), (bytes, nothrow), 0, 1, true)
NEW(_ZnwmSt11align_val_t, (size_t bytes, size_t alignment), (bytes, alignment), alignment, 0, false)
NEW(_ZnamSt11align_val_t, (size_t bytes, size_t alignment), (bytes, alignment), alignment, 1, false)
NEW(_ZnwmSt11align_val_tRKSt9nothrow_t, (size_t bytes, size_t alignment, const void *nothrow),
    (bytes, alignment, nothrow), alignment, 0, true)
NEW(_ZnamSt11align_val_tRKSt9nothrow_t, (size_t bytes, size_t alignment, const void *nothrow),
    (bytes, alignment, nothrow), alignment, 1, true)

#define DELETE(symbol, parameters, arguments)                                                                 \
  static struct real_operator real_##symbol = {.name = #symbol};                                              \
  ML_EXPORT void symbol parameters;                                                                           \
  ML_EXPORT void symbol parameters {                                                                          \
    void *function = atomic_load_explicit(&real_##symbol.function, memory_order_relaxed);                     \
    if (ML_UNLIKELY(function == NULL)) function = find_real(&real_##symbol, __builtin_return_address(0));     \
    if (function == NULL) {                                                                                   \
      free(address);                                                                                          \
      return;                                                                                                 \
    }                                                                                                         \
    void(*call) parameters;                                                                                   \
    __builtin_memcpy(&call, &function, sizeof call);                                                          \
    if (ML_UNLIKELY(atomic_load_explicit(&real_##symbol.way, memory_order_relaxed) == WAY_RECORD) &&          \
        ml_maybe_sampled(address) && ml_own_thread() && ml_self.deleting == NULL) {                           \
      if (ml_take_release(address)) ml_record_release(address, 0, 0, ML_ENUM_allocation_operation_DELETE, 0); \
      ml_self.deleting = address; /* jemalloc's operators call free */                                        \
      call arguments;                                                                                         \
      ml_self.deleting = NULL;                                                                                \
      return;                                                                                                 \
    }                                                                                                         \
    call arguments;                                                                                           \
  }

DELETE(_ZdlPv, (void *address), (address))
DELETE(_ZdaPv, (void *address), (address))
DELETE(_ZdlPvm, (void *address, size_t bytes), (address, bytes))
DELETE(_ZdaPvm, (void *address, size_t bytes), (address, bytes))
DELETE(_ZdlPvRKSt9nothrow_t, (void *address, const void *nothrow), (address, nothrow))
DELETE(_ZdaPvRKSt9nothrow_t, (void *address, const void *nothrow), (address, nothrow))
DELETE(_ZdlPvSt11align_val_t, (void *address, size_t alignment), (address, alignment))
DELETE(_ZdaPvSt11align_val_t, (void *address, size_t alignment), (address, alignment))
DELETE(_ZdlPvmSt11align_val_t, (void *address, size_t bytes, size_t alignment), (address, bytes, alignment))
DELETE(_ZdaPvmSt11align_val_t, (void *address, size_t bytes, size_t alignment), (address, bytes, alignment))
DELETE(_ZdlPvSt11align_val_tRKSt9nothrow_t, (void *address, size_t alignment, const void *nothrow),
       (address, alignment, nothrow))
DELETE(_ZdaPvSt11align_val_tRKSt9nothrow_t, (void *address, size_t alignment, const void *nothrow),
       (address, alignment, nothrow))
