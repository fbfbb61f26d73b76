; Sizes that only the run tells are added up: those of copies, and the lanes of masked accesses.
; CHECK-LABEL: define void @copies
; CHECK: add i64 %{{.*}}, %n
; CHECK: call void @llvm.memcpy
; CHECK: call void @llvm.memset.p0.i64(ptr %a, i8 0, i64 64
define void @copies(ptr %a, ptr %b, i64 %n) {
  call void @llvm.memcpy.p0.p0.i64(ptr %a, ptr %b, i64 %n, i1 false)
  call void @llvm.memset.p0.i64(ptr %a, i8 0, i64 64, i1 false)
  ret void
}

; CHECK-LABEL: define <4 x float> @masked
; CHECK: %[[BITS:.*]] = bitcast <4 x i1> %mask to i4
; CHECK: %[[LANES:.*]] = call i4 @llvm.ctpop.i4(i4 %[[BITS]])
; CHECK: %[[WIDE:.*]] = zext i4 %[[LANES]] to i64
; CHECK: mul i64 %[[WIDE]], 4
define <4 x float> @masked(ptr %p, <4 x i1> %mask) {
  %v = call <4 x float> @llvm.masked.load.v4f32.p0(ptr %p, i32 4, <4 x i1> %mask, <4 x float> zeroinitializer)
  ret <4 x float> %v
}
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare <4 x float> @llvm.masked.load.v4f32.p0(ptr, i32, <4 x i1>, <4 x float>)
