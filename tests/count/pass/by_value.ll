; A structure passed by value is copied before the call: a site of its own. A tail call that hands on the caller's own argument in place copies nothing.
; The table of @calls has a site of kind 3 (copy), 24 bytes, on the stack (written); @hands_on has none, so it has no table.
target triple = "x86_64-unknown-linux-gnu"
%three = type { i64, i64, i64 }
@g = global %three zeroinitializer
; CHECK: @memlens.table.calls
; CHECK-NOT: @memlens.table.hands_on
; CHECK-LABEL: define void @calls
; CHECK: load ptr, ptr @__memlens_count_base
; CHECK: call void @take
define void @calls() {
  call void @take(ptr byval(%three) align 8 @g)
  ret void
}
define internal void @hands_on(ptr byval(%three) align 8 %s) {
  tail call void @take(ptr byval(%three) align 8 %s)
  ret void
}
define internal void @take(ptr byval(%three) align 8 %s) {
  ret void
}
