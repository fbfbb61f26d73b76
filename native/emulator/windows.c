/* Windows: sequences of accesses with their addresses, written as delta streams.
 *
 * One window begins in every period, at a place drawn anew each time, so that every access has the same chance
 * and no loop's rhythm is followed. A long window is written in pieces that continue each other. */
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
 * While there is one thread, code counts inline between windows, and the way to the next one is measured by summing
 * the counters now and then: at loops, where every cycle of a program comes by. Shortly before a window all code is
 * translated anew with a call for every access; the window then begins at exactly the access that was drawn. */
#define SPARSE_PERIOD 4000000
#define NEAR 100000          /* accesses before a window at which calls begin */
#define FIRST_RATE 16        /* accesses of a tick, before it is known */
#define CAUTION 3            /* the rate may become so much higher; still higher may make a window late, which is counted */

int64_t ml_ticks;

static void wait_for_window(struct vcpu *vcpu, uint64_t executed) {
  const uint64_t left = vcpu->next_begin > executed + NEAR ? vcpu->next_begin - executed - NEAR : 0;
  if (vcpu->rate == 0) vcpu->rate = FIRST_RATE;
  ml_ticks = vcpu->ticks_set = (int64_t)(left / (CAUTION * vcpu->rate));
  vcpu->ticks_at = executed;
}

static void note_rate(struct vcpu *vcpu, uint64_t executed) {
  const uint64_t ticks = (uint64_t)(vcpu->ticks_set - ml_ticks);
  const uint64_t rate = ticks != 0 ? (executed - vcpu->ticks_at) / ticks + 1 : FIRST_RATE;
  vcpu->rate = rate > vcpu->rate ? rate : (3 * vcpu->rate + rate) / 4;
}

/* Branches that lead back tick. Those that lead to the same place are one loop, which is known by the first of them. Inner
 * loops are relieved of their ticks when the loop around them ticks too. */
#define MAX_TICKING 4096
#define INNER_OF_OUTER 2000 /* rounds on average: fewer accesses than windows are told in advance */
static struct ticking ticking[MAX_TICKING];
static struct insn *ticking_insn[MAX_TICKING];
static unsigned ticking_count;

struct ticking *ml_tick_of(struct insn *insn) {
  static struct ticking others;
  unsigned loop = ticking_count;
  for (unsigned i = 0; i < ticking_count; i++) {
    if (ticking_insn[i] == insn) return &ticking[i];
    if (loop == ticking_count && insn->loop_begin != 0 && ticking_insn[i]->loop_begin == insn->loop_begin) loop = i;
  }
  if (ticking_count == MAX_TICKING) return &others;
  ticking_insn[ticking_count] = insn;
  ticking[ticking_count].loop = loop;
  return &ticking[ticking_count++];
}

static bool is_loop(unsigned i) { return ticking[i].loop == i && ticking_insn[i]->loop_begin != 0; }
static bool has_dropped(unsigned loop) { return ticking_insn[loop]->tick_dropped; }
static uint64_t length_of(unsigned loop) { return ticking[loop].end - ticking_insn[loop]->loop_begin; }
static bool is_around(unsigned loop, uint64_t begin, uint64_t end) {
  return ticking_insn[loop]->loop_begin <= begin && end <= ticking[loop].end;
}

static void set_dropped(unsigned loop, bool dropped) {
  for (unsigned i = loop; i < ticking_count; i++)
    if (ticking[i].loop == loop) ticking_insn[i]->tick_dropped = dropped;
}

/* Where loops end, and how often each went round. */
static void look_at_loops(void) {
  for (unsigned i = 0; i < ticking_count; i++) ticking[i].rounds = ticking[i].end = 0;
  for (unsigned i = 0; i < ticking_count; i++) {
    struct ticking *loop = &ticking[ticking[i].loop];
    loop->rounds += ticking[i].ticks;
    if (ticking_insn[i]->pc > loop->end) loop->end = ticking_insn[i]->pc;
  }
}

/* The rounds of loops without ticks, this one and those inside it, for each round of another. */
static uint64_t rounds_in(const struct ticking *outer, const struct ticking *inner) {
  return inner->rounds * (1 + inner->stands_for) / outer->rounds + 1;
}

/* The smallest loop around this one that goes on ticking, if it ticks often enough. */
static struct ticking *guardian_of(unsigned inner) {
  unsigned best = MAX_TICKING;
  for (unsigned i = 0; i < ticking_count; i++) {
    if (!is_loop(i) || has_dropped(i) || !is_around(i, ticking_insn[inner]->loop_begin, ticking[inner].end) ||
        length_of(i) <= length_of(inner))
      continue;
    if (best == MAX_TICKING || length_of(i) < length_of(best)) best = i;
  }
  if (best == MAX_TICKING || ticking[best].rounds == 0) return NULL;
  return ticking[best].stands_for + rounds_in(&ticking[best], &ticking[inner]) <= INNER_OF_OUTER ? &ticking[best] : NULL;
}

/* Inner loops first. Returns how many rounds of loops that tick no more are in one of a loop that does, at most. */
static uint64_t drop_inner_ticks(void) {
  uint64_t most = 1;
  look_at_loops();
  for (uint64_t done = 0;;) {
    unsigned next = MAX_TICKING;
    for (unsigned i = 0; i < ticking_count; i++)
      if (is_loop(i) && length_of(i) > done && (next == MAX_TICKING || length_of(i) < length_of(next))) next = i;
    if (next == MAX_TICKING) break;
    done = length_of(next);
    for (unsigned i = 0; i < ticking_count; i++) {
      if (!is_loop(i) || length_of(i) != done || has_dropped(i) || ticking[i].kept || ticking[i].rounds < 10000) continue;
      struct ticking *guardian = guardian_of(i);
      if (guardian == NULL) continue;
      guardian->stands_for += rounds_in(guardian, &ticking[i]);
      ticking[i].stands_for = 0;
      set_dropped(i, true);
      if (guardian->stands_for > most) most = guardian->stands_for;
    }
  }
  return most;
}

/* Fewer ticks have more accesses between them. */
static void thin_ticks(struct vcpu *vcpu) {
  const uint64_t most = drop_inner_ticks();
  if (most > 1) vcpu->rate = (vcpu->rate + 1) * most;
  for (unsigned i = 0; i < ticking_count; i++) ticking[i].ticks = 0;
}

/* A window came too late at `pc`: the outermost loop around it that had lost its ticks gets them back for good; all loops
 * where none is known to be around it. */
static void tick_again(uint64_t pc) {
  unsigned found = MAX_TICKING;
  look_at_loops();
  for (unsigned i = 0; i < ticking_count; i++)
    if (is_loop(i) && has_dropped(i) && is_around(i, pc, pc) && (found == MAX_TICKING || length_of(i) > length_of(found))) found = i;
  for (unsigned i = 0; i < ticking_count; i++) {
    if (!is_loop(i) || !has_dropped(i) || (found != MAX_TICKING && i != found)) continue;
    set_dropped(i, false);
    ticking[i].kept = true;
  }
}

void ml_window_tick(struct vcpu *vcpu) {
  if (!ml_plugin.sparse || ml_plugin.near || ml_plugin.reset_asked) return;
  const uint64_t executed = ml_accesses_of(vcpu);
  note_rate(vcpu, executed);
  if (executed + NEAR < vcpu->next_begin) {
    wait_for_window(vcpu, executed);
    return;
  }
  thin_ticks(vcpu);
  ml_plugin.near = true;
  vcpu->resync = true; /* what the current block still counts inline comes first */
  ml_ask_reset();
}

/* The first call after code stopped counting inline: where are we? */
void ml_window_resync(struct vcpu *vcpu, uint64_t pc) {
  if (ml_plugin.reset_asked) return; /* not yet */
  vcpu->resync = false;
  vcpu->executed = ml_accesses_of(vcpu);
  vcpu->next_event = vcpu->next_begin;
  if (vcpu->executed > vcpu->next_begin) {
    ml_plugin.late++;
    tick_again(pc);
  }
}

void ml_windows_several(struct vcpu *vcpu) {
  if (!ml_plugin.sparse) return;
  ml_plugin.sparse = false;
  if (ml_plugin.near) return;
  vcpu->executed = ml_accesses_of(vcpu);
  vcpu->next_event = vcpu->next_begin;
}

void ml_windows_start(struct vcpu *vcpu) {
  vcpu->next_event = UINT64_MAX;
  vcpu->recording = false;
  if (!ml_settings.windows) return;
  vcpu->random = (ml_now_ns() * UINT64_C(0x9E3779B97F4A7C15) ^ (uint64_t)vcpu->index << 32) | 1;
  if (ml_settings.seed != 0) vcpu->random = (ml_settings.seed * UINT64_C(0x9E3779B97F4A7C15) ^ vcpu->index) | 1;
  vcpu->period_number = 0;
  vcpu->next_begin = ml_settings.full ? 0 : next_begin(vcpu, 0);
  vcpu->next_event = vcpu->next_begin;
  /* It begins with calls for every access, which shows what instructions do; the first reset ends that. */
  ml_plugin.sparse = !ml_settings.full && ml_settings.period >= SPARSE_PERIOD && vcpu->index == 0;
  ml_plugin.near = ml_plugin.sparse && vcpu->next_begin < 2 * NEAR;
}

/* A piece ends: write it. `last`: the window ends too, and `following` is where the next one begins. */
static void write_piece(struct vcpu *vcpu, bool last, uint64_t following) {
  struct ml_window window = {0};
  if (vcpu->pending_bytes != 0) {
    vcpu->stream_at = ml_stream_add_pc(&vcpu->stream, vcpu->stream_at, vcpu->pending_pc, vcpu->pending_address,
                                       vcpu->pending_bytes, vcpu->pending_operation);
    vcpu->recorded++;
    vcpu->pending_bytes = 0;
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
      vcpu->next_event = following + ml_settings.window > vcpu->executed ? following + ml_settings.window
                                                                         : vcpu->executed + 1;
      return;
    }
    write_piece(vcpu, true, following);
    vcpu->recording = false;
    vcpu->next_begin = vcpu->next_event = following;
    if (ml_plugin.sparse && following > vcpu->executed + 4 * NEAR) {
      ml_plugin.near = false;
      vcpu->next_event = UINT64_MAX;
      wait_for_window(vcpu, vcpu->executed);
      ml_ask_reset();
    }
    return;
  }
  vcpu->recording = true;
  vcpu->next_event = ml_settings.full ? UINT64_MAX : vcpu->executed + ml_settings.window;
  vcpu->window_first = vcpu->executed;
  vcpu->begin_ns = ml_now_ns();
  vcpu->recorded = 0;
  vcpu->pending_bytes = 0;
  vcpu->stream_at = vcpu->stream_bytes;
  ml_stream_begin(&vcpu->stream);
  vcpu->window_stack = ml_settings.stacks ? ml_stack_id(vcpu, pc) : 0;
  vcpu->region_at_window = vcpu->region;
  vcpu->cpu_at_window = sched_getcpu();
}

void ml_window_add(struct vcpu *vcpu, uint64_t pc, uint64_t address, uint32_t bytes, bool store) {
  if (ML_LIKELY(vcpu->pending_bytes != 0)) {
    vcpu->stream_at = ml_stream_add_pc(&vcpu->stream, vcpu->stream_at, vcpu->pending_pc, vcpu->pending_address,
                                       vcpu->pending_bytes, vcpu->pending_operation);
    vcpu->recorded++;
    if (ML_UNLIKELY(vcpu->stream_at > vcpu->stream_bytes + STREAM_BYTES - 2 * ML_STREAM_MAX_ACCESS)) {
      vcpu->pending_bytes = 0;
      write_piece(vcpu, false, 0);
      vcpu->window_stack = ml_settings.stacks ? ml_stack_id(vcpu, pc) : 0;
      vcpu->region_at_window = vcpu->region;
    }
  }
  vcpu->pending_pc = pc;
  vcpu->pending_address = address;
  vcpu->pending_bytes = bytes;
  vcpu->pending_operation = store ? ML_ENUM_access_operation_STORE : ML_ENUM_access_operation_LOAD;
}

void ml_window_extend(struct vcpu *vcpu, uint32_t bytes) {
  if (vcpu->pending_bytes != 0) vcpu->pending_bytes += bytes;
}

/* The thread ends, or another program takes the process's place. */
void ml_window_finish(struct vcpu *vcpu) {
  if (!vcpu->recording) return;
  write_piece(vcpu, true, vcpu->executed);
}
