// Functions that exist in two files of one program: their notes must be kept or dropped with them.
#pragma once
#include <stdexcept>

#include "memlens.h"

template <typename Number>
__attribute__((noinline)) Number in_template(Number value) {
  memlens::region guard("template");
  return value + 1;
}

__attribute__((noinline)) inline int in_inline(int value) {
  MEMLENS_REGION("inline");
  if (value < 0) throw std::runtime_error("negative");
  return value * 2;
}

int second_cpp(int value);
