// Text of the operating system (paths, arguments, variables) between Python and C++: bytes that need not be UTF-8.
// As Python's own functions take it: str (decoded with surrogate escapes), bytes or a path object; the bytes stay as they are.
#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <string_view>

struct OsText {
  std::string bytes;
};

// What a person reads: bytes that are no UTF-8 are escaped, as in "a\xffb".
inline nanobind::str shown_text(std::string_view text) {
  return nanobind::steal<nanobind::str>(
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace"));
}

namespace nanobind::detail {
template <>
struct type_caster<OsText> {
  NB_TYPE_CASTER(OsText, const_name("str | bytes | os.PathLike[str]"))

  bool from_python(handle source, uint8_t, cleanup_list*) noexcept {
    PyObject* converted = nullptr;
    if (PyUnicode_FSConverter(source.ptr(), &converted) == 0) {  // another type, or a zero byte
      PyErr_Clear();
      return false;
    }
    char* text = nullptr;
    Py_ssize_t length = 0;
    const bool is_bytes = PyBytes_AsStringAndSize(converted, &text, &length) == 0;
    if (is_bytes) value.bytes.assign(text, static_cast<size_t>(length));
    Py_DECREF(converted);
    return is_bytes;
  }

  static handle from_cpp(const OsText& text, rv_policy, cleanup_list*) noexcept {
    return PyUnicode_DecodeFSDefaultAndSize(text.bytes.data(), static_cast<Py_ssize_t>(text.bytes.size()));
  }
};
}  // namespace nanobind::detail
