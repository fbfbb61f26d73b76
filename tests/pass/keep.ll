; Nothing tells how often a list's loop runs: a register counts, and one add writes it when the loop is left.
; CHECK-LABEL: define i64 @chase
; CHECK: loop:
; CHECK: %[[KEPT:memlens.kept[.0-9]*]] = phi i64
; CHECK: icmp ugt i64 %[[KEPT]], 262144
; CHECK: add i64 %{{.*}}, 1
; CHECK-NOT: store i64 %{{.*}}, ptr %{{.*}}, align 8, !nosanitize
; CHECK: done:
; CHECK: store i64 %{{.*}}, ptr %{{.*}}, align 8, !nosanitize
; CHECK: ret i64
define i64 @chase(ptr %list) {
entry:
  %any = icmp eq ptr %list, null
  br i1 %any, label %out, label %loop
loop:
  %at = phi ptr [ %list, %entry ], [ %next, %loop ]
  %sum = phi i64 [ 0, %entry ], [ %more, %loop ]
  %next = load ptr, ptr %at
  %address = ptrtoint ptr %next to i64
  %more = xor i64 %sum, %address
  %end = icmp eq ptr %next, null
  br i1 %end, label %done, label %loop
done:
  ret i64 %more
out:
  ret i64 0
}
