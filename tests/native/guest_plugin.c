/* A stand-in for the emulator's plugin, for the tests of the library inside the guest: it answers the guest
 * calls of memlens_emulator.h and writes a line about each into a file, and does nothing else.
 *
 * gcc -shared -fPIC -I format tests/native/guest_plugin.c -o guest_plugin.so
 * qemu-x86_64 -plugin guest_plugin.so,log=FILE[,policy=fake] PROGRAM
 * policy=fake: memory-policy calls are answered here (get_mempolicy: policy 3; the others 0), not by the kernel. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "memlens_emulator.h"

/* Of the plugin interface, version 1; distributions do not ship its header. */
typedef uint64_t qemu_plugin_id_t;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *tb, size_t index);
uint64_t qemu_plugin_insn_vaddr(const struct qemu_plugin_insn *insn);
void *qemu_plugin_insn_haddr(const struct qemu_plugin_insn *insn);
void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t id,
                                           void (*callback)(qemu_plugin_id_t, struct qemu_plugin_tb *));
void qemu_plugin_register_vcpu_syscall_cb(qemu_plugin_id_t id,
                                          void (*callback)(qemu_plugin_id_t, unsigned, int64_t, uint64_t, uint64_t,
                                                           uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t));
void qemu_plugin_register_vcpu_syscall_ret_cb(qemu_plugin_id_t id,
                                              void (*callback)(qemu_plugin_id_t, unsigned, int64_t, int64_t));

#define EXPORT __attribute__((visibility("default")))
EXPORT int qemu_plugin_version = 1;

static uint64_t guest_base, guard_address, guard_bytes;
static pid_t known_pid;
static char log_path[4096];
static bool fake_policy;

static void *host(uint64_t address) { return address == 0 ? NULL : (void *)(uintptr_t)(address + guest_base); }

static void say(const char *text) {
  const int fd = open(log_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0) return;
  if (write(fd, text, strlen(text)) < 0) { /* the test finds the line missing */
  }
  close(fd);
}

static void learn_base(qemu_plugin_id_t id, struct qemu_plugin_tb *tb) {
  (void)id;
  struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, 0);
  guest_base = (uint64_t)(uintptr_t)qemu_plugin_insn_haddr(insn) - qemu_plugin_insn_vaddr(insn);
}

static int64_t policy_call(const struct ml_guest_policy *policy) {
  const uint64_t *a = policy->arguments;
  long result = -1;
  errno = EINVAL;
  if (fake_policy) {
    if (policy->call == ML_POLICY_GET_MEMPOLICY && a[0] != 0) *(int *)host(a[0]) = 3;
    return policy->call == ML_POLICY_MIGRATE_PAGES ? -EPERM : 0;
  }
  switch (policy->call) {
    case ML_POLICY_MBIND: result = syscall(SYS_mbind, host(a[0]), a[1], a[2], host(a[3]), a[4], a[5]); break;
    case ML_POLICY_SET_MEMPOLICY: result = syscall(SYS_set_mempolicy, a[0], host(a[1]), a[2]); break;
    case ML_POLICY_GET_MEMPOLICY:
      result = syscall(SYS_get_mempolicy, host(a[0]), host(a[1]), a[2], host(a[3]), a[4]);
      break;
    case ML_POLICY_MIGRATE_PAGES: result = syscall(SYS_migrate_pages, a[0], a[1], host(a[2]), host(a[3])); break;
    default: break; /* move_pages has pointers behind pointers: not needed here */
  }
  return result < 0 ? -errno : result;
}

static void before(qemu_plugin_id_t id, unsigned vcpu, int64_t number, uint64_t call, uint64_t a, uint64_t b,
                   uint64_t c, uint64_t d, uint64_t e, uint64_t f, uint64_t g) {
  (void)id, (void)vcpu, (void)d, (void)e, (void)f, (void)g;
  char line[512];
  if (number != ML_GUEST_CALL_NUMBER) return;
  if (call == ML_GUEST_HELLO) {
    struct ml_guest_hello *hello = host(a);
    guard_address = hello->guard_address;
    guard_bytes = hello->guard_bytes;
    hello->answer = ML_GUEST_CALL_VERSION;
    snprintf(line, sizeof line, "hello %d version %u\n", (int)getpid(), hello->version);
  } else if (call == ML_GUEST_REGION) {
    snprintf(line, sizeof line, "region %d %u %.*s\n", (int)getpid(), (unsigned)a, (int)c, (const char *)host(b));
  } else if (call == ML_GUEST_POLICY) {
    struct ml_guest_policy *policy = host(a);
    policy->result = policy_call(policy);
    policy->done = 1;
    snprintf(line, sizeof line, "policy %d %u %lx %lx %lx %lx %lx %lx = %ld\n", (int)getpid(), (unsigned)policy->call,
             (long)policy->arguments[0], (long)policy->arguments[1], (long)policy->arguments[2],
             (long)policy->arguments[3], (long)policy->arguments[4], (long)policy->arguments[5], (long)policy->result);
  } else {
    snprintf(line, sizeof line, "unknown %u\n", (unsigned)call);
  }
  say(line);
}

/* A fork's child returns from the call too, before it runs any code of the guest. */
static void after(qemu_plugin_id_t id, unsigned vcpu, int64_t number, int64_t result) {
  (void)id, (void)vcpu, (void)number;
  if (result != 0 || getpid() == known_pid) return;
  known_pid = getpid();
  if (guard_address != 0) memset(host(guard_address), 0, guard_bytes);
}

EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const void *info, int argc, char **argv) {
  (void)info;
  known_pid = getpid();
  for (int i = 0; i < argc; i++) {
    if (strncmp(argv[i], "log=", 4) == 0 && strlen(argv[i]) < sizeof log_path) strcpy(log_path, argv[i] + 4);
    if (strcmp(argv[i], "policy=fake") == 0) fake_policy = true;
  }
  qemu_plugin_register_vcpu_tb_trans_cb(id, learn_base);
  qemu_plugin_register_vcpu_syscall_cb(id, before);
  qemu_plugin_register_vcpu_syscall_ret_cb(id, after);
  return 0;
}
