// SPDX-License-Identifier: Apache-2.0
// Rust v0 names (RFC 2603): a recursive-descent parser that prints as it goes. Crate hashes and the
// types of constants are left out, as `rustc-demangle`'s short form does.
//
// Limits, because backreferences can make a short name print without end: nesting, printed length
// and steps. A name past a limit counts as not mangled.
#include <cstdint>
#include <string>

#include "demangle.h"
#include "punycode.h"
#include "utf8.h"

namespace memlens::symbols {
namespace {

constexpr int kMaxNesting = 200;
constexpr int kMaxSteps = 20000;
constexpr size_t kMaxPrintedChars = 1 << 15;

const char* basic_type(char tag) {
  switch (tag) {
    case 'a': return "i8";
    case 'b': return "bool";
    case 'c': return "char";
    case 'd': return "f64";
    case 'e': return "str";
    case 'f': return "f32";
    case 'h': return "u8";
    case 'i': return "isize";
    case 'j': return "usize";
    case 'l': return "i32";
    case 'm': return "u32";
    case 'n': return "i128";
    case 'o': return "u128";
    case 's': return "i16";
    case 't': return "u16";
    case 'u': return "()";
    case 'v': return "...";
    case 'x': return "i64";
    case 'y': return "u64";
    case 'z': return "!";
    case 'p': return "_";
    default: return nullptr;
  }
}

class V0Printer {
 public:
  explicit V0Printer(std::string_view input) : input_(input) {}

  std::string run() {
    path(true);
    // The crate that instantiated a generic; says nothing to a reader.
    if (!failed_ && at_ < input_.size() && input_[at_] >= 'A' && input_[at_] <= 'Z') {
      muted_ = true;
      path(false);
      muted_ = false;
    }
    if (failed_) return {};
    std::string_view suffix = input_.substr(at_);
    if (!suffix.empty() && suffix.front() != '.' && suffix.front() != '$') return {};
    out_ += suffix.substr(0, suffix.find(".llvm."));
    return out_;
  }

 private:
  struct Identifier {
    std::string_view ascii, punycode;
    bool empty() const { return ascii.empty() && punycode.empty(); }
  };
  // One level of recursion; a name that nests or works too much fails here.
  struct Level {
    explicit Level(V0Printer& p) : printer(p) {
      if (++p.n_levels_ > kMaxNesting || ++p.n_steps_ > kMaxSteps) p.failed_ = true;
    }
    ~Level() { --printer.n_levels_; }
    V0Printer& printer;
  };

  char peek() const { return at_ < input_.size() && !failed_ ? input_[at_] : '\0'; }
  char next() {
    const char c = peek();
    if (c == '\0') failed_ = true;
    else ++at_;
    return c;
  }
  bool eat(char c) {
    if (peek() != c) return false;
    ++at_;
    return true;
  }
  void print(std::string_view text) {
    if (muted_ || failed_) return;
    out_ += text;
    if (out_.size() > kMaxPrintedChars) failed_ = true;
  }

  uint64_t base62() {
    if (eat('_')) return 0;
    uint64_t value = 0;
    while (!failed_ && !eat('_')) {
      const char c = next();
      uint64_t digit = 0;
      if (c >= '0' && c <= '9') digit = static_cast<uint64_t>(c - '0');
      else if (c >= 'a' && c <= 'z') digit = static_cast<uint64_t>(c - 'a') + 10;
      else if (c >= 'A' && c <= 'Z') digit = static_cast<uint64_t>(c - 'A') + 36;
      else failed_ = true;
      if (value > (UINT64_MAX - digit) / 62 - 1) failed_ = true;
      else value = value * 62 + digit;
    }
    return value + 1;
  }
  uint64_t optional_base62(char tag) { return eat(tag) ? base62() + 1 : 0; }

  Identifier identifier() {
    const bool is_punycode = eat('u');
    if (peek() < '0' || peek() > '9') {
      failed_ = true;
      return {};
    }
    uint64_t n_chars = static_cast<uint64_t>(next() - '0');
    if (n_chars != 0)
      while (peek() >= '0' && peek() <= '9' && n_chars <= input_.size())
        n_chars = n_chars * 10 + static_cast<uint64_t>(next() - '0');
    eat('_');
    if (failed_ || n_chars > input_.size() - at_) {
      failed_ = true;
      return {};
    }
    const std::string_view text = input_.substr(at_, n_chars);
    at_ += n_chars;
    if (!is_punycode) return {text, {}};
    const size_t split = text.rfind('_');
    if (split == std::string_view::npos) return {{}, text};
    return {text.substr(0, split), text.substr(split + 1)};
  }
  void print(const Identifier& name) {
    if (name.punycode.empty()) return print(name.ascii);
    std::string decoded;
    if (append_punycode(name.ascii, name.punycode, decoded)) return print(decoded);
    print("punycode{");
    if (!name.ascii.empty()) print(name.ascii), print("-");
    print(name.punycode);
    print("}");
  }

  // Runs `parse` at an earlier place. While muted nothing is printed, so there is nothing to
  // follow.
  template <typename Parse>
  void backreference(Parse parse) {
    const size_t tag_at = at_ - 1;
    const uint64_t target = base62();
    if (failed_ || target >= tag_at) {
      failed_ = true;
      return;
    }
    if (muted_) return;
    const size_t resume = at_;
    at_ = target;
    parse();
    at_ = resume;
  }

  // Items until 'E'; returns how many.
  template <typename Parse>
  size_t list(std::string_view separator, Parse parse) {
    size_t n_items = 0;
    while (!failed_ && !eat('E')) {
      if (n_items++ > 0) print(separator);
      parse();
    }
    return n_items;
  }

  void path(bool in_value) {
    Level level(*this);
    if (failed_) return;
    switch (const char tag = next()) {
      case 'C':
        optional_base62('s');  // the crate's hash
        print(identifier());
        return;
      case 'N': {
        const char space = next();
        path(in_value);
        const uint64_t disambiguator = optional_base62('s');
        const Identifier name = identifier();
        if (space >= 'A' && space <= 'Z') {
          print("::{");
          if (space == 'C') print("closure");
          else if (space == 'S') print("shim");
          else print(std::string_view(&space, 1));
          if (!name.empty()) print(":"), print(name);
          print("#"), print(std::to_string(disambiguator)), print("}");
        } else if (!name.empty()) {
          print("::"), print(name);
        }
        return;
      }
      case 'M':
      case 'X': {
        optional_base62('s');
        const bool was_muted = muted_;
        muted_ = true;  // where the impl was written
        path(false);
        muted_ = was_muted;
        [[fallthrough]];
      }
      case 'Y':
        print("<");
        type();
        if (tag != 'M') print(" as "), path(false);
        print(">");
        return;
      case 'I':
        path(in_value);
        if (in_value) print("::");
        print("<");
        list(", ", [&] { generic_argument(); });
        print(">");
        return;
      case 'B': return backreference([&] { path(in_value); });
      default: failed_ = true;
    }
  }

  void generic_argument() {
    if (eat('L')) return lifetime(base62());
    if (eat('K')) return constant(false);
    type();
  }

  void lifetime(uint64_t index) {
    print("'");
    if (index == 0) return print("_");
    if (index > n_bound_lifetimes_) {
      failed_ = true;
      return;
    }
    const uint64_t depth = n_bound_lifetimes_ - index;
    if (depth < 26) print(std::string(1, static_cast<char>('a' + depth)));
    else print("_" + std::to_string(depth));
  }

  template <typename Parse>
  void in_binder(Parse parse) {
    const uint64_t n_new = optional_base62('G');
    if (n_new > 1000) failed_ = true;
    if (failed_) return;
    if (n_new > 0) {
      print("for<");
      for (uint64_t i = 0; i < n_new; ++i) {
        if (i > 0) print(", ");
        ++n_bound_lifetimes_;
        lifetime(1);
      }
      print("> ");
    }
    parse();
    n_bound_lifetimes_ -= n_new;
  }

  void type() {
    Level level(*this);
    if (failed_) return;
    const char tag = next();
    if (const char* name = basic_type(tag)) return print(name);
    switch (tag) {
      case 'R':
      case 'Q':
        print("&");
        if (eat('L'))
          if (const uint64_t index = base62()) lifetime(index), print(" ");
        if (tag == 'Q') print("mut ");
        return type();
      case 'P': print("*const "); return type();
      case 'O': print("*mut "); return type();
      case 'A':
      case 'S':
        print("[");
        type();
        if (tag == 'A') print("; "), constant(true);
        return print("]");
      case 'T': {
        print("(");
        const size_t n_items = list(", ", [&] { type(); });
        return print(n_items == 1 ? ",)" : ")");
      }
      case 'F': return in_binder([&] { function_type(); });
      case 'D': {
        print("dyn ");
        in_binder([&] { list(" + ", [&] { dyn_trait(); }); });
        if (!eat('L')) failed_ = true;
        if (const uint64_t index = base62(); !failed_ && index != 0) print(" + "), lifetime(index);
        return;
      }
      case 'B': return backreference([&] { type(); });
      default: --at_; path(false);
    }
  }

  void function_type() {
    if (eat('U')) print("unsafe ");
    if (eat('K')) {
      print("extern \"");
      if (eat('C')) {
        print("C");
      } else {
        std::string abi(identifier().ascii);
        for (char& c : abi)
          if (c == '_') c = '-';
        print(abi);
      }
      print("\" ");
    }
    print("fn(");
    list(", ", [&] { type(); });
    print(")");
    if (!eat('u')) print(" -> "), type();
  }

  void dyn_trait() {
    bool open = path_with_open_generics();
    while (eat('p')) {
      print(open ? ", " : "<");
      open = true;
      print(identifier());
      print(" = ");
      type();
    }
    if (open) print(">");
  }

  // A trait's associated types are printed among its generic arguments: leaves "<..." unclosed.
  bool path_with_open_generics() {
    Level level(*this);
    bool open = false;
    if (eat('B')) {
      backreference([&] { open = path_with_open_generics(); });
    } else if (eat('I')) {
      path(false);
      print("<");
      list(", ", [&] { generic_argument(); });
      open = true;
    } else {
      path(false);
    }
    return open;
  }

  std::string_view hex_digits() {
    const size_t begin = at_;
    while ((peek() >= '0' && peek() <= '9') || (peek() >= 'a' && peek() <= 'f')) ++at_;
    const std::string_view digits = input_.substr(begin, at_ - begin);
    if (!eat('_')) failed_ = true;
    return digits;
  }
  static bool to_number(std::string_view hex, uint64_t& value) {
    while (hex.starts_with("0")) hex.remove_prefix(1);
    if (hex.size() > 16) return false;
    value = 0;
    for (char c : hex) value = value * 16 + static_cast<uint64_t>(c <= '9' ? c - '0' : c - 'a' + 10);
    return true;
  }
  void print_number() {
    const std::string_view digits = hex_digits();
    uint64_t value = 0;
    if (to_number(digits, value)) print(std::to_string(value));
    else print("0x"), print(digits);
  }
  void print_escaped(uint32_t c, char quote) {
    std::string text;
    if (c == '\n') text = "\\n";
    else if (c == '\t') text = "\\t";
    else if (c == '\r') text = "\\r";
    else if (c == 0) text = "\\0";
    else if (c == '\\' || c == static_cast<uint32_t>(quote)) text = {'\\', static_cast<char>(c)};
    else if (c < 0x20 || c == 0x7f) {
      static constexpr char kDigits[] = "0123456789abcdef";
      text = c < 16 ? std::string("\\u{") + kDigits[c] + "}"
                    : std::string("\\u{") + kDigits[c >> 4] + kDigits[c & 15] + "}";
    } else if (!append_utf8(c, text)) failed_ = true;
    print(text);
  }
  void print_string_literal() {
    const std::string_view digits = hex_digits();
    if (digits.size() % 2 != 0) failed_ = true;
    print("\"");
    for (size_t i = 0; i + 1 < digits.size() && !failed_; i += 2) {
      uint64_t byte = 0;
      to_number(digits.substr(i, 2), byte);
      if (byte < 0x80) print_escaped(static_cast<uint32_t>(byte), '"');
      else print(std::string(1, static_cast<char>(byte)));  // already UTF-8
    }
    print("\"");
  }

  void constant(bool in_value) {
    Level level(*this);
    if (failed_) return;
    const char tag = next();
    auto braced = [&](auto parse) {  // composite constants stand in braces among generic arguments
      if (!in_value) print("{");
      parse();
      if (!in_value) print("}");
    };
    switch (tag) {
      case 'p': return print("_");
      case 'h':
      case 't':
      case 'm':
      case 'y':
      case 'o':
      case 'j': return print_number();
      case 'a':
      case 's':
      case 'l':
      case 'x':
      case 'n':
      case 'i':
        if (eat('n')) print("-");
        return print_number();
      case 'b': {
        const std::string_view digits = hex_digits();
        if (digits != "0" && digits != "1") failed_ = true;
        return print(digits == "1" ? "true" : "false");
      }
      case 'c': {
        uint64_t value = 0;
        if (!to_number(hex_digits(), value) || value > 0x10ffff) failed_ = true;
        print("'"), print_escaped(static_cast<uint32_t>(value), '\'');
        return print("'");
      }
      case 'e': return braced([&] { print("*"), print_string_literal(); });
      case 'R':
      case 'Q':
        if (tag == 'R' && eat('e')) return print_string_literal();
        return braced([&] { print(tag == 'R' ? "&" : "&mut "), constant(true); });
      case 'A': return braced([&] { print("["), list(", ", [&] { constant(true); }), print("]"); });
      case 'T':
        return braced([&] {
          print("(");
          const size_t n_items = list(", ", [&] { constant(true); });
          print(n_items == 1 ? ",)" : ")");
        });
      case 'V': return braced([&] { structure_constant(); });
      case 'B': return backreference([&] { constant(in_value); });
      default: failed_ = true;
    }
  }

  void structure_constant() {
    path(true);
    switch (next()) {
      case 'U': return;
      case 'T': print("("), list(", ", [&] { constant(true); }), print(")"); return;
      case 'S':
        print(" { ");
        list(", ", [&] {
          optional_base62('s');
          print(identifier()), print(": "), constant(true);
        });
        return print(" }");
      default: failed_ = true;
    }
  }

  std::string_view input_;  // after "_R"; backreferences count from here
  size_t at_ = 0;
  std::string out_;
  bool failed_ = false;
  bool muted_ = false;
  int n_levels_ = 0;
  int n_steps_ = 0;
  uint64_t n_bound_lifetimes_ = 0;
};

}  // namespace

std::string demangle_rust_v0(std::string_view mangled) {
  if (!mangled.starts_with("_R")) return {};
  const std::string_view body = mangled.substr(2);
  // A leading digit would be an encoding version; only version 0, written as nothing, exists.
  if (body.empty() || body.front() < 'A' || body.front() > 'Z') return {};
  return V0Printer(body).run();
}

}  // namespace memlens::symbols
