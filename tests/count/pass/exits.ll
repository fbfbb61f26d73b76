; The trip count is not known, but a variable tells it when the loop is left: nothing in the loop but the look whether it
; is time to write (every 2^18 iterations). After the variable has stepped, its value is the number of iterations.
; CHECK-LABEL: define i64 @search
; CHECK: loop:
; CHECK: %[[FROM:memlens.from.*]] = phi i64 [ 0, %entry ]
; CHECK: and i64 %{{.*}}, 262143
; CHECK: found:
; CHECK: %[[VALUE:.*]] = add i64 %next, 0
; CHECK: %[[NOW:.*]] = freeze i64 %[[VALUE]]
; CHECK: sub i64 %[[NOW]], %
; CHECK: ret i64
define i64 @search(ptr %p, i32 %x) {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %q = getelementptr i32, ptr %p, i64 %i
  %v = load i32, ptr %q
  %next = add i64 %i, 1
  %is = icmp eq i32 %v, %x
  br i1 %is, label %found, label %loop
found:
  ret i64 %i
}

; A pointer that steps by 4 does too.
; CHECK-LABEL: define ptr @scan
; CHECK: ptrtoint
; CHECK: lshr i64 %{{.*}}, 2
; CHECK: ret ptr
define ptr @scan(ptr %p, i32 %x) {
entry:
  br label %loop
loop:
  %q = phi ptr [ %p, %entry ], [ %next, %loop ]
  %v = load i32, ptr %q
  %next = getelementptr i8, ptr %q, i64 4
  %is = icmp eq i32 %v, %x
  br i1 %is, label %found, label %loop
found:
  ret ptr %q
}
