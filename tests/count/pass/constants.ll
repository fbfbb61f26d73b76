; A loop of 100 iterations: its accesses are 100 times those of what is around it. One counter, none in the loop.
; CHECK: @memlens.function.hundred = {{.*}} i32 1, i32 {{[0-9]+}}, i64 0, i32 0, i32 0 }
; CHECK-LABEL: define void @hundred
; CHECK: entry:
; CHECK: add i64 %{{.*}}, 1
; CHECK: loop:
; CHECK-NOT: i64 %{{.*}}, 1{{$}}
; CHECK: ret void
define void @hundred(ptr %p) {
entry:
  br label %loop
loop:
  %i = phi i32 [ 0, %entry ], [ %next, %loop ]
  %q = getelementptr i32, ptr %p, i32 %i
  store i32 %i, ptr %q
  %next = add i32 %i, 1
  %end = icmp eq i32 %next, 100
  br i1 %end, label %done, label %loop
done:
  ret void
}
