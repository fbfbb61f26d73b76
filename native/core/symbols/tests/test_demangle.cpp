// SPDX-License-Identifier: Apache-2.0
// Demangling, by table. The Rust rows are from programs built with rustc's two manglings and from
// RFC 2603's own examples.
#include <random>

#include "check.h"
#include "symbols/demangle.h"

using memlens::symbols::demangle;
namespace {
struct Case {
  const char *mangled, *expected;
};
void check_table(std::initializer_list<Case> cases) {
  for (const Case& c : cases) CHECK_EQUAL(demangle(c.mangled), c.expected);
}
}  // namespace

TEST(names_that_are_not_mangled_stay) {
  check_table(
      {{"", ""},
       {"main", "main"},
       {"_start", "_start"},
       {"_Z", "_Z"},
       {"_R", "_R"},
       {"_ZN", "_ZN"},
       {"_Reset", "_Reset"},
       {"_RNvC", "_RNvC"},
       {"_ZN3foo", "_ZN3foo"},
       {"__cxa_throw", "__cxa_throw"},
       {"_ZN9999999999999999999999foo17h0123456789abcdefE", "_ZN9999999999999999999999foo17h0123456789abcdefE"}});
}

TEST(cpp_names) {
  check_table({{"_Z3fooi", "foo(int)"},
               {"_ZN5space5Thing6methodEi", "space::Thing::method(int)"},
               {"_ZNK5space5Thing6methodEi", "space::Thing::method(int) const"},
               {"_ZN3FooC1Ev", "Foo::Foo()"},
               {"_ZN3FooD0Ev", "Foo::~Foo()"},
               {"_ZNSt6vectorIiSaIiEE9push_backERKi", "std::vector<int, std::allocator<int> >::push_back(int const&)"},
               {"_Z3addIiET_S0_S0_", "int add<int>(int, int)"},
               {"_ZTV3Foo", "vtable for Foo"},
               {"_Z3foov.cold", "foo() [clone .cold]"},
               {"_ZN12_GLOBAL__N_13barEv", "(anonymous namespace)::bar()"}});
}

TEST(rust_legacy_names) {
  check_table({{"_ZN4core3fmt5Write9write_fmt17h0123456789abcdefE", "core::fmt::Write::write_fmt"},
               {"_ZN71_$LT$Test$u20$$u2b$$u20$$u27$static$u20$as$u20$foo..Bar$LT$Test$GT$$GT$"
                "3bar17h930b740aa94f1d3aE",
                "<Test + 'static as foo::Bar<Test>>::bar"},
               {"_ZN4main4main17he714a2e23ed7db23E", "main::main"},
               {"_ZN28_$u7b$$u7b$closure$u7d$$u7d$17h0123456789abcdefE", "{{closure}}"},
               {"_ZN15test$RF$$BP$$C$3foo17h0123456789abcdefE", "test&*,::foo"},
               {"_ZN1r13gr$uf6$$udf$e17h681a46c05f68c07dE", "r::größe"},
               {"_ZN3foo3bar17h05af221e174051e9E.llvm.1234567", "foo::bar"},
               {"_ZN3foo3bar17h05af221e174051e9E.cold", "foo::bar.cold"},
               // Not a hash: a C++ name that only looks similar.
               {"_ZN3foo17h05af221e17405xyzE", "foo::h05af221e17405xyz"}});
}

TEST(rust_v0_paths_and_types) {
  check_table({{"_RNvC6_123foo3bar", "123foo::bar"},
               {"_RNvCs6GmmlP4bgsG_1r4main", "r::main"},
               {"_RINvCs6GmmlP4bgsG_1r4ptrsReEB2_", "r::ptrs::<&str>"},
               {"_RNCNvCs6GmmlP4bgsG_1r4main0B3_", "r::main::{closure#0}"},
               {"_RNCNvCs6GmmlP4bgsG_1r4mains_0B3_", "r::main::{closure#1}"},
               {"_RNvMNtCs6GmmlP4bgsG_1r5innerINtB2_4WraphKj3_E5firstB4_", "<r::inner::Wrap<u8, 3>>::first"},
               {"_RNvXs_NtCs6GmmlP4bgsG_1r5innerINtB4_4WraphKj3_ENtB4_4Area4areaB6_",
                "<r::inner::Wrap<u8, 3> as r::inner::Area>::area"},
               {"_RINvMNtCslNYArtu3iFV_5alloc5sliceSTmINtNtB5_5boxed3BoxDNtNtCsgEmfK2I1SDS_"
                "4core3fmt5DebugNtNtBV_6marker"
                "4SendEL_EE11sort_by_keymNCNvCs6GmmlP4bgsG_1r4main0EB24_",
                "<[(u32, alloc::boxed::Box<dyn core::fmt::Debug + "
                "core::marker::Send>)]>::sort_by_key::<u32, r::main::{closure#0}>"},
               {"_RINvNtCsgEmfK2I1SDS_4core3ptr13drop_in_placeINtNtCslNYArtu3iFV_"
                "5alloc3vec3VecINtNtBL_5boxed3BoxDINtNtNtB4_"
                "3ops8function6FnOnceuEp6OutputuNtNtB4_6marker4SendEL_EEECs6GmmlP4bgsG_1r",
                "core::ptr::drop_in_place::<alloc::vec::Vec<alloc::boxed::Box<dyn "
                "core::ops::function::FnOnce<(), Output = ()> + "
                "core::marker::Send>>>"},
               {"_RINvC1a1fFUKCRPhEuE", "a::f::<unsafe extern \"C\" fn(&*const u8)>"},
               {"_RINvC1a1fFG_RL0_eEB5_E", "_RINvC1a1fFG_RL0_eEB5_E"},
               {"_RINvC1a1fFG_RL0_eERL0_eE", "a::f::<for<'a> fn(&'a str) -> &'a str>"},
               {"_RINvC1a1fTEE", "a::f::<()>"},
               {"_RINvC1a1fThEE", "a::f::<(u8,)>"},
               {"_RINvC1a1fAhj4_QSbzE", "a::f::<[u8; 4], &mut [bool], !>"},
               {"_RNvC1a1f.llvm.123", "a::f"},
               {"_RNvC1a1f.cold", "a::f.cold"}});
}

TEST(rust_v0_constants) {
  check_table({{"_RINvCs6GmmlP4bgsG_1r5konstKb1_Kce9_Kln5_EB2_", "r::konst::<true, 'é', -5>"},
               {"_RINvC1a1fKp_E", "_RINvC1a1fKp_E"},
               {"_RINvC1a1fKpE", "a::f::<_>"},
               {"_RINvC1a1fKoffffffffffffffffff_E", "a::f::<0xffffffffffffffffff>"},
               {"_RINvC1a1fKc27_E", "a::f::<'\\''>"},
               {"_RINvC1a1fKb2_E", "_RINvC1a1fKb2_E"},
               {"_RINvC1a1fKRe616263_E", "a::f::<\"abc\">"},
               {"_RINvC1a1fKRAh1_h2_EE", "a::f::<{&[1, 2]}>"},
               {"_RINvC1a1fKVNtC1a1SS1xh1_1yb0_EE", "a::f::<{a::S { x: 1, y: false }}>"},
               {"_RINvC1a1fKVNtC1a1OTh7_EE", "a::f::<{a::O(7)}>"}});
}

TEST(rust_v0_unicode_identifiers) {
  check_table(
      {{"_RNvCs6GmmlP4bgsG_1ru9gre_6ka8i", "r::größe"},
       {"_RNqCs4fqI2P2rA04_11utf8_identsu30____7hkackfecea1cbdathfdh9hlq6y", "utf8_idents::საჭმელად_გემრიელი_სადილი"}});
}

TEST(names_that_would_print_without_end_stay_mangled) {
  std::string nested = "_RMC0";
  for (int i = 0; i < 5000; ++i) nested += "R";
  nested += "e";
  CHECK_EQUAL(demangle(nested), nested);
  // Each tuple holds the one before it twice.
  std::string doubling = "_RMC0TTTTTTTTTTTTTTTTTTTTTTTTTTTTTTTTTTTTTTTTeB3_EB2_EB1_EB0_EB_E";
  CHECK(demangle(doubling).size() < 100000);
  CHECK_EQUAL(demangle("_RNvB_1a"), "_RNvB_1a");
  CHECK_EQUAL(demangle(std::string(1 << 20, 'Z').insert(0, "_")), std::string(1 << 20, 'Z').insert(0, "_"));
}

TEST(random_damage_never_crashes) {
  const std::string seeds[] = {
      "_RINvMNtCslNYArtu3iFV_5alloc5sliceSTmINtNtB5_5boxed3BoxDNtNtCsgEmfK2I1SDS_"
      "4core3fmt5DebugNtNtBV_6marker4SendEL_EE11sort_by_keymNCNvCs6GmmlP4bgsG_1r4main0EB24_",
      "_RINvC1a1fKVNtC1a1SS1xh1_1yb0_EE", "_RNvCs6GmmlP4bgsG_1ru9gre_6ka8i",
      "_ZN71_$LT$Test$u20$$u2b$$u20$$u27$static$u20$as$u20$foo..Bar$LT$Test$GT$$GT$"
      "3bar17h930b740aa94f1d3aE",
      "_ZNSt6vectorIiSaIiEE9push_backERKi"};
  std::mt19937 random(7);
  const std::string alphabet = "_ABCDEFGHIKLMNOPQRSTUVXYZabcdefghijklmnopqrstuvxyz0123456789$.";
  size_t n_done = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string name = seeds[random() % std::size(seeds)];
    for (unsigned n = 1 + random() % 4; n > 0; --n) {
      const size_t at = 2 + random() % (name.size() - 2);
      switch (random() % 3) {
        case 0: name[at] = alphabet[random() % alphabet.size()]; break;
        case 1: name.insert(at, 1, alphabet[random() % alphabet.size()]); break;
        default: name.resize(std::max<size_t>(at, 3));
      }
    }
    n_done += !demangle(name).empty();
  }
  CHECK_EQUAL(n_done, 20000u);
}

int main(int argc, char** argv) { return check::run_all(argc, argv); }
