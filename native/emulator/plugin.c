/* The plugin's life: settings, threads, forks, the end. */
#include "emulator.h"

#include <dlfcn.h>
#include <elf.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

__attribute__((visibility("default"))) int qemu_plugin_version = ML_PLUGIN_API;

struct settings ml_settings = {.wait = true};
struct plugin ml_plugin = {.lock = PTHREAD_MUTEX_INITIALIZER, .learning_limit = LEAST_LEARNING};
struct vcpu *ml_vcpus[MAX_VCPUS];
uint64_t *ml_runs[MAX_VCPUS];

/* ---- settings ----------------------------------------------------------------------------------------------- */
static void set(const char *field) {
  const char *value = strchr(field, '=');
  if (value == NULL) return;
  const size_t length = (size_t)(value++ - field);
  const uint64_t number = strtoull(value, NULL, 10);
#define IS(name) (length == strlen(name) && memcmp(field, name, length) == 0)
  if (IS("window")) ml_settings.window = number;
  if (IS("period")) ml_settings.period = number;
  if (IS("seed")) ml_settings.seed = number;
  if (IS("full")) ml_settings.full = number != 0;
  if (IS("pages")) ml_settings.pages = number != 0;
  if (IS("stack")) ml_settings.split_stack = number != 0;
  if (IS("frames")) ml_settings.frames = number != 0;
  if (IS("stacks")) ml_settings.stacks = number != 0;
  if (IS("wait")) ml_settings.wait = number != 0;
  if (IS("functions") && strlen(value) < sizeof ml_settings.functions) strcpy(ml_settings.functions, value);
  if (IS("arena") && strlen(value) < sizeof ml_plugin.arena_path) strcpy(ml_plugin.arena_path, value);
  if (IS("learn")) ml_plugin.learning_limit = number;
#undef IS
}

static void read_settings(const char *text) {
  bool words = true;
  for (unsigned field_number = 0; text != NULL; field_number++) {
    const char *end = strchr(text, 0x1f);
    char field[4200];
    const size_t length = end != NULL ? (size_t)(end - text) : strlen(text);
    if (length < sizeof field) {
      memcpy(field, text, length);
      field[length] = 0;
      if (words && field_number == 0 && length < sizeof ml_plugin.emulator) strcpy(ml_plugin.emulator, field);
      if (!words) set(field);
      if (strcmp(field, "--") == 0) words = false;
    }
    text = end != NULL ? end + 1 : NULL;
  }
  ml_settings.windows = ml_settings.full || (ml_settings.window != 0 && ml_settings.period >= ml_settings.window);
}

/* ---- how code counts ------------------------------------------------------------------------------------------ */
bool ml_counts_inline(void) {
  if (ml_plugin.regions || ml_settings.full || ml_settings.split_stack) return false;
  if (ml_settings.windows && (!ml_plugin.sparse || ml_plugin.near)) return false;
#if ML_PLUGIN_API == 1
  return ml_plugin.only != NULL;
#else
  return true;
#endif
}

bool ml_no_windows(void) { return !ml_settings.full && !ml_settings.split_stack && !ml_settings.windows; }

bool ml_only_counts(void) { return ml_no_windows() && !ml_settings.pages; }

static void register_all(qemu_plugin_id_t id);

static void after_reset(qemu_plugin_id_t id) {
  ml_plugin.flushes++;
  ml_executions_settle();
  ml_blocks_settle(true);
  ml_plugin.learning_limit = LEAST_LEARNING;
  /* Windows far apart: from here on code counts inline until one is near. */
  register_all(id);
  __atomic_store_n(&ml_plugin.reset_asked, false, __ATOMIC_RELEASE);
  if (ml_plugin.sparse && !ml_plugin.near && ml_plugin.only != NULL) ml_window_far(ml_plugin.only);
}

void ml_ask_reset(void) {
  if (!__atomic_exchange_n(&ml_plugin.reset_asked, true, __ATOMIC_ACQ_REL))
    qemu_plugin_reset(ml_plugin.id, after_reset);
}

/* ---- threads --------------------------------------------------------------------------------------------------- */
uint32_t ml_thread_id(struct vcpu *vcpu) {
  if (ML_UNLIKELY(vcpu->thread == 0)) { /* its creator made the vcpu: only the thread itself knows */
    vcpu->thread = (uint32_t)syscall(SYS_gettid);
    for (uint32_t region = 0; region < MAX_REGIONS; region++)
      if (vcpu->bases[region] != NULL) ml_base_set_thread(vcpu->bases[region], vcpu->thread);
#if ML_PLUGIN_API == 1
    if (vcpu == ml_plugin.only) ml_inline_set_thread(vcpu->thread);
#endif
    const uint32_t pid = (uint32_t)getpid();
    if (vcpu->thread != pid) {
      ml_write_process_event(ML_ENUM_process_operation_THREAD, vcpu->thread, pid, NULL);
      ml_write_stack(vcpu);
    }
  }
  return vcpu->thread;
}

#if ML_PLUGIN_API == 1
/* Called by the thread that makes the new one: its system call told. */
static uint64_t stack_pointer_of_new(void) { return ml_new_thread_stack(); }
#else
/* Called by the new thread itself, which can be asked. */
static uint64_t stack_pointer_of_new(void) {
  const char *name = ml_settings.machine == EM_X86_64 ? "rsp" : ml_settings.machine == EM_PPC64 ? "r1" : "sp";
  uint64_t pointer = 0;
  struct qemu_glib_array *registers = qemu_plugin_get_registers();
  if (registers == NULL) return 0;
  struct qemu_glib_array *value = g_byte_array_new();
  const qemu_plugin_reg_descriptor *descriptors = (const void *)registers->data;
  for (unsigned i = 0; i < registers->length; i++)
    if (strcmp(descriptors[i].name, name) == 0 && qemu_plugin_read_register(descriptors[i].handle, value) >= 8 &&
        value->length >= 8) {
      memcpy(&pointer, value->data, 8);
      break;
    }
  g_byte_array_free(value, 1);
  g_array_free(registers, 1);
  return pointer;
}
#endif

/* Code that was translated for one thread must be gone before a second one runs: it counts for the first, and not
 * atomically. The emulator throws it away when the second thread is made, unless the program has mapped shared memory before, as
 * our own library in it does; and what is asked for here is done at the next system call. So this is called when memory for
 * a stack is mapped, which is before the thread is made. Newer emulators tell of a thread only when it runs. */
void ml_several_threads(void) {
  if (ml_plugin.only == NULL) return;
  ml_blocks_settle(false);
  ml_windows_several(ml_plugin.only);
  ml_plugin.only = NULL;
  ml_ask_reset();
}

static void on_vcpu_init(qemu_plugin_id_t id, unsigned index) {
  (void)id;
  static struct vcpu emergency; /* memory is exhausted, or more threads live than any kernel allows by default */
  struct vcpu *vcpu = index < MAX_VCPUS ? calloc(1, sizeof *vcpu) : NULL;
  if (vcpu == NULL) vcpu = &emergency;
  vcpu->index = index;
  vcpu->born_ns = ml_now_ns();
  vcpu->live = true;
  ml_pages_drop(vcpu);
  if (index > ml_plugin.highest_vcpu) ml_plugin.highest_vcpu = index;
  vcpu->frames = ml_settings.stacks || ml_settings.frames || ml_settings.functions[0] != 0
                     ? calloc(MAX_FRAMES, sizeof *vcpu->frames)
                     : NULL;
  ml_windows_start(vcpu);
  ml_switch_region(vcpu, 0);
  const bool first = ml_plugin.threads++ == 0;
  if (!first) {
    ml_several_threads();
    const uint64_t stack = stack_pointer_of_new();
    uint64_t begin, end;
    if (stack != 0 && ml_mapping_at(stack - 8, &begin, &end)) {
      vcpu->stack_tried = true;
      vcpu->stack_low = begin;
      vcpu->stack_bytes = vcpu->stack_whole = stack - begin;
    }
  } else {
    ml_plugin.only = vcpu;
    if (ml_settings.pages) ml_pages_start(vcpu);
  }
#if ML_PLUGIN_API >= 2
  ml_scores_clear(index);
#endif
  ml_vcpus[index < MAX_VCPUS ? index : MAX_VCPUS - 1] = vcpu;
}

/* Everything that would be lost with the thread. */
void ml_vcpu_publish(struct vcpu *vcpu) {
#if ML_PLUGIN_API >= 2
  ml_inline_move(vcpu, vcpu->region);
#endif
  ml_window_finish(vcpu);
  ml_pages_write(vcpu);
}

/* Whoever joins a thread may end the program while the thread is still on its way out: one of the two publishes. */
static bool end_of(struct vcpu *vcpu) { return __atomic_exchange_n(&vcpu->live, false, __ATOMIC_ACQ_REL); }

static void on_vcpu_exit(qemu_plugin_id_t id, unsigned index) {
  (void)id;
  struct vcpu *vcpu = ml_vcpus[index];
  if (vcpu == NULL || !end_of(vcpu)) return;
  ml_vcpu_publish(vcpu);
  __atomic_store_n(&vcpu->ended, true, __ATOMIC_RELEASE);
  if (ml_thread_id(vcpu) != (uint32_t)getpid())
    ml_write_process_event(ML_ENUM_process_operation_THREAD_EXIT, vcpu->thread, 0, NULL);
  vcpu->recording = false;
  vcpu->next_event = UINT64_MAX;
  free(vcpu->frames);
  vcpu->frames = NULL;
  vcpu->depth = 0;
}

/* A thread on its way out that publishes takes microseconds; one that never will be done is not waited for. */
static void wait_for_end(const struct vcpu *vcpu) {
  const struct timespec pause = {.tv_nsec = 100000};
  for (unsigned i = 0; i < 5000 && !__atomic_load_n(&vcpu->ended, __ATOMIC_ACQUIRE); i++) nanosleep(&pause, NULL);
}

static void at_exit(qemu_plugin_id_t id, void *unused) {
  (void)id, (void)unused;
  for (unsigned i = 0; i < MAX_VCPUS; i++)
    if (ml_vcpus[i] != NULL && end_of(ml_vcpus[i])) {
      ml_vcpu_publish(ml_vcpus[i]);
      ml_vcpus[i]->ended = true;
    }
  for (unsigned i = 0; i < MAX_VCPUS; i++)
    if (ml_vcpus[i] != NULL) wait_for_end(ml_vcpus[i]);
  ml_write_status();
  ml_write_process_event(ML_ENUM_process_operation_EXIT, (uint32_t)getpid(), 0, NULL);
}

/* ---- forks -------------------------------------------------------------------------------------------------------- */
static void after_fork_in_child(void) {
  pthread_mutex_init(&ml_plugin.lock, NULL);
  ml_plugin.born_ns = ml_now_ns();
  ml_plugin.recorded = ml_plugin.dropped = ml_plugin.waited_ns = ml_plugin.translations = ml_plugin.modified = 0;
  ml_wipe_guard();
  ml_wait_after_fork();
  ml_channel_after_fork();
  ml_accesses_after_fork();
  ml_stacks_after_fork();
  ml_pages_after_fork();
  ml_region_strings_forget();
  ml_write_process_event(ML_ENUM_process_operation_FORK, (uint32_t)getpid(), (uint32_t)getppid(), NULL);
  ml_guest_after_fork(); /* before the arena: code must be known to lie where it is before it counts */
  ml_arena_after_fork();
  const uint32_t thread = (uint32_t)syscall(SYS_gettid);
  struct vcpu *own = ml_current_vcpu();
  unsigned live = 0;
  for (unsigned i = 0; i < MAX_VCPUS; i++) {
    struct vcpu *vcpu = ml_vcpus[i];
    if (vcpu == NULL) continue;
#if ML_PLUGIN_API >= 2
    ml_scores_clear(i);
#endif
    ml_pages_drop(vcpu);
    const bool stays = vcpu == own;
    for (uint32_t region = 0; region < MAX_REGIONS; region++) {
      if (vcpu->bases[region] == NULL) continue;
      if (stays) ml_base_set_thread(vcpu->bases[region], thread);
      else ml_base_drop(vcpu->bases[region]);
    }
    if (stays) {
#if ML_PLUGIN_API == 1
      if (vcpu == ml_plugin.only) ml_inline_set_thread(thread);
#endif
      live++;
      vcpu->thread = thread;
      vcpu->executed = 0;
      ml_windows_start(vcpu);
      vcpu->resync = ml_plugin.reset_asked;
      vcpu->born_ns = ml_now_ns();
      ml_write_stack(vcpu);
    } else {
      vcpu->live = false;
      vcpu->ended = true;
    }
  }
  ml_plugin.threads = live;
}

/* ---- start ---------------------------------------------------------------------------------------------------------- */
static void register_all(qemu_plugin_id_t id) {
  qemu_plugin_register_vcpu_init_cb(id, on_vcpu_init);
  qemu_plugin_register_vcpu_exit_cb(id, on_vcpu_exit);
  qemu_plugin_register_vcpu_tb_trans_cb(id, ml_translate);
  qemu_plugin_register_vcpu_syscall_cb(id, ml_on_syscall);
  qemu_plugin_register_vcpu_syscall_ret_cb(id, ml_on_syscall_return);
  qemu_plugin_register_atexit_cb(id, at_exit, NULL);
}

static uint32_t machine_of(const char *target) {
  static const struct {
    const char *name;
    uint32_t machine;
  } known[] = {{"x86_64", EM_X86_64}, {"aarch64", EM_AARCH64}, {"riscv64", EM_RISCV}, {"ppc64le", EM_PPC64}};
  for (size_t i = 0; i < sizeof known / sizeof *known; i++)
    if (strcmp(known[i].name, target) == 0) return known[i].machine;
  return 0;
}

__attribute__((visibility("default"))) int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t *info, int argc,
                                                               char **argv) {
  (void)argc, (void)argv;
  ml_plugin.id = id;
  ml_plugin.api = info->version.cur;
  ml_plugin.born_ns = ml_now_ns();
  ml_settings.machine = machine_of(info->target_name);
  read_settings(getenv(ML_EMULATOR_VARIABLE));
  const char *channel = getenv(ML_CHANNEL_VARIABLE);
  uint64_t token[2];
  /* Without a recorder the guest runs on, uncounted. */
  if (channel == NULL || !ml_channel_open(channel, token)) return 0;
  ml_arena_set(ml_plugin.arena_path, token);
  if (!ml_arena_open()) return 0;
  dlopen("libgcc_s.so.1", RTLD_LAZY); /* newer emulators end threads with pthread_exit, which looks for it only then */
  pthread_atfork(NULL, NULL, after_fork_in_child);
  register_all(id);
  return 0;
}
