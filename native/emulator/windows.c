/* Windows: sequences of accesses with their addresses, written as delta streams.
 *
 * One window begins in every period, at a position sampled uniformly, so that every access has the same probability,
 * independent of the period of loops. A long window is written in pieces that continue each other. */
#include "emulator.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

static uint64_t draw(struct vcpu *vcpu, uint64_t below) {
  uint64_t x = vcpu->random; /* xorshift64* */
  x ^= x >> 12;
  x ^= x << 25;
  x ^= x >> 27;
  vcpu->random = x;
  return (uint64_t)((unsigned __int128)(x * UINT64_C(0x2545F4914F6CDD1D)) * below >> 64);
}

/* Where the window of the period after that of `executed` begins; 0 is the first period. */
static uint64_t next_begin(struct vcpu *vcpu, uint64_t period_number) {
  return period_number * ml_settings.period + draw(vcpu, ml_settings.period);
}

/* ---- windows far apart ----------------------------------------------------------------------------------------
 * While there is one thread, code counts inline between windows; waiting.c tells when one is near. Then all code is
 * translated anew with a call for every access, and the window begins at exactly the access that was drawn. */
#define SPARSE_PERIOD 4000000
#define WORTH_WAITING 400000 /* accesses to the next window: two translations cost less */

/* From the next translation on every access calls. */
static void call_always(struct vcpu *vcpu) {
  ml_plugin.sparse = false;
  ml_wait_end();
  if (!ml_plugin.near) vcpu->resync = true;
}

/* Code counts inline from here on. False: it must not, because nobody can tell when the window is near. */
bool ml_window_far(struct vcpu *vcpu) {
  vcpu->next_event = UINT64_MAX;
  if (ml_wait_for(vcpu->next_begin)) return true;
  call_always(vcpu);
  return false;
}

void ml_window_near(struct vcpu *vcpu) {
  ml_plugin.near = true;
  vcpu->resync = true; /* what the current block still counts inline comes first */
  ml_ask_reset();
}

/* The window begins after its place: the one before has ended there, and between the two nothing was recorded. */
static void write_delay(struct vcpu *vcpu, uint64_t late) {
  const uint64_t now = ml_now_ns();
  const struct ml_window window = {.begin_ns = now,
                                   .end_ns = now,
                                   .first_executed = vcpu->next_begin,
                                   .executed = late,
                                   .thread = ml_thread_id(vcpu),
                                   .encoding = ML_ENUM_stream_encoding_PC_DELTA,
                                   .period = ml_settings.period};
  ml_write(ML_KIND_WINDOW, &window, sizeof window, NULL, 0, ml_settings.wait);
}

/* The first call after code stopped counting inline: where are we? */
void ml_window_resync(struct vcpu *vcpu) {
  if (ml_plugin.reset_asked) return; /* not yet */
  vcpu->resync = false;
  if (ml_plugin.sparse && !ml_plugin.near) return;
  vcpu->executed = ml_accesses_of(vcpu);
  vcpu->next_event = vcpu->next_begin;
  const uint64_t late = vcpu->executed > vcpu->next_begin ? vcpu->executed - vcpu->next_begin : 0;
  if (late != 0) {
    ml_plugin.late++;
    if (vcpu->period_number != 0) write_delay(vcpu, late);
  }
  ml_wait_was_late(late);
}

void ml_windows_several(struct vcpu *vcpu) {
  if (ml_plugin.sparse) call_always(vcpu);
}

/* The program wants the signal that waiting needs. */
void ml_windows_without_signal(struct vcpu *vcpu) {
  if (!ml_plugin.sparse || vcpu != ml_plugin.only) return;
  call_always(vcpu);
  ml_ask_reset();
}

void ml_windows_start(struct vcpu *vcpu) {
  vcpu->next_event = UINT64_MAX;
  vcpu->recording = vcpu->resync = false;
  if (!ml_settings.windows) return;
  vcpu->random = (ml_now_ns() * UINT64_C(0x9E3779B97F4A7C15) ^ (uint64_t)vcpu->index << 32) | 1;
  if (ml_settings.seed != 0) vcpu->random = (ml_settings.seed * UINT64_C(0x9E3779B97F4A7C15) ^ vcpu->index) | 1;
  vcpu->period_number = 0;
  vcpu->next_begin = ml_settings.full ? 0 : next_begin(vcpu, 0);
  vcpu->next_event = vcpu->next_begin;
  /* It begins with calls for every access, which shows what instructions do; the first reset ends that. */
  if (ml_plugin.threads > 0) return;
  ml_plugin.sparse = !ml_settings.full && ml_settings.period >= SPARSE_PERIOD;
  ml_plugin.near = ml_plugin.sparse && vcpu->next_begin < WORTH_WAITING;
}

static inline void flush(struct vcpu *vcpu, unsigned index) {
  struct pending *pending = &vcpu->pending[index];
  if (pending->bytes == 0) return;
  vcpu->stream_at = ml_stream_add_pc(&vcpu->stream, vcpu->stream_at, pending->pc, pending->address, pending->bytes,
                                     pending->operation);
  vcpu->recorded++;
  pending->bytes = 0;
}

/* A piece ends: write it. `last`: the window ends too, and `following` is where the next one begins. */
static void write_piece(struct vcpu *vcpu, bool last, uint64_t following) {
  struct ml_window window = {0};
  if (last) {
    flush(vcpu, 0);
    flush(vcpu, 1);
  }
  if (vcpu->recorded == 0) return;
  window.begin_ns = vcpu->begin_ns;
  window.end_ns = ml_now_ns();
  window.first_executed = vcpu->window_first;
  window.executed = last && !ml_settings.full ? following - vcpu->window_first : vcpu->recorded;
  window.dropped = vcpu->dropped;
  window.recorded = vcpu->recorded;
  window.region = ml_region_string(vcpu->region_at_window);
  window.stack = vcpu->window_stack;
  window.thread = ml_thread_id(vcpu);
  window.tail_bytes = (uint32_t)(vcpu->stream_at - vcpu->stream_bytes);
  window.cpu = (uint16_t)(vcpu->cpu_at_window < 0 ? 0 : vcpu->cpu_at_window);
  window.encoding = ML_ENUM_stream_encoding_PC_DELTA;
  window.period = ml_settings.full ? vcpu->recorded : ml_settings.period;
  if (ml_write(ML_KIND_WINDOW, &window, sizeof window, vcpu->stream_bytes, window.tail_bytes, ml_settings.wait)) {
    __atomic_fetch_add(&ml_plugin.recorded, vcpu->recorded, __ATOMIC_RELAXED);
    vcpu->dropped = 0;
  } else {
    __atomic_fetch_add(&ml_plugin.dropped, vcpu->recorded, __ATOMIC_RELAXED);
    vcpu->dropped += vcpu->recorded;
  }
  vcpu->window_first += vcpu->recorded;
  vcpu->begin_ns = window.end_ns;
  vcpu->recorded = 0;
  vcpu->stream_at = vcpu->stream_bytes;
  ml_stream_begin(&vcpu->stream);
}

void ml_window_event(struct vcpu *vcpu, uint64_t pc) {
  if (vcpu->recording) {
    const uint64_t following = next_begin(vcpu, ++vcpu->period_number);
    if (following <= vcpu->executed) { /* the next window begins where this one is still going on: one window */
      vcpu->next_event =
          following + ml_settings.window > vcpu->executed ? following + ml_settings.window : vcpu->executed + 1;
      return;
    }
    write_piece(vcpu, true, following);
    vcpu->recording = false;
    vcpu->next_begin = vcpu->next_event = following;
    if (ml_plugin.sparse && following > vcpu->executed + WORTH_WAITING) {
      ml_plugin.near = false;
      ml_ask_reset(); /* which begins the waiting */
    }
    return;
  }
  if (ml_plugin.sparse) ml_plugin.near = true; /* before code counted inline for the first time */
  vcpu->recording = true;
  vcpu->next_event = ml_settings.full ? UINT64_MAX : vcpu->executed + ml_settings.window;
  vcpu->window_first = vcpu->executed;
  vcpu->begin_ns = ml_now_ns();
  vcpu->recorded = 0;
  vcpu->pending[0].bytes = vcpu->pending[1].bytes = 0;
  vcpu->stream_at = vcpu->stream_bytes;
  ml_stream_begin(&vcpu->stream);
  vcpu->window_stack = ml_settings.stacks ? ml_stack_id(vcpu, pc) : 0;
  vcpu->region_at_window = vcpu->region;
  vcpu->cpu_at_window = sched_getcpu();
}

/* There must be room for both pending accesses and a new one. */
static inline void keep_room(struct vcpu *vcpu, uint64_t pc) {
  if (ML_LIKELY(vcpu->stream_at <= vcpu->stream_bytes + STREAM_BYTES - 3 * ML_STREAM_MAX_ACCESS)) return;
  write_piece(vcpu, false, 0);
  vcpu->window_stack = ml_settings.stacks ? ml_stack_id(vcpu, pc) : 0;
  vcpu->region_at_window = vcpu->region;
}

static inline void set_pending(struct pending *pending, uint64_t pc, uint64_t address, uint32_t bytes, bool store) {
  pending->pc = pc;
  pending->address = address;
  pending->bytes = bytes;
  pending->operation = store ? ML_ENUM_access_operation_STORE : ML_ENUM_access_operation_LOAD;
}

void ml_window_add(struct vcpu *vcpu, uint64_t pc, uint64_t address, uint32_t bytes, bool store) {
  flush(vcpu, 0);
  if (ML_UNLIKELY(vcpu->pending[1].bytes != 0)) flush(vcpu, 1);
  keep_room(vcpu, pc);
  set_pending(&vcpu->pending[0], pc, address, bytes, store);
}

void ml_window_extend(struct vcpu *vcpu, uint32_t bytes) {
  if (vcpu->pending[0].bytes != 0) vcpu->pending[0].bytes += bytes;
}

/* A load and a store of a repeated movs grow side by side. */
void ml_window_begin_string(struct vcpu *vcpu) {
  flush(vcpu, 0);
  flush(vcpu, 1);
}

void ml_window_add_string(struct vcpu *vcpu, uint64_t pc, uint64_t address, uint32_t bytes, bool store) {
  flush(vcpu, store);
  keep_room(vcpu, pc);
  set_pending(&vcpu->pending[store], pc, address, bytes, store);
}

void ml_window_extend_string(struct vcpu *vcpu, uint64_t pc, uint64_t address, uint32_t bytes, bool store) {
  struct pending *pending = &vcpu->pending[store];
  if (pending->bytes == 0 || pending->pc != pc) return; /* a signal handler may have come between */
  pending->bytes += bytes;
  if (address < pending->address) pending->address = address;
}

/* The thread ends, or another program takes the process's place. */
void ml_window_finish(struct vcpu *vcpu) {
  if (!vcpu->recording) return;
  write_piece(vcpu, true, vcpu->executed);
}
