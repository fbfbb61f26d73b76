; What enters a block leaves it: of %entry, %then and %else two counters tell the third.
; CHECK: @memlens.function.diamond = private global { i64, i64, i32, i32, i64, i32, i32 } { {{.*}}, i32 2, i32 {{[0-9]+}}, i64 0, i32 0, i32 0 }
; CHECK: @memlens.function.find = private global { i64, i64, i32, i32, i64, i32, i32 } { {{.*}}, i32 2, i32 {{[0-9]+}}, i64 0, i32 0, i32 0 }
; CHECK: @memlens.function.apart = private global { i64, i64, i32, i32, i64, i32, i32 } { {{.*}}, i32 3, i32 {{[0-9]+}}, i64 0, i32 0, i32 0 }
; CHECK-LABEL: define i32 @diamond
; CHECK: entry:
; CHECK-NOT: store i64
; CHECK: then:
; CHECK: add i64 %{{.*}}, 1
; CHECK: else:
; CHECK: add i64 %{{.*}}, 1
; CHECK: join:
; CHECK-NOT: store i64
; CHECK: ret i32
define i32 @diamond(ptr %p, i1 %c) {
entry:
  %a = load i32, ptr %p
  br i1 %c, label %then, label %else
then:
  store i32 1, ptr %p
  br label %join
else:
  store i32 2, ptr %p
  br label %join
join:
  %b = load i32, ptr %p
  %s = add i32 %a, %b
  ret i32 %s
}

; A variable tells how often the loop goes round. %more runs as often, without the last time if that ends in %loop: one of the
; ways out is counted, on an edge of its own, and nothing in the loop.
; CHECK-LABEL: define i64 @find
; CHECK: loop:
; CHECK-NOT: memlens.counters
; CHECK: br i1 %is, label %[[OUT:.*]], label %more
; CHECK: [[OUT]]:
; CHECK: ptr %memlens.counters, i64 8
; CHECK: add i64 %{{.*}}, 1
; CHECK: more:
; CHECK-NOT: ptr %memlens.counters, i64 8
; CHECK: br i1 %last
define i64 @find(ptr %p, ptr %q, i32 %x, i32 %y) {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %more ]
  %a = getelementptr i32, ptr %p, i64 %i
  %v = load i32, ptr %a
  %is = icmp eq i32 %v, %x
  br i1 %is, label %found, label %more
more:
  %b = getelementptr i32, ptr %q, i64 %i
  %w = load i32, ptr %b
  %next = add i64 %i, 1
  %last = icmp eq i32 %w, %y
  br i1 %last, label %found, label %loop
found:
  ret i64 %i
}

; Not across a call that may leave or switch the region: what comes out of it is not what went in.
; CHECK-LABEL: define void @apart
; CHECK: entry:
; CHECK: add i64 %{{.*}}, 1
; CHECK: then:
; CHECK: add i64 %{{.*}}, 1
; CHECK: else:
; CHECK: add i64 %{{.*}}, 1
; CHECK: ret void
define void @apart(ptr %p, i1 %c) {
entry:
  store i32 0, ptr %p
  call void @opaque()
  br i1 %c, label %then, label %else
then:
  store i32 1, ptr %p
  br label %join
else:
  store i32 2, ptr %p
  br label %join
join:
  ret void
}
declare void @opaque()
