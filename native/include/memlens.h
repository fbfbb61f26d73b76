/* memlens.h: annotations that a program carries anywhere. Copy this one file into a project; there is nothing to link.

     memlens_begin("solve"); ... memlens_end("solve");   a region of one thread; regions nest
     MEMLENS_SCOPE("solve");                             the same until the end of the block (C and C++; also MEMLENS_REGION)
     memlens::region guard("solve");                     the same, C++
     memlens_phase("assembly");                          a phase of the whole process, until the next phase
     memlens_tag("matrix", pointer, bytes);              names an address range, until memlens_untag(pointer)
     memlens::tagged guard("matrix", pointer, bytes);    the same until the end of the block, C++
     memlens_is_recording();                             1 while a recorder listens

   Names are NUL-terminated strings, constant or not; nobody keeps the pointer after the call. A tag is known by its first
   byte; tags may lie inside each other, and untag takes back the latest that starts there. Define MEMLENS_DISABLE before the include and all of this
   compiles to nothing.

   C99, C11 and later, C++11 and later; GCC and clang. Sites and hooks need Linux and 64 bits; elsewhere the calls do nothing.
   On x86-64, AArch64, RISC-V and POWER64LE each site also has an SDT note (docs/annotations.md has the layout).

   What a site is, when nothing records: a nop that the note points to, one load of the module's hidden variable, a branch
   that is not taken, and whatever it takes to have the arguments at hand. A site orders memory accesses as a call of an
   unknown function does, because it may be one: that is what keeps a region's accesses inside the region.

   How the recorder is found: see memlens_private_resolve below. It runs once for each module (the program or a shared
   library), as a constructor of priority 101, so before ordinary constructors and C++ static objects of that module.
   Annotations that run even earlier (.preinit_array, constructors of priority 101 and less) are safe and not recorded. */
#ifndef MEMLENS_H
#define MEMLENS_H

/* The program's warning options are for the program; this file has to please all of them at once. */
#if defined(__GNUC__)
#pragma GCC system_header
#endif

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- the contract with the recorder's runtime ----------------------------------------------------------------------
   New members go to the end and make `bytes` larger; `version` changes only when an old member does. A module accepts
   version 1 with at least the bytes that it knows. All functions may be called from any thread, at any time after the
   loader has relocated the runtime, also before the runtime's own constructors have run. */
#define MEMLENS_HOOKS_VERSION 1u
struct memlens_hooks {
  uint32_t version;
  uint32_t bytes; /* of this struct, as the runtime knows it */
  void (*region_begin)(const char *name);
  void (*region_end)(const char *name);
  void (*phase)(const char *name);
  void (*tag)(const char *name, const volatile void *address, size_t bytes);
  void (*untag)(const volatile void *address);
  int32_t (*is_recording)(void);
};

/* A module finds the runtime by an ELF note: owner "memlens", this type, and a descriptor of 8 bytes, signed:
   (address of the table) - (address of the descriptor). */
#define MEMLENS_NOTE_TYPE 0x4d4c0001

#ifdef MEMLENS_RUNTIME_IMPLEMENTATION
/* Emits that note. At file scope, after the definition of the variable in the same file; in C++ the variable has C linkage.
   The variable may be exported: the note goes through a hidden alias, because a PC-relative value cannot name a symbol that
   another module may replace. One runtime a module. */
/* clang-format off */
#define MEMLENS_DEFINE_RUNTIME(hooks_variable)                                                                         \
  extern __typeof__(hooks_variable) memlens_private_runtime_table                                                      \
      __attribute__((alias(#hooks_variable), visibility("hidden"), used));                                             \
  __asm__(".pushsection .note.memlens,\"a\",\"note\"\n"                                                                \
          ".balign 4\n"                                                                                                \
          ".4byte 8, 8, 0x4d4c0001\n"                                                                                  \
          ".asciz \"memlens\"\n"                                                                                       \
          ".hidden memlens_private_runtime_table\n"                                                                    \
          "990: .8byte memlens_private_runtime_table - 990b\n"                                                         \
          ".popsection\n")
/* clang-format on */
#endif

/* ---- what this compiler and system allow --------------------------------------------------------------------------- */
#if !defined(MEMLENS_DISABLE) && !defined(MEMLENS_RUNTIME_IMPLEMENTATION) && defined(__GNUC__) && \
    defined(__linux__) && defined(__LP64__)
#if defined(__x86_64__) || defined(__aarch64__) || defined(__riscv) || \
    (defined(__powerpc64__) && defined(__LITTLE_ENDIAN__))
#define MEMLENS_PRIVATE_HAS_NOTES 1
#endif
#if !defined(__STDC_HOSTED__) || __STDC_HOSTED__ /* a kernel has no loader to ask, but it may have notes */
#define MEMLENS_PRIVATE_HAS_HOOKS 1
#endif
#endif

/* Inlined even at -O0, so that the note names the place in the program and not one copy of this function a file. */
#if defined(__GNUC__)
#define MEMLENS_PRIVATE_INLINE static __inline__ __attribute__((always_inline, unused))
#else
#define MEMLENS_PRIVATE_INLINE static inline
#endif

/* ---- finding the runtime ------------------------------------------------------------------------------------------- */
#ifdef MEMLENS_PRIVATE_HAS_HOOKS
/* One for each module: every file that includes this header defines them, the linker keeps one of each. Hidden, so that a
   site reads the variable directly. (A weak undefined `memlens_hooks` would be simpler, but a no-PIE program has its address
   fixed to 0 when it is linked, and a preloaded runtime then stays unseen.) */
#define MEMLENS_PRIVATE_SHARED __attribute__((weak, visibility("hidden")))
extern const struct memlens_hooks *memlens_private_hooks MEMLENS_PRIVATE_SHARED;
extern int memlens_private_is_resolved MEMLENS_PRIVATE_SHARED;
struct memlens_private_object;
extern int memlens_private_visit(struct memlens_private_object *, size_t, void *) MEMLENS_PRIVATE_SHARED;
extern void memlens_private_resolve(void) MEMLENS_PRIVATE_SHARED __attribute__((constructor(101), used));

/* dl_iterate_phdr with types of our own: <link.h> declares it only under _GNU_SOURCE, which a program may not want, and which
   cannot be turned on after the first header. The layout is the 64-bit struct dl_phdr_info and Elf64_Phdr. */
struct memlens_private_segment {
  uint32_t type, flags;
  uint64_t file_offset, address, physical_address, file_bytes, memory_bytes, alignment;
};
struct memlens_private_object {
  uintptr_t load_address;
  const char *path;
  const struct memlens_private_segment *segments;
  uint16_t n_segments;
};
extern int memlens_private_each_object(int (*visit)(struct memlens_private_object *, size_t, void *),
                                       void *context) __asm__("dl_iterate_phdr");

const struct memlens_hooks *memlens_private_hooks = 0;
int memlens_private_is_resolved = 0;

/* Looks for the note in one object; not 0 ends the walk. */
int memlens_private_visit(struct memlens_private_object *object, size_t object_bytes, void *context) {
  const unsigned note_segment = 4, load_segment = 1, readable = 4;
  unsigned i, k;
  (void)object_bytes;
  for (i = 0; i < object->n_segments; i++) {
    const struct memlens_private_segment *notes = &object->segments[i];
    const uint64_t unit = notes->alignment == 8 ? 8 : 4;
    uint64_t at = 0;
    int is_mapped = 0;
    if (notes->type != note_segment) continue;
    /* Packed and edited files may keep a header of notes that are no longer loaded: read only what a readable segment covers. */
    for (k = 0; k < object->n_segments; k++) {
      const struct memlens_private_segment *load = &object->segments[k];
      if (load->type == load_segment && (load->flags & readable) != 0 && notes->address >= load->address &&
          notes->memory_bytes <= load->file_bytes &&
          notes->address - load->address <= load->file_bytes - notes->memory_bytes)
        is_mapped = 1;
    }
    while (is_mapped && notes->memory_bytes - at >= 12) {
      const char *note = (const char *)(object->load_address + notes->address + at);
      uint32_t head[3]; /* bytes of the owner, bytes of the descriptor, type */
      uint64_t descriptor_at, next_at;
      __builtin_memcpy(head, note, sizeof head);
      descriptor_at = (12 + (uint64_t)head[0] + unit - 1) / unit * unit;
      next_at = (descriptor_at + head[1] + unit - 1) / unit * unit;
      if (descriptor_at + head[1] > notes->memory_bytes - at) break;
      if (head[0] == 8 && head[1] == 8 && head[2] == MEMLENS_NOTE_TYPE &&
          __builtin_memcmp(note + 12, "memlens", 8) == 0) {
        const struct memlens_hooks *hooks;
        int64_t distance;
        __builtin_memcpy(&distance, note + descriptor_at, sizeof distance);
        hooks = (const struct memlens_hooks *)((uintptr_t)note + (uintptr_t)descriptor_at + (uintptr_t)distance);
        if (hooks->version == MEMLENS_HOOKS_VERSION && hooks->bytes >= sizeof *hooks) {
          *(const struct memlens_hooks **)context = hooks;
          return 1;
        }
      }
      if (next_at > notes->memory_bytes - at) break;
      at += next_at;
    }
  }
  return 0;
}

void memlens_private_resolve(void) {
  const struct memlens_hooks *hooks = 0;
  if (memlens_private_is_resolved) return; /* each file of the module asks for this constructor */
  memlens_private_is_resolved = 1;
  memlens_private_each_object(memlens_private_visit, &hooks);
  __atomic_store_n(&memlens_private_hooks, hooks, __ATOMIC_RELEASE);
}

/* Relaxed: the table is complete before any thread can see it. */
#define MEMLENS_PRIVATE_CALL(member, arguments)                                                            \
  do {                                                                                                     \
    const struct memlens_hooks *memlens_table = __atomic_load_n(&memlens_private_hooks, __ATOMIC_RELAXED); \
    if (__builtin_expect(memlens_table != 0, 0)) memlens_table->member arguments;                          \
  } while (0)
#else
#define MEMLENS_PRIVATE_CALL(member, arguments) ((void)0)
#endif

/* ---- the note of a site -------------------------------------------------------------------------------------------- */
#ifdef MEMLENS_PRIVATE_HAS_NOTES
/* As <sys/sdt.h> writes it. Flag "?" puts the note into the group of the function around it, so that they go together when
   a C++ function exists twice. `n` constant, `o` memory, `r` register. clang, given the choice, first stores a register to
   the stack to offer memory; POWER cannot print every `o`. */
#ifndef MEMLENS_ARGUMENT_CONSTRAINT
#if defined(__clang__)
#define MEMLENS_ARGUMENT_CONSTRAINT "nr"
#elif defined(__powerpc64__)
#define MEMLENS_ARGUMENT_CONSTRAINT "nZr"
#else
#define MEMLENS_ARGUMENT_CONSTRAINT "nor"
#endif
#endif
#if defined(__powerpc64__) /* i1 is the number 1, 1 is register 1 */
#define MEMLENS_PRIVATE_ARGUMENT(name) "8@%I[" name "]%[" name "]"
#else
#define MEMLENS_PRIVATE_ARGUMENT(name) "8@%[" name "]"
#endif
/* Keeps .stapsdt.base for as long as the site is there; only notes refer to it else, and lld's --gc-sections drops what only
   notes refer to. gdb reads no notes without it. */
#if defined(__x86_64__)
#define MEMLENS_PRIVATE_NO_RELOCATION "R_X86_64_NONE"
#elif defined(__aarch64__)
#define MEMLENS_PRIVATE_NO_RELOCATION "R_AARCH64_NONE"
#elif defined(__riscv)
#define MEMLENS_PRIVATE_NO_RELOCATION "R_RISCV_NONE"
#else
#define MEMLENS_PRIVATE_NO_RELOCATION "R_PPC64_NONE"
#endif
#define MEMLENS_PRIVATE_OPERAND(value) MEMLENS_ARGUMENT_CONSTRAINT(value)
/* The many lines below are one instruction; `asm inline` tells the compiler's inliner so. */
#if (defined(__clang_major__) && __clang_major__ >= 11) || (!defined(__clang__) && __GNUC__ >= 9)
#define MEMLENS_PRIVATE_ASM __asm__ __volatile__ __inline__
#else
#define MEMLENS_PRIVATE_ASM __asm__ __volatile__
#endif
/* clang-format off */
#define MEMLENS_PRIVATE_NOTE(probe, arguments, ...)                     \
  MEMLENS_PRIVATE_ASM("990: nop\n"                                      \
                      ".reloc 990b, " MEMLENS_PRIVATE_NO_RELOCATION ", _.stapsdt.base\n" \
                      ".pushsection .note.stapsdt,\"?\",\"note\"\n"     \
                      ".balign 4\n"                                     \
                      ".4byte 992f-991f, 994f-993f, 3\n"                \
                      "991: .asciz \"stapsdt\"\n"                       \
                      "992: .balign 4\n"                                \
                      "993: .8byte 990b\n"                              \
                      ".8byte _.stapsdt.base\n"                         \
                      ".8byte 0\n"                                      \
                      ".asciz \"memlens\"\n"                            \
                      ".asciz \"" probe "\"\n"                          \
                      ".asciz \"" arguments "\"\n"                      \
                      "994: .balign 4\n"                                \
                      ".popsection\n"                                   \
                      ".ifndef _.stapsdt.base\n"                        \
                      ".pushsection .stapsdt.base,\"aG\",\"progbits\",.stapsdt.base,comdat\n" \
                      ".weak _.stapsdt.base\n"                          \
                      ".hidden _.stapsdt.base\n"                        \
                      "_.stapsdt.base: .space 1\n"                      \
                      ".size _.stapsdt.base, 1\n"                       \
                      ".popsection\n"                                   \
                      ".endif\n"                                        \
                      :                                                 \
                      : __VA_ARGS__                                     \
                      : "memory")
/* clang-format on */
#else
#define MEMLENS_PRIVATE_ARGUMENT(name) ""
#define MEMLENS_PRIVATE_NOTE(probe, arguments, ...) ((void)0)
#endif

/* ---- counting ------------------------------------------------------------------------------------------------------ */
/* `memlens cc` defines __MEMLENS_COUNT__ and links what follows: regions then call the counting runtime themselves, which tells
   the recorder above. A constant name has a variable of its own, so that a region is found without looking its name up. */
#if defined(__MEMLENS_COUNT__) && defined(MEMLENS_PRIVATE_HAS_HOOKS)
#define MEMLENS_PRIVATE_COUNTS 1
struct memlens_private_counted { /* ml_count_region; the bit says that the end may be in another function */
  const char *name;
  uint64_t number;
};
#define MEMLENS_PRIVATE_ANY_FRAME ((uint64_t)1 << 63)
extern int memlens_private_count_enter(struct memlens_private_counted *) __asm__("__memlens_count_enter")
    __attribute__((nothrow));
extern void memlens_private_count_leave(struct memlens_private_counted *) __asm__("__memlens_count_leave")
    __attribute__((nothrow));
extern void memlens_private_count_begin(const char *) __asm__("__memlens_count_begin") __attribute__((nothrow));
extern void memlens_private_count_end(const char *) __asm__("__memlens_count_end") __attribute__((nothrow));
#define MEMLENS_PRIVATE_REGION_BEGIN(name) memlens_private_count_begin(name)
/* Something has to follow: the runtime compares stack pointers, and a jump in place of the last call would change it. */
#define MEMLENS_PRIVATE_REGION_END(name) \
  memlens_private_count_end(name);       \
  __asm__ __volatile__("" : : : "memory")
#else
#define MEMLENS_PRIVATE_REGION_BEGIN(name) MEMLENS_PRIVATE_CALL(region_begin, (name))
#define MEMLENS_PRIVATE_REGION_END(name) MEMLENS_PRIVATE_CALL(region_end, (name))
#endif

/* ---- the annotations ----------------------------------------------------------------------------------------------- */
MEMLENS_PRIVATE_INLINE void memlens_private_note_begin(const char *name) {
  (void)name;
  MEMLENS_PRIVATE_NOTE("region_begin", MEMLENS_PRIVATE_ARGUMENT("name"), [name] MEMLENS_PRIVATE_OPERAND((name)));
}

MEMLENS_PRIVATE_INLINE void memlens_private_note_end(const char *name) {
  (void)name;
  MEMLENS_PRIVATE_NOTE("region_end", MEMLENS_PRIVATE_ARGUMENT("name"), [name] MEMLENS_PRIVATE_OPERAND((name)));
}

MEMLENS_PRIVATE_INLINE void memlens_begin(const char *name) {
  memlens_private_note_begin(name);
  MEMLENS_PRIVATE_REGION_BEGIN(name);
}

MEMLENS_PRIVATE_INLINE void memlens_end(const char *name) {
  memlens_private_note_end(name);
  MEMLENS_PRIVATE_REGION_END(name);
}

MEMLENS_PRIVATE_INLINE void memlens_phase(const char *name) {
  (void)name;
  MEMLENS_PRIVATE_NOTE("phase", MEMLENS_PRIVATE_ARGUMENT("name"), [name] MEMLENS_PRIVATE_OPERAND((name)));
  MEMLENS_PRIVATE_CALL(phase, (name));
}

MEMLENS_PRIVATE_INLINE void memlens_tag(const char *name, const volatile void *address, size_t bytes) {
  (void)name, (void)address, (void)bytes;
  MEMLENS_PRIVATE_NOTE(
      "tag",
      MEMLENS_PRIVATE_ARGUMENT("name") " " MEMLENS_PRIVATE_ARGUMENT("address") " " MEMLENS_PRIVATE_ARGUMENT("bytes"),
      [name] MEMLENS_PRIVATE_OPERAND((name)), [address] MEMLENS_PRIVATE_OPERAND((address)),
      [bytes] MEMLENS_PRIVATE_OPERAND((bytes)));
  MEMLENS_PRIVATE_CALL(tag, (name, address, bytes));
}

MEMLENS_PRIVATE_INLINE void memlens_untag(const volatile void *address) {
  (void)address;
  MEMLENS_PRIVATE_NOTE("untag", MEMLENS_PRIVATE_ARGUMENT("address"), [address] MEMLENS_PRIVATE_OPERAND((address)));
  MEMLENS_PRIVATE_CALL(untag, (address));
}

MEMLENS_PRIVATE_INLINE int memlens_is_recording(void) {
#ifdef MEMLENS_PRIVATE_HAS_HOOKS
  const struct memlens_hooks *hooks = __atomic_load_n(&memlens_private_hooks, __ATOMIC_RELAXED);
  return hooks != 0 && hooks->is_recording() != 0;
#else
  return 0;
#endif
}

#ifdef MEMLENS_PRIVATE_COUNTS
/* A region with a variable, or NULL: then by its name. */
MEMLENS_PRIVATE_INLINE void memlens_private_begin_at(const char *name, struct memlens_private_counted *site) {
  memlens_private_note_begin(name);
  if (site) memlens_private_count_enter(site);
  else memlens_private_count_begin(name);
}

MEMLENS_PRIVATE_INLINE void memlens_private_end_at(const char *name, struct memlens_private_counted *site) {
  memlens_private_note_end(name);
  if (site) memlens_private_count_leave(site);
  else memlens_private_count_end(name);
  __asm__ __volatile__("" : : : "memory"); /* as above */
}

/* Two variables, because a compiler knows the value of the first. An expression that is not constant is not evaluated here. */
#define MEMLENS_PRIVATE_SITE(known, site, region_name)                                                            \
  static const char *const known __attribute__((unused)) = __builtin_constant_p(region_name) ? (region_name) : 0; \
  static struct memlens_private_counted site = {__builtin_constant_p(region_name) ? (region_name) : 0,            \
                                                MEMLENS_PRIVATE_ANY_FRAME}
#endif

#ifdef __cplusplus
} /* extern "C" */

#if defined(__GNUC__)
#define MEMLENS_PRIVATE_MEMBER __attribute__((always_inline)) inline
#else
#define MEMLENS_PRIVATE_MEMBER inline
#endif
namespace memlens {
/* Files with and without MEMLENS_DISABLE, and counted ones, may meet in one program: their classes are different ones. */
#ifdef MEMLENS_DISABLE
inline namespace disabled {
#elif defined(MEMLENS_PRIVATE_COUNTS)
inline namespace counted {
#else
inline namespace enabled {
#endif

/* A region from here to the end of the block, also when an exception ends it. The name must live as long. */
class region {
 public:
#ifdef MEMLENS_PRIVATE_COUNTS
  MEMLENS_PRIVATE_MEMBER explicit region(const char *name, memlens_private_counted *site = nullptr) noexcept
      : name_(name), site_(site) {
    memlens_private_begin_at(name, site);
  }
  MEMLENS_PRIVATE_MEMBER ~region() { memlens_private_end_at(name_, site_); }
#else
  MEMLENS_PRIVATE_MEMBER explicit region(const char *name) noexcept : name_(name) { memlens_begin(name); }
  MEMLENS_PRIVATE_MEMBER ~region() { memlens_end(name_); }
#endif
  region(const region &) = delete;
  region &operator=(const region &) = delete;

 private:
  const char *name_;
#ifdef MEMLENS_PRIVATE_COUNTS
  memlens_private_counted *site_;
#endif
};

/* A name for an address range from here to the end of the block. */
class tagged {
 public:
  MEMLENS_PRIVATE_MEMBER tagged(const char *name, const volatile void *address, size_t bytes) noexcept
      : address_(address) {
    memlens_tag(name, address, bytes);
  }
  MEMLENS_PRIVATE_MEMBER ~tagged() { memlens_untag(address_); }
  tagged(const tagged &) = delete;
  tagged &operator=(const tagged &) = delete;

 private:
  const volatile void *address_;
};

} /* inline namespace */
} /* namespace memlens */
#endif

#define MEMLENS_PRIVATE_PASTE_(left, right) left##right
#define MEMLENS_PRIVATE_PASTE(left, right) MEMLENS_PRIVATE_PASTE_(left, right)
#ifdef MEMLENS_PRIVATE_COUNTS
#define MEMLENS_PRIVATE_SCOPE(region_name, number) MEMLENS_PRIVATE_SCOPE_(region_name, number)
#ifdef __cplusplus
#define MEMLENS_PRIVATE_SCOPE_(region_name, number)                                 \
  MEMLENS_PRIVATE_SITE(memlens_known_##number, memlens_site_##number, region_name); \
  ::memlens::region memlens_scope_##number(region_name, memlens_known_##number ? &memlens_site_##number : nullptr)
#else
struct memlens_private_scope {
  const char *name;
  struct memlens_private_counted *site;
};
MEMLENS_PRIVATE_INLINE struct memlens_private_scope memlens_private_enter(const char *name,
                                                                          struct memlens_private_counted *site) {
  struct memlens_private_scope scope;
  scope.name = name;
  scope.site = site;
  memlens_private_begin_at(name, site);
  return scope;
}
MEMLENS_PRIVATE_INLINE void memlens_private_leave(struct memlens_private_scope *scope) {
  memlens_private_end_at(scope->name, scope->site);
}
#define MEMLENS_PRIVATE_SCOPE_(region_name, number)                                                             \
  MEMLENS_PRIVATE_SITE(memlens_known_##number, memlens_site_##number, region_name);                             \
  struct memlens_private_scope memlens_scope_##number __attribute__((cleanup(memlens_private_leave), unused)) = \
      memlens_private_enter(region_name, memlens_known_##number ? &memlens_site_##number : 0)
#endif
#define MEMLENS_SCOPE(name) MEMLENS_PRIVATE_SCOPE(name, __COUNTER__)
/* Macros from here on: a variable for each place needs them. The functions of these names do the same, by name. */
#define MEMLENS_PRIVATE_SWITCH(note, by_site, by_name, region_name) \
  __extension__({                                                   \
    MEMLENS_PRIVATE_SITE(memlens_known, memlens_site, region_name); \
    const char *memlens_name = (region_name);                       \
    note(memlens_name);                                             \
    if (memlens_known) by_site(&memlens_site);                      \
    else by_name(memlens_name);                                     \
    __asm__ __volatile__("" : : : "memory");                        \
  })
#define memlens_begin(name) \
  MEMLENS_PRIVATE_SWITCH(memlens_private_note_begin, memlens_private_count_enter, memlens_private_count_begin, name)
#define memlens_end(name) \
  MEMLENS_PRIVATE_SWITCH(memlens_private_note_end, memlens_private_count_leave, memlens_private_count_end, name)
#elif defined(__cplusplus)
#define MEMLENS_SCOPE(name) ::memlens::region MEMLENS_PRIVATE_PASTE(memlens_scope_, __COUNTER__)(name)
#else
MEMLENS_PRIVATE_INLINE const char *memlens_private_enter(const char *name) {
  memlens_begin(name);
  return name;
}
MEMLENS_PRIVATE_INLINE void memlens_private_leave(const char **name) { memlens_end(*name); }
#if defined(__GNUC__)
#define MEMLENS_SCOPE(name)                                      \
  const char *MEMLENS_PRIVATE_PASTE(memlens_scope_, __COUNTER__) \
      __attribute__((cleanup(memlens_private_leave), unused)) = memlens_private_enter(name)
#else
#define MEMLENS_SCOPE(name) (void)(name) /* nothing records here, see above */
#endif
#endif
#define MEMLENS_REGION(name) MEMLENS_SCOPE(name)

#endif /* MEMLENS_H */
