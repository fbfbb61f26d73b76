; A function of the module that is seen to return, and to call nothing else, ends nothing: one counter for what is before
; and after the call, and the address is read once.
; CHECK: @memlens.function.caller = private global { i64, i64, i32, i32, i64, i32, i32 } { {{.*}}, i32 1, i32 {{[0-9]+}}, i64 0, i32 0, i32 0 }
; CHECK: @memlens.function.leaver = private global { i64, i64, i32, i32, i64, i32, i32 } { {{.*}}, i32 2, i32 {{[0-9]+}}, i64 0, i32 0, i32 0 }
; CHECK-LABEL: define void @caller
; CHECK: load ptr, ptr @__memlens_count_base
; CHECK: call void @finds(
; CHECK-NOT: load ptr, ptr @__memlens_count_base
; CHECK: ret void
define void @caller(ptr %p) {
  store i32 1, ptr %p
  call void @finds(ptr %p)
  store i32 2, ptr %p
  ret void
}

; LLVM does not say that its loop ends.
define internal void @finds(ptr %p) nounwind noinline {
entry:
  br label %loop
loop:
  %x = load volatile i32, ptr %p
  %end = icmp eq i32 %x, 7
  br i1 %end, label %done, label %loop
done:
  ret void
}

; One that calls another that may leave does not return for certain, however far down the call is.
; CHECK-LABEL: define void @leaver
; CHECK: load ptr, ptr @__memlens_count_base
; CHECK: call void @middle(
; CHECK: load ptr, ptr @__memlens_count_base
; CHECK: ret void
define void @leaver(ptr %p) {
  store i32 1, ptr %p
  call void @middle(ptr %p)
  store i32 2, ptr %p
  ret void
}
define internal void @middle(ptr %p) nounwind noinline {
  call void @bottom(ptr %p)
  ret void
}
define internal void @bottom(ptr %p) nounwind noinline {
  call void @opaque() nounwind
  ret void
}

; Nor does one that others may replace, or that may trap.
; CHECK-LABEL: define void @replaced
; CHECK: call void @weak(
; CHECK: load ptr, ptr @__memlens_count_base
; CHECK: ret void
define void @replaced(ptr %p) {
  store i32 1, ptr %p
  call void @weak(ptr %p)
  store i32 2, ptr %p
  ret void
}
define weak void @weak(ptr %p) nounwind noinline {
  ret void
}
; CHECK-LABEL: define void @trapped
; CHECK: call void @traps(
; CHECK: load ptr, ptr @__memlens_count_base
; CHECK: ret void
define void @trapped(ptr %p, i1 %c) {
  store i32 1, ptr %p
  call void @traps(i1 %c)
  store i32 2, ptr %p
  ret void
}
define internal void @traps(i1 %c) nounwind noinline {
  br i1 %c, label %good, label %bad
good:
  ret void
bad:
  call void @llvm.trap()
  unreachable
}

; LLVM does not always say that nothing is thrown: the body does. One that passes an exception on does throw.
; CHECK-LABEL: define void @unsaid
; CHECK: call void @quiet(
; CHECK-NOT: load ptr, ptr @__memlens_count_base
; CHECK: ret void
define void @unsaid(ptr %p) {
  store i32 1, ptr %p
  call void @quiet(ptr %p)
  store i32 2, ptr %p
  ret void
}
define internal void @quiet(ptr %p) noinline {
  store i32 3, ptr %p
  ret void
}
; CHECK-LABEL: define void @passed
; CHECK: call void @resumes(
; CHECK: load ptr, ptr @__memlens_count_base
; CHECK: ret void
define void @passed(ptr %p, { ptr, i32 } %x, i1 %c) {
  store i32 1, ptr %p
  call void @resumes({ ptr, i32 } %x, i1 %c)
  store i32 2, ptr %p
  ret void
}
define internal void @resumes({ ptr, i32 } %x, i1 %c) noinline personality ptr @__gxx_personality_v0 {
  br i1 %c, label %good, label %bad
good:
  ret void
bad:
  resume { ptr, i32 } %x
}
declare i32 @__gxx_personality_v0(...)
; CHECK-NOT: memlens-returns
declare void @opaque()
declare void @llvm.trap()
