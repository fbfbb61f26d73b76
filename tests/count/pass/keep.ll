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

; In a loop around it the register is written later. The add stands in the block that goes round, not on the way back, which would
; be a jump more.
; CHECK-LABEL: define void @roots
; CHECK: climb:
; CHECK: %[[UP:memlens.kept[.0-9]*]] = phi i64
; CHECK: add i64 %[[UP]], 1
; CHECK: br i1 %top, label %{{.*}}, label %climb
; CHECK: ret void
define void @roots(ptr %parents, i64 %n) {
entry:
  br label %each
each:
  %v = phi i64 [ 0, %entry ], [ %next, %found ]
  br label %climb
climb:
  %at = phi i64 [ %v, %each ], [ %parent, %climb ]
  %place = getelementptr i64, ptr %parents, i64 %at
  %parent = load i64, ptr %place
  %top = icmp eq i64 %parent, %at
  br i1 %top, label %found, label %climb
found:
  %mine = getelementptr i64, ptr %parents, i64 %v
  store i64 %at, ptr %mine
  %next = add nuw i64 %v, 1
  %last = icmp eq i64 %next, %n
  br i1 %last, label %out, label %each
out:
  ret void
}
