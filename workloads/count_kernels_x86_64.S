// The kernels of count_kernels.c for x86-64. rdi: turns, rsi: from, rdx: to.
#include "count_kernels.h"

// A loop around one instruction.
.macro loop_kernel name, instruction:vararg
    kernel \name
1:  \instruction
    dec %rdi
    jnz 1b
    ret
.endm

loop_kernel load_1, movzbl (%rsi), %eax
end_kernel load_1 loads=1 load_bytes=1
loop_kernel load_2, movzwl (%rsi), %eax
end_kernel load_2 loads=1 load_bytes=2
loop_kernel load_4, movl (%rsi), %eax
end_kernel load_4 loads=1 load_bytes=4
loop_kernel load_8, movq (%rsi), %rax
end_kernel load_8 loads=1 load_bytes=8
loop_kernel load_16, movdqa (%rsi), %xmm0
end_kernel load_16 loads=1 load_bytes=16
loop_kernel load_32, vmovdqu (%rsi), %ymm0
end_kernel load_32 loads=1 load_bytes=32 needs=NEEDS_AVX

loop_kernel store_1, movb %al, (%rdx)
end_kernel store_1 stores=1 store_bytes=1
loop_kernel store_2, movw %ax, (%rdx)
end_kernel store_2 stores=1 store_bytes=2
loop_kernel store_4, movl %eax, (%rdx)
end_kernel store_4 stores=1 store_bytes=4
loop_kernel store_8, movq %rax, (%rdx)
end_kernel store_8 stores=1 store_bytes=8
loop_kernel store_16, movdqa %xmm0, (%rdx)
end_kernel store_16 stores=1 store_bytes=16
loop_kernel store_32, vmovdqu %ymm0, (%rdx)
end_kernel store_32 stores=1 store_bytes=32 needs=NEEDS_AVX
loop_kernel store_past_cache_8, movnti %rax, (%rdx)
end_kernel store_past_cache_8 stores=1 store_bytes=8

// Walks through both buffers.
    kernel copy_8
1:  movq -8(%rsi,%rdi,8), %rax
    movq %rax, -8(%rdx,%rdi,8)
    dec %rdi
    jnz 1b
    ret
    end_kernel copy_8 loads=1 load_bytes=8 stores=1 store_bytes=8

    kernel straight_line
    .irp offset, 0, 8, 16, 24, 32, 40, 48, 56
    movq \offset(%rsi), %rax
    movl %eax, \offset(%rdx)
    .endr
    ret
    end_kernel straight_line call_loads=8 call_load_bytes=64 call_stores=8 call_store_bytes=32

// One instruction that reads and writes, and the same as one atomic operation.
loop_kernel modify_8, addq %rax, (%rdx)
end_kernel modify_8 loads=1 load_bytes=8 stores=1 store_bytes=8
loop_kernel atomic_add_8, lock addq %rax, (%rdx)
end_kernel atomic_add_8 loads=1 load_bytes=8 stores=1 store_bytes=8
loop_kernel atomic_fetch_add_4, lock xaddl %eax, (%rdx)
end_kernel atomic_fetch_add_4 loads=1 load_bytes=4 stores=1 store_bytes=4
loop_kernel exchange_8, xchgq %rax, (%rdx)
end_kernel exchange_8 loads=1 load_bytes=8 stores=1 store_bytes=8

// Compares with what is there, so each of them stores.
    kernel compare_exchange_8
    movq (%rdx), %rax
    movq %rax, %rcx
1:  lock cmpxchgq %rcx, (%rdx)
    dec %rdi
    jnz 1b
    ret
    end_kernel compare_exchange_8 loads=1 load_bytes=8 stores=1 store_bytes=8 call_loads=1 call_load_bytes=8

    kernel compare_exchange_16
    pushq %rbx
    movq %rdx, %r8
    movq (%r8), %rax
    movq 8(%r8), %rdx
    movq %rax, %rbx
    movq %rdx, %rcx
1:  lock cmpxchg16b (%r8)
    dec %rdi
    jnz 1b
    popq %rbx
    ret
    end_kernel compare_exchange_16 loads=1 load_bytes=16 stores=1 store_bytes=16 call_loads=3 call_load_bytes=24 call_stores=1 call_store_bytes=8 call_stack_loads=1 call_stack_load_bytes=8 call_stack_stores=1 call_stack_store_bytes=8

// String instructions: an element is an execution.
    kernel move_string_1
    movq %rdi, %rcx
    movq %rdx, %rdi
    rep movsb
    ret
    end_kernel move_string_1 loads=1 load_bytes=1 stores=1 store_bytes=1

    kernel move_string_8
    movq %rdi, %rcx
    movq %rdx, %rdi
    rep movsq
    ret
    end_kernel move_string_8 loads=1 load_bytes=8 stores=1 store_bytes=8

    kernel store_string_1
    movq %rdi, %rcx
    movq %rdx, %rdi
    xorl %eax, %eax
    rep stosb
    ret
    end_kernel store_string_1 stores=1 store_bytes=1

    kernel load_string_8
    movq %rdi, %rcx
    rep lodsq
    ret
    end_kernel load_string_8 loads=1 load_bytes=8

// Compares the buffer with itself, so that it does not end before the count does.
    kernel compare_string_1
    movq %rdi, %rcx
    movq %rsi, %rdi
    repe cmpsb
    ret
    end_kernel compare_string_1 loads=2 load_bytes=2

    kernel single_string_4
1:  movq %rdi, %rcx
    movq %rdx, %rdi
    movsl
    subq $4, %rsi
    movq %rcx, %rdi
    dec %rdi
    jnz 1b
    ret
    end_kernel single_string_4 loads=1 load_bytes=4 stores=1 store_bytes=4

// Extended precision: ten bytes, which emulators move as eight and two.
    kernel x87_10
    fld1
    fstpt (%rdx)
1:  fldt (%rdx)
    fstpt 16(%rdx)
    dec %rdi
    jnz 1b
    ret
    end_kernel x87_10 loads=1 load_bytes=10 stores=1 store_bytes=10 call_stores=1 call_store_bytes=10

    kernel x87_8
    fldz
    fstpl (%rdx)
1:  fldl (%rdx)
    fstps 16(%rdx)
    dec %rdi
    jnz 1b
    ret
    end_kernel x87_8 loads=1 load_bytes=8 stores=1 store_bytes=4 call_stores=1 call_store_bytes=8

// Half on one page, half on the next.
loop_kernel page_crossing_load_8, movq 4092(%rsi), %rax
end_kernel page_crossing_load_8 loads=1 load_bytes=8
loop_kernel page_crossing_load_16, movdqu 4088(%rsi), %xmm0
end_kernel page_crossing_load_16 loads=1 load_bytes=16
loop_kernel page_crossing_store_16, movdqu %xmm0, 4084(%rdx)
end_kernel page_crossing_store_16 stores=1 store_bytes=16

// Four elements that are not neighbours: at 64, 128, 192 and 256.
    kernel gather_4x4
    movl $64, %eax
    vmovd %eax, %xmm1
    vpbroadcastd %xmm1, %xmm1
    vpslldq $4, %xmm1, %xmm2
    vpaddd %xmm2, %xmm1, %xmm1
    vpslldq $8, %xmm1, %xmm2
    vpaddd %xmm2, %xmm1, %xmm1
1:  vpcmpeqd %xmm3, %xmm3, %xmm3
    vpgatherdd %xmm3, (%rsi,%xmm1), %xmm0
    dec %rdi
    jnz 1b
    ret
    end_kernel gather_4x4 loads=4 load_bytes=16 needs=NEEDS_AVX2

// On the stack of the thread.
    kernel push_pop
1:  pushq %rax
    popq %rax
    dec %rdi
    jnz 1b
    ret
    end_kernel push_pop loads=1 load_bytes=8 stores=1 store_bytes=8 stack_loads=1 stack_load_bytes=8 stack_stores=1 stack_store_bytes=8

    kernel stack_frame
    subq $40, %rsp
1:  movq %rax, 8(%rsp)
    movl 8(%rsp), %eax
    movdqu %xmm0, 16(%rsp)
    dec %rdi
    jnz 1b
    addq $40, %rsp
    ret
    end_kernel stack_frame loads=1 load_bytes=4 stores=2 store_bytes=24 stack_loads=1 stack_load_bytes=4 stack_stores=2 stack_store_bytes=24

// From the buffer to the stack and back to the other buffer, in one instruction each.
    kernel push_pop_memory
1:  pushq (%rsi)
    popq (%rdx)
    dec %rdi
    jnz 1b
    ret
    end_kernel push_pop_memory loads=2 load_bytes=16 stores=2 store_bytes=16 stack_loads=1 stack_load_bytes=8 stack_stores=1 stack_store_bytes=8

// A call inside the kernel: the push and the pop are both its own.
    kernel call_return
1:  call 2f
    dec %rdi
    jnz 1b
    ret
2:  ret
    end_kernel call_return loads=1 load_bytes=8 stores=1 store_bytes=8 stack_loads=1 stack_load_bytes=8 stack_stores=1 stack_store_bytes=8

// Looks like accesses and is none.
    kernel no_access
1:  leaq 8(%rsi), %rax
    prefetcht0 (%rsi)
    nopl 8(%rsi,%rax)
    dec %rdi
    jnz 1b
    ret
    end_kernel no_access
