// A vector that asks for huge pages when it is large: columns of millions of rows are filled once
// and scanned, and small pages would cost more than the filling.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <new>
#include <vector>

namespace memlens::objects {

template <typename T>
struct LargeAllocator {
  using value_type = T;
  static constexpr size_t kHuge = size_t{2} << 20;
  static constexpr size_t kMinBytes = size_t{4} << 20;

  LargeAllocator() = default;
  template <typename U>
  LargeAllocator(const LargeAllocator<U>&) {}  // NOLINT: allocators convert

  T* allocate(size_t count) {
    if (count > SIZE_MAX / sizeof(T) - kHuge) throw std::bad_alloc();
    const size_t bytes = count * sizeof(T);
    if (bytes < kMinBytes) return static_cast<T*>(::operator new(bytes, std::align_val_t{alignof(T)}));
    void* memory = ::operator new(bytes, std::align_val_t{kHuge});
    madvise(memory, bytes, MADV_HUGEPAGE);  // a wish: it works without
    return static_cast<T*>(memory);
  }
  void deallocate(T* memory, size_t count) {
    const bool is_small = count * sizeof(T) < kMinBytes;
    ::operator delete(memory, std::align_val_t{is_small ? alignof(T) : kHuge});
  }
  template <typename U>
  bool operator==(const LargeAllocator<U>&) const {
    return true;
  }
};

template <typename T>
using LargeVector = std::vector<T, LargeAllocator<T>>;

}  // namespace memlens::objects
