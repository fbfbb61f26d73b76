/* Accesses counted by page and thread, with the first touch of each.
 *
 * A thread has leaves of 2^18 pages, sparse memory that the kernel fills in when it is touched: one addition an
 * access, no search. */
#include "emulator.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define LEAF_PAGES (UINT64_C(1) << ML_LEAF_BITS)

struct first_touch {
  uint64_t pc, time_ns, order;
  uint32_t stack, generation;
};
struct page_leaf {
  uint64_t number; /* of the leaf: address >> (12 + ML_LEAF_BITS) */
  struct page_leaf *next;
  struct ml_page_counts *counts;
  struct first_touch *first;
};

static uint64_t order;
static uint32_t unmaps; /* how often something was unmapped */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void ml_pages_after_fork(void) { pthread_mutex_init(&lock, NULL); }

/* The leaf of an address, which becomes the one that fast accesses find; NULL: no memory. */
static struct page_leaf *leaf_of(struct vcpu *vcpu, uint64_t address) {
  const uint64_t number = address >> (12 + ML_LEAF_BITS);
  struct page_leaf *leaf = vcpu->leaves;
  while (leaf != NULL && leaf->number != number) leaf = leaf->next;
  if (leaf == NULL) {
    const size_t bytes = LEAF_PAGES * (sizeof *leaf->counts + sizeof *leaf->first);
    leaf = calloc(1, sizeof *leaf);
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (leaf == NULL || memory == MAP_FAILED) {
      free(leaf);
      if (memory != MAP_FAILED) munmap(memory, bytes);
      return NULL;
    }
    leaf->number = number;
    leaf->counts = memory;
    leaf->first = (void *)(leaf->counts + LEAF_PAGES);
    pthread_mutex_lock(&lock);
    leaf->next = vcpu->leaves;
    vcpu->leaves = leaf;
    pthread_mutex_unlock(&lock);
  }
  vcpu->leaf_counts[number % ML_LEAF_CACHE] = leaf->counts;
  vcpu->leaf_number[number % ML_LEAF_CACHE] = number;
  return leaf;
}

/* Another leaf, or the first access of its kind to this page. */
void ml_page_slow(struct vcpu *vcpu, uint64_t pc, uint64_t address, bool store) {
  struct page_leaf *leaf = leaf_of(vcpu, address);
  if (leaf == NULL) {
    __atomic_fetch_add(&ml_plugin.pages_dropped, 1, __ATOMIC_RELAXED);
    return;
  }
  const uint64_t index = address >> 12 & (LEAF_PAGES - 1);
  struct first_touch *first = &leaf->first[index];
  leaf->counts[index].n[store]++;
  if (first->order != 0) return;
  first->pc = pc;
  first->time_ns = ml_now_ns();
  first->order = __atomic_add_fetch(&order, 1, __ATOMIC_RELAXED);
  first->stack = ml_settings.stacks ? ml_stack_id(vcpu, pc) : 0;
  first->generation = __atomic_load_n(&unmaps, __ATOMIC_RELAXED);
}

static void write_page(struct vcpu *vcpu, struct page_leaf *leaf, uint64_t index) {
  struct first_touch *first = &leaf->first[index];
  struct ml_page_counts *counts = &leaf->counts[index];
  if (first->order == 0) return;
  const struct ml_page_count record = {
      .time_ns = first->time_ns, .page = (leaf->number << ML_LEAF_BITS | index) << 12, .loads = counts->n[0],
      .stores = counts->n[1], .pc = first->pc, .order = first->order, .thread = vcpu->thread, .stack = first->stack,
      .generation = first->generation};
  if (!ml_write(ML_KIND_PAGE_COUNT, &record, sizeof record, NULL, 0, true))
    __atomic_fetch_add(&ml_plugin.pages_dropped, 1, __ATOMIC_RELAXED);
  memset(counts, 0, sizeof *counts);
  memset(first, 0, sizeof *first);
}

/* Pages that go away are written; what comes to the same addresses later begins anew. */
void ml_pages_unmapped(uint64_t address, uint64_t bytes) {
  if (!ml_settings.pages || bytes == 0) return;
  const uint64_t first = address >> 12, last = (address + bytes - 1) >> 12;
  pthread_mutex_lock(&lock);
  unmaps++;
  for (unsigned i = 0; i < MAX_VCPUS && i < ml_plugin.highest_vcpu + 1; i++) {
    struct vcpu *vcpu = ml_vcpus[i];
    for (struct page_leaf *leaf = vcpu != NULL ? vcpu->leaves : NULL; leaf != NULL; leaf = leaf->next) {
      const uint64_t low = leaf->number << ML_LEAF_BITS, high = low + LEAF_PAGES - 1;
      if (last < low || first > high) continue;
      for (uint64_t page = first > low ? first : low; page <= (last < high ? last : high); page++)
        write_page(vcpu, leaf, page - low);
    }
  }
  pthread_mutex_unlock(&lock);
}

static void drop(struct vcpu *vcpu, bool write) {
  for (struct page_leaf *leaf = vcpu->leaves, *next; leaf != NULL; leaf = next) {
    next = leaf->next;
    for (uint64_t index = 0; write && index < LEAF_PAGES; index++) write_page(vcpu, leaf, index);
    munmap(leaf->counts, LEAF_PAGES * (sizeof *leaf->counts + sizeof *leaf->first));
    free(leaf);
  }
  vcpu->leaves = NULL;
  memset(vcpu->leaf_counts, 0, sizeof vcpu->leaf_counts);
  for (int i = 0; i < ML_LEAF_CACHE; i++) vcpu->leaf_number[i] = UINT64_MAX;
}

void ml_pages_write(struct vcpu *vcpu) {
  pthread_mutex_lock(&lock);
  drop(vcpu, true);
  pthread_mutex_unlock(&lock);
}

/* A thread's pages in a forked child, or at the thread's beginning. */
void ml_pages_drop(struct vcpu *vcpu) { drop(vcpu, false); }
