; MEMLENS_PASS: trace;no-count
; Accesses of a block up to a call that may not return are told together: one countdown for each such segment, and the addresses out of line.
; Counters are not asked for, so nothing is added anywhere.
target triple = "x86_64-unknown-linux-gnu"
declare void @opaque()

; CHECK: @__memlens_trace = external thread_local(initialexec) global { i64, i64, i64 }
; Headers are constants in memory, so that no loop keeps registers for them.
; CHECK-DAG: @memlens.header{{[.0-9]*}} = private unnamed_addr constant i64 2251808403619840, align 8
; CHECK-DAG: @memlens.header{{[.0-9]*}} = private unnamed_addr constant i64 279172874240, align 8
; CHECK-DAG: @memlens.header{{[.0-9]*}} = private unnamed_addr constant i64 2533291970265088, align 8
; CHECK-LABEL: define void @two
; CHECK: load i32, ptr %p
; CHECK: store i32 1, ptr %q
; CHECK: %[[LEFT:.*]] = load i64, ptr @__memlens_trace, align 8, !nosanitize
; CHECK: call { i64, i1 } @llvm.usub.with.overflow.i64(i64 %[[LEFT]], i64 2)
; CHECK: store i64 %{{.*}}, ptr @__memlens_trace
; CHECK: br i1 %{{.*}}, label %[[COLD:.*]], label %[[ON:.*]], !prof
; The first site of the function is read from its descriptor; two words (2 << 32), the second a store (2 << 50).
; CHECK: [[COLD]]:
; CHECK: load i64, ptr getelementptr inbounds ({{.*}}@memlens.function.two
; CHECK: load atomic i64, ptr @memlens.header monotonic
; CHECK: icmp ugt ptr
; CHECK: memlens.ask:
; CHECK: call preserve_mostcc ptr @__memlens_trace_room_near(i64 %{{.*}}, i64 %{{.*}})
; CHECK: memlens.write:
; CHECK: store ptr %{{.*}}, ptr getelementptr inbounds (i8, ptr @__memlens_trace, i64 8)
; CHECK: ptrtoint ptr %p to i64
; CHECK: ptrtoint ptr %q to i64
; The call comes behind what is told of the code before it.
; CHECK: [[ON]]:
; CHECK-NEXT: call void @opaque()
; CHECK: load volatile i32, ptr %p
; CHECK: usub.with.overflow.i64(i64 %{{.*}}, i64 1)
; CHECK-NOT: __memlens_count_base
; CHECK: ret void
define void @two(ptr %p, ptr %q) {
  %a = load i32, ptr %p
  store i32 1, ptr %q
  call void @opaque()
  %b = load volatile i32, ptr %p
  ret void
}

@global = global i32 0
; A scalar of the program is implied: counted down (three accesses), not told (one word, two implied: 2 << 37).
; CHECK-LABEL: define void @implied
; CHECK: usub.with.overflow.i64(i64 %{{.*}}, i64 3)
; CHECK: load atomic i64, ptr @memlens.header.{{[0-9]+}} monotonic
; CHECK: ret void
define void @implied(ptr %p) {
  %a = load i32, ptr @global
  %b = load i32, ptr %p
  store i32 %a, ptr @global
  ret void
}

; A size that is known only when it runs: the address and the bytes of either side (four words, form 1).
; CHECK-LABEL: define void @sized
; CHECK: usub.with.overflow.i64(i64 %{{.*}}, i64 2)
; CHECK: load atomic i64, ptr @memlens.header.{{[0-9]+}} monotonic
; CHECK: ptrtoint ptr %q to i64
; CHECK: store i64 %n
; CHECK: ptrtoint ptr %p to i64
; CHECK: store i64 %n
; CHECK: ret void
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
define void @sized(ptr %p, ptr %q, i64 %n) {
  call void @llvm.memcpy.p0.p0.i64(ptr %p, ptr %q, i64 %n, i1 false)
  ret void
}

; Lanes of a gather that take part: as many accesses as the mask has bits.
; CHECK-LABEL: define <4 x i32> @gather
; CHECK: ptrtoint <4 x ptr> %where to <4 x i64>
; CHECK: call i4 @llvm.ctpop.i4
; CHECK: usub.with.overflow.i64(i64 %{{.*}}, i64 %[[LANES:.*]])
; CHECK: extractelement <4 x i64> %{{.*}}, i64 3
; CHECK: ret <4 x i32>
declare <4 x i32> @llvm.masked.gather.v4i32.v4p0(<4 x ptr>, i32, <4 x i1>, <4 x i32>)
define <4 x i32> @gather(<4 x ptr> %where, <4 x i1> %mask) {
  %v = call <4 x i32> @llvm.masked.gather.v4i32.v4p0(<4 x ptr> %where, i32 4, <4 x i1> %mask, <4 x i32> zeroinitializer)
  ret <4 x i32> %v
}
