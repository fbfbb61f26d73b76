; MEMLENS_PASS: ptwrite;no-count
; The processor takes the address down, where the runtime has found that it can: the instruction stands out of line, behind a flag.
target triple = "x86_64-unknown-linux-gnu"
@global = global i32 0

; CHECK: @__memlens_trace_ptwrite = external global i8
; CHECK-LABEL: define i32 @one
; CHECK: load i32, ptr %p
; CHECK: load i8, ptr @__memlens_trace_ptwrite
; CHECK: br i1
; CHECK: ptrtoint ptr %p to i64
; CHECK: call void asm sideeffect ".byte 0xf3, 0x48, 0x0f, 0xae, 0xe0", "{rax},{{.*}}"(i64
; CHECK-NOT: asm
; CHECK: ret i32
define i32 @one(ptr %p) {
  %a = load i32, ptr %p
  %b = load i32, ptr @global
  %c = add i32 %a, %b
  ret i32 %c
}
