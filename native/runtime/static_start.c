/* The start of the archive for static programs: annotations without the allocation hooks. */
#include "runtime.h"

__attribute__((constructor)) static void load(void) {
  ml_self.inside++;
  ml_runtime_start();
  ml_attached();
  ml_self.inside--;
}

__attribute__((destructor)) static void unload(void) {
  if (!ml_recording()) return;
  if (ml_runtime.standalone) ml_standalone_end();
  else atomic_store(&ml_runtime.slot->state, ML_CLAIM_LEAVING);
}
