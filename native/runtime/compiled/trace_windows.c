/* Windows of a trace: from the words that segments write to `window` records.
 *
 * Where windows begin. The accesses of a thread are cut into cells of `period`; in each cell one start is sampled uniformly, so every
 * access has the same probability, independent of the period of loops. A start that falls into the window before it is late: its window
 * begins where that one ends, so there is one for each cell in any case.
 *
 * What is in a window. It begins at exactly the sampled access and ends with the access that is its last recorded one: of the
 * segments at both ends only that part belongs to it. Constants come after the recorded accesses of their segment. The
 * numbers add up: recorded + implied_constant = accesses from the record's first to its end. What a stream leaves out is
 * counted as implied: constants, stores where only loads are recorded, accesses that a signal handler interrupted. */
#include "trace.h"

#include <sched.h>
#include <string.h>

#define FEWEST_WORDS 64u /* asked for at once: calls cost more than accesses behind the end of a window */
/* at once, used again and again: they stay in the first cache, and so does more of the program's data */
#define MOST_WORDS 512u
#define TELL_AFTER 10000u /* executed accesses */
#define MOST_OF_RECORD (UINT64_C(1) << 31)

static uint64_t draw(struct ml_trace *trace, uint64_t below) {
  uint64_t x = trace->random; /* xorshift64* */
  x ^= x >> 12;
  x ^= x << 25;
  x ^= x >> 27;
  trace->random = x;
  return (uint64_t)((unsigned __int128)(x * UINT64_C(0x2545F4914F6CDD1D)) * below >> 64);
}

static uint64_t start_in(struct ml_trace *trace, uint64_t cell) {
  trace->cell = cell;
  return ml_trace_settings.full ? 0 : cell * ml_trace_settings.period + draw(trace, ml_trace_settings.period);
}

void ml_trace_begin(struct ml_trace *trace) {
  uint64_t seed = ml_trace_settings.seed + (uint64_t)trace->thread->order * UINT64_C(0x9e3779b97f4a7c15) +
                  (uint64_t)ml_process.generation * UINT64_C(0xd1b54a32d192ed03);
  seed = (seed ^ seed >> 30) * UINT64_C(0xbf58476d1ce4e5b9); /* neighbours get states that are nothing alike */
  seed = (seed ^ seed >> 27) * UINT64_C(0x94d049bb133111eb);
  trace->random = (seed ^ seed >> 31) | 1;
  trace->executed = trace->told = trace->recorded = trace->lost = trace->lost_records = trace->lost_executed = 0;
  trace->open = trace->buffering = trace->parked = trace->has_facts = trace->found_torn = false;
  trace->base = 0;
  trace->region_generation = UINT32_MAX;
  trace->image_string = 0;
  trace->words_each = 512;
  trace->start = start_in(trace, 0);
  trace->active = true;
}

static struct ml_trace_share *share_of(const struct ml_trace *trace) {
  struct ml_trace_share *shares = (void *)((unsigned char *)ml_process.shared + ML_TRACE_SHARES_BYTE);
  const uint32_t order = trace->thread->order;
  return &shares[order < ML_TRACE_SHARES ? order : ML_TRACE_SHARES - 1];
}

/* ---- records --------------------------------------------------------------------------------------------------- */
void ml_trace_facts_now(struct ml_trace *trace) {
  const uint32_t node = trace->node;
  if (trace->region_node != node || trace->region_generation != ml_process.generation) {
    const char *name = ml_node_name(node);
    trace->region_string = ml_trace_services->string(name, strlen(name));
    trace->region_node = node;
    trace->region_generation = ml_process.generation;
  }
  const int cpu = sched_getcpu();
  trace->facts = (struct ml_trace_facts){
      .begin_ns = ml_now_ns(),
      .stack = ml_trace_settings.stacks && trace->caller != NULL ? ml_trace_services->stack(trace->caller) : 0,
      .region = trace->region_string,
      .cpu = (uint16_t)(cpu < 0 ? 0 : cpu)};
  trace->has_facts = true;
}

static uint32_t new_image_string(void) {
  char text[32] = "image ", digits[24];
  size_t length = 6, count = 0;
  for (uint64_t left = ml_process.born_ns; left != 0; left /= 10) digits[count++] = (char)('0' + left % 10);
  while (count > 0) text[length++] = digits[--count];
  return ml_trace_services->string(text, length);
}

/* Asked for once in a process image; 0 again when it found no room. */
static uint32_t image_string(struct ml_trace *trace) {
  if (trace->image_string == 0 || trace->image_generation != ml_process.generation) {
    trace->image_string = new_image_string();
    trace->image_generation = ml_process.generation;
  }
  return trace->image_string;
}

static bool write_window(struct ml_trace *trace, struct ml_window *window, const void *stream, bool wait) {
  window->thread = trace->thread->tid;
  window->module = image_string(trace);
  if (window->module == 0) return false; /* without it nobody knows what sites mean */
  window->encoding = ML_ENUM_stream_encoding_SITE_SEGMENTS;
  if (window->period == 0) window->period = ml_trace_settings.period;
  return ml_trace_services->write(ML_KIND_WINDOW, window, sizeof *window, stream, window->tail_bytes, wait) != 0;
}

/* Where in time records were lost, as soon as there is room again. */
static bool tell_lost(struct ml_trace *trace, bool wait) {
  if (trace->lost_records == 0) return true;
  struct ml_window window = {.begin_ns = trace->lost_begin_ns,
                             .end_ns = trace->lost_end_ns,
                             .first_executed = trace->lost_first,
                             .executed = trace->lost_executed,
                             .dropped = trace->lost};
  if (!write_window(trace, &window, NULL, wait)) return false;
  trace->lost = trace->lost_records = trace->lost_executed = 0;
  return true;
}

static void note_lost(struct ml_trace *trace, const struct ml_window *window) {
  if (trace->lost_records++ == 0) {
    trace->lost_first = window->first_executed;
    trace->lost_begin_ns = window->begin_ns;
  }
  trace->lost += window->recorded;
  trace->lost_executed += window->executed;
  trace->lost_end_ns = window->end_ns;
  ml_add(&ml_process.shared->trace_dropped_windows, 1);
  ml_add(&ml_process.shared->trace_dropped, window->recorded);
}

static void begin_record(struct ml_trace *trace, uint64_t number) {
  if (!trace->has_facts) ml_trace_facts_now(trace);
  trace->has_facts = false;
  trace->first = number;
  trace->recorded = 0;
  trace->at = (struct ml_segments_at){.names = trace->names, .words = trace->bytes + ML_TRACE_WORDS_AT};
  ml_segments_begin(&trace->segments);
}

/* `number` is that of the first access behind the record, `next` where the next record or window begins. */
static void end_record(struct ml_trace *trace, uint64_t number, uint64_t next) {
  if (number == trace->first) return;
  const unsigned char *stream = trace->bytes;
  size_t stream_bytes = 0;
  if (trace->at.names != trace->names) {
    stream = ml_segments_join(trace->names, (size_t)(trace->at.names - trace->names), trace->bytes + ML_TRACE_WORDS_AT);
    stream_bytes = (size_t)(trace->at.words - stream);
  }
  struct ml_window window = {.begin_ns = trace->facts.begin_ns,
                             .end_ns = ml_now_ns(),
                             .first_executed = trace->first,
                             .executed = next - trace->first,
                             .recorded = (uint32_t)trace->recorded,
                             .implied_constant = (uint32_t)(number - trace->first - trace->recorded),
                             .region = trace->facts.region,
                             .stack = trace->facts.stack,
                             .tail_bytes = (uint32_t)stream_bytes,
                             .cpu = trace->facts.cpu,
                             .period = ml_trace_settings.full ? trace->recorded : 0};
  if (tell_lost(trace, ml_trace_settings.wait) && write_window(trace, &window, stream, ml_trace_settings.wait)) {
    struct ml_trace_share *share = share_of(trace);
    ml_add(&share->windows, 1);
    ml_add(&share->recorded, window.recorded);
    ml_add(&share->implied, window.implied_constant);
  } else {
    note_lost(trace, &window);
  }
}

static void cut_at(struct ml_trace *trace, uint64_t number) {
  end_record(trace, number, number);
  begin_record(trace, number);
}

static void open_at(struct ml_trace *trace, uint64_t number) {
  trace->open = true;
  trace->goal = ml_trace_settings.window;
  trace->last = number;
  begin_record(trace, number);
}

static void close_at(struct ml_trace *trace, uint64_t number) {
  uint64_t next = number;
  if (!ml_trace_settings.full) {
    next = start_in(trace, trace->cell + 1);
    if (next < number) {
      ml_add(&ml_process.shared->trace_late, 1);
      next = number;
    }
  }
  end_record(trace, number, next);
  trace->open = false;
  trace->start = next;
}

/* ---- segments ---------------------------------------------------------------------------------------------------- */
static unsigned words_of(uint64_t header) { return (unsigned)(header >> ML_TRACE_WORDS_SHIFT & 31); }

static bool is_header(uint64_t header, uint64_t sites_end) {
  const unsigned form = (unsigned)(header >> ML_TRACE_FORM_SHIFT & 3), words = words_of(header);
  const uint64_t site = header & UINT32_MAX, sites = form == ML_TRACE_SIZED   ? words / 2
                                                     : form == ML_TRACE_LANES ? 1
                                                                              : words;
  if (form == 3 || (form == ML_TRACE_WORDS && words > ML_TRACE_WORDS_MAX) || (form == ML_TRACE_SIZED && words % 2 != 0))
    return false;
  if (ml_trace_executed(header) == 0) return false;
  return site + sites <= sites_end || site + sites <= ML_TRACE_FIRST_SITE;
}

static bool is_full(const struct ml_trace *trace) {
  return trace->at.words > trace->bytes + sizeof trace->bytes - ML_SEGMENTS_WORD_BYTES ||
         trace->at.names > trace->names + sizeof trace->names - ML_SEGMENTS_NAME_BYTES ||
         trace->recorded >= ML_SEGMENTS_MOST_RECORDED;
}

/* Accesses of a segment go into the record: from number `first` of the segment on, `count` of them. */
static void record_run(struct ml_trace *trace, uint64_t header, const uint64_t *words, unsigned first, unsigned count) {
  unsigned form = (unsigned)(header >> ML_TRACE_FORM_SHIFT & 3);
  const unsigned each = form == ML_TRACE_SIZED ? 2 : 1;
  uint64_t site = (header & UINT32_MAX) + (form == ML_TRACE_LANES ? 0 : first);
  if (ML_UNLIKELY((header & UINT32_MAX) < ML_TRACE_FIRST_SITE)) { /* nobody knows which: all of them are site 0 */
    if (form == ML_TRACE_SIZED && count > 1) {
      record_run(trace, header, words, first, 1);
      record_run(trace, header, words, first + 1, count - 1);
      return;
    }
    site = 0;
    ml_add(&ml_process.shared->trace_unregistered, count);
    if (form == ML_TRACE_WORDS) form = ML_TRACE_LANES;
  }
  const bool whole = form == ML_TRACE_WORDS && first == 0 && count == words_of(header) && site != 0;
  ml_segments_add(&trace->segments, &trace->at, whole ? header : 0, site, words + first * each, count * each, form);
  trace->recorded += count;
  trace->goal -= count;
}

/* Whether access number i is one that is recorded; `trace->last` says how far the window has come. One that is executed in a function that
 * nobody asked for takes its place in the window all the same: windows are then as long whatever they come by. */
static bool is_recorded(struct ml_trace *trace, uint64_t header, uint64_t *words, unsigned i, uint64_t number) {
  const unsigned form = (unsigned)(header >> ML_TRACE_FORM_SHIFT & 3);
  if (form == ML_TRACE_SIZED && words[2 * i + 1] > UINT32_MAX) words[2 * i + 1] = UINT32_MAX;
  if (words[form == ML_TRACE_SIZED ? 2 * i : i] == 0 || (form == ML_TRACE_SIZED && words[2 * i + 1] == 0)) return false;
  trace->last = number + 1;
  if (ml_trace_settings.selects_functions &&
      !ml_trace_is_asked_for((header & UINT32_MAX) + (form == ML_TRACE_LANES ? 0 : i))) {
    trace->goal--;
    return false;
  }
  return !ml_trace_settings.loads_only ||
         (header >> (ML_TRACE_STORES_SHIFT + (form == ML_TRACE_LANES ? 0 : i)) & 1) == 0;
}

/* Accesses i to `accesses` of a segment, as far as the window goes; returns the number of the first that it does not take. */
static unsigned record_segment(struct ml_trace *trace, uint64_t header, uint64_t *words, unsigned i, unsigned accesses,
                               uint64_t begin) {
  unsigned run = i; /* recorded from here on, not written yet */
  if (is_full(trace)) cut_at(trace, begin + i);
  while (i < accesses && trace->goal > i - run) {
    const bool takes = is_recorded(trace, header, words, i, begin + i);
    if (!takes && i > run) record_run(trace, header, words, run, i - run);
    i++;
    if (!takes) {
      run = i;
      if (is_full(trace)) cut_at(trace, begin + i);
    }
  }
  if (i > run) record_run(trace, header, words, run, i - run);
  return i;
}

static void take_segment(struct ml_trace *trace, uint64_t header, uint64_t *words) {
  const uint64_t begin = trace->executed, end = begin + ml_trace_executed(header);
  const unsigned form = (unsigned)(header >> ML_TRACE_FORM_SHIFT & 3),
                 accesses = words_of(header) / (form == ML_TRACE_SIZED ? 2 : 1);
  unsigned i = 0;
  for (;;) {
    if (!trace->open) {
      if (trace->start >= end) break;
      if (ML_UNLIKELY(trace->start < begin)) trace->start = begin; /* a handler came between */
      i = (unsigned)(trace->start - begin);
      open_at(trace, trace->start);
    }
    i = record_segment(trace, header, words, i, accesses, begin);
    if (trace->goal != 0) break; /* the constants too are in the window */
    close_at(trace, begin + i);
  }
  trace->executed = end;
  if (ML_UNLIKELY(trace->open && end - trace->last > ml_trace_settings.patience)) close_at(trace, end);
  else if (ML_UNLIKELY(trace->open && end - trace->first > MOST_OF_RECORD)) cut_at(trace, end);
}

void ml_trace_tell(struct ml_trace *trace) {
  ml_add(&share_of(trace)->executed, trace->executed - trace->told);
  trace->told = trace->executed;
}

/* Whether one of the words is 0: what a handler tore, or a masked lane. */
static bool has_zero(const uint64_t *words, const uint64_t *until) {
  uint64_t borrows = 0; /* of no other number below 2^63 the highest bit becomes 1 */
  for (; words < until; words++) borrows |= (*words - 1) & ~*words;
  return borrows >> 63 != 0;
}

#if defined(__x86_64__)
ML_SEGMENTS_VECTORS static bool has_zero_vectors(const uint64_t *words, const uint64_t *until) {
  __m256i zeros = _mm256_setzero_si256(), others = zeros;
  for (; until - words >= 16; words += 16) {
    const __m256i *at = (const __m256i *)words, none = _mm256_setzero_si256();
    zeros = _mm256_or_si256(zeros, _mm256_cmpeq_epi64(_mm256_loadu_si256(at), none));
    others = _mm256_or_si256(others, _mm256_cmpeq_epi64(_mm256_loadu_si256(at + 1), none));
    zeros = _mm256_or_si256(zeros, _mm256_cmpeq_epi64(_mm256_loadu_si256(at + 2), none));
    others = _mm256_or_si256(others, _mm256_cmpeq_epi64(_mm256_loadu_si256(at + 3), none));
  }
  zeros = _mm256_or_si256(zeros, others);
  return !_mm256_testz_si256(zeros, zeros) || has_zero(words, until);
}
#endif

static bool has_zero_anywhere(const uint64_t *words, const uint64_t *until) {
#if defined(__x86_64__)
  if (ML_LIKELY(ml_trace_settings.has_vectors)) return has_zero_vectors(words, until);
#endif
  return has_zero(words, until);
}

/* The usual segment: one that was in this record already, all of it inside the open window. This is most of what a recorded access costs. */
struct usual {
  uint64_t *at; /* the next segment */
  const uint64_t *until;
  uint64_t taken, implied, count, goal;
  bool careful; /* words may be 0 */
};

/* The entry of the next segment, or NULL: it is not a usual one. */
static inline __attribute__((always_inline)) const struct ml_segments_entry *next_usual(const struct ml_trace *trace,
                                                                                        const struct usual *usual) {
  if (usual->at >= usual->until) return NULL;
  const uint64_t header = *usual->at;
  const unsigned words = words_of(header);
  const struct ml_segments_entry *known = ml_segments_known(&trace->segments, header & UINT32_MAX, header);
  if (ML_UNLIKELY(known == NULL || words >= (uint64_t)(usual->until - usual->at) ||
                  usual->taken + words >= usual->goal))
    return NULL;
  if (ML_UNLIKELY(usual->careful) && has_zero(usual->at, usual->at + 1 + words)) return NULL;
  return known;
}

static inline __attribute__((always_inline)) void pass_usual(struct usual *usual) {
  const uint64_t header = *usual->at;
  usual->taken += words_of(header);
  usual->count++;
  usual->implied += header >> ML_TRACE_IMPLIED_SHIFT & ML_TRACE_IMPLIED_MAX;
  usual->at += 1 + words_of(header);
}

static void take_usual_plain(struct ml_trace *trace, struct usual *told) {
  const struct ml_segments_entry *known;
  struct usual usual = *told;
  struct ml_segments_at out = trace->at;
  for (; (known = next_usual(trace, &usual)) != NULL; pass_usual(&usual))
    ml_segments_add_known(&trace->segments, known, &out, *usual.at & UINT32_MAX, usual.at + 1, words_of(*usual.at));
  trace->at = out;
  *told = usual;
}

#if defined(__x86_64__)
ML_SEGMENTS_VECTORS static void take_usual_vectors(struct ml_trace *trace, struct usual *told) {
  const struct ml_segments_entry *known;
  struct usual usual = *told;
  struct ml_segments_at out = trace->at;
  for (; (known = next_usual(trace, &usual)) != NULL; pass_usual(&usual))
    ml_segments_add_known_vectors(&trace->segments, known, &out, *usual.at & UINT32_MAX, usual.at + 1,
                                  words_of(*usual.at));
  trace->at = out;
  *told = usual;
}
#endif

/* How many of the words surely find room in the record: a word takes at most 8 bytes, and with a header 6 of names. */
static uint64_t words_with_room(const struct ml_trace *trace) {
  const ptrdiff_t words = trace->bytes + sizeof trace->bytes - ML_SEGMENTS_WORD_BYTES - trace->at.words;
  const ptrdiff_t names = trace->names + sizeof trace->names - ML_SEGMENTS_NAME_BYTES - trace->at.names;
  if (words <= 0 || names <= 0) return 0;
  return (uint64_t)(words / 8 < names / 3 ? words / 8 : names / 3);
}

/* Takes as many segments as are usual ones; returns where the first one is that is not. */
static uint64_t *take_usual(struct ml_trace *trace, uint64_t *at, const uint64_t *until, uint64_t *segments,
                            bool careful) {
  if (!trace->open || ml_trace_settings.loads_only || ml_trace_settings.selects_functions) return at;
  const uint64_t most = trace->recorded < ML_SEGMENTS_MOST_RECORDED ? ML_SEGMENTS_MOST_RECORDED - trace->recorded : 0;
  const uint64_t room = words_with_room(trace);
  struct usual usual = {.at = at, .until = until, .goal = trace->goal < most ? trace->goal : most, .careful = careful};
  if (ML_UNLIKELY(room < (uint64_t)(until - at))) usual.until = at + room;
#if defined(__x86_64__)
  if (ML_LIKELY(ml_trace_settings.has_vectors)) take_usual_vectors(trace, &usual);
  else
#endif
    take_usual_plain(trace, &usual);
  trace->executed += usual.taken + usual.implied;
  trace->recorded += usual.taken;
  trace->goal -= usual.taken;
  *segments += usual.count;
  if (usual.taken != 0) trace->last = trace->executed;
  return usual.at;
}

/* A segment that a handler interrupted has a header or an address that is still 0. Without a header its length is not known: what
 * follows is taken up again at the next header. */
void ml_trace_consume(struct ml_trace *trace, const uint64_t *until) {
  uint64_t *const begin = trace->words + trace->base;
  uint64_t *at = begin;
  const uint64_t *torn_end = NULL;
  uint64_t segments = 0;
  const uint64_t sites_end = ml_sites_end();
  if (until < begin || until > trace->words + ML_TRACE_RAW_WORDS) until = begin;
  const bool careful = has_zero_anywhere(begin, until);
  for (;;) {
    at = take_usual(trace, at, until, &segments, careful);
    if (at >= until) break;
    const uint64_t header = *at;
    if (ML_UNLIKELY(!is_header(header, sites_end) || words_of(header) >= (uint64_t)(until - at))) {
      if (torn_end != at) ml_add(&ml_process.shared->trace_torn, 1);
      torn_end = ++at;
      continue;
    }
    bool whole = true;
    const unsigned words = words_of(header), step = (header >> ML_TRACE_FORM_SHIFT & 3) == ML_TRACE_SIZED ? 2 : 1;
    for (unsigned i = 0; i < words; i += step) whole &= at[1 + i] != 0;
    take_segment(trace, header, at + 1);
    segments++;
    at += 1 + words;
    if (ML_UNLIKELY(!whole)) {
      torn_end = at;
      ml_add(&ml_process.shared->trace_torn, 1);
    }
  }
  memset(begin, 0, (size_t)((unsigned char *)until - (unsigned char *)begin));
  /* How many words an access takes here, for the room of the next window: too little costs a call, too much what lies behind its end. */
  const uint64_t words = (uint64_t)(until - begin), accesses = words - segments;
  if (accesses >= 64) trace->words_each = (uint32_t)(words * 256 / accesses + 1);
  /* Whoever was interrupted will still write: not into what comes next. */
  if (torn_end != NULL) trace->base = (uint32_t)(torn_end - trace->words);
  if (trace->base > ML_TRACE_RAW_WORDS / 2) trace->base = 0;
  if (!trace->open || trace->executed - trace->told > TELL_AFTER) ml_trace_tell(trace);
}

void ml_trace_cut(struct ml_trace *trace) {
  if (!trace->open) return;
  end_record(trace, trace->executed, trace->executed);
  trace->first = trace->executed; /* until it goes on nothing is in the record */
  trace->recorded = 0;
}

void ml_trace_resume(struct ml_trace *trace) {
  ml_trace_facts_now(trace);
  begin_record(trace, trace->executed);
}

void ml_trace_close(struct ml_trace *trace) {
  if (trace->open) close_at(trace, trace->executed);
}

/* Waits even where windows are dropped: without the total of a thread its last window has no end. */
void ml_trace_finish(struct ml_trace *trace) {
  if (trace->open) {
    end_record(trace, trace->executed, trace->executed);
    trace->open = false;
  }
  tell_lost(trace, true);
  const uint64_t now = ml_now_ns();
  struct ml_window window = {.begin_ns = now, .end_ns = now, .first_executed = trace->executed};
  write_window(trace, &window, NULL, true);
  ml_trace_tell(trace);
  trace->active = false;
}

uint64_t ml_trace_words_wanted(const struct ml_trace *trace) {
  const uint64_t goal = trace->open ? trace->goal : ml_trace_settings.window;
  if (goal >= MOST_WORDS) return MOST_WORDS;
  const uint64_t wanted = goal * trace->words_each / 256 + FEWEST_WORDS;
  return wanted < MOST_WORDS ? wanted : MOST_WORDS;
}
