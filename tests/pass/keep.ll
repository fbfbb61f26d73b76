; Nothing tells how often a list's loop runs: a register counts, and one add writes it when the loop is left. It begins
; 2^18 below zero, so that the add that makes it zero tells that it is time to write.
; CHECK-LABEL: define i64 @chase
; CHECK: loop:
; CHECK: %[[KEPT:memlens.kept[.0-9]*]] = phi i64 [ -262144, %
; CHECK: %[[MORE:.*]] = add i64 %[[KEPT]], 1
; CHECK: icmp eq i64 %[[MORE]], 0
; CHECK: add i64 %{{.*}}, 262144
; CHECK: done:
; CHECK: and i64 %{{.*}}, 262143
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
