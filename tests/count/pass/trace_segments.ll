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
; CHECK-DAG: @memlens.header{{[.0-9]*}} = private unnamed_addr constant i64 141733920768, align 8
; CHECK-DAG: @memlens.header{{[.0-9]*}} = private unnamed_addr constant i64 1126045935730688, align 8
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

; A scalar of the frame is implied: counted down (three accesses), not told (one word, two implied: 2 << 37).
; CHECK-LABEL: define void @implied
; CHECK: usub.with.overflow.i64(i64 %{{.*}}, i64 3)
; CHECK: load atomic i64, ptr @memlens.header.{{[0-9]+}} monotonic
; CHECK: ret void
define void @implied(ptr %p) {
  %x = alloca i32
  %a = load volatile i32, ptr %x
  %b = load i32, ptr %p
  store volatile i32 %a, ptr %x
  ret void
}

; Where nothing else would be told, a load of them stands for the others (one word, one implied: 1 << 37), also where there are only stores beside it
; (two words, a store first: 1 << 50, one implied).
; CHECK-LABEL: define void @alone
; CHECK: usub.with.overflow.i64(i64 %{{.*}}, i64 2)
; CHECK: ptrtoint ptr %x to i64
; CHECK: ret void
define void @alone() {
  %x = alloca i32
  %a = load volatile i32, ptr %x
  store volatile i32 %a, ptr %x
  ret void
}
; CHECK-LABEL: define void @beside
; CHECK: usub.with.overflow.i64(i64 %{{.*}}, i64 3)
; CHECK: ptrtoint ptr %p to i64
; CHECK: ptrtoint ptr %x to i64
; CHECK: ret void
define void @beside(ptr %p) {
  %x = alloca i32
  store volatile i32 1, ptr %x
  %a = load volatile i32, ptr %x
  store i32 %a, ptr %p
  ret void
}

; A variable of the program may be shared by threads: it is told (two words, the second a store), unless each thread has its own.
@global = global i32 0
@own = thread_local global i32 0
; CHECK-LABEL: define void @shared
; CHECK: usub.with.overflow.i64(i64 %{{.*}}, i64 4)
; CHECK: store i64 ptrtoint (ptr @global to i64)
; CHECK: store i64 ptrtoint (ptr @global to i64)
; CHECK-NOT: @own to i64
; CHECK: ret void
declare ptr @llvm.threadlocal.address.p0(ptr)
define void @shared() {
  %a = load i32, ptr @global
  %t = call ptr @llvm.threadlocal.address.p0(ptr @own)
  store i32 %a, ptr @global
  %b = load i32, ptr %t
  store i32 %b, ptr %t
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
