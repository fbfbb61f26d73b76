/* A second file with annotations: for another object, a linked library or an opened one. */
#include "memlens.h"

int second_file(int value);
__attribute__((visibility("default"))) int second_file(int value) {
  memlens_begin("second");
  value += memlens_is_recording() >= 0;
  memlens_end("second");
  return value;
}
