; MEMLENS_PASS: trace;no-count
; A loop with several segments asks once a round whether a window can begin in it: 3 is the most that a round executes. The copy without
; checks takes off what the likely way executes, and the difference on others; the other copy counts and records.
target triple = "x86_64-unknown-linux-gnu"

; CHECK-LABEL: define i64 @sometimes
; CHECK: loop:
; CHECK: %[[LEFT:memlens.left[.0-9]*]] = phi i64
; CHECK: %[[FITS:.*]] = icmp uge i64 %[[LEFT]], 3
; CHECK: br i1 %[[FITS]], label %[[USUAL:.*]], label %[[BODY:[^,]*]], !prof
; CHECK: [[BODY]]:
; CHECK: usub.with.overflow.i64(i64 %{{.*}}, i64 1)
; CHECK: usub.with.overflow.i64(i64 %{{.*}}, i64 2)
; CHECK: ret i64
; CHECK: then.memlens.round:
; CHECK-NEXT: sub i64 %[[REST:.*]], 2
; CHECK: [[USUAL]]:
; CHECK-NEXT: %[[REST]] = sub i64 %[[LEFT]], 1
; CHECK-NOT: usub
; CHECK: }
define i64 @sometimes(ptr %p, ptr %q) {
entry:
  br label %loop
loop:
  %a = phi ptr [ %p, %entry ], [ %next, %on ]
  %n = phi i64 [ 0, %entry ], [ %m, %on ]
  %next = load ptr, ptr %a
  %odd = icmp ugt ptr %next, %q
  br i1 %odd, label %then, label %on
then:
  %b = getelementptr i64, ptr %a, i64 1
  %v = load i64, ptr %b
  store i64 %n, ptr %b
  br label %on
on:
  %k = phi i64 [ 1, %loop ], [ %v, %then ]
  %m = add i64 %n, %k
  %end = icmp eq ptr %next, null
  br i1 %end, label %done, label %loop
done:
  ret i64 %m
}

; A way out in the middle of a round has executed less: the difference is given back on it.
; CHECK-LABEL: define ptr @find
; CHECK: icmp uge i64 %[[LEFT:.*]], 3
; CHECK: memlens.other:
; CHECK-NEXT: sub i64 %[[REST:.*]], -2
; CHECK: ret ptr
; CHECK: loop{{.*}}memlens.round:
; CHECK-NEXT: %[[REST]] = sub i64 %[[LEFT]], 3
; CHECK: }
define ptr @find(ptr %p, i64 %key) {
entry:
  br label %loop
loop:
  %a = phi ptr [ %p, %entry ], [ %next, %more ]
  %v = load i64, ptr %a
  %is = icmp eq i64 %v, %key
  br i1 %is, label %done, label %more
more:
  %link = getelementptr i64, ptr %a, i64 1
  %next = load ptr, ptr %link
  %count = getelementptr i64, ptr %a, i64 2
  store i64 0, ptr %count
  %end = icmp eq ptr %next, null
  br i1 %end, label %done, label %loop
done:
  %found = phi ptr [ %a, %loop ], [ null, %more ]
  ret ptr %found
}

; One segment is one check as it is.
; CHECK-LABEL: define void @one
; CHECK-NOT: memlens.round
; CHECK: ret void
define void @one(ptr %p) {
entry:
  br label %loop
loop:
  %a = phi ptr [ %p, %entry ], [ %next, %loop ]
  %next = load ptr, ptr %a
  %end = icmp eq ptr %next, null
  br i1 %end, label %done, label %loop
done:
  ret void
}

; A short loop inside another: the one around it has a copy that runs while the next window is far, with the same sites and all that the
; other has.
; CHECK-LABEL: define void @lists
; CHECK: lists:
; CHECK: %[[FAR:.*]] = icmp uge i64 %{{.*}}, 1024
; CHECK: br i1 %[[FAR]], label %[[COPY:.*memlens.far]], label %{{[^,]*}}, !prof
; CHECK: usub.with.overflow.i64(
; CHECK: load atomic i64, ptr @[[OUTER:.*]] monotonic
; CHECK: usub.with.overflow.i64(
; CHECK: load atomic i64, ptr @[[INNER:.*]] monotonic
; CHECK: ret void
; CHECK-DAG: load atomic i64, ptr @[[OUTER]] monotonic
; CHECK-DAG: load atomic i64, ptr @[[INNER]] monotonic
; CHECK-DAG: [[COPY]]:
; CHECK: }
define void @lists(ptr %p, i64 %n) {
entry:
  br label %lists
lists:
  %i = phi i64 [ 0, %entry ], [ %j, %after ]
  %first = getelementptr ptr, ptr %p, i64 %i
  %head = load ptr, ptr %first
  br label %loop
loop:
  %a = phi ptr [ %head, %lists ], [ %next, %loop ]
  %next = load ptr, ptr %a
  %end = icmp eq ptr %next, null
  br i1 %end, label %after, label %loop
after:
  %j = add i64 %i, 1
  %over = icmp eq i64 %j, %n
  br i1 %over, label %done, label %lists
done:
  ret void
}

; The inner loop takes off its accesses at once: nothing is gained by a copy.
; CHECK-LABEL: define void @rows
; CHECK-NOT: memlens.far
; CHECK: ret void
define void @rows(ptr %p, i64 %n, i64 %width) {
entry:
  br label %rows
rows:
  %i = phi i64 [ 0, %entry ], [ %j, %after ]
  %row = getelementptr ptr, ptr %p, i64 %i
  %at = load ptr, ptr %row
  br label %loop
loop:
  %k = phi i64 [ 0, %rows ], [ %l, %loop ]
  %a = getelementptr i64, ptr %at, i64 %k
  store i64 %k, ptr %a
  %l = add nuw i64 %k, 1
  %end = icmp eq i64 %l, %width
  br i1 %end, label %after, label %loop
after:
  %j = add i64 %i, 1
  %over = icmp eq i64 %j, %n
  br i1 %over, label %done, label %rows
done:
  ret void
}
