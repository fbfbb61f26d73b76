; Where a merge of two rows has come in the first one tells how often the inner loop went round in all its runs. The inner
; loop has nothing to count, and the outer one only the look whether it is time to write.
; CHECK-LABEL: define i64 @merge
; CHECK: inner:
; CHECK-NOT: memlens
; CHECK: latch:
; CHECK: done:
; CHECK: freeze ptr %here
; CHECK: lshr i64 %{{.*}}, 2
; CHECK: ret i64
define i64 @merge(ptr %mine.begin, ptr %other.begin, ptr %other.end) {
entry:
  br label %outer
outer:
  %mine = phi ptr [ %mine.begin, %entry ], [ %here, %latch ]
  %other = phi ptr [ %other.begin, %entry ], [ %other.next, %latch ]
  %both = phi i64 [ 0, %entry ], [ %both.next, %latch ]
  %y = load i32, ptr %other
  br label %inner
inner:
  %here = phi ptr [ %mine, %outer ], [ %further, %inner ]
  %x = load i32, ptr %here
  %further = getelementptr i8, ptr %here, i64 4
  %less = icmp ult i32 %x, %y
  br i1 %less, label %inner, label %latch
latch:
  %same = icmp eq i32 %x, %y
  %one = zext i1 %same to i64
  %both.next = add i64 %both, %one
  %other.next = getelementptr i8, ptr %other, i64 4
  %end = icmp eq ptr %other.next, %other.end
  br i1 %end, label %done, label %outer
done:
  ret i64 %both.next
}

; How many were kept tells how often they were.
; CHECK-LABEL: define i64 @compact
; CHECK: keep:
; CHECK-NOT: memlens
; CHECK: latch:
; CHECK: done:
; CHECK: freeze i64 %n.next
; CHECK: ret i64
define i64 @compact(ptr %from, ptr %to, i64 %count) {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %i.next, %latch ]
  %n = phi i64 [ 0, %entry ], [ %n.next, %latch ]
  %a = getelementptr i32, ptr %from, i64 %i
  %v = load i32, ptr %a
  %good = icmp sgt i32 %v, 0
  br i1 %good, label %keep, label %latch
keep:
  %b = getelementptr i32, ptr %to, i64 %n
  store i32 %v, ptr %b
  %n.more = add i64 %n, 1
  br label %latch
latch:
  %n.next = phi i64 [ %n, %loop ], [ %n.more, %keep ]
  %i.next = add nuw i64 %i, 1
  %end = icmp eq i64 %i.next, %count
  br i1 %end, label %done, label %loop
done:
  ret i64 %n.next
}

; A variable that goes back to an older value tells nothing: %keep has a counter.
; CHECK-LABEL: define i64 @undone
; CHECK: keep:
; CHECK: add i64 %{{.*}}, 1
; CHECK: ret i64
define i64 @undone(ptr %from, ptr %to, i64 %count) {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %i.next, %latch ]
  %n = phi i64 [ 0, %entry ], [ %n.next, %latch ]
  %a = getelementptr i32, ptr %from, i64 %i
  %v = load i32, ptr %a
  %good = icmp sgt i32 %v, 0
  br i1 %good, label %keep, label %between
keep:
  %b = getelementptr i32, ptr %to, i64 %n
  store i32 %v, ptr %b
  %n.more = add i64 %n, 1
  br label %between
between:
  %n.now = phi i64 [ %n, %loop ], [ %n.more, %keep ]
  %back = icmp eq i32 %v, 5
  br i1 %back, label %undo, label %latch
undo:
  br label %latch
latch:
  %n.next = phi i64 [ %n.now, %between ], [ %n, %undo ]
  %i.next = add nuw i64 %i, 1
  %end = icmp eq i64 %i.next, %count
  br i1 %end, label %done, label %loop
done:
  ret i64 %n.next
}
