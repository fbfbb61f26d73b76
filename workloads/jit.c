// A just-in-time compiler of one function: writes machine code into memory, names it in /tmp/perf-PID.map as real
// ones do, and calls it. The code stores 1 into the first byte of each page of a buffer.
//
// Options: --pages N, --remove-map, --hold-ms N, --time.
//
// Known answer. N pages touched first by the main thread in the function `jit_touch_pages`, which no file on disk
// has; it is called at the line marked below in call_jit. /tmp/perf-PID.map stays behind unless --remove-map. x86-64
// and AArch64; others exit 77.
#include "workload.h"

typedef void touch_function(unsigned char *base, uint64_t n_pages, uint64_t stride_bytes);

#if defined(__x86_64__)
static const unsigned char code[] = {
    0x55,              //       push %rbp          a frame, so that stacks by frame pointer are whole
    0x48, 0x89, 0xe5,  //       mov  %rsp, %rbp
    0xc6, 0x07, 0x01,  // loop: movb $1, (%rdi)
    0x48, 0x01, 0xd7,  //       add  %rdx, %rdi
    0x48, 0xff, 0xce,  //       dec  %rsi
    0x75, 0xf5,        //       jnz  loop
    0x5d,              //       pop  %rbp
    0xc3,              //       ret
};
#elif defined(__aarch64__)
static const uint32_t code[] = {
    0xa9bf7bfd,  //       stp  x29, x30, [sp, #-16]!
    0x910003fd,  //       mov  x29, sp
    0x52800023,  //       mov  w3, #1
    0x39000003,  // loop: strb w3, [x0]
    0x8b020000,  //       add  x0, x0, x2
    0xf1000421,  //       subs x1, x1, #1
    0x54ffffa1,  //       b.ne loop
    0xa8c17bfd,  //       ldp  x29, x30, [sp], #16
    0xd65f03c0,  //       ret
};
#else
static const unsigned char code[1];
#endif

static touch_function *compile(void) {
    unsigned char *page = map_fresh(page_bytes());
    memcpy(page, code, sizeof code);
    if (mprotect(page, page_bytes(), PROT_READ | PROT_EXEC)) fail("mprotect: %s", strerror(errno));
    __builtin___clear_cache((char *)page, (char *)page + sizeof code);
    touch_function *function;
    memcpy(&function, &page, sizeof function);  // ISO C has no conversion from object to function pointers
    return function;
}

static void write_perf_map(char *path, size_t path_bytes, touch_function *function) {
    snprintf(path, path_bytes, "/tmp/perf-%ld.map", (long)getpid());
    FILE *map = fopen(path, "w");
    if (!map) fail("cannot write %s: %s", path, strerror(errno));
    fprintf(map, "%llx %zx jit_touch_pages\n", (unsigned long long)(uintptr_t)function, sizeof code);
    if (fclose(map)) fail("cannot write %s: %s", path, strerror(errno));
}

OWN_FRAME static void call_jit(touch_function *jit_touch_pages, unsigned char *base, size_t n_pages) {
    jit_touch_pages(base, n_pages, page_bytes());  // touch: here
}

int main(int argc, char **argv) {
    long n_pages = 256;
    bool remove_map = false;
    const struct option_spec options[] = {
        number_option("--pages", &n_pages, "pages of the buffer"),
        flag_option("--remove-map", &remove_map, "delete /tmp/perf-PID.map at the end"),
    };
    struct run run = begin_run(argc, argv, options, COUNT_OF(options));
    require(n_pages >= 1, "--pages must be at least 1");
    if (sizeof code == 1) skip("no machine code for this processor");
    touch_function *function = compile();
    char path[64];
    write_perf_map(path, sizeof path, function);
    unsigned char *base = map_fresh((size_t)n_pages * page_bytes());
    call_jit(function, base, (size_t)n_pages);
    require(sum_first_bytes(base, (size_t)n_pages) == (uint64_t)n_pages, "a page lost its write");
    printf("jit pages=%ld\n", n_pages);
    int result = end_run(&run);
    if (remove_map) unlink(path);
    return result;
}
