// Large objects that are used whole, or hardly at all.
// Bad: --mode sparse, one page in 32 of each object is touched. Good twin: --mode dense, all of it.
// With --heap the objects come from malloc, 16 bytes into a page; --heap --aligned asks for whole pages.
//
// Options: --mode sparse|dense, --mib N (each), --objects N, --heap, --aligned, --time, --hold-ms N.
//
// Known answer. N objects of A = --mib MiB / P pages, in base pages. dense: A pages of each are touched. sparse: the
// pages 0, 32, 64, … of each, ceil(A / 32); the others never.
#include "workload.h"

OWN_FRAME static void touch_pages(unsigned char *bytes, size_t n_pages, size_t stride) {
    KEEP_FRAME();
    for (size_t page = 0; page < n_pages; page += stride) bytes[page * page_bytes()] = 1;  // touch: here
}

OWN_FRAME static unsigned char *make_object(size_t bytes, bool heap, bool aligned) {
    if (!heap) return map_fresh(bytes);
    unsigned char *object = aligned ? aligned_alloc(2 * MIB, bytes) : malloc(bytes);  // allocate: here
    require(object != NULL, "out of memory");
    unsigned char *first_page =
        (unsigned char *)(((uintptr_t)object + page_bytes() - 1) & ~(uintptr_t)(page_bytes() - 1));
    madvise(first_page, bytes - page_bytes(), MADV_NOHUGEPAGE);
    return object;
}

int main(int argc, char **argv) {
    const char *mode = "sparse";
    long mib = 64, n_objects = 2;
    bool heap = false, aligned = false;
    const struct option_spec options[] = {
        text_option("--mode", &mode, "sparse (bad) or dense (good)"),
        number_option("--mib", &mib, "MiB of each object"),
        number_option("--objects", &n_objects, "objects"),
        flag_option("--heap", &heap, "from malloc, not from mmap"),
        flag_option("--aligned", &aligned, "on whole pages, with --heap"),
    };
    struct run run = begin_run(argc, argv, options, COUNT_OF(options));
    bool sparse = !strcmp(mode, "sparse");
    require(sparse || !strcmp(mode, "dense"), "--mode is sparse or dense");
    require(mib >= 1 && n_objects >= 1 && n_objects <= 64, "--mib at least 1, --objects 1 to 64");
    size_t bytes = (size_t)mib * MIB, touched = 0;
    unsigned char *objects[64];
    for (long i = 0; i < n_objects; i++) {
        objects[i] = make_object(bytes, heap, aligned);
        size_t n_pages = pages_in(bytes) - (heap && !aligned ? 1 : 0), stride = sparse ? 32 : 1;
        touch_pages(objects[i], n_pages, stride);
        touched += (n_pages + stride - 1) / stride;
    }
    printf("object_use touched=%zu mode=%s objects=%ld\n", touched, mode, n_objects);
    return end_run(&run);
}
