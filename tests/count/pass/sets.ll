; MEMLENS_PASS: off=flow
; Blocks that always run equally often share a counter: %entry and %join one, %then one, %else one.
; CHECK: @memlens.function.diamond = private global { i64, i64, i32, i32, i64, i32, i32 } { {{.*}}, i32 3, i32 {{[0-9]+}}, i64 0, i32 0, i32 0 }, section "memlens_functions"{{.*}}, align 8, !associated
; CHECK-LABEL: define i32 @diamond
; CHECK: entry:
; CHECK-NEXT: %memlens.base = load ptr, ptr @__memlens_count_base, align 8, !nosanitize
; CHECK-NEXT: %memlens.offset = load i64, ptr @memlens.function.diamond, align 8, !nosanitize
; CHECK-NEXT: %[[SUM:.*]] = getelementptr i8, ptr %memlens.base, i64 %memlens.offset
; CHECK-NEXT: %memlens.counters = freeze ptr %[[SUM]]
; CHECK: add i64 %{{.*}}, 1
; CHECK: then:
; CHECK: add i64 %{{.*}}, 1
; CHECK: else:
; CHECK: add i64 %{{.*}}, 1
; CHECK: join:
; CHECK-NOT: add i64
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

; %a dominates %b, %b post-dominates %a, and both are in one loop, but `continue` repeats %a alone: two counters.
; CHECK-LABEL: define void @again
; CHECK: a:
; CHECK: add i64 %{{.*}}, 1
; CHECK: b:
; CHECK: add i64 %{{.*}}, 1
define void @again(ptr %p) {
entry:
  br label %a
a:
  %x = load volatile i32, ptr %p
  %skip = icmp eq i32 %x, 7
  br i1 %skip, label %a, label %b
b:
  %y = load volatile i32, ptr %p
  call void @opaque()
  %stop = icmp eq i32 %y, 9
  br i1 %stop, label %end, label %a
end:
  ret void
}
declare void @opaque()
