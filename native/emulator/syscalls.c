/* System calls of the guest: what changes its memory, its threads or its program, and the calls of our own library. */
#include "emulator.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* clang-format off */
enum call { MMAP, MUNMAP, MREMAP, MADVISE, CLONE, EXECVE, EXECVEAT, MBIND, SET_MEMPOLICY, GET_MEMPOLICY, MOVE_PAGES,
            MIGRATE_PAGES, SHMDT, CLONE3, RT_SIGACTION, RT_SIGRETURN, CALLS };
static const char *const call_name[CALLS] = {"mmap", "munmap", "mremap", "madvise", "clone", "execve", "execveat", "mbind",
                                             "set_mempolicy", "get_mempolicy", "move_pages", "migrate_pages", "shmdt", "clone3",
                                             "rt_sigaction", "rt_sigreturn"};
static const int16_t numbers_x86_64[CALLS] = {9, 11, 25, 28, 56, 59, 322, 237, 238, 239, 279, 256, 67, 435, 13, 15};
static const int16_t numbers_generic[CALLS] = {222, 215, 216, 233, 220, 221, 281, 235, 237, 236, 239, 238, 197, 435, 134, 139};
static const int16_t numbers_ppc64[CALLS] = {90, 91, 163, 205, 120, 11, 362, 259, 261, 260, 301, 258, 398, 435, 173, 172};
/* clang-format on */

static enum call which(int64_t number) {
  const int16_t *numbers = ml_settings.machine == EM_X86_64  ? numbers_x86_64
                           : ml_settings.machine == EM_PPC64 ? numbers_ppc64
                                                             : numbers_generic;
  for (int i = 0; i < CALLS; i++)
    if (numbers[i] == number) return (enum call)i;
  return CALLS;
}

/* A call that must have ended before it counts. */
static __thread struct {
  enum call call;
  uint64_t address, bytes;
} open_call = {.call = CALLS};
static __thread uint64_t new_thread_stack;
static uint64_t guard_address, guard_bytes;

/* Functions that the guest made signal handlers. Beyond these, a handler is only seen as code that runs. */
static uint64_t handlers[64];
static uint32_t handler_count;

bool ml_is_handler(uint64_t pc) {
  for (uint32_t i = 0; i < __atomic_load_n(&handler_count, __ATOMIC_ACQUIRE); i++)
    if (handlers[i] == pc) return true;
  return false;
}

static void handler_add(uint64_t pc) {
  pthread_mutex_lock(&ml_plugin.lock);
  if (!ml_is_handler(pc) && handler_count < sizeof handlers / sizeof *handlers) {
    handlers[handler_count] = pc;
    __atomic_store_n(&handler_count, handler_count + 1, __ATOMIC_RELEASE);
  }
  pthread_mutex_unlock(&ml_plugin.lock);
}

static __thread struct vcpu *current;
struct vcpu *ml_current_vcpu(void) { return current; }

uint64_t ml_new_thread_stack(void) { return new_thread_stack; }

static bool makes_thread(uint64_t clone_flags) {
  return (clone_flags & CLONE_VM) != 0 && (clone_flags & CLONE_VFORK) == 0;
}

/* In a forked child, before its first instruction: see struct ml_guest_hello. */
void ml_wipe_guard(void) {
  if (guard_address != 0) memset(ml_host(guard_address), 0, guard_bytes);
}

static void unseen(struct vcpu *vcpu, unsigned cause, const char *name) {
  const struct ml_unseen record = {.time_ns = ml_now_ns(),
                                   .executions = 1,
                                   .name = ml_string(name, strlen(name)),
                                   .thread = ml_thread_id(vcpu),
                                   .cause = (uint16_t)cause};
  ml_write(ML_KIND_UNSEEN, &record, sizeof record, NULL, 0, true);
}

/* ---- our library's calls ------------------------------------------------------------------------------------------- */
/* The guest's memory for `bytes` from `address` on, or NULL: it may pass anything. */
static void *checked(uint64_t address, uint64_t bytes) {
  uint64_t begin, end;
  if (address == 0 || !ml_mapping_at(address, &begin, &end) || end - address < bytes) return NULL;
  return ml_host(address);
}

static void policy_call(struct ml_guest_policy *policy) {
  const uint64_t *a = policy->arguments;
  long result = -1;
  errno = ENOSYS;
  void *host[6];
  for (int i = 0; i < 6; i++) host[i] = a[i] != 0 ? ml_host(a[i]) : NULL;
  switch (policy->call) {
    case ML_POLICY_MBIND: result = syscall(SYS_mbind, host[0], a[1], a[2], host[3], a[4], a[5]); break;
    case ML_POLICY_SET_MEMPOLICY: result = syscall(SYS_set_mempolicy, a[0], host[1], a[2]); break;
    case ML_POLICY_GET_MEMPOLICY: result = syscall(SYS_get_mempolicy, host[0], host[1], a[2], host[3], a[4]); break;
    case ML_POLICY_MIGRATE_PAGES: result = syscall(SYS_migrate_pages, a[0], a[1], host[2], host[3]); break;
    case ML_POLICY_MOVE_PAGES: {
      /* The pages of another process are its guest's too: the same base is assumed. */
      uint64_t *pages = a[1] < (UINT64_C(1) << 32) && host[2] != NULL ? malloc(a[1] * sizeof *pages + 8) : NULL;
      if (pages == NULL) {
        errno = host[2] == NULL ? EFAULT : ENOMEM;
        break;
      }
      for (uint64_t i = 0; i < a[1]; i++) pages[i] = ((uint64_t *)host[2])[i] + ml_plugin.guest_base;
      result = syscall(SYS_move_pages, a[0], a[1], pages, host[3], host[4], a[5]);
      const int saved = errno;
      free(pages);
      errno = saved;
      break;
    }
    default: break;
  }
  policy->result = result < 0 ? -errno : result;
  policy->done = 1;
}

static void guest_call(struct vcpu *vcpu, uint64_t a1, uint64_t a2, uint64_t a3, uint64_t a4) {
  switch (a1) {
    case ML_GUEST_HELLO: {
      struct ml_guest_hello *hello = checked(a2, sizeof *hello);
      if (hello == NULL || hello->version != ML_GUEST_CALL_VERSION) return;
      if (hello->guard_bytes <= 65536 && checked(hello->guard_address, hello->guard_bytes) != NULL) {
        guard_address = hello->guard_address;
        guard_bytes = hello->guard_bytes;
      }
      hello->answer = ML_GUEST_CALL_VERSION;
      return;
    }
    case ML_GUEST_REGION: {
      if (a4 == 0 || a4 > 4096) return;
      const uint32_t region = ml_region_number(ml_host(a3), a4);
      if (a2 == ML_ENUM_region_operation_BEGIN) ml_region_enter(vcpu, region, UINT32_MAX);
      else if (a2 == ML_ENUM_region_operation_END) ml_region_leave(vcpu, region);
      return;
    }
    case ML_GUEST_POLICY: {
      struct ml_guest_policy *policy = checked(a2, sizeof *policy);
      if (policy != NULL) policy_call(policy);
      return;
    }
    default: return;
  }
}

/* ---- exec -------------------------------------------------------------------------------------------------------------- */
/* system() and popen() of our library: a shell of this machine that becomes the emulator at once. */
static bool leads_to_emulator(uint64_t arguments) {
  const uint64_t *words = checked(arguments, 3 * sizeof *words);
  if (words == NULL || words[0] == 0 || words[1] == 0 || words[2] == 0) return false;
  const size_t length = strlen(ml_plugin.emulator);
  const char *option = checked(words[1], 3), *command = checked(words[2], 16 + length);
  return option != NULL && command != NULL && strncmp(option, "-c", 3) == 0 && strncmp(command, "exec ", 5) == 0 &&
         memmem(command, strnlen(command, 16 + length), ml_plugin.emulator, length) != NULL;
}

static void before_exec(struct vcpu *vcpu, uint64_t path, uint64_t arguments) {
  /* Successful, it does not come back: what is not written now is lost. Unsuccessful, we go on as before. */
  char name[4096];
  size_t length = 0;
  const char *text = path != 0 ? ml_host(path) : "";
  while (length < sizeof name - 1 && text[length] != 0) name[length] = text[length], length++;
  name[length] = 0;
  if (length != 0 && access(name, X_OK) != 0) return;
  if (ml_plugin.emulator[0] == 0 || (strcmp(name, ml_plugin.emulator) != 0 && !leads_to_emulator(arguments)))
    unseen(vcpu, ML_ENUM_unseen_cause_EXEC, length != 0 ? name : "(by descriptor)");
  ml_vcpu_publish(vcpu);
  ml_write_status();
}

void ml_on_syscall(qemu_plugin_id_t id, unsigned cpu, int64_t number, uint64_t a1, uint64_t a2, uint64_t a3,
                   uint64_t a4, uint64_t a5, uint64_t a6, uint64_t a7, uint64_t a8) {
  (void)id, (void)a5, (void)a6, (void)a7, (void)a8;
  struct vcpu *vcpu = ml_vcpus[cpu];
  current = vcpu;
  ml_thread_id(vcpu);
  vcpu->came_by_jump = false;
  ml_wait_call_begins();
  if (ML_UNLIKELY(ml_wait_is_blocked())) ml_windows_without_signal(vcpu);
#if ML_PLUGIN_API >= 2
  const uint64_t now = ml_now_ns();
  if (now - vcpu->published_ns > 50000000) {
    vcpu->published_ns = now;
    ml_inline_move(vcpu, vcpu->region);
  }
#endif
  if (number == ML_GUEST_CALL_NUMBER) {
    const int saved = errno;
    guest_call(vcpu, a1, a2, a3, a4);
    errno = saved;
    return;
  }
  const enum call call = which(number);
  open_call.call = call;
  switch (call) {
    case MMAP:
      open_call.address = (a4 & (MAP_FIXED | MAP_FIXED_NOREPLACE)) != 0 ? a1 : 0;
      open_call.bytes = a2;
      if ((a4 & MAP_STACK) != 0) ml_several_threads();
      break;
    case MUNMAP:
    case MREMAP:
      open_call.address = a1;
      open_call.bytes = a2;
      break;
    case MADVISE:
      open_call.address = a3 == MADV_DONTNEED || a3 == MADV_FREE || a3 == MADV_REMOVE ? a1 : 0;
      open_call.bytes = a2;
      break;
    case CLONE3: {
      const uint64_t *clone = a2 >= 56 ? checked(a1, 56) : NULL; /* flags first, stack and its size sixth and seventh */
      new_thread_stack = clone != NULL && makes_thread(clone[0]) ? clone[5] + clone[6] : 0;
      if (clone == NULL || makes_thread(clone[0])) ml_several_threads();
      break;
    }
    case CLONE:
      new_thread_stack = makes_thread(a1) ? a2 : 0;
      if (makes_thread(a1)) ml_several_threads();
      break;
    case RT_SIGACTION: {
      const uint64_t *action = a2 != 0 ? checked(a2, sizeof *action) : NULL; /* the handler comes first */
      if (a2 != 0 && ml_wait_loses(a1)) ml_windows_without_signal(vcpu);
      if (action == NULL || *action <= 1) break; /* SIG_DFL, SIG_IGN */
      if (vcpu->frames != NULL) handler_add(*action);
      /* After a fault in the middle of a block the program may go on: from now on accesses are counted one by one. */
      const bool fault = a1 == SIGILL || a1 == SIGTRAP || a1 == SIGBUS || a1 == SIGFPE || a1 == SIGSEGV;
      if (fault && !ml_plugin.handles_faults) {
        ml_plugin.handles_faults = true;
        ml_ask_reset();
      }
      break;
    }
    case RT_SIGRETURN: ml_handler_returned(vcpu); break;
    case EXECVE: before_exec(vcpu, a1, a2); break;
    case EXECVEAT: before_exec(vcpu, a2, a3); break;
    case MBIND:
    case SET_MEMPOLICY:
    case GET_MEMPOLICY:
    case MOVE_PAGES:
    case MIGRATE_PAGES: {
      static uint32_t said; /* once a call: programs repeat them */
      if ((__atomic_fetch_or(&said, 1u << call, __ATOMIC_RELAXED) & 1u << call) == 0)
        unseen(vcpu, ML_ENUM_unseen_cause_SYSTEM_CALL, call_name[call]);
      break;
    }
    default: break;
  }
}

/* The emulator's vectors of 32 bytes leave the upper halves of registers in use, and from then on its functions for floating point,
 * which use the old instructions, wait for them: page rank ran twice as long after one strlen of 32 bytes at a time. No code
 * expects anything of upper halves across a call. */
static void clear_upper_halves(void) {
#ifdef __x86_64__
  static int has_them = -1;
  if (has_them < 0) has_them = __builtin_cpu_supports("avx") != 0;
  if (has_them) __asm__ volatile("vzeroupper" ::: "memory");
#endif
}

void ml_on_syscall_return(qemu_plugin_id_t id, unsigned cpu, int64_t number, int64_t result) {
  (void)id, (void)number;
  const enum call call = open_call.call;
  clear_upper_halves();
  open_call.call = CALLS;
  ml_wait_call_ends(ml_vcpus[cpu]);
  if ((call != MMAP && call != MUNMAP && call != MREMAP && call != MADVISE) || open_call.address == 0) return;
  if (result < 0 && result > -4096) return;
  if (call != MADVISE) ml_code_unmapped(open_call.address, open_call.bytes);
  ml_pages_unmapped(open_call.address, open_call.bytes);
}
