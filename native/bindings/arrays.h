// NumPy arrays in and out: views of what Python gives, arrays that own what the engines made.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace nb = nanobind;

namespace memlens::bindings {

template <typename T>
using Input = nb::ndarray<const T, nb::numpy, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <typename T>
std::span<const T> view(const Input<T>& array) {
  return {array.data(), array.size()};
}

// No array is an empty one.
template <typename T>
std::span<const T> view(const std::optional<Input<T>>& array) {
  return array ? view(*array) : std::span<const T>{};
}

inline std::span<const unsigned char> view(const nb::bytes& bytes) {
  return {reinterpret_cast<const unsigned char*>(bytes.c_str()), bytes.size()};
}

template <typename T>
std::vector<T> copied(const Input<T>& array) {
  return {array.data(), array.data() + array.size()};
}

template <typename T>
nb::object owned(std::vector<T>&& values) {
  auto* kept = new std::vector<T>(std::move(values));
  nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<1>>(kept->data(), {kept->size()}, owner));
}

template <typename T>
nb::object owned_rows(std::vector<T>&& values, size_t columns) {
  auto* kept = new std::vector<T>(std::move(values));
  nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<2>>(kept->data(), {kept->size() / columns, columns}, owner));
}

// One value of each entry of a list.
template <typename T, typename List, typename Get>
nb::object column(const List& list, Get get) {
  std::vector<T> values;
  values.reserve(list.size());
  for (const auto& entry : list) values.push_back(static_cast<T>(get(entry)));
  return owned(std::move(values));
}

}  // namespace memlens::bindings
