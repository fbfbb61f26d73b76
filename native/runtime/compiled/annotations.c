/* The hooks of memlens.h, for objects of any compiler in the program: regions switch counters, and everything goes on to the
 * library that records allocations when it is there. */
#include "count.h"

#include <link.h>
#include <string.h>

#define MEMLENS_RUNTIME_IMPLEMENTATION 1
#include "memlens.h"

#define COUNTING_MARK UINT64_C(0x636f756e74696e67)

const struct memlens_hooks *ml_other_hooks;

/* A copy that another one replaces passes regions on to it: the names below are not bound to this file. */
static void region_begin(const char *name) {
  if (ml_process_active()) ml_begin_named(name, (uintptr_t)__builtin_dwarf_cfa(), __builtin_return_address(0));
  else __memlens_count_begin(name);
}
static void region_end(const char *name) {
  if (ml_process_active()) ml_end_named(name, (uintptr_t)__builtin_dwarf_cfa());
  else __memlens_count_end(name);
}
static const struct memlens_hooks *other(void) {
  ml_process_start();
  return ml_other_hooks;
}
static void phase(const char *name) {
  if (other() != NULL) ml_other_hooks->phase(name);
}
static void tag(const char *name, const volatile void *address, size_t bytes) {
  if (other() != NULL) ml_other_hooks->tag(name, address, bytes);
}
static void untag(const volatile void *address) {
  if (other() != NULL) ml_other_hooks->untag(address);
}
static int32_t is_recording(void) {
  return (other() != NULL && ml_other_hooks->is_recording() != 0) || ml_process.shared != NULL;
}

/* The mark tells tables of this kind from the one that is searched for: two copies must not call each other in circles. */
static struct {
  struct memlens_hooks hooks;
  uint64_t mark;
} count_hooks = {{.version = MEMLENS_HOOKS_VERSION,
                  .bytes = sizeof count_hooks,
                  .region_begin = region_begin,
                  .region_end = region_end,
                  .phase = phase,
                  .tag = tag,
                  .untag = untag,
                  .is_recording = is_recording},
                 COUNTING_MARK};
/* MEMLENS_DEFINE_RUNTIME with another name: a static program may have the other recorder's table too. */
extern __typeof__(count_hooks) __memlens_count_hooks __attribute__((alias("count_hooks"), visibility("hidden"), used));
__asm__(
    ".pushsection .note.memlens,\"a\",\"note\"\n"
    ".balign 4\n"
    ".4byte 8, 8, 0x4d4c0001\n"
    ".asciz \"memlens\"\n"
    ".hidden __memlens_count_hooks\n"
    "990: .8byte __memlens_count_hooks - 990b\n"
    ".popsection\n");
_Static_assert(MEMLENS_NOTE_TYPE == 0x4d4c0001, "as above");

/* ---- finding the other -------------------------------------------------------------------------------------------- */
static bool is_loaded(const struct dl_phdr_info *object, const ElfW(Phdr) * notes) {
  for (int i = 0; i < object->dlpi_phnum; i++) {
    const ElfW(Phdr) *load = &object->dlpi_phdr[i];
    if (load->p_type == PT_LOAD && (load->p_flags & PF_R) != 0 && notes->p_vaddr >= load->p_vaddr &&
        notes->p_memsz <= load->p_filesz && notes->p_vaddr - load->p_vaddr <= load->p_filesz - notes->p_memsz)
      return true;
  }
  return false;
}

static int visit(struct dl_phdr_info *object, size_t object_bytes, void *context) {
  (void)object_bytes, (void)context;
  for (int i = 0; i < object->dlpi_phnum; i++) {
    const ElfW(Phdr) *notes = &object->dlpi_phdr[i];
    if (notes->p_type != PT_NOTE || !is_loaded(object, notes)) continue;
    const uint64_t unit = notes->p_align == 8 ? 8 : 4;
    const char *begin = (const char *)(object->dlpi_addr + notes->p_vaddr);
    for (uint64_t at = 0; at + 12 <= notes->p_memsz;) {
      uint32_t head[3];
      memcpy(head, begin + at, sizeof head);
      const uint64_t descriptor = at + (12 + (uint64_t)head[0] + unit - 1) / unit * unit;
      if (descriptor + head[1] > notes->p_memsz) break;
      if (head[0] == 8 && head[1] == 8 && head[2] == MEMLENS_NOTE_TYPE && memcmp(begin + at + 12, "memlens", 8) == 0) {
        int64_t distance;
        memcpy(&distance, begin + descriptor, sizeof distance);
        const struct memlens_hooks *hooks = (const void *)((uintptr_t)(begin + descriptor) + (uintptr_t)distance);
        const bool counts =
            hooks->bytes >= sizeof count_hooks &&
            *(const uint64_t *)((const char *)hooks + offsetof(__typeof__(count_hooks), mark)) == COUNTING_MARK;
        if (hooks->version == MEMLENS_HOOKS_VERSION && hooks->bytes >= sizeof *hooks && !counts) {
          ml_other_hooks = hooks;
          return 1;
        }
      }
      at = (descriptor + head[1] + unit - 1) / unit * unit;
    }
  }
  return 0;
}

void ml_find_other_hooks(void) { dl_iterate_phdr(visit, NULL); }
