/* Regions of a thread: a stack of open regions, whose top is where the thread counts.
 *
 * Closing regions without an end. Each entry keeps the stack pointer of its begin. When a later switch comes from a
 * frame above it, the frame that began it is gone. Compiled code marks regions in the function that ends them, so such an
 * entry is closed at that moment ("abandoned"). memlens.h can be called from a function that only begins and returns, so its
 * regions are dropped that way only if their ends have always come from the frame of their begin; after an exception or
 * longjmp (unwound) always. Frames of two stacks (signal stacks, coroutines) are never compared.
 *
 * A longjmp to a setjmp in the frame of a begin leaves no gone frame behind. Begins have serial numbers: compiled code asks for the last one
 * before a call that returns twice (mark), and what was begun since and is still open when the call returns again is closed (returned). */
#include "count.h"

#include <string.h>

#include "spans.h"
#define MEMLENS_RUNTIME_IMPLEMENTATION 1
#include "memlens.h"

#define ALWAYS_INLINE static inline __attribute__((always_inline))
#define NEVER_INLINE static __attribute__((noinline))
#define FENCE() __atomic_signal_fence(__ATOMIC_SEQ_CST)
/* What the caller's stack pointer was at the call: the same in every function of this file. */
#define CALLER_FRAME() ((uintptr_t)__builtin_dwarf_cfa())

static uint64_t *counters_of(struct ml_thread *self, struct ml_count_place *place) {
  return place != &ml_no_place ? (uint64_t *)((unsigned char *)place + ML_COUNT_PLACE_COUNTERS) : ml_thread_dump(self);
}

static uint64_t switch_cost; /* ticks of an empty region */
static uint64_t least_span;  /* ticks of an execution that is worth a span */

/* Slow parts of a switch are measured when they happen. All that a switch costs is taken off the regions around it. */
ALWAYS_INLINE void cost(struct ml_thread *self, struct ml_count_place *place, uint64_t ticks) {
  self->overhead_ticks += ticks;
  place->switch_ticks += ticks;
}

static bool on_stack(const struct ml_thread *self, uintptr_t frame) {
  return frame - self->stack_low < self->stack_high - self->stack_low;
}

static void note_ignored(void) {
  struct ml_count_process *shared = ml_process.shared;
  if (shared != NULL) ml_add(&shared->switches_ignored, 1);
}

/* ---- closing ------------------------------------------------------------------------------------------------- */
NEVER_INLINE void close_events(struct ml_thread *self, struct ml_open *open) {
  uint64_t spent[ML_COUNT_EVENTS + 2] = {0};
  const uint64_t before = ml_ticks();
  ml_events_end(self->event_state, open->events, spent);
  struct ml_count_place *place = open->place;
  cost(self, place, ml_ticks() - before + ml_clock_read_cost);
  uint64_t *sums = open->flags & ML_OPEN_UNTOUCHED ? place->untouched_events : place->counted_events;
  place->event_enabled_ns += spent[ML_COUNT_EVENTS];
  /* not read, or never scheduled: no value, not 0 */
  if (spent[ML_COUNT_EVENTS] != 0 && spent[ML_COUNT_EVENTS + 1] == 0) {
    place->event_unseen_ns += spent[ML_COUNT_EVENTS];
    return;
  }
  place->events_read |= self->events_open;
  for (int i = 0; i < ML_COUNT_EVENTS; i++) sums[i] += spent[i];
  place->event_running_ns += spent[ML_COUNT_EVENTS + 1];
}

NEVER_INLINE void settle_counted(struct ml_open *open, uint64_t spent) {
  open->place->counted_of_duration[63u - (unsigned)__builtin_clzll(spent | 1)]++;
  if (open->group == 0) return;
  struct ml_count_place *group = (struct ml_count_place *)((unsigned char *)open->base - ML_COUNT_PLACE_COUNTERS);
  group->counted++;
  group->counted_ticks += spent;
}

/* Adds one execution to its place, and its time to what is around it. */
ALWAYS_INLINE void settle(struct ml_thread *self, struct ml_open *open, uint64_t now, bool abandoned) {
  struct ml_count_place *place = open->place;
  const uint64_t overhead = self->overhead_ticks - open->overhead_ticks;
  uint64_t spent = now - open->begin_ticks - ml_clock_read_cost - overhead;
  if (ML_UNLIKELY((int64_t)spent < 0)) spent = 0;
  place->overhead_ticks += overhead;
  if (ML_LIKELY(open->span == NULL)) place->unspanned_ticks += spent;
  else ml_span_leave(open->span, now);
  const uint64_t own = spent > open->nested_ticks ? spent - open->nested_ticks : 0;
  if (ML_UNLIKELY(place->counted + place->untouched == 0 || spent < place->least_ticks)) place->least_ticks = spent;
  if (ML_UNLIKELY(spent > place->most_ticks)) place->most_ticks = spent;
  if (open->flags & ML_OPEN_UNTOUCHED) {
    place->untouched_ticks += spent;
    place->untouched_self_ticks += own;
    place->untouched++;
    const unsigned duration = 63u - (unsigned)__builtin_clzll(spent | 1);
    place->untouched_of_duration[duration]++;
    place->untouched_ticks_of_duration[duration] += spent;
  } else {
    place->counted_ticks += spent;
    place->counted_self_ticks += own;
    place->counted++;
    if (ML_UNLIKELY(ml_is_sampling)) settle_counted(open, spent);
  }
  place->last_ticks = now;
  place->open_ticks = 0;
  if (ML_UNLIKELY(abandoned)) place->abandoned++;
  open[-1].nested_ticks += spent;
}

NEVER_INLINE void forward_end(struct ml_thread *self, struct ml_open *open) {
  const uint64_t before = ml_ticks();
  ml_other_hooks->region_end(ml_name_text(open->name));
  cost(self, open->place, ml_ticks() - before + ml_clock_read_cost);
}

ALWAYS_INLINE void close_top(struct ml_thread *self, uint64_t now, bool abandoned) {
  struct ml_open *open = self->top, *below = open - 1;
  if (ML_LIKELY((open->flags & ML_OPEN_SILENT) == 0)) {
    settle(self, open, now, abandoned);
    cost(self, open->place, switch_cost);
    if (ML_UNLIKELY(self->events_open != 0)) close_events(self, open);
  } else {
    below->nested_ticks += open->nested_ticks;
  }
  self->top = below;
  __memlens_count_base = below->base;
  if (ML_UNLIKELY(open->flags & ML_OPEN_FORWARDED)) forward_end(self, open);
  if (ML_UNLIKELY(now - self->synced_ticks > ml_sync_ticks)) ml_process_sync(self, now);
}

static bool is_floor(const struct ml_open *open) { return (open->flags & (ML_OPEN_ROOT | ML_OPEN_HANDED)) != 0; }

NEVER_INLINE void close_down_to(struct ml_thread *self, struct ml_open *last) {
  const uint64_t now = ml_ticks();
  self->too_deep = 0;
  while (self->top >= last) close_top(self, now, true);
}

/* Closes what frames below `frame` began and did not end; see the head of this file. */
NEVER_INLINE struct ml_open *drop_stale(struct ml_thread *self, uintptr_t frame, bool unwound) {
  struct ml_open *gone = NULL;
  if (self->stack_high == 0 || !on_stack(self, frame)) return self->top;
  for (struct ml_open *open = self->top; !is_floor(open) && open->frame < frame; open--) {
    if (!on_stack(self, open->frame)) break;
    if (unwound || (open->flags & ML_OPEN_ANY_FRAME) == 0 || ml_pairing[open->name] == ML_PAIRING_ONE_FRAME)
      gone = open;
  }
  if (gone != NULL) close_down_to(self, gone);
  for (struct ml_open *open = self->top; !is_floor(open) && open->frame < frame && on_stack(self, open->frame);
       open--) {
    open->frame = frame; /* it outlived its frame: begun by a function that returned */
    open->flags |= ML_OPEN_ADOPTED;
  }
  return self->top;
}

/* Closes what was begun after `mark`, in `frame` or below it: the call that took the mark has returned again. `keep`: the caller ends regions of
 * memlens.h itself that it began. */
NEVER_INLINE void drop_newer(struct ml_thread *self, uint64_t mark, uintptr_t frame, bool keep) {
  struct ml_open *gone = NULL;
  const bool known_stack = self->stack_high != 0 && on_stack(self, frame);
  for (struct ml_open *open = self->top; !is_floor(open) && open->serial > mark; open--) {
    if (open->frame != frame && (!known_stack || !on_stack(self, open->frame) || open->frame > frame)) break;
    if (keep && open->frame == frame && (open->flags & ML_OPEN_ANY_FRAME) != 0) break;
    gone = open;
  }
  if (gone != NULL) close_down_to(self, gone);
}

/* ---- entering ------------------------------------------------------------------------------------------------- */
NEVER_INLINE void find_way(struct ml_thread *self, uint32_t node, uint32_t name, struct ml_switch *way) {
  const uint64_t before = ml_ticks();
  bool is_open;
  uint32_t below = ml_node_below(node, name, &is_open);
  uint32_t flags = is_open ? ML_OPEN_SILENT : 0;
  if (below == UINT32_MAX) { /* no room for a node: counted for the one around it */
    below = node;
    flags = ML_OPEN_SILENT;
  }
  struct ml_count_place *place = ml_place_of(self, below)->place;
  /* Without a name first: a signal handler may look at this between two stores. */
  way->name = 0;
  FENCE();
  *way = (struct ml_switch){.node = node,
                            .below = below,
                            .flags = flags,
                            .place = place,
                            .base = counters_of(self, place),
                            .span = ml_node_span(below)};
  FENCE();
  way->name = name;
  cost(self, place, ml_ticks() - before + ml_clock_read_cost);
}

/* The same begin, in the same frame, while it is open: a loop that left out the end. */
NEVER_INLINE bool close_repeated(struct ml_thread *self, uint32_t name, uintptr_t frame, const void *site) {
  for (struct ml_open *open = self->top; !is_floor(open); open--)
    if (open->name == name && open->frame == frame && open->site == site && site != NULL) {
      close_down_to(self, open);
      return true;
    }
  return false;
}

/* Regions that recurse through each other (a, b, a, b): the second a counts for the open node of the first, so what it enters
 * may be open below it. */
NEVER_INLINE uint32_t flags_reentered(const struct ml_thread *self, uint32_t node) {
  for (const struct ml_open *open = self->top; !is_floor(open); open--)
    if (open->node == node && (open->flags & ML_OPEN_SILENT) == 0) return ML_OPEN_SILENT;
  return 0;
}

/* There is no room for another name: the region counts for the one around it, and so does its end. */
NEVER_INLINE int refuse_name(struct ml_thread *self) {
  ml_add(&ml_process.shared->regions_refused, 1);
  return (self->top->flags & ML_OPEN_UNTOUCHED) == 0;
}

NEVER_INLINE uint32_t forward_begin(struct ml_thread *self, struct ml_count_place *place, uint32_t name) {
  const uint64_t before = ml_ticks();
  ml_other_hooks->region_begin(ml_name_text(name));
  cost(self, place, ml_ticks() - before + ml_clock_read_cost);
  return ML_OPEN_FORWARDED;
}

NEVER_INLINE void begin_events(struct ml_thread *self, struct ml_open *open) {
  const uint64_t before = ml_ticks();
  ml_events_begin(self->event_state, open->events);
  cost(self, open->place, ml_ticks() - before + ml_clock_read_cost);
}

/* Where an execution of a group counts; without room for the group in the place, as one that is counted in any case. */
NEVER_INLINE uint64_t *base_of_group(struct ml_thread *self, struct ml_open *open, const struct ml_switch *way) {
  const uint64_t before = ml_ticks();
  uint64_t *counters = way->place != &ml_no_place ? ml_group_counters(self, way->below, open->group) : NULL;
  if (counters == NULL) open->group = 0;
  cost(self, way->place, ml_ticks() - before + ml_clock_read_cost);
  return counters != NULL ? counters : way->base;
}

/* Short executions of several threads would wait for each other at the node's word. */
ALWAYS_INLINE bool is_worth_a_span(const struct ml_count_place *place) {
  return place->entered <= ML_SPAN_FIRST ||
         place->counted_ticks + place->untouched_ticks >= place->entered * least_span;
}

ALWAYS_INLINE int enter(struct ml_thread *self, uint32_t name, uint32_t flags, uintptr_t frame, const void *site,
                        bool may_skip) {
  struct ml_open *top = self->top;
  if (ML_UNLIKELY(name == 0)) return refuse_name(self);
  if (ML_UNLIKELY(top->frame < frame)) top = drop_stale(self, frame, false);
  struct ml_switch *way;
again:
  way = &self->cache[(top->node * 5 + name) % ML_SWITCH_CACHE];
  if (ML_UNLIKELY(way->node != top->node || way->name != name)) find_way(self, top->node, name, way);
  if (ML_UNLIKELY(way->flags & ML_OPEN_SILENT) && close_repeated(self, name, frame, site)) {
    top = self->top;
    goto again;
  }
  if (ML_UNLIKELY(top == &self->stack[ML_DEPTH_MAX])) {
    self->too_deep++;
    ml_add(&ml_process.shared->regions_too_deep, 1);
    return (top->flags & ML_OPEN_UNTOUCHED) == 0;
  }
  struct ml_open *open = top + 1;
  struct ml_count_place *place = way->place;
  flags |= way->flags | (top->flags & (ML_OPEN_UNTOUCHED | ML_OPEN_REENTERED));
  if (ML_UNLIKELY(flags & ML_OPEN_REENTERED)) flags |= flags_reentered(self, way->below);
  uint64_t executions;
  open->group = top->group;
  if (ML_UNLIKELY(flags & ML_OPEN_SILENT)) {
    flags |= ML_OPEN_REENTERED;
    executions = ++place->recursions;
  } else {
    /* Chance decides once, for the outermost: what is inside a counted execution is counted, one in N of all. */
    if (may_skip && (flags & ML_OPEN_UNTOUCHED) == 0 && ML_UNLIKELY(ml_is_sampling) && open->group == 0) {
      const enum ml_choice choice = ml_sampled(self, place);
      if (choice == ML_SKIP) flags |= ML_OPEN_UNTOUCHED;
      else if (choice == ML_COUNT_BY_CHANCE) open->group = ml_draw_group(self);
    }
    executions = ++place->entered;
  }
  if (ML_UNLIKELY(ml_other_hooks != NULL) && executions <= ML_FORWARDED_MAX) flags |= forward_begin(self, place, name);
  open->base = ML_UNLIKELY(flags & ML_OPEN_UNTOUCHED) ? ml_thread_dump(self)
               : ML_UNLIKELY(open->group != 0)        ? base_of_group(self, open, way)
                                                      : way->base;
  open->place = place;
  open->span = NULL;
  open->nested_ticks = 0;
  open->frame = frame;
  open->site = site;
  open->node = way->below;
  open->name = name;
  open->flags = flags;
  open->serial = ++self->begins;
  if (ML_UNLIKELY(self->events_open != 0) && (flags & ML_OPEN_SILENT) == 0) begin_events(self, open);
  open->overhead_ticks = self->overhead_ticks;
  FENCE(); /* a signal handler takes the next entry once this one is the top */
  self->top = open;
  __memlens_count_base = open->base;
  if (ML_LIKELY((flags & ML_OPEN_SILENT) == 0)) {
    const uint64_t now = ml_ticks();
    open->begin_ticks = now;
    place->open_ticks = now;
    if (ML_UNLIKELY(is_worth_a_span(place)) && way->span != NULL) {
      ml_span_enter(way->span, now);
      open->span = way->span;
    }
    if (ML_UNLIKELY(place->first_ticks == 0)) place->first_ticks = now;
  }
  return (flags & ML_OPEN_UNTOUCHED) == 0;
}

ALWAYS_INLINE void leave(struct ml_thread *self, uint32_t name, uintptr_t frame, uint64_t now) {
  struct ml_open *open = self->top;
  if (ML_UNLIKELY(open->name != name || name == 0 || self->too_deep != 0)) {
    if (name == 0) return;
    if (self->too_deep != 0) {
      self->too_deep--;
      return;
    }
    while (!is_floor(open) && open->name != name) open--;
    if (is_floor(open)) { /* an end without a begin */
      note_ignored();
      drop_stale(self, frame, false);
      return;
    }
    if (open < self->top) close_down_to(self, open + 1);
  }
  if ((open->flags & ML_OPEN_ANY_FRAME) != 0 && ML_UNLIKELY(ml_pairing[name] != ML_PAIRING_ANY)) {
    const bool one_frame = open->frame >= frame && (open->flags & ML_OPEN_ADOPTED) == 0;
    if (!one_frame || ml_pairing[name] == ML_PAIRING_UNKNOWN)
      ml_pairing[name] = one_frame ? ML_PAIRING_ONE_FRAME : ML_PAIRING_ANY;
  }
  close_top(self, now, false);
}

/* ---- a region variable's number ----------------------------------------------------------------------------------- */
/* The name's number, and above it what tells this copy of the runtime from others: a variable of an inline C++ function
 * may be one for modules that are served by different copies. */
#define NAME_BITS 16
#define COOKIE_MASK (~(ML_COUNT_REGION_ANY_FRAME | ((UINT64_C(1) << NAME_BITS) - 1)))
static const char cookie_address;
ALWAYS_INLINE uint64_t cookie(void) { return ((uint64_t)(uintptr_t)&cookie_address << NAME_BITS) & COOKIE_MASK; }

NEVER_INLINE uint32_t number_region(struct ml_thread *self, struct ml_count_region *region, uint64_t number) {
  const uint64_t before = ml_ticks();
  const uint32_t name = ml_name_of(region->name);
  __atomic_store_n(&region->number, (number & ML_COUNT_REGION_ANY_FRAME) | cookie() | name, __ATOMIC_RELAXED);
  self->overhead_ticks += ml_ticks() - before + ml_clock_read_cost;
  return name;
}

ALWAYS_INLINE uint32_t name_of_region(struct ml_thread *self, struct ml_count_region *region, uint32_t *flags) {
  const uint64_t number = __atomic_load_n(&region->number, __ATOMIC_RELAXED);
  *flags = number & ML_COUNT_REGION_ANY_FRAME ? ML_OPEN_ANY_FRAME : 0;
  if (ML_UNLIKELY((number & COOKIE_MASK) != cookie() || (number & 0xffff) == 0))
    return number_region(self, region, number);
  return number & ((1u << NAME_BITS) - 1);
}

/* ---- the contract -------------------------------------------------------------------------------------------------- */
/* True: the thread can switch now. Nothing switches in a handler that interrupted a switch of its own thread. */
NEVER_INLINE struct ml_thread *prepare(uintptr_t frame) {
  if (ml_process.shared == NULL || ml_tls.ended) return NULL;
  struct ml_thread *self = ml_tls.self;
  if (self == NULL) self = ml_thread_adopt(frame);
  if (self == NULL || self->top == NULL) return NULL;
  if (self->busy != 0) {
    /* A handler left a switch by longjmp; what is shallower than that switch can tell. */
    if (!on_stack(self, self->busy) || !on_stack(self, frame) || self->busy >= frame) {
      note_ignored();
      return NULL;
    }
    self->busy = 0;
  }
  return self;
}

/* `self` stays at hand when nothing is special, and is NULL when the call is to be ignored. */
ALWAYS_INLINE struct ml_thread *begin_switch(uintptr_t frame) {
  struct ml_thread *self = ml_tls.self;
  if (ML_UNLIKELY(self == NULL || self->busy != 0)) {
    if (ml_process.shared == NULL) return NULL;
    self = prepare(frame);
    if (self == NULL) return NULL;
  }
  self->busy = frame;
  FENCE();
  return self;
}

ALWAYS_INLINE void end_switch(struct ml_thread *self) {
  if (ML_UNLIKELY(ml_trace_selects != 0)) ml_trace_switched(self);
  FENCE();
  self->busy = 0;
}

/* Nobody counts, but the other recorder may listen. */
ALWAYS_INLINE void forward_only(const char *name, bool is_end) {
  if (ML_LIKELY(ml_other_hooks == NULL) || ml_process.shared != NULL) return;
  if (is_end) ml_other_hooks->region_end(name);
  else ml_other_hooks->region_begin(name);
}

ML_EXPORT int __memlens_count_enter(struct ml_count_region *region) {
  const uintptr_t frame = CALLER_FRAME();
  struct ml_thread *self = begin_switch(frame);
  if (ML_UNLIKELY(self == NULL)) {
    int (*other)(struct ml_count_region *) = ml_delegate(ML_DELEGATE_ENTER);
    if (other != NULL) return other(region);
    forward_only(region->name, false);
    return 1;
  }
  uint32_t flags;
  const uint32_t name = name_of_region(self, region, &flags);
  const int counts = enter(self, name, flags, frame, __builtin_return_address(0), false);
  end_switch(self);
  return counts;
}

ML_EXPORT int __memlens_count_enter_sampled(struct ml_count_region *region) {
  const uintptr_t frame = CALLER_FRAME();
  struct ml_thread *self = begin_switch(frame);
  if (ML_UNLIKELY(self == NULL)) {
    int (*other)(struct ml_count_region *) = ml_delegate(ML_DELEGATE_ENTER_SAMPLED);
    if (other != NULL) return other(region);
    forward_only(region->name, false);
    return ml_process.shared != NULL; /* nobody counts: the untouched copy is the faster one */
  }
  uint32_t flags;
  const uint32_t name = name_of_region(self, region, &flags);
  const int counts = enter(self, name, flags, frame, __builtin_return_address(0), true);
  end_switch(self);
  return counts;
}

ML_EXPORT void __memlens_count_leave(struct ml_count_region *region) {
  const uintptr_t frame = CALLER_FRAME();
  struct ml_thread *self = begin_switch(frame);
  if (ML_UNLIKELY(self == NULL)) {
    void (*other)(struct ml_count_region *) = ml_delegate(ML_DELEGATE_LEAVE);
    if (other != NULL) other(region);
    else forward_only(region->name, true);
    return;
  }
  const uint64_t now = ml_ticks();
  uint32_t flags;
  leave(self, name_of_region(self, region, &flags), frame, now);
  end_switch(self);
}

ML_EXPORT void __memlens_count_unwound(void) {
  const uintptr_t frame = CALLER_FRAME();
  if (ml_tls.self == NULL) {
    void (*other)(void) = ml_delegate(ML_DELEGATE_UNWOUND);
    if (other != NULL) other();
    return;
  }
  struct ml_thread *self = begin_switch(frame);
  if (self == NULL) return;
  if (self->top->frame < frame) drop_stale(self, frame, true);
  end_switch(self);
}

ML_EXPORT uint64_t __memlens_count_mark(void) {
  const struct ml_thread *self = ml_tls.self;
  if (ML_LIKELY(self != NULL)) return self->begins;
  uint64_t (*other)(void) = ml_delegate(ML_DELEGATE_MARK);
  return other != NULL ? other() : 0;
}

ML_EXPORT void __memlens_count_returned(uint64_t mark, int keep) {
  const uintptr_t frame = CALLER_FRAME();
  if (ml_tls.self == NULL) {
    void (*other)(uint64_t, int) = ml_delegate(ML_DELEGATE_RETURNED);
    if (other != NULL) other(mark, keep);
    return;
  }
  struct ml_thread *self = begin_switch(frame);
  if (self == NULL) return;
  if (self->begins != mark) drop_newer(self, mark, frame, keep != 0);
  if (self->top->frame < frame) drop_stale(self, frame, true);
  end_switch(self);
}

/* Names that are not constant, and begins from objects of other compilers. A thread that has never counted stays out of it. */
void ml_begin_named(const char *name, uintptr_t frame, const void *site) {
  struct ml_thread *self = begin_switch(frame);
  if (self == NULL) {
    void (*other)(const char *) = ml_delegate(ML_DELEGATE_BEGIN);
    if (other != NULL) other(name);
    else forward_only(name, false);
    return;
  }
  enter(self, ml_name_of(name), ML_OPEN_ANY_FRAME, frame, site, false);
  end_switch(self);
}

void ml_end_named(const char *name, uintptr_t frame) {
  struct ml_thread *self = begin_switch(frame);
  if (self == NULL) {
    void (*other)(const char *) = ml_delegate(ML_DELEGATE_END);
    if (other != NULL) other(name);
    else forward_only(name, true);
    return;
  }
  const uint64_t now = ml_ticks();
  leave(self, ml_name_of(name), frame, now);
  end_switch(self);
}

ML_EXPORT void __memlens_count_begin(const char *name) {
  ml_begin_named(name, CALLER_FRAME(), __builtin_return_address(0));
}
ML_EXPORT void __memlens_count_end(const char *name) { ml_end_named(name, CALLER_FRAME()); }

/* ---- work of other threads' regions ------------------------------------------------------------------------------------ */
void ml_spans_enter(uint32_t node, uint64_t now) {
  for (; node != 0; node = ml_node_parent(node)) {
    struct ml_count_span *span = ml_node_span(node);
    if (span != NULL) ml_span_enter(span, now);
  }
}

void ml_spans_leave(uint32_t node, uint64_t now) {
  for (; node != 0; node = ml_node_parent(node)) {
    struct ml_count_span *span = ml_node_span(node);
    if (span != NULL) ml_span_leave(span, now);
  }
}

void ml_hand_begin(struct ml_thread *self, uint32_t node, bool untouched, uint32_t group) {
  if (self->top == &self->stack[ML_DEPTH_MAX]) {
    self->too_deep++;
    return;
  }
  struct ml_count_place *place = ml_place_of(self, node)->place;
  struct ml_open *open = self->top + 1;
  uint64_t *of_group = group != 0 && !untouched && place != &ml_no_place ? ml_group_counters(self, node, group) : NULL;
  *open = (struct ml_open){.base = untouched          ? ml_thread_dump(self)
                                   : of_group != NULL ? of_group
                                                      : counters_of(self, place),
                           .group = of_group != NULL ? group : 0,
                           .place = place,
                           .frame = ML_NO_FRAME,
                           .node = node,
                           .begin_ticks = ml_ticks(),
                           .flags = ML_OPEN_HANDED | (untouched ? (uint32_t)ML_OPEN_UNTOUCHED : 0u)};
  place->joined++;
  place->joined_open_ticks = open->begin_ticks;
  ml_spans_enter(node, open->begin_ticks);
  FENCE();
  self->top = open;
  __memlens_count_base = open->base;
  if (ml_trace_selects != 0) ml_trace_switched(self);
}

static struct ml_open *handed_work(struct ml_thread *self) {
  struct ml_open *open = self->top;
  while (!is_floor(open)) open--;
  return (open->flags & ML_OPEN_HANDED) != 0 ? open : NULL;
}

static void settle_handed(struct ml_open *open) {
  if ((open->flags & ML_OPEN_IDLE) == 0) {
    const uint64_t now = ml_ticks();
    open->place->joined_ticks += now - open->begin_ticks;
    ml_spans_leave(open->node, now);
  }
  open->place->joined_open_ticks = 0;
}

void ml_hand_idle(struct ml_thread *self) {
  struct ml_open *open = self->too_deep == 0 ? handed_work(self) : NULL;
  if (open == NULL) return;
  settle_handed(open);
  open->flags |= ML_OPEN_IDLE;
}

void ml_hand_end(struct ml_thread *self) {
  if (self->too_deep != 0) {
    self->too_deep--;
    return;
  }
  struct ml_open *open = handed_work(self);
  if (open == NULL) return;
  if (open < self->top) close_down_to(self, open + 1);
  settle_handed(open);
  self->top = open - 1;
  __memlens_count_base = self->top->base;
  if (ml_trace_selects != 0) ml_trace_switched(self);
}

/* The process or thread ends: times so far are kept, and what is open stays where it counts. */
void ml_settle_open(struct ml_thread *self) {
  if (self->top == NULL) return;
  const uint64_t now = ml_ticks();
  for (struct ml_open *open = self->top; open >= self->stack; open--) {
    if (is_floor(open)) {
      if (open->place->joined_open_ticks != 0) {
        open->place->joined_ticks += now - open->begin_ticks;
        ml_spans_leave(open->node, now);
      }
      open->place->joined_open_ticks = 0;
      continue;
    }
    if (open->flags & ML_OPEN_SILENT) open[-1].nested_ticks += open->nested_ticks;
    else {
      settle(self, open, now, true);
      open->span = NULL;
      if (self->events_open != 0) close_events(self, open);
    }
    open->flags |= ML_OPEN_SILENT;
    open->nested_ticks = 0;
  }
}

/* A fork's child goes on in places of its own; what is open began now, as far as it can tell. */
void ml_regions_forked(struct ml_thread *self) {
  const uint64_t now = ml_ticks();
  memset(self->cache, 0, sizeof self->cache);
  for (struct ml_open *open = self->stack; open <= self->top; open++) {
    open->place = ml_place_of_locked(self, open->node)->place;
    if ((open->flags & ML_OPEN_UNTOUCHED) == 0) open->base = counters_of(self, open->place);
    open->begin_ticks = now;
    open->nested_ticks = 0;
    open->overhead_ticks = self->overhead_ticks;
    open->group = 0;
    open->span = NULL;
    if (is_floor(open)) {
      if (open->node == 0) continue;
      open->place->joined++;
      open->place->joined_open_ticks = now;
      ml_spans_enter(open->node, now);
    } else if ((open->flags & ML_OPEN_SILENT) == 0) {
      open->place->entered++;
      open->place->open_ticks = now;
      open->place->first_ticks = now;
      open->span = ml_node_span(open->node);
      if (open->span != NULL) ml_span_enter(open->span, now);
    }
  }
}

#define SPAN_SWITCHES 64u /* an execution that lasts as long as so many empty regions takes part in spans */
#define MEASURED 64

/* Their own names, not to be replaced: the calls cost a part of it. */
extern __typeof__(__memlens_count_enter) ml_own_enter
    __attribute__((alias("__memlens_count_enter"), visibility("hidden")));
extern __typeof__(__memlens_count_leave) ml_own_leave
    __attribute__((alias("__memlens_count_leave"), visibility("hidden")));

NEVER_INLINE void empty_regions(struct ml_count_region *region) {
  int (*volatile const enter_one)(struct ml_count_region *) = ml_own_enter;
  void (*volatile const leave_one)(struct ml_count_region *) = ml_own_leave;
  for (int i = 0; i < MEASURED; i++) {
    enter_one(region);
    leave_one(region);
  }
}

/* What an empty region costs the one around it, without what counts as its own time: run on a thread's block that is not in use. Many in a
 * row: a processor hides part of a single one behind the reading of the clock. */
void ml_measure_switch(struct ml_thread *idle) {
  uint64_t *const base = __memlens_count_base;
  const struct memlens_hooks *const hooks = ml_other_hooks;
  const uint32_t name = 1;
  struct ml_count_region region = {.name = "", .number = cookie() | name};
  ml_other_hooks = NULL;
  idle->stack[0] = (struct ml_open){.base = base, .place = &ml_no_place, .frame = ML_NO_FRAME, .flags = ML_OPEN_ROOT};
  idle->top = idle->stack;
  idle->cache[name % ML_SWITCH_CACHE] =
      (struct ml_switch){.name = name, .below = 1, .place = &ml_no_place, .base = base};
  idle->synced_ticks = ml_ticks();
  ml_tls.self = idle;
  least_span = switch_cost = 0;
  uint64_t least = UINT64_MAX;
  for (int round = 0; round < 6; round++) { /* the first warms up */
    const uint64_t counted_before = ml_no_place.counted_ticks, before = ml_ticks();
    empty_regions(&region);
    const uint64_t elapsed = ml_ticks() - before, counted = ml_no_place.counted_ticks - counted_before;
    if (elapsed - counted < least) least = elapsed - counted;
  }
  ml_tls.self = NULL;
  idle->overhead_ticks = 0;
  memset(idle->cache, 0, sizeof idle->cache);
  memset(&ml_no_place, 0, sizeof ml_no_place);
  switch_cost = least / MEASURED;
  ml_process.shared->switch_cost_ticks = switch_cost;
  least_span = SPAN_SWITCHES * (switch_cost + 1);
  ml_other_hooks = hooks;
  __memlens_count_base = base;
}
