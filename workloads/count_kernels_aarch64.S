// The kernels of count_kernels.c for AArch64. x0: turns, x1: from, x2: to.
#include "count_kernels.h"

    .arch armv8.1-a

// A loop around one instruction.
.macro loop_kernel name, instruction:vararg
    kernel \name
1:  \instruction
    subs x0, x0, #1
    b.ne 1b
    ret
.endm

loop_kernel load_1, ldrb w3, [x1]
end_kernel load_1 loads=1 load_bytes=1
loop_kernel load_2, ldrh w3, [x1]
end_kernel load_2 loads=1 load_bytes=2
loop_kernel load_4, ldr w3, [x1]
end_kernel load_4 loads=1 load_bytes=4
loop_kernel load_8, ldr x3, [x1]
end_kernel load_8 loads=1 load_bytes=8
loop_kernel load_16, ldr q0, [x1]
end_kernel load_16 loads=1 load_bytes=16

loop_kernel store_1, strb w3, [x2]
end_kernel store_1 stores=1 store_bytes=1
loop_kernel store_2, strh w3, [x2]
end_kernel store_2 stores=1 store_bytes=2
loop_kernel store_4, str w3, [x2]
end_kernel store_4 stores=1 store_bytes=4
loop_kernel store_8, str x3, [x2]
end_kernel store_8 stores=1 store_bytes=8
loop_kernel store_16, str q0, [x2]
end_kernel store_16 stores=1 store_bytes=16

// Walks through both buffers.
    kernel copy_8
1:  ldr x3, [x1], #8
    str x3, [x2], #8
    subs x0, x0, #1
    b.ne 1b
    ret
    end_kernel copy_8 loads=1 load_bytes=8 stores=1 store_bytes=8

    kernel straight_line
    .irp offset, 0, 8, 16, 24, 32, 40, 48, 56
    ldr x3, [x1, #\offset]
    str w3, [x2, #\offset]
    .endr
    ret
    end_kernel straight_line call_loads=8 call_load_bytes=64 call_stores=8 call_store_bytes=32

// Several registers at once: contiguous, so one access.
loop_kernel load_pair_16, ldp x3, x4, [x1]
end_kernel load_pair_16 loads=1 load_bytes=16
loop_kernel store_pair_16, stp x3, x4, [x2]
end_kernel store_pair_16 stores=1 store_bytes=16
loop_kernel load_pair_8, ldp w3, w4, [x1]
end_kernel load_pair_8 loads=1 load_bytes=8
loop_kernel load_pair_32, ldp q0, q1, [x1]
end_kernel load_pair_32 loads=1 load_bytes=32
loop_kernel store_pair_32, stp q0, q1, [x2]
end_kernel store_pair_32 stores=1 store_bytes=32
loop_kernel load_registers_64, ld1 {v0.16b - v3.16b}, [x1]
end_kernel load_registers_64 loads=1 load_bytes=64
loop_kernel store_registers_64, st1 {v0.16b - v3.16b}, [x2]
end_kernel store_registers_64 stores=1 store_bytes=64
loop_kernel load_interleaved_64, ld4 {v0.4s - v3.4s}, [x1]
end_kernel load_interleaved_64 loads=1 load_bytes=64
loop_kernel load_lane_4, ld1 {v0.s}[1], [x1]
end_kernel load_lane_4 loads=1 load_bytes=4
loop_kernel load_replicated_8, ld1r {v0.2d}, [x1]
end_kernel load_replicated_8 loads=1 load_bytes=8

// A literal beside the code.
    kernel load_literal_8
1:  ldr x3, 2f
    subs x0, x0, #1
    b.ne 1b
    ret
    .balign 8
2:  .8byte 42
    end_kernel load_literal_8 loads=1 load_bytes=8

// No other thread uses the buffer, and nothing comes between the two: under an emulator the store never fails.
    kernel exclusive_8
1:  ldxr x3, [x2]
    add x3, x3, #1
    stxr w4, x3, [x2]
    subs x0, x0, #1
    b.ne 1b
    ret
    end_kernel exclusive_8 loads=1 load_bytes=8 stores=1 store_bytes=8

    kernel exclusive_pair_16
1:  ldaxp x3, x4, [x2]
    stlxp w5, x3, x4, [x2]
    subs x0, x0, #1
    b.ne 1b
    ret
    end_kernel exclusive_pair_16 loads=1 load_bytes=16 stores=1 store_bytes=16

loop_kernel acquire_8, ldar x3, [x1]
end_kernel acquire_8 loads=1 load_bytes=8
loop_kernel release_4, stlr w3, [x2]
end_kernel release_4 stores=1 store_bytes=4

loop_kernel atomic_add_8, ldadd x3, x4, [x2]
end_kernel atomic_add_8 loads=1 load_bytes=8 stores=1 store_bytes=8 needs=NEEDS_LSE
loop_kernel exchange_4, swp w3, w4, [x2]
end_kernel exchange_4 loads=1 load_bytes=4 stores=1 store_bytes=4 needs=NEEDS_LSE

// Compares with what is there, so each of them stores.
    kernel compare_exchange_8
    ldr x3, [x2]
1:  mov x4, x3
    cas x4, x3, [x2]
    subs x0, x0, #1
    b.ne 1b
    ret
    end_kernel compare_exchange_8 loads=1 load_bytes=8 stores=1 store_bytes=8 call_loads=1 call_load_bytes=8 needs=NEEDS_LSE

    kernel compare_exchange_16
    ldp x4, x5, [x2]
1:  mov x6, x4
    mov x7, x5
    casp x6, x7, x4, x5, [x2]
    subs x0, x0, #1
    b.ne 1b
    ret
    end_kernel compare_exchange_16 loads=1 load_bytes=16 stores=1 store_bytes=16 call_loads=1 call_load_bytes=16 needs=NEEDS_LSE

// Clears a block of memory; the emulator does not show it.
loop_kernel clear_block, dc zva, x2
end_kernel clear_block unseen=1

// Half on one page, half on the next.
    kernel page_crossing_load_8
    add x1, x1, #4092
1:  ldr x3, [x1]
    subs x0, x0, #1
    b.ne 1b
    ret
    end_kernel page_crossing_load_8 loads=1 load_bytes=8

    kernel page_crossing_store_16
    add x2, x2, #4088
1:  str q0, [x2]
    subs x0, x0, #1
    b.ne 1b
    ret
    end_kernel page_crossing_store_16 stores=1 store_bytes=16

// On the stack of the thread.
    kernel stack_frame
    stp x29, x30, [sp, #-32]!
1:  str x3, [sp, #16]
    ldr w3, [sp, #16]
    subs x0, x0, #1
    b.ne 1b
    ldp x29, x30, [sp], #32
    ret
    end_kernel stack_frame loads=1 load_bytes=4 stores=1 store_bytes=8 stack_loads=1 stack_load_bytes=4 stack_stores=1 stack_store_bytes=8 call_loads=1 call_load_bytes=16 call_stores=1 call_store_bytes=16 call_stack_loads=1 call_stack_load_bytes=16 call_stack_stores=1 call_stack_store_bytes=16

// Looks like an access and is none.
loop_kernel no_access, prfm pldl1keep, [x1]
end_kernel no_access
