// The kernels of count_kernels.c for POWER, little-endian, ELFv2. r3: turns, r4: from, r5: to. No kernel needs the TOC.
// Load multiple and load string do not exist in little-endian mode.
#include "count_kernels.h"

    .machine power9
    .abiversion 2

// A loop around one instruction.
.macro loop_kernel name, instruction:vararg
    kernel \name
    mtctr 3
1:  \instruction
    bdnz 1b
    blr
.endm

loop_kernel load_1, lbz 6, 0(4)
end_kernel load_1 loads=1 load_bytes=1
loop_kernel load_2, lha 6, 0(4)
end_kernel load_2 loads=1 load_bytes=2
loop_kernel load_4, lwz 6, 0(4)
end_kernel load_4 loads=1 load_bytes=4
loop_kernel load_8, ld 6, 0(4)
end_kernel load_8 loads=1 load_bytes=8
loop_kernel load_reversed_8, ldbrx 6, 0, 4
end_kernel load_reversed_8 loads=1 load_bytes=8
loop_kernel load_float_4, lfs 0, 0(4)
end_kernel load_float_4 loads=1 load_bytes=4
loop_kernel load_float_8, lfd 0, 0(4)
end_kernel load_float_8 loads=1 load_bytes=8
loop_kernel load_16, lxv 32, 0(4)
end_kernel load_16 loads=1 load_bytes=16 needs=NEEDS_POWER9
loop_kernel load_vector_16, lvx 0, 0, 4
end_kernel load_vector_16 loads=1 load_bytes=16
loop_kernel load_doublewords_16, lxvd2x 32, 0, 4
end_kernel load_doublewords_16 loads=1 load_bytes=16
loop_kernel load_quad_16, lq 6, 0(4)
end_kernel load_quad_16 loads=1 load_bytes=16

loop_kernel store_1, stb 6, 0(5)
end_kernel store_1 stores=1 store_bytes=1
loop_kernel store_2, sth 6, 0(5)
end_kernel store_2 stores=1 store_bytes=2
loop_kernel store_4, stw 6, 0(5)
end_kernel store_4 stores=1 store_bytes=4
loop_kernel store_8, std 6, 0(5)
end_kernel store_8 stores=1 store_bytes=8
loop_kernel store_float_8, stfd 0, 0(5)
end_kernel store_float_8 stores=1 store_bytes=8
loop_kernel store_16, stxv 32, 0(5)
end_kernel store_16 stores=1 store_bytes=16 needs=NEEDS_POWER9
loop_kernel store_vector_16, stvx 0, 0, 5
end_kernel store_vector_16 stores=1 store_bytes=16
loop_kernel store_quad_16, stq 6, 0(5)
end_kernel store_quad_16 stores=1 store_bytes=16

// Walks through both buffers.
    kernel copy_8
    mtctr 3
    addi 4, 4, -8
    addi 5, 5, -8
1:  ldu 6, 8(4)
    stdu 6, 8(5)
    bdnz 1b
    blr
    end_kernel copy_8 loads=1 load_bytes=8 stores=1 store_bytes=8

    kernel straight_line
    .irp offset, 0, 8, 16, 24, 32, 40, 48, 56
    ld 6, \offset(4)
    stw 6, \offset(5)
    .endr
    blr
    end_kernel straight_line call_loads=8 call_load_bytes=64 call_stores=8 call_store_bytes=32

// No other thread uses the buffer, and nothing comes between the two: under an emulator the store never fails.
    kernel reserved_8
    mtctr 3
1:  ldarx 6, 0, 5
    addi 6, 6, 1
    stdcx. 6, 0, 5
    bdnz 1b
    blr
    end_kernel reserved_8 loads=1 load_bytes=8 stores=1 store_bytes=8

    kernel reserved_4
    mtctr 3
1:  lwarx 6, 0, 5
    stwcx. 6, 0, 5
    bdnz 1b
    blr
    end_kernel reserved_4 loads=1 load_bytes=4 stores=1 store_bytes=4

// Clears a block of memory; the emulator does not show it.
loop_kernel clear_block, dcbz 0, 5
end_kernel clear_block unseen=1

// Half on one page, half on the next.
    kernel page_crossing_8
    mtctr 3
    addi 4, 4, 4092
    addi 5, 5, 4092
1:  ld 6, 0(4)
    std 6, 0(5)
    bdnz 1b
    blr
    end_kernel page_crossing_8 loads=1 load_bytes=8 stores=1 store_bytes=8

// On the stack of the thread.
    kernel stack_frame
    mtctr 3
    stdu 1, -64(1)
1:  std 6, 40(1)
    lwz 6, 40(1)
    bdnz 1b
    ld 6, 0(1)
    addi 1, 1, 64
    blr
    end_kernel stack_frame loads=1 load_bytes=4 stores=1 store_bytes=8 stack_loads=1 stack_load_bytes=4 stack_stores=1 stack_store_bytes=8 call_loads=1 call_load_bytes=8 call_stores=1 call_store_bytes=8 call_stack_loads=1 call_stack_load_bytes=8 call_stack_stores=1 call_stack_store_bytes=8

// Looks like an access and is none.
loop_kernel no_access, dcbt 0, 4
end_kernel no_access
