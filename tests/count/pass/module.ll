; RUNS: 2
; A second run changes nothing; the tables are in the group of their function; the version is named.
; CHECK: $linked = comdat any
; CHECK: @memlens.function.linked = private global {{.*}}, section "memlens_functions", comdat($linked), align 8, !associated ![[MD:[0-9]+]]
; CHECK: @memlens.table.linked = private constant {{.*}}, section "memlens_tables", comdat($linked), align 1, !associated
; CHECK: @memlens_count_abi_2__all_objects_must_be_built_by_one_memlens_version = external hidden global i8
; CHECK: @memlens.version = private constant i64 {{.*}}, section "memlens_version"
; CHECK-LABEL: define linkonce_odr void @linked
; CHECK: add i64 %{{.*}}, 1
; CHECK-NOT: add i64
; CHECK: ret void
; CHECK-LABEL: define ptr @early_resolver
; CHECK-NOT: memlens
; CHECK: ret ptr
$linked = comdat any
define linkonce_odr void @linked(ptr %p) comdat {
  store i32 1, ptr %p
  ret void
}
define ptr @early_resolver(ptr %p) {
  store i32 1, ptr %p
  ret ptr %p
}
@early = ifunc void (), ptr @early_resolver
