; MEMLENS_PASS: versions
%region = type { ptr, i64 }
@name = private constant [2 x i8] c"a\00"
@a = internal global %region { ptr @name, i64 0 }
; Two regions of one name after each other: the end of the first and the begin of the second share a block.
; CHECK-LABEL: define void @twice
; CHECK: call i32 @__memlens_count_enter_sampled(ptr @a)
; CHECK: call void @__memlens_count_leave(ptr @a)
; CHECK: store i32 2
; CHECK: call i32 @__memlens_count_enter_sampled(ptr @a)
; CHECK: icmp ne i32 %f, 0
define void @twice(ptr %p) {
  %e = call i32 @__memlens_count_enter(ptr @a)
  store i32 1, ptr %p
  call void @__memlens_count_leave(ptr @a)
  store i32 2, ptr %p
  %f = call i32 @__memlens_count_enter(ptr @a)
  store i32 3, ptr %p
  call void @__memlens_count_leave(ptr @a)
  ret void
}
declare i32 @__memlens_count_enter(ptr)
declare void @__memlens_count_leave(ptr)
