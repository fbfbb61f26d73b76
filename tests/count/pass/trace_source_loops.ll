; MEMLENS_PASS: trace;no-count
; Loops of the source, behind everything else in the table of a trace: how many; of each the loop around it + 1, the inlined function + 1, file, line and
; column; then of each site the innermost loop + 1.
target triple = "x86_64-unknown-linux-gnu"

; A vector body (line 12), its remainder (the same place), the rest of an unrolled loop (no place; its load is that of the others): one loop, in the one of line
; 10. The load before all loops is in none, that of the outer loop in the first; the last loop has no place and code of its own: its head's line, 15.
;   03 | 00 00 02 0A 03 | 01 00 02 0C 05 | 00 00 02 0F 01 || sites: none, outer, vector, remainder, rest, last
; CHECK: @memlens.table.nest = private constant [{{[0-9]+}} x i8] c"\03\80\1F{{.*}}\03\00\00\02\0A\03\01\00\02\0C\05\00\00\02\0F\01\00\01\02\02\02\03", section "memlens_tables"

; A loop that was inlined belongs to the function it is written in (scope 1, line 31); the one around the call is this function's own.
;   02 | 00 00 02 14 03 | 01 01 02 1F 03 || sites: inner, outer
; CHECK: @memlens.table.caller = private constant [{{[0-9]+}} x i8] c"\03\80\1F{{.*}}\02\00\00\02\14\03\01\01\02\1F\03\02\01", section "memlens_tables"

; Two ways back to one head, of which one tells the place; two loops of one place inside each other: one loop each.
;   01 | 00 00 02 ( 03 || sites: all in it
; CHECK: @memlens.table.twice = private constant [{{[0-9]+}} x i8] c"\03\80\1F{{.*}}\01\00\00\02(\03\01\01", section "memlens_tables"

; Without debug information a loop is known, but not where it is. Copies of our own make no loops.
;   01 | 00 00 00 00 00 || sites: both in it
; CHECK: @memlens.table.unnamed = private constant [{{[0-9]+}} x i8] c"\03\80\1F{{.*}}\01\00\00\00\00\00\01\01", section "memlens_tables"

define void @nest(ptr %p, i64 %n) !dbg !4 {
entry:
  %first = load volatile i32, ptr %p, !dbg !5
  br label %outer
outer:
  %i = phi i64 [ 0, %entry ], [ %i.next, %outer.end ]
  %row = getelementptr [64 x i32], ptr %p, i64 %i
  %edge = load volatile i32, ptr %row, !dbg !10
  br label %vector
vector:
  %v = phi i64 [ 0, %outer ], [ %v.next, %vector ]
  %va = getelementptr i32, ptr %row, i64 %v
  %vl = load volatile <4 x i32>, ptr %va, !dbg !12
  %v.next = add i64 %v, 4
  %v.end = icmp uge i64 %v.next, %n
  br i1 %v.end, label %rest, label %vector, !llvm.loop !20
rest:
  %r = phi i64 [ %v.next, %vector ], [ %r.next, %rest ]
  %ra = getelementptr i32, ptr %row, i64 %r
  %rl = load volatile i32, ptr %ra, !dbg !12
  %r.next = add i64 %r, 1
  %r.end = icmp uge i64 %r.next, %n
  br i1 %r.end, label %unrolled, label %rest, !llvm.loop !23
unrolled:
  %u = phi i64 [ %r.next, %rest ], [ %u.next, %unrolled ]
  %ua = getelementptr i32, ptr %row, i64 %u
  %ul = load volatile i32, ptr %ua, !dbg !12
  %u.next = add i64 %u, 1
  %u.end = icmp uge i64 %u.next, %n
  br i1 %u.end, label %outer.end, label %unrolled, !llvm.loop !25
outer.end:
  %i.next = add i64 %i, 1
  %i.end = icmp eq i64 %i.next, %n
  br i1 %i.end, label %before, label %outer, !llvm.loop !22
before:
  br label %last
last:
  %l = phi i64 [ 0, %before ], [ %l.next, %last ]
  %la = getelementptr i32, ptr %p, i64 %l, !dbg !15
  %ll = load volatile i32, ptr %la, !dbg !16
  %l.next = add i64 %l, 1
  %l.end = icmp eq i64 %l.next, %n
  br i1 %l.end, label %done, label %last
done:
  ret void
}

define void @caller(ptr %p, i64 %n) !dbg !30 {
entry:
  br label %outer
outer:
  %i = phi i64 [ 0, %entry ], [ %i.next, %outer.end ]
  %row = getelementptr [64 x i32], ptr %p, i64 %i
  br label %inner
inner:
  %j = phi i64 [ 0, %outer ], [ %j.next, %inner ]
  %ja = getelementptr i32, ptr %row, i64 %j
  %jl = load volatile i32, ptr %ja, !dbg !35
  %j.next = add i64 %j, 1
  %j.end = icmp eq i64 %j.next, %n
  br i1 %j.end, label %outer.end, label %inner, !llvm.loop !36
outer.end:
  %edge = load volatile i32, ptr %row, !dbg !33
  %i.next = add i64 %i, 1
  %i.end = icmp eq i64 %i.next, %n
  br i1 %i.end, label %done, label %outer, !llvm.loop !37
done:
  ret void
}

define void @twice(ptr %p, i64 %n) !dbg !40 {
entry:
  br label %head
head:
  %i = phi i64 [ 0, %entry ], [ %next, %odd ], [ %next, %even ]
  %a = getelementptr i32, ptr %p, i64 %i
  %v = load volatile i32, ptr %a, !dbg !42
  %next = add i64 %i, 1
  %is.odd = icmp sgt i32 %v, 0
  br i1 %is.odd, label %odd, label %inner
odd:
  %odd.end = icmp eq i64 %next, %n
  br i1 %odd.end, label %done, label %head
inner:
  %j = phi i64 [ 0, %head ], [ %j.next, %inner ]
  %ja = getelementptr i32, ptr %p, i64 %j
  %jl = load volatile i32, ptr %ja, !dbg !43
  %j.next = add i64 %j, 1
  %j.end = icmp eq i64 %j.next, %n
  br i1 %j.end, label %even, label %inner, !llvm.loop !44
even:
  %even.end = icmp eq i64 %next, %n
  br i1 %even.end, label %done, label %head, !llvm.loop !44
done:
  ret void
}

define void @unnamed(ptr %p, ptr %q, i64 %n) {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
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

!llvm.dbg.cu = !{!0}
!llvm.module.flags = !{!2, !3}
!0 = distinct !DICompileUnit(language: DW_LANG_C11, file: !1, emissionKind: LineTablesOnly)
!1 = !DIFile(filename: "n.c", directory: "/s")
!2 = !{i32 7, !"Dwarf Version", i32 4}
!3 = !{i32 2, !"Debug Info Version", i32 3}
!4 = distinct !DISubprogram(name: "nest", file: !1, line: 8, unit: !0, spFlags: DISPFlagDefinition, type: !6)
!5 = !DILocation(line: 9, column: 3, scope: !4)
!6 = !DISubroutineType(types: !7)
!7 = !{null}
!10 = !DILocation(line: 11, column: 5, scope: !4)
!12 = !DILocation(line: 13, column: 7, scope: !4)
!15 = !DILocation(line: 15, column: 1, scope: !4)
!16 = !DILocation(line: 16, column: 7, scope: !4)
!20 = distinct !{!20, !21, !27, !26}
!21 = !DILocation(line: 12, column: 5, scope: !4)
!22 = distinct !{!22, !28, !29}
!23 = distinct !{!23, !21, !27}
!25 = distinct !{!25, !24}
!24 = !{!"llvm.loop.unroll.disable"}
!26 = !{!"llvm.loop.isvectorized", i32 1}
!27 = !DILocation(line: 13, column: 20, scope: !4)
!28 = !DILocation(line: 10, column: 3, scope: !4)
!29 = !DILocation(line: 14, column: 3, scope: !4)
!30 = distinct !DISubprogram(name: "caller", file: !1, line: 19, unit: !0, spFlags: DISPFlagDefinition, type: !6)
!31 = distinct !DISubprogram(name: "callee", file: !1, line: 30, unit: !0, spFlags: DISPFlagDefinition, type: !6)
!32 = distinct !DILocation(line: 21, column: 5, scope: !30)
!33 = !DILocation(line: 22, column: 5, scope: !30)
!34 = !DILocation(line: 31, column: 3, scope: !31, inlinedAt: !32)
!35 = !DILocation(line: 32, column: 7, scope: !31, inlinedAt: !32)
!36 = distinct !{!36, !34}
!37 = distinct !{!37, !38}
!38 = !DILocation(line: 20, column: 3, scope: !30)
!40 = distinct !DISubprogram(name: "twice", file: !1, line: 39, unit: !0, spFlags: DISPFlagDefinition, type: !6)
!41 = !DILocation(line: 40, column: 3, scope: !40)
!42 = !DILocation(line: 41, column: 7, scope: !40)
!43 = !DILocation(line: 42, column: 7, scope: !40)
!44 = distinct !{!44, !41}
