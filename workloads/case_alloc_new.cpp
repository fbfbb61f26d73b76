// Every form of C++ new and delete, std::bad_alloc thrown and caught, and a malloc after it.
//
// Options: --log FILE (see alloc_log.h), --hold-ms N, --time.
//
// Known answer. The log: a `new` is one record of operation new (flag `array` for new-array), a `delete` one release. A
// new that throws is one record with address 0; the exception object is a malloc of the C++ library, and what comes
// after it is what it is called.
#include "alloc_log.h"

#include <new>
#include <string>
#include <vector>

static volatile size_t one = 1;

struct alignas(256) Wide {
    char bytes[512];
};

OWN_FRAME static void forms() {
    void *p = LOGGED("new", 40, 0, ::operator new(40 * one));
    LOGGED_FREE("delete", p, ::operator delete(p));
    p = LOGGED("new[]", 50, 0, ::operator new[](50 * one));
    LOGGED_FREE("delete", p, ::operator delete[](p));
    p = LOGGED("new", 60, 0, ::operator new(60 * one, std::nothrow));
    LOGGED_FREE("delete", p, ::operator delete(p, std::nothrow));
    p = LOGGED("new[]", 70, 0, ::operator new[](70 * one, std::nothrow));
    LOGGED_FREE("delete", p, ::operator delete[](p, std::nothrow));
    p = LOGGED("new-aligned", 512, 0, new Wide);
    LOGGED_FREE("delete", p, delete static_cast<Wide *>(p));
    p = LOGGED("new[]-aligned", 1024, 0, new Wide[2 * one]);
    LOGGED_FREE("delete", p, delete[] static_cast<Wide *>(p));
    p = LOGGED("new", 80, 0, ::operator new(80 * one));
    LOGGED_FREE("delete", p, ::operator delete(p, (size_t)80));  // sized
    p = LOGGED("new", 8, 0, new long(7 * (long)one));
    LOGGED_FREE("delete", p, delete static_cast<long *>(p));
}

OWN_FRAME static void failures() {
    // The C++ library's nothrow form catches what its throwing one throws.
    LOGGED("throwing-new", SIZE_MAX / 4, 0, ::operator new(SIZE_MAX / 4 * one, std::nothrow));
    uint64_t begin_ns = log_now_ns();
    bool caught = false;
    try {
        void *p = ::operator new(SIZE_MAX / 4 * one);
        require(p == nullptr, "this much memory cannot be");
    } catch (const std::bad_alloc &) {
        caught = true;
    }
    log_call("throwing-new", nullptr, SIZE_MAX / 4, 0, begin_ns);
    require(caught, "operator new did not throw");
    void *p = MALLOC(111 * one);  // not a new
    FREE(p);
    p = LOGGED("calloc", 112, 0, calloc(one, 112));
    FREE(p);
    p = LOGGED("new", 113, 0, ::operator new(113 * one));
    LOGGED_FREE("delete", p, ::operator delete(p));
}

OWN_FRAME static size_t containers() {
    uint64_t begin_ns = log_now_ns();
    std::vector<std::string> words;
    for (size_t i = 0; i < 100 * one; i++) words.push_back(std::string(20 + i, 'x'));
    size_t total = 0;
    for (const std::string &word : words) total += word.size();
    words = std::vector<std::string>();
    log_call("balanced", nullptr, 0, 0, begin_ns);
    return total;
}

int main(int argc, char **argv) {
    const struct option_spec options[] = {text_option("--log", &log_path, "where the calls are logged")};
    struct run run = begin_run(argc, argv, options, COUNT_OF(options));
    log_prepare();
    forms();
    failures();
    size_t total = containers();
    log_write();
    printf("case_alloc_new total=%zu\n", total);
    return end_run(&run);
}
