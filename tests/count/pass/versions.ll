; MEMLENS_PASS: versions
; A region's entry chooses between the counted body and an untouched one, which calls untouched functions.
%region = type { ptr, i64 }
@name = private constant [2 x i8] c"a\00"
@a = internal global %region { ptr @name, i64 0 }
; CHECK-LABEL: define i32 @marked
; CHECK: %[[COUNTS:.*]] = call i32 @__memlens_count_enter_sampled(ptr @a)
; CHECK: %[[IS:.*]] = icmp ne i32 %{{.*}}, 0
; CHECK: br i1 %[[IS]], label %[[BODY:.*]], label %[[COPY:.*]]
; CHECK: [[BODY]]:
; CHECK: add i64 %{{.*}}, 1
; CHECK: call i32 @helper(ptr %p)
; CHECK: %[[RESULT:.*]] = phi i32
; CHECK: call void @__memlens_count_leave(ptr @a)
; CHECK: ret i32 %[[RESULT]]
; CHECK: [[COPY]]:
; CHECK-NOT: add i64
; CHECK: call i32 @helper.untouched(ptr %p)
define i32 @marked(ptr %p) {
  %e = call i32 @__memlens_count_enter(ptr @a)
  store i32 1, ptr %p
  %r = call i32 @helper(ptr %p)
  call void @__memlens_count_leave(ptr @a)
  ret i32 %r
}
define internal i32 @helper(ptr %p) noinline {
  %v = load i32, ptr %p
  ret i32 %v
}
; CHECK-LABEL: define internal i32 @helper.untouched
; CHECK-NOT: memlens_count_base
; CHECK: }

declare i32 @__memlens_count_enter(ptr)
declare void @__memlens_count_leave(ptr)
