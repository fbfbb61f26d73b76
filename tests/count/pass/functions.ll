; MEMLENS_PASS: functions=^work
; A function of the list is a region: entered at its start, left at every return; other functions are not.
; CHECK: @memlens.region.work = internal global { ptr, i64 } { ptr @memlens.name, i64 0 }
; CHECK-LABEL: define i32 @work
; CHECK: call i32 @__memlens_count_enter(ptr @memlens.region.work)
; CHECK: early:
; CHECK: call void @__memlens_count_leave(ptr @memlens.region.work)
; CHECK-NEXT: ret i32 0
; CHECK: late:
; CHECK: call void @__memlens_count_leave(ptr @memlens.region.work)
; CHECK-NEXT: ret i32 1
define i32 @work(i1 %c, ptr %p) {
  br i1 %c, label %early, label %late
early:
  ret i32 0
late:
  store i32 1, ptr %p
  ret i32 1
}
; CHECK-LABEL: define void @other_work
; CHECK-NOT: __memlens_count_enter
; CHECK: ret void
define void @other_work() {
  ret void
}
