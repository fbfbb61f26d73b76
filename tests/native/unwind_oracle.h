/* The unwinder of native/runtime against libgcc's, from any place of a program. */
#ifndef UNWIND_ORACLE_H
#define UNWIND_ORACLE_H
#ifdef __cplusplus
extern "C" {
#endif
#define OWN_FRAME __attribute__((noinline))
/* Compares the two stacks of the caller; a difference is printed and counted. Returns the depth. */
OWN_FRAME int check(const char *name);
int cpp_cases(void) __attribute__((weak));
extern volatile int zero;
#ifdef __cplusplus
}
#endif
#endif
