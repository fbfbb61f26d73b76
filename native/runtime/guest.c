/* Under the emulator: what the library asks of the plugin there (memlens_emulator.h). Natively nothing
 * here makes a call: the variable is not set. */
#include "runtime.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "memlens_emulator.h"

bool ml_emulated;

void ml_guest_start(void) {
  static _Atomic uint32_t started;
  if (environ == NULL || atomic_exchange(&started, 1) != 0) return;
  if (getenv(ML_EMULATOR_VARIABLE) == NULL || getauxval(AT_SECURE)) return;
  const int saved = errno;
  struct ml_guest_hello hello = {.version = ML_GUEST_CALL_VERSION,
                                 .guard_address = (uint64_t)(uintptr_t)ml_runtime.guard,
                                 .guard_bytes = 4096};
  syscall(ML_GUEST_CALL_NUMBER, (long)ML_GUEST_HELLO, &hello, 0L, 0L);
  if (__atomic_load_n(&hello.answer, __ATOMIC_ACQUIRE) == ML_GUEST_CALL_VERSION) {
    ml_emulated = true;
  } else if (syscall(SYS_madvise, ml_runtime.guard, (size_t)4096, -1L) == 0) {
    /* No kernel takes this advice. An emulator that ignores all advice has no wiped page either. */
    ml_runtime.pid = (uint32_t)getpid();
    ml_runtime.guard_unsure = true;
  }
  errno = saved;
}

void ml_guest_region(unsigned operation, const char *name) {
  syscall(ML_GUEST_CALL_NUMBER, (long)ML_GUEST_REGION, (long)operation, name, strlen(name));
}

/* What the plugin refuses is not tried again: the C library's way to it would come back here. */
long ml_guest_policy(unsigned call, const uint64_t arguments[6]) {
  const int saved = errno;
  struct ml_guest_policy policy = {.call = call, .result = -ENOSYS};
  memcpy(policy.arguments, arguments, sizeof policy.arguments);
  syscall(ML_GUEST_CALL_NUMBER, (long)ML_GUEST_POLICY, &policy, 0L, 0L);
  errno = saved;
  if (__atomic_load_n(&policy.done, __ATOMIC_ACQUIRE) != 1) policy.result = -ENOSYS;
  if (policy.result >= 0) return (long)policy.result;
  errno = (int)-policy.result;
  return -1;
}
