; A call that may not return ends what runs equally often, and after it the region may be another: the address is read again.
; CHECK-LABEL: define void @calls
; CHECK: load ptr, ptr @__memlens_count_base
; CHECK: add i64 %{{.*}}, 1
; CHECK: call void @opaque()
; CHECK: load ptr, ptr @__memlens_count_base
; CHECK: add i64 %{{.*}}, 1
; CHECK: ret void
define void @calls(ptr %p) {
  store i32 1, ptr %p
  call void @opaque()
  store i32 2, ptr %p
  ret void
}

; One that returns for certain does not.
; CHECK-LABEL: define void @harmless
; CHECK: load ptr, ptr @__memlens_count_base
; CHECK: call void @safe()
; CHECK-NOT: load ptr, ptr @__memlens_count_base
; CHECK: ret void
define void @harmless(ptr %p) {
  store i32 1, ptr %p
  call void @safe()
  store i32 2, ptr %p
  ret void
}

; Nothing is counted after a tail call: it stays one.
; CHECK-LABEL: define i32 @tail
; CHECK: %r = tail call i32 @other(ptr %p)
; CHECK-NEXT: ret i32 %r
define i32 @tail(ptr %p) {
  store i32 1, ptr %p
  %r = tail call i32 @other(ptr %p)
  ret i32 %r
}
declare i32 @other(ptr)
declare void @opaque()
declare void @safe() nounwind willreturn
