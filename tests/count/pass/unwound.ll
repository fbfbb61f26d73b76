; Where an exception arrives, regions of frames that it has left are closed, and the address is read again.
; CHECK-LABEL: define void @catches
; CHECK: landingpad
; CHECK: call void @__memlens_count_unwound()
; CHECK: load ptr, ptr @__memlens_count_base
; CHECK: ret void
define void @catches(ptr %p) personality ptr @__gxx_personality_v0 {
  invoke void @opaque() to label %fine unwind label %pad
fine:
  ret void
pad:
  %x = landingpad { ptr, i32 } catch ptr null
  store i32 1, ptr %p
  ret void
}
; CHECK-LABEL: define void @returns_twice
; CHECK: %[[MARK:.*]] = call i64 @__memlens_count_mark()
; CHECK: call i32 @setjmp
; CHECK: call void @__memlens_count_returned(i64 %[[MARK]], i32 0)
; CHECK: load ptr, ptr @__memlens_count_base
define void @returns_twice(ptr %p) {
  %r = call i32 @setjmp(ptr %p) returns_twice
  store i32 1, ptr %p
  ret void
}
declare i32 @setjmp(ptr) returns_twice
declare void @opaque()
declare i32 @__gxx_personality_v0(...)
