/* Accesses counted by page and thread, with the first touch of each.
 *
 * A thread has leaves of 2^18 pages, sparse memory that the kernel fills in when it is touched: one subtraction an
 * access, no search. Those of the first thread lie side by side, in one piece for all addresses. */
#include "emulator.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define LEAF_PAGES (UINT64_C(1) << ML_LEAF_BITS)
/* Loads and stores of a page must not lie a power of two apart: processors that find lines by a hash of some address bits
 * take one for the other, which made all of it half as fast again. */
#define APART (512 * 37 + 40)

struct first_touch {
  uint64_t pc, time_ns, order;
  uint32_t stack, generation;
};
struct page_leaf {
  uint64_t number; /* of the leaf: address >> (12 + ML_LEAF_BITS) */
  struct page_leaf *next;
  uint64_t *counts[2]; /* loads, stores; below zero */
  bool flat;
  struct first_touch *first;
  void *memory;
};
#define LEAF_BYTES (LEAF_PAGES * (sizeof(struct first_touch) + 2 * sizeof(uint64_t)) + APART * sizeof(uint64_t))

uint64_t *ml_flat_pages[2];
struct vcpu *ml_flat_vcpu;

static uint64_t order;
static uint32_t unmaps; /* how often something was unmapped */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void ml_pages_after_fork(void) { pthread_mutex_init(&lock, NULL); }

static void *reserve(size_t bytes) {
  void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return memory == MAP_FAILED ? NULL : memory;
}

void ml_pages_start(struct vcpu *first) {
  uint64_t *memory = reserve((2 * ML_FLAT_PAGES + APART) * sizeof *memory);
  if (memory == NULL) return; /* address space may be limited: leaves will do */
  ml_flat_pages[0] = memory;
  ml_flat_pages[1] = memory + ML_FLAT_PAGES + APART;
  ml_flat_vcpu = first;
  first->flat = true;
}

/* The leaf of an address, which becomes the one that fast accesses find; NULL: no memory. */
static struct page_leaf *leaf_of(struct vcpu *vcpu, uint64_t address) {
  const uint64_t number = address >> (12 + ML_LEAF_BITS);
  struct page_leaf *leaf = vcpu->leaves;
  while (leaf != NULL && leaf->number != number) leaf = leaf->next;
  if (leaf == NULL) {
    leaf = calloc(1, sizeof *leaf);
    uint64_t *memory = leaf != NULL ? reserve(LEAF_BYTES) : NULL;
    if (memory == NULL) {
      free(leaf);
      return NULL;
    }
    leaf->number = number;
    leaf->memory = memory;
    leaf->flat = vcpu->flat && number < ML_FLAT_PAGES / LEAF_PAGES;
    leaf->first = (struct first_touch *)memory;
    uint64_t *own = (uint64_t *)(leaf->first + LEAF_PAGES);
    leaf->counts[0] = leaf->flat ? ml_flat_pages[0] + number * LEAF_PAGES : own;
    leaf->counts[1] = leaf->flat ? ml_flat_pages[1] + number * LEAF_PAGES : own + LEAF_PAGES + APART;
    pthread_mutex_lock(&lock);
    leaf->next = vcpu->leaves;
    vcpu->leaves = leaf;
    pthread_mutex_unlock(&lock);
  }
  for (int store = 0; store < 2; store++) vcpu->leaf_counts[number % ML_LEAF_CACHE][store] = leaf->counts[store];
  vcpu->leaf_number[number % ML_LEAF_CACHE] = number;
  return leaf;
}

static void note_first(struct vcpu *vcpu, struct page_leaf *leaf, uint64_t pc, uint64_t address) {
  struct first_touch *first = &leaf->first[address >> 12 & (LEAF_PAGES - 1)];
  if (first->order != 0) return; /* by an access of the other kind */
  first->pc = pc;
  first->time_ns = ml_now_ns();
  first->order = __atomic_add_fetch(&order, 1, __ATOMIC_RELAXED);
  first->stack = ml_settings.stacks ? ml_stack_id(vcpu, pc) : 0;
  first->generation = __atomic_load_n(&unmaps, __ATOMIC_RELAXED);
}

void ml_page_first(struct vcpu *vcpu, uint64_t pc, uint64_t address) {
  struct page_leaf *leaf = leaf_of(vcpu, address);
  if (leaf != NULL) note_first(vcpu, leaf, pc, address);
  else __atomic_fetch_add(&ml_plugin.pages_dropped, 1, __ATOMIC_RELAXED);
}

/* An access to another leaf. */
void ml_page_slow(struct vcpu *vcpu, uint64_t pc, uint64_t address, bool store) {
  struct page_leaf *leaf = leaf_of(vcpu, address);
  if (leaf == NULL) __atomic_fetch_add(&ml_plugin.pages_dropped, 1, __ATOMIC_RELAXED);
  else if (ml_page_count(&leaf->counts[store][address >> 12 & (LEAF_PAGES - 1)])) note_first(vcpu, leaf, pc, address);
}

static void write_page(struct vcpu *vcpu, struct page_leaf *leaf, uint64_t index) {
  struct first_touch *first = &leaf->first[index];
  if (first->order == 0) return;
  const struct ml_page_count record = {.time_ns = first->time_ns,
                                       .page = (leaf->number << ML_LEAF_BITS | index) << 12,
                                       .loads = -leaf->counts[0][index],
                                       .stores = -leaf->counts[1][index],
                                       .pc = first->pc,
                                       .order = first->order,
                                       .thread = vcpu->thread,
                                       .stack = first->stack,
                                       .generation = first->generation};
  if (!ml_write(ML_KIND_PAGE_COUNT, &record, sizeof record, NULL, 0, true))
    __atomic_fetch_add(&ml_plugin.pages_dropped, 1, __ATOMIC_RELAXED);
  leaf->counts[0][index] = leaf->counts[1][index] = 0;
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
    for (uint64_t index = 0; index < LEAF_PAGES && (write || leaf->flat); index++) {
      if (write) write_page(vcpu, leaf, index);
      else if (leaf->first[index].order != 0) leaf->counts[0][index] = leaf->counts[1][index] = 0;
    }
    munmap(leaf->memory, LEAF_BYTES);
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
