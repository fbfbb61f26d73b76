; The trip count is known on entry: added once, before the loop; two loops inside each other multiply.
; CHECK-LABEL: define void @known
; CHECK: before:
; CHECK: %[[OLD:.*]] = load i64
; CHECK: add i64 %[[OLD]], %n
; CHECK: loop:
; CHECK-NOT: memlens
; CHECK: ret void
define void @known(ptr %p, i64 %n) {
entry:
  %any = icmp ne i64 %n, 0
  br i1 %any, label %before, label %done
before:
  br label %loop
loop:
  %i = phi i64 [ 0, %before ], [ %next, %loop ]
  %q = getelementptr i32, ptr %p, i64 %i
  store i32 1, ptr %q
  %next = add nuw i64 %i, 1
  %end = icmp eq i64 %next, %n
  br i1 %end, label %done, label %loop
done:
  ret void
}

; CHECK-LABEL: define void @nest
; CHECK: before:
; CHECK: %[[TIMES:.*]] = mul i64 %{{.*}}, %{{.*}}
; CHECK: add i64 %{{.*}}, %[[TIMES]]
; CHECK: outer:
; CHECK-NOT: memlens
; CHECK: inner:
; CHECK-NOT: memlens
; CHECK: ret void
define void @nest(ptr %p, i64 %n, i64 %m) {
entry:
  %a = icmp sgt i64 %n, 0
  %b = icmp sgt i64 %m, 0
  %any = and i1 %a, %b
  br i1 %any, label %before, label %done
before:
  br label %outer
outer:
  %i = phi i64 [ 0, %before ], [ %i1, %latch ]
  br label %inner
inner:
  %j = phi i64 [ 0, %outer ], [ %j1, %inner ]
  %q = getelementptr i32, ptr %p, i64 %j
  store i32 1, ptr %q
  %j1 = add nuw nsw i64 %j, 1
  %jend = icmp eq i64 %j1, %m
  br i1 %jend, label %latch, label %inner
latch:
  %i1 = add nuw nsw i64 %i, 1
  %iend = icmp eq i64 %i1, %n
  br i1 %iend, label %done, label %outer
done:
  ret void
}
