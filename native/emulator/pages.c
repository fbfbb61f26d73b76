/* Accesses counted by page and thread, with the first touch of each. */
#include "emulator.h"

#include <stdlib.h>
#include <string.h>

#define PAGE_SHIFT 12

struct page_entry {
  uint64_t page; /* address >> PAGE_SHIFT, + 1; 0: free */
  uint64_t loads, stores, pc, order, time_ns;
  uint32_t stack, generation;
};
struct page_table {
  struct page_entry *entries;
  size_t mask, count;
  uint64_t seen_unmaps;
};
static struct unmapped {
  uint64_t first, last;
} *unmapped; /* ranges of pages that went away, in order */
static uint64_t unmapped_count, unmapped_capacity;
static uint64_t order;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void write_entry(struct vcpu *vcpu, const struct page_entry *entry) {
  const struct ml_page_count record = {
      .time_ns = entry->time_ns, .page = (entry->page - 1) << PAGE_SHIFT, .loads = entry->loads, .stores = entry->stores,
      .pc = entry->pc, .order = entry->order, .thread = ml_thread_id(vcpu), .stack = entry->stack,
      .generation = entry->generation};
  if (!ml_write(ML_KIND_PAGE_COUNT, &record, sizeof record, NULL, 0, true))
    __atomic_fetch_add(&ml_plugin.pages_dropped, 1, __ATOMIC_RELAXED);
}

static size_t find(const struct page_table *table, uint64_t page) {
  size_t at = page * UINT64_C(0x9E3779B97F4A7C15) >> 20 & table->mask;
  while (table->entries[at].page != 0 && table->entries[at].page != page) at = (at + 1) & table->mask;
  return at;
}

static bool grow(struct page_table *table) {
  struct page_table larger = {.mask = table->mask != 0 ? 2 * table->mask + 1 : 4095, .count = table->count,
                              .seen_unmaps = table->seen_unmaps};
  larger.entries = calloc(larger.mask + 1, sizeof *larger.entries);
  if (larger.entries == NULL) return false;
  for (size_t i = 0; table->entries != NULL && i <= table->mask; i++)
    if (table->entries[i].page != 0) larger.entries[find(&larger, table->entries[i].page)] = table->entries[i];
  free(table->entries);
  *table = larger;
  return true;
}

/* Pages that went away since the last look are written and begin anew. */
static void apply_unmaps(struct vcpu *vcpu, struct page_table *table) {
  pthread_mutex_lock(&lock);
  struct page_entry *kept = NULL;
  size_t kept_count = 0;
  for (size_t i = 0; table->entries != NULL && i <= table->mask; i++) {
    struct page_entry *entry = &table->entries[i];
    if (entry->page == 0) continue;
    for (uint64_t k = table->seen_unmaps; k < unmapped_count; k++)
      if (entry->page - 1 >= unmapped[k].first && entry->page - 1 <= unmapped[k].last) {
        write_entry(vcpu, entry);
        entry->page = 0;
        break;
      }
  }
  table->seen_unmaps = unmapped_count;
  /* Open addressing has no holes: put the rest in again. */
  kept = table->entries;
  table->entries = calloc(table->mask + 1, sizeof *table->entries);
  if (table->entries == NULL) table->entries = kept, kept = NULL;
  for (size_t i = 0; kept != NULL && i <= table->mask; i++)
    if (kept[i].page != 0) table->entries[find(table, kept[i].page)] = kept[i], kept_count++;
  if (kept != NULL) table->count = kept_count;
  free(kept);
  pthread_mutex_unlock(&lock);
}

static struct page_entry *entry_slow(struct vcpu *vcpu, uint64_t pc, uint64_t page) {
  struct page_table *table = vcpu->page_table;
  if (table == NULL) {
    table = vcpu->page_table = calloc(1, sizeof *table);
    if (table == NULL) return NULL;
    table->seen_unmaps = __atomic_load_n(&unmapped_count, __ATOMIC_ACQUIRE);
  }
  if (table->entries != NULL && table->seen_unmaps != __atomic_load_n(&unmapped_count, __ATOMIC_ACQUIRE))
    apply_unmaps(vcpu, table);
  if (2 * (table->count + 1) > table->mask && !grow(table)) return NULL;
  struct page_entry *entry = &table->entries[find(table, page)];
  if (entry->page == 0) {
    table->count++;
    *entry = (struct page_entry){.page = page, .pc = pc, .time_ns = ml_now_ns(),
                                 .order = __atomic_add_fetch(&order, 1, __ATOMIC_RELAXED),
                                 .stack = ml_settings.stacks ? ml_stack_id(vcpu, pc) : 0,
                                 .generation = (uint32_t)table->seen_unmaps};
  }
  return entry;
}

void ml_page_access(struct vcpu *vcpu, uint64_t pc, uint64_t address, bool store) {
  const uint64_t page = (address >> PAGE_SHIFT) + 1;
  struct page_cache *cached = &vcpu->page_cache[page % ML_PAGE_CACHE];
  if (ML_UNLIKELY(cached->page != page || cached->epoch != __atomic_load_n(&unmapped_count, __ATOMIC_RELAXED))) {
    struct page_table *before = vcpu->page_table;
    struct page_entry *old = before != NULL ? before->entries : NULL;
    struct page_entry *entry = entry_slow(vcpu, pc, page);
    if (entry == NULL) return;
    if (vcpu->page_table->entries != old) memset(vcpu->page_cache, 0, sizeof vcpu->page_cache); /* it moved */
    cached->page = page;
    cached->entry = entry;
    cached->epoch = vcpu->page_table->seen_unmaps;
  }
  struct page_entry *entry = cached->entry;
  entry->loads += !store;
  entry->stores += store;
}

void ml_pages_unmapped(uint64_t address, uint64_t bytes) {
  if (!ml_settings.pages || bytes == 0) return;
  pthread_mutex_lock(&lock);
  if (unmapped_count == unmapped_capacity) {
    const uint64_t capacity = unmapped_capacity != 0 ? 2 * unmapped_capacity : 1024;
    struct unmapped *grown = realloc(unmapped, capacity * sizeof *grown);
    if (grown == NULL) {
      pthread_mutex_unlock(&lock);
      return;
    }
    unmapped = grown;
    unmapped_capacity = capacity;
  }
  unmapped[unmapped_count] = (struct unmapped){address >> PAGE_SHIFT, (address + bytes - 1) >> PAGE_SHIFT};
  __atomic_store_n(&unmapped_count, unmapped_count + 1, __ATOMIC_RELEASE);
  pthread_mutex_unlock(&lock);
}

/* All of a thread's pages, at its end. */
void ml_pages_write(struct vcpu *vcpu) {
  struct page_table *table = vcpu->page_table;
  if (table == NULL || table->entries == NULL) return;
  for (size_t i = 0; i <= table->mask; i++)
    if (table->entries[i].page != 0) write_entry(vcpu, &table->entries[i]);
  ml_pages_drop(vcpu);
}

void ml_pages_after_fork(void) { pthread_mutex_init(&lock, NULL); }

void ml_pages_drop(struct vcpu *vcpu) {
  struct page_table *table = vcpu->page_table;
  if (table == NULL) return;
  free(table->entries);
  free(table);
  vcpu->page_table = NULL;
  memset(vcpu->page_cache, 0, sizeof vcpu->page_cache);
}
