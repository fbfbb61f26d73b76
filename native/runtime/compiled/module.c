/* One copy in each module that has counted code: every object names the symbol below, which pulls this file out of the
 * archive, and with it the runtime. The rest of the runtime serves the process once, wherever its symbols are bound to. */
#include "count.h"

/* Absent when the linker kept no counted function. */
extern struct ml_count_function __start_memlens_functions[] __attribute__((weak, visibility("hidden")));
extern struct ml_count_function __stop_memlens_functions[] __attribute__((weak, visibility("hidden")));

__attribute__((visibility("hidden"))) const char ML_COUNT_ABI_SYMBOL = ML_COUNT_ABI;

/* The earliest that is left to programs: before ordinary constructors and C++ static objects. */
__attribute__((constructor(101))) static void load(void) {
  __memlens_count_register(__start_memlens_functions, __stop_memlens_functions, &ML_COUNT_ABI_SYMBOL);
}

__attribute__((destructor(101))) static void unload(void) { __memlens_count_unregister(__start_memlens_functions); }
