; MEMLENS_PASS: trace;no-count
; What is left is held in a register while a loop without calls runs, and written back where it is left.
target triple = "x86_64-unknown-linux-gnu"

; CHECK-LABEL: define i64 @chase
; CHECK: entry:
; CHECK: %[[LEFT:.*]] = load i64, ptr @__memlens_trace
; CHECK: loop:
; CHECK: phi i64
; CHECK: usub.with.overflow.i64(i64 %{{.*}}, i64 1)
; CHECK-NOT: store i64 %{{.*}}, ptr @__memlens_trace
; CHECK: memlens.done:
; CHECK: load i64, ptr @__memlens_trace
; CHECK: done:
; CHECK: store i64 %{{.*}}, ptr @__memlens_trace
; CHECK: ret i64
define i64 @chase(ptr %p) {
entry:
  br label %loop
loop:
  %q = phi ptr [ %p, %entry ], [ %next, %loop ]
  %n = phi i64 [ 0, %entry ], [ %m, %loop ]
  %next = load ptr, ptr %q
  %m = add i64 %n, 1
  %end = icmp eq ptr %next, null
  br i1 %end, label %done, label %loop
done:
  ret i64 %m
}

; The accesses of this one are known before it runs: if so many are left they are taken off at once, and a copy runs that has none of
; our code.
; CHECK-LABEL: define void @fill
; CHECK: %[[ALL:.*]] = mul i64 %{{.*}}, 2
; CHECK: %[[FITS:.*]] = icmp ule i64 %[[ALL]], %{{.*}}
; CHECK: br i1 %{{.*}}, label %[[PURE:.*]], label %{{.*}}, !prof
; CHECK: [[PURE]]:
; CHECK: sub i64 %{{.*}}, %[[ALL]]
; CHECK: loop.memlens:
; CHECK-NOT: usub
; CHECK: br i1 %{{.*}}, label %{{.*}}, label %loop.memlens
; CHECK: ret void
define void @fill(ptr %p, ptr %q, i64 %n) {
entry:
  %any = icmp ne i64 %n, 0
  br i1 %any, label %before, label %done
before:
  br label %loop
loop:
  %i = phi i64 [ 0, %before ], [ %next, %loop ]
  %a = getelementptr i32, ptr %p, i64 %i
  %b = getelementptr i32, ptr %q, i64 %i
  %v = load i32, ptr %b
  store i32 %v, ptr %a
  %next = add nuw i64 %i, 1
  %end = icmp eq i64 %next, %n
  br i1 %end, label %done, label %loop
done:
  ret void
}

; Where fewer are left a second copy runs as often as fits, and then the loop with our code until so much is left again.
; CHECK-LABEL: define i64 @total
; CHECK: br i1 %{{.*}}, label %{{.*}}, label %memlens.some
; CHECK: memlens.some:
; CHECK: %memlens.trips = phi i64
; CHECK: %[[FIT:.*]] = udiv i64 %{{.*}}, 1
; CHECK: select i1 %{{.*}}, i64 %[[FIT]], i64 %memlens.trips
; CHECK: loop.memlens.part:
; CHECK-NOT: usub
; CHECK: memlens.after:
; CHECK: br i1 %{{.*}}, label %done, label %{{.*}}
; CHECK: usub.with.overflow.i64(
; CHECK: icmp uge i64 %{{.*}}, 64
; CHECK: br i1 %{{.*}}, label %memlens.some, label %loop
; CHECK: ret i64
define i64 @total(ptr %p, i64 %n) {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %sum = phi i64 [ 0, %entry ], [ %more, %loop ]
  %a = getelementptr i64, ptr %p, i64 %i
  %v = load i64, ptr %a
  %more = add i64 %sum, %v
  %next = add nuw i64 %i, 1
  %end = icmp eq i64 %next, %n
  br i1 %end, label %done, label %loop
done:
  ret i64 %more
}

; A loop that is known to be short: one copy is enough.
; CHECK-LABEL: define void @short
; CHECK: loop.memlens:
; CHECK-NOT: memlens.some
; CHECK: ret void
define void @short(ptr %p) {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %a = getelementptr i64, ptr %p, i64 %i
  store i64 %i, ptr %a
  %next = add nuw i64 %i, 1
  %end = icmp eq i64 %next, 100
  br i1 %end, label %done, label %loop
done:
  ret void
}

; An access that not every iteration makes: nothing is known before.
; CHECK-LABEL: define void @sometimes
; CHECK-NOT: loop.memlens
; CHECK: ret void
define void @sometimes(ptr %p, i64 %n) {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %on ]
  %a = getelementptr i32, ptr %p, i64 %i
  %v = load i32, ptr %a
  %odd = icmp ne i32 %v, 0
  br i1 %odd, label %then, label %on
then:
  store i32 0, ptr %a
  br label %on
on:
  %next = add nuw i64 %i, 1
  %end = icmp eq i64 %next, %n
  br i1 %end, label %done, label %loop
done:
  ret void
}

declare void @grow(ptr)

; A call that not every round makes: a register holds what is left all the same, and the call finds it in memory and leaves it there.
; CHECK-LABEL: define void @seldom
; CHECK: %[[LEFT:.*]] = load i64, ptr @__memlens_trace
; CHECK: loop:
; CHECK: %[[HELD:.*]] = phi i64 [ %[[LEFT]],
; CHECK: usub.with.overflow.i64(i64 %[[HELD]], i64 1)
; CHECK-NOT: store i64 %{{.*}}, ptr @__memlens_trace
; CHECK: rare:
; CHECK: usub.with.overflow.i64(
; CHECK: store i64 %{{.*}}, ptr @__memlens_trace
; CHECK-NEXT: call void @grow
; CHECK-NEXT: load i64, ptr @__memlens_trace
; CHECK: ret void
define void @seldom(ptr %p, i32 %limit) {
entry:
  br label %loop
loop:
  %q = phi ptr [ %p, %entry ], [ %next, %latch ]
  %next = load ptr, ptr %q
  %is_end = icmp eq ptr %next, null
  br i1 %is_end, label %rare, label %latch
rare:
  %v = load i32, ptr %next
  call void @grow(ptr %next)
  br label %latch
latch:
  %done = icmp eq ptr %next, %p
  br i1 %done, label %exit, label %loop
exit:
  ret void
}

; A call in every round: what is left stays in memory.
; CHECK-LABEL: define void @always
; CHECK: loop:
; CHECK-NOT: phi i64
; CHECK: load i64, ptr @__memlens_trace
; CHECK: usub.with.overflow.i64(
; CHECK: call void @grow
; CHECK: ret void
define void @always(ptr %p) {
entry:
  br label %loop
loop:
  %q = phi ptr [ %p, %entry ], [ %next, %loop ]
  %next = load ptr, ptr %q
  call void @grow(ptr %next)
  %end = icmp eq ptr %next, null
  br i1 %end, label %exit, label %loop
exit:
  ret void
}
