; MEMLENS_PASS: versions
; A function that may be called through a pointer runs its untouched copy in an execution that is not counted.
%region = type { ptr, i64 }
@name = private constant [2 x i8] c"a\00"
@a = internal global %region { ptr @name, i64 0 }
; CHECK-LABEL: define i32 @calls
; CHECK: call i32 @__memlens_count_enter_sampled(ptr @a)
define i32 @calls(ptr %p, ptr %f) {
  %e = call i32 @__memlens_count_enter(ptr @a)
  %r = call i32 %f(ptr %p)
  call void @__memlens_count_leave(ptr @a)
  ret i32 %r
}
; CHECK-LABEL: define internal i32 @target
; CHECK: %[[BASE:[0-9]+]] = load ptr, ptr @__memlens_count_base
; CHECK: %[[DUMP:.*]] = load ptr, ptr @__memlens_count_dump
; CHECK: %[[IS:.*]] = icmp eq ptr %[[BASE]], %[[DUMP]]
; CHECK: br i1 %[[IS]], label %[[OTHER:.*]], label
; CHECK: [[OTHER]]:
; CHECK: tail call i32 @target.untouched(ptr %p)
define internal i32 @target(ptr %p) {
  %v = load i32, ptr %p
  ret i32 %v
}
@pointer = global ptr @target
declare i32 @__memlens_count_enter(ptr)
declare void @__memlens_count_leave(ptr)
