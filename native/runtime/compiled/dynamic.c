/* What a dynamically linked module has on top of the archive: definitions that take the place of other libraries'. An
 * object and not a member, for a static program must not find a pthread_create here: the one of its C library would stay out.
 *
 * Several modules of a process may carry this. The first that the loader finds is called, and it calls the next: all but the one
 * whose runtime serves the process pass the call on.
 *
 * All are weak: a program may bring its own (allocators and sanitizers do, OpenMP tools have to), and it must still link. The
 * driver's --wrap=pthread_create then catches what the program's own objects start. */
#include "count.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <string.h>

typedef int (*create_function)(void *, const void *, void *(*)(void *), void *);
typedef int (*create_c11_function)(void *, int (*)(void *), void *);

ML_EXPORT int pthread_create(void *, const void *, void *(*)(void *), void *);
ML_EXPORT int thrd_create(void *, int (*)(void *), void *);
typedef void *(*start_tool_function)(unsigned, const char *);
ML_EXPORT void *ompt_start_tool(unsigned, const char *);
#ifdef DLFO_STRUCT_HAS_EH_DBASE
extern __typeof__(_dl_find_object) _dl_find_object __attribute__((weak)); /* glibc 2.35 */
#endif
/* A sanitizer that is linked into the program has its own, which ours hides. */
extern int __interceptor_pthread_create(void *, const void *, void *(*)(void *), void *) __attribute__((weak));

/* Names of this module's own, whatever the loader bound the others to. */
extern __typeof__(pthread_create) ml_own_pthread_create __attribute__((alias("pthread_create"), visibility("hidden")));
extern __typeof__(ompt_start_tool) ml_own_start_tool __attribute__((alias("ompt_start_tool"), visibility("hidden")));

void *ml_find_in_process(const char *name) { return dlsym(RTLD_DEFAULT, name); }
bool ml_creation_is_seen(void) { return dlsym(RTLD_DEFAULT, "pthread_create") == (void *)ml_own_pthread_create; }

/* The file that holds an address. Without the loader's lock where that can be: a constructor that holds it may wait for the
 * thread that asks. */
static const char *file_of(void *address) {
#ifdef DLFO_STRUCT_HAS_EH_DBASE
  struct dl_find_object found;
  if (&_dl_find_object != NULL)
    return _dl_find_object(address, &found) == 0 && found.dlfo_link_map != NULL ? found.dlfo_link_map->l_name : NULL;
#endif
  Dl_info info;
  return dladdr(address, &info) != 0 ? info.dli_fname : NULL;
}

/* Pools that take work from many regions: of which one is not known from who started the thread. */
static int pool_of(void *(*start)(void *)) {
  static const char *const pools[] = {"libgomp.so", "libtbb.so", "libdispatch.so"};
  static const char *const openmp[] = {"libomp.so", "libomp-", "libiomp5.so"};
  const char *path = file_of((void *)start);
  if (path == NULL) return ML_POOL_NONE;
  const char *name = strrchr(path, '/');
  name = name != NULL ? name + 1 : path;
  for (size_t i = 0; i < sizeof pools / sizeof *pools; i++)
    if (strncmp(name, pools[i], strlen(pools[i])) == 0) return ML_POOL_UNKNOWN;
  for (size_t i = 0; i < sizeof openmp / sizeof *openmp; i++)
    if (strncmp(name, openmp[i], strlen(openmp[i])) == 0) return ml_openmp_tells() ? ML_POOL_TOLD : ML_POOL_UNKNOWN;
  return ML_POOL_NONE;
}

static create_function next_create(void) {
  static create_function next;
  create_function found = __atomic_load_n(&next, __ATOMIC_RELAXED);
  if (ML_LIKELY(found != NULL)) return found;
  const int saved = errno;
  found = __interceptor_pthread_create;
  if (found == NULL) *(void **)&found = dlsym(RTLD_NEXT, "pthread_create");
  if (found == NULL) *(void **)&found = dlsym(RTLD_DEFAULT, "pthread_create");
  if (found == ml_own_pthread_create) found = NULL;
  __atomic_store_n(&next, found, __ATOMIC_RELAXED);
  errno = saved;
  return found;
}

/* Looked up early: later the loader's lock may be held by somebody who waits for us. */
__attribute__((constructor(101))) static void load(void) { next_create(); }

ML_EXPORT __attribute__((weak)) int pthread_create(void *thread, const void *attributes, void *(*start)(void *),
                                                   void *argument) {
  const create_function next = next_create();
  if (next == NULL) return EAGAIN;
  if (!ml_process_active()) return next(thread, attributes, start, argument);
  return __memlens_count_pthread_create(next, thread, attributes, start, argument, pool_of(start));
}

/* The C library's does not call pthread_create by name. */
ML_EXPORT __attribute__((weak)) int thrd_create(void *thread, int (*start)(void *), void *argument) {
  static create_c11_function next;
  if (next == NULL) {
    *(void **)&next = dlsym(RTLD_NEXT, "thrd_create");
    if (next == NULL) return 2; /* thrd_error */
  }
  if (!ml_process_active()) return next(thread, start, argument);
  return __memlens_count_thrd_create(next, thread, start, argument);
}

/* ---- OpenMP ----------------------------------------------------------------------------------------------------- */
/* A program's own tool takes its place when both are linked. A tool that comes later in the search order (preloaded, or
 * a library) is asked first; one that is named in OMP_TOOL_LIBRARIES is only tried when nobody answers here. */
ML_EXPORT __attribute__((weak)) void *ompt_start_tool(unsigned version, const char *runtime) {
  start_tool_function next;
  *(void **)&next = dlsym(RTLD_NEXT, "ompt_start_tool");
  void *tool = next != NULL && next != ml_own_start_tool ? next(version, runtime) : NULL;
  if (tool != NULL || !ml_process_active()) return tool;
  return ml_openmp_tool();
}
