/* The call stack of each thread, kept up at calls and returns; and regions, which begin and end with them.
 *
 * A call pushes the address behind it. A return is only believed when it arrives: blocks that begin behind a call
 * ask whether a return or an indirect jump led there, and take frames off down to the one that waits for this
 * address. What leaves functions otherwise:
 * - longjmp arrives where setjmp returned before: at the depth that it had then.
 * - An exception arrives anywhere. Where a call stores its return address (x86-64), the next call shows it: frames
 *   that are stored below are gone. Elsewhere the stack is right again when the function that caught it returns.
 * - A signal handler comes from nowhere and leaves by a system call: both ends are watched. */
#include "emulator.h"

#include <stdlib.h>
#include <string.h>

#define ONE_STACK (UINT64_C(8) << 20) /* bytes; two frames of one stack are closer, nearly always */

void ml_on_call(unsigned cpu, void *return_pc) {
  struct vcpu *vcpu = ml_vcpus[cpu];
  vcpu->came_by_jump = false;
  if (ML_UNLIKELY(vcpu->depth == MAX_FRAMES || vcpu->frames == NULL)) {
    vcpu->lost_frames++;
    return;
  }
  vcpu->frames[vcpu->depth++] = (struct frame){.return_pc = (uint64_t)(uintptr_t)return_pc};
}

void ml_on_jump(unsigned cpu, void *unused) {
  (void)unused;
  ml_vcpus[cpu]->came_by_jump = true;
}

static void leave_regions(struct vcpu *vcpu) {
  while (vcpu->mark_count > 0) {
    const struct region_mark *mark = &vcpu->marks[vcpu->mark_count - 1];
    if (mark->depth == UINT32_MAX || mark->depth <= vcpu->depth) break;
    ml_switch_region(vcpu, mark->previous);
    vcpu->mark_count--;
  }
}

/* The frame of the running function ends with the address that it returns to. */
static void find_frame(struct vcpu *vcpu) {
  const uint64_t slot = vcpu->depth > 0 ? vcpu->frames[vcpu->depth - 1].stack : 0;
  const uint64_t bytes = slot + 8 - vcpu->stack_low;
  vcpu->stack_bytes = slot != 0 && bytes < vcpu->stack_whole ? bytes : vcpu->stack_whole;
}

static void unwind_to(struct vcpu *vcpu, uint32_t depth) {
  vcpu->depth = depth;
  if (ml_settings.frames) find_frame(vcpu);
  if (ML_UNLIKELY(vcpu->mark_count > 0)) leave_regions(vcpu);
  while (ML_UNLIKELY(vcpu->interruption_count > 0) && vcpu->interruptions[vcpu->interruption_count - 1].depth > depth)
    vcpu->interruption_count--;
}

/* The return address of the newest frame is on the stack. Frames that lie at or below it are left over from an
 * exception, unless they are on another stack: then they are far away. */
void ml_on_call_store(unsigned cpu, qemu_plugin_meminfo_t info, uint64_t address, void *return_pc) {
  struct vcpu *vcpu = ml_vcpus[cpu];
  if (!qemu_plugin_mem_is_store(info) || vcpu->depth == 0 || vcpu->lost_frames > 0) return;
  const struct frame newest = {(uint64_t)(uintptr_t)return_pc, address};
  if (vcpu->frames[vcpu->depth - 1].return_pc != newest.return_pc) return;
  uint32_t depth = vcpu->depth - 1;
  while (depth > 0 && vcpu->frames[depth - 1].stack <= address && address - vcpu->frames[depth - 1].stack < ONE_STACK)
    depth--;
  if (ML_UNLIKELY(depth < vcpu->depth - 1)) unwind_to(vcpu, depth);
  vcpu->frames[depth] = newest;
  vcpu->depth = depth + 1;
  if (ml_settings.frames) find_frame(vcpu);
}

void ml_on_handler(unsigned cpu, void *unused) {
  (void)unused;
  struct vcpu *vcpu = ml_vcpus[cpu];
  if (vcpu->interruption_count < MAX_INTERRUPTIONS)
    vcpu->interruptions[vcpu->interruption_count++] = (struct interruption){vcpu->depth, vcpu->mark_count};
}

void ml_handler_returned(struct vcpu *vcpu) {
  if (vcpu->interruption_count == 0) return;
  const struct interruption before = vcpu->interruptions[--vcpu->interruption_count];
  if (before.depth <= vcpu->depth) vcpu->depth = before.depth;
  if (ml_settings.frames) find_frame(vcpu);
  if (before.mark_count >= vcpu->mark_count) return;
  ml_switch_region(vcpu, vcpu->marks[before.mark_count].previous);
  vcpu->mark_count = before.mark_count;
}

void ml_on_landing(unsigned cpu, void *data) {
  struct vcpu *vcpu = ml_vcpus[cpu];
  const uint64_t pc = (uint64_t)(uintptr_t)data;
  if (!vcpu->came_by_jump) return;
  vcpu->came_by_jump = false;
  if (ML_UNLIKELY(vcpu->lost_frames > 0)) {
    vcpu->lost_frames--;
    return;
  }
  struct arrival *arrival = &vcpu->arrivals[pc * UINT64_C(0x9E3779B97F4A7C15) >> (64 - ARRIVAL_BITS)];
  for (uint32_t depth = vcpu->depth; depth > 0; depth--) {
    if (vcpu->frames[depth - 1].return_pc != pc) continue;
    *arrival = (struct arrival){pc, depth - 1};
    unwind_to(vcpu, depth - 1);
    return;
  }
  if (arrival->pc == pc && arrival->depth <= vcpu->depth) unwind_to(vcpu, arrival->depth);
}

void ml_region_enter(struct vcpu *vcpu, uint32_t region, uint32_t depth) {
  if (region == 0 || vcpu->mark_count == MAX_MARKS) return;
  vcpu->marks[vcpu->mark_count++] = (struct region_mark){.depth = depth, .region = region, .previous = vcpu->region};
  ml_switch_region(vcpu, region);
}

/* By annotation: ends the innermost region of this name, and what was left open inside it. */
void ml_region_leave(struct vcpu *vcpu, uint32_t region) {
  for (uint32_t at = vcpu->mark_count; at > 0; at--) {
    if (vcpu->marks[at - 1].region != region) continue;
    ml_switch_region(vcpu, vcpu->marks[at - 1].previous);
    vcpu->mark_count = at - 1;
    return;
  }
}

/* A function that is a region begins. Its frame is the one that its caller pushed; a jump to it has none of its own. */
void ml_on_function(unsigned cpu, void *region) {
  struct vcpu *vcpu = ml_vcpus[cpu];
  const uint32_t number = (uint32_t)(uintptr_t)region;
  /* A loop back to the first instruction is no new call, and recursion stays in the region until its first call ends. */
  if (vcpu->mark_count > 0 && vcpu->marks[vcpu->mark_count - 1].region == number &&
      vcpu->marks[vcpu->mark_count - 1].depth <= vcpu->depth)
    return;
  ml_region_enter(vcpu, number, vcpu->depth);
}

/* ---- stack ids ----------------------------------------------------------------------------------------------- */
#define MAX_DEPTH 64
#define MAX_STACKS (1u << 18)
struct known_stack {
  uint64_t hash;
  uint32_t id;
};
static struct known_stack *known;
static uint32_t known_count;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Ids belong to a process's slot in the channel. */
void ml_stacks_after_fork(void) {
  pthread_mutex_init(&lock, NULL);
  if (known != NULL) memset(known, 0, MAX_STACKS * sizeof *known);
  known_count = 0;
}

uint32_t ml_stack_id(struct vcpu *vcpu, uint64_t pc) {
  uint64_t ips[MAX_DEPTH];
  uint32_t count = 0;
  ips[count++] = pc;
  for (uint32_t depth = vcpu->depth; depth > 0 && count < MAX_DEPTH; depth--)
    ips[count++] = vcpu->frames[depth - 1].return_pc;
  const bool truncated = count < vcpu->depth + 1 || vcpu->lost_frames > 0;
  uint64_t hash = UINT64_C(0xcbf29ce484222325) + truncated;
  for (uint32_t i = 0; i < count; i++) hash = (hash ^ ips[i]) * UINT64_C(0x9E3779B97F4A7C15), hash ^= hash >> 29;
  hash |= 1;
  pthread_mutex_lock(&lock);
  if (known == NULL) known = calloc(MAX_STACKS, sizeof *known);
  uint32_t id = 0;
  if (known != NULL) {
    size_t at = hash >> 20 & (MAX_STACKS - 1);
    while (known[at].hash != 0 && known[at].hash != hash) at = (at + 1) & (MAX_STACKS - 1);
    if (known[at].hash == hash) id = known[at].id;
    else if (known_count < MAX_STACKS / 2) {
      struct ml_stack stack = {.id = known_count + 1,
                               .tail_bytes = 8 * count,
                               .unwinder = ML_ENUM_unwinder_SHADOW,
                               .truncated = truncated};
      if (ml_write(ML_KIND_STACK, &stack, sizeof stack, ips, 8 * count, true)) {
        id = ++known_count;
        known[at] = (struct known_stack){hash, id};
      }
    }
  }
  pthread_mutex_unlock(&lock);
  return id;
}
