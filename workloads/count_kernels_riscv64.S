// The kernels of count_kernels.c for RISC-V (rv64gc). a0: turns, a1: from, a2: to.
#include "count_kernels.h"

// A loop around one instruction.
.macro loop_kernel name, instruction:vararg
    kernel \name
1:  \instruction
    addi a0, a0, -1
    bnez a0, 1b
    ret
.endm

loop_kernel load_1, lbu a3, 0(a1)
end_kernel load_1 loads=1 load_bytes=1
loop_kernel load_2, lh a3, 0(a1)
end_kernel load_2 loads=1 load_bytes=2
loop_kernel load_4, lw a3, 0(a1)
end_kernel load_4 loads=1 load_bytes=4
loop_kernel load_8, ld a3, 0(a1)
end_kernel load_8 loads=1 load_bytes=8
loop_kernel load_float_4, flw ft0, 0(a1)
end_kernel load_float_4 loads=1 load_bytes=4
loop_kernel load_float_8, fld ft0, 0(a1)
end_kernel load_float_8 loads=1 load_bytes=8

loop_kernel store_1, sb a3, 0(a2)
end_kernel store_1 stores=1 store_bytes=1
loop_kernel store_2, sh a3, 0(a2)
end_kernel store_2 stores=1 store_bytes=2
loop_kernel store_4, sw a3, 0(a2)
end_kernel store_4 stores=1 store_bytes=4
loop_kernel store_8, sd a3, 0(a2)
end_kernel store_8 stores=1 store_bytes=8
loop_kernel store_float_4, fsw ft0, 0(a2)
end_kernel store_float_4 stores=1 store_bytes=4
loop_kernel store_float_8, fsd ft0, 0(a2)
end_kernel store_float_8 stores=1 store_bytes=8

// Walks through both buffers.
    kernel copy_8
1:  ld a3, 0(a1)
    sd a3, 0(a2)
    addi a1, a1, 8
    addi a2, a2, 8
    addi a0, a0, -1
    bnez a0, 1b
    ret
    end_kernel copy_8 loads=1 load_bytes=8 stores=1 store_bytes=8

    kernel straight_line
    .irp offset, 0, 8, 16, 24, 32, 40, 48, 56
    ld a3, \offset(a1)
    sw a3, \offset(a2)
    .endr
    ret
    end_kernel straight_line call_loads=8 call_load_bytes=64 call_stores=8 call_store_bytes=32

// Without compressed instructions: four bytes each.
    .option push
    .option norvc
    kernel copy_uncompressed_8
1:  ld a3, 0(a1)
    sd a3, 0(a2)
    addi a0, a0, -1
    bnez a0, 1b
    ret
    end_kernel copy_uncompressed_8 loads=1 load_bytes=8 stores=1 store_bytes=8
    .option pop

// No other thread uses the buffer, and nothing comes between the two: under an emulator the store never fails.
    kernel reserved_8
1:  lr.d a3, (a2)
    addi a3, a3, 1
    sc.d a4, a3, (a2)
    addi a0, a0, -1
    bnez a0, 1b
    ret
    end_kernel reserved_8 loads=1 load_bytes=8 stores=1 store_bytes=8

    kernel reserved_4
1:  lr.w.aq a3, (a2)
    sc.w.rl a4, a3, (a2)
    addi a0, a0, -1
    bnez a0, 1b
    ret
    end_kernel reserved_4 loads=1 load_bytes=4 stores=1 store_bytes=4

loop_kernel atomic_add_8, amoadd.d a3, a4, (a2)
end_kernel atomic_add_8 loads=1 load_bytes=8 stores=1 store_bytes=8
loop_kernel exchange_4, amoswap.w a3, a4, (a2)
end_kernel exchange_4 loads=1 load_bytes=4 stores=1 store_bytes=4

// Half on one page, half on the next.
    kernel page_crossing_8
    li a3, 4092
    add a1, a1, a3
    add a2, a2, a3
1:  ld a3, 0(a1)
    sd a3, 0(a2)
    addi a0, a0, -1
    bnez a0, 1b
    ret
    end_kernel page_crossing_8 loads=1 load_bytes=8 stores=1 store_bytes=8

// On the stack of the thread.
    kernel stack_frame
    addi sp, sp, -32
    sd ra, 24(sp)
1:  sd a3, 8(sp)
    lw a3, 8(sp)
    addi a0, a0, -1
    bnez a0, 1b
    ld ra, 24(sp)
    addi sp, sp, 32
    ret
    end_kernel stack_frame loads=1 load_bytes=4 stores=1 store_bytes=8 stack_loads=1 stack_load_bytes=4 stack_stores=1 stack_store_bytes=8 call_loads=1 call_load_bytes=8 call_stores=1 call_store_bytes=8 call_stack_loads=1 call_stack_load_bytes=8 call_stack_stores=1 call_stack_store_bytes=8

loop_kernel no_access, fence rw, rw
end_kernel no_access
