// What count_kernels.c and the assembly files beside it share: the table of kernels, written where each kernel is.
//
// A kernel is void kernel_NAME(uint64_t turns, unsigned char *from, unsigned char *to), wholly in assembly, so that the
// accesses of its symbol are known to the last one. After its code stands what it makes:
//
//   end_kernel NAME loads=1 load_bytes=8            a turn of its loop (or one element of a string instruction)
//              call_loads=… call_load_bytes=…       a call, on top of the turns
//              stack_loads=… call_stack_loads=…     how many of those are on the thread's stack
//              unseen=1                             executions of an instruction that writes memory no emulator shows
//              needs=FEATURE                        see count_kernels.c
//
// The rule of counting: contiguous parts of one execution of one instruction in one direction are one access, however
// an emulator splits them. An atomic operation is one load and one store; a store-exclusive or store-conditional is one
// store. One element of an x86 string instruction is one execution.
#ifndef MEMLENS_COUNT_KERNELS_H
#define MEMLENS_COUNT_KERNELS_H

#define NEEDS_NOTHING 0
#define NEEDS_AVX 1
#define NEEDS_AVX2 2
#define NEEDS_LSE 3
#define NEEDS_POWER9 4

#ifdef __ASSEMBLER__

// What the return of a kernel itself reads: x86 pops it from the stack. Calls belong to the caller.
#ifdef __x86_64__
#define RETURN_LOADS 1
#define RETURN_LOAD_BYTES 8
#else
#define RETURN_LOADS 0
#define RETURN_LOAD_BYTES 0
#endif

.macro kernel name
    .text
    .balign 64
    .globl kernel_\name
    .type kernel_\name, %function
kernel_\name:
.endm

.macro end_kernel name, loads=0, stores=0, load_bytes=0, store_bytes=0, stack_loads=0, stack_stores=0, stack_load_bytes=0, stack_store_bytes=0, unseen=0, call_loads=0, call_stores=0, call_load_bytes=0, call_store_bytes=0, call_stack_loads=0, call_stack_stores=0, call_stack_load_bytes=0, call_stack_store_bytes=0, needs=0
    .size kernel_\name, . - kernel_\name
    .pushsection .rodata, "a"
990:
    .asciz "kernel_\name"
    .popsection
    .pushsection count_kernel_table, "aw"
    .balign 8
    .8byte 990b, kernel_\name, \needs
    .8byte \loads, \stores, \load_bytes, \store_bytes
    .8byte \stack_loads, \stack_stores, \stack_load_bytes, \stack_store_bytes, \unseen
    .8byte \call_loads + RETURN_LOADS, \call_stores, \call_load_bytes + RETURN_LOAD_BYTES, \call_store_bytes
    .8byte \call_stack_loads + RETURN_LOADS, \call_stack_stores
    .8byte \call_stack_load_bytes + RETURN_LOAD_BYTES, \call_stack_store_bytes, 0
    .popsection
.endm

    .section .note.GNU-stack, "", %progbits
    .text

#else

#include <stdint.h>

struct known_counts {
    uint64_t loads, stores, load_bytes, store_bytes;
    uint64_t stack_loads, stack_stores, stack_load_bytes, stack_store_bytes;
    uint64_t unseen;
};

struct count_kernel {
    const char *name;
    void (*run)(uint64_t turns, unsigned char *from, unsigned char *to);
    uint64_t needs;
    struct known_counts of_turn, of_call;
};

#endif
#endif
