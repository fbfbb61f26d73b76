/* Calls the runtime with known values in all registers that preserve_most keeps, and looks at them afterwards. */
#include <stdio.h>
#include <stdlib.h>

#include "trace_by_hand.h"

TRACED(work, 4);

int main(void) {
  static uint64_t data[64];
  unsigned recorded = 0;
  for (uint64_t i = 0; i < 100000; i++) {
    const uint64_t header =
        TRACE_HEADER(i % 4, 1, 0, ML_TRACE_WORDS, 0) + *(volatile uint64_t *)&work_traced.first_site;
    volatile struct ml_trace_thread *thread = &__memlens_trace;
    if (thread->left >= 1) {
      thread->left -= 1;
      continue;
    }
    uint64_t *words = thread->cursor;
    if ((uintptr_t)(words + 2) > (uintptr_t)thread->limit) {
#if defined(__x86_64__)
      uint64_t before[9] = {thread->left, header, i, i + 1, i + 2, i + 3, i + 4, 0, 0}, after[7];
      uint64_t *result;
      __asm__ volatile(
          "movq 0(%[b]), %%rdi\n movq 8(%[b]), %%rsi\n movq 16(%[b]), %%rdx\n movq 24(%[b]), %%rcx\n"
          "movq 32(%[b]), %%r8\n movq 40(%[b]), %%r9\n movq 48(%[b]), %%r10\n"
          "subq $256, %%rsp\n call __memlens_trace_room\n addq $256, %%rsp\n"
          "movq %%rdi, 0(%[a])\n movq %%rsi, 8(%[a])\n movq %%rdx, 16(%[a])\n movq %%rcx, 24(%[a])\n"
          "movq %%r8, 32(%[a])\n movq %%r9, 40(%[a])\n movq %%r10, 48(%[a])\n"
          : "=&a"(result)
          : [b] "r"(before), [a] "r"(after)
          : "rdi", "rsi", "rdx", "rcx", "r8", "r9", "r10", "r11", "memory", "cc", "xmm0", "xmm1", "xmm2", "xmm3",
            "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");
      for (int r = 0; r < 7; r++)
        if (after[r] != before[r]) {
          printf("register %d was changed\n", r);
          return 1;
        }
      words = result;
#else
      words = __memlens_trace_room(thread->left, header);
#endif
    }
    if (words == NULL) continue;
    thread->cursor = words + 2;
    words[0] = header;
    words[1] = (uint64_t)(uintptr_t)&data[i % 64];
    recorded++;
  }
  return recorded == 0;
}
