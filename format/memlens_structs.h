/* C structs and checks of their sizes from the list that ML_STRUCTS names (count_arena.def, emulator_arena.def). Included once for
 * each list: no include guard. */
#define ML_STRUCT(name, bytes, text) struct ml_##name {
#define ML_MEMBER(name, type, member, text) type member;
#define ML_ARRAY(name, type, member, count, text) type member[count];
/* clang-format off */
#define ML_STRUCT_END(name) };
/* clang-format on */
#include ML_STRUCTS
#undef ML_STRUCT
#undef ML_MEMBER
#undef ML_ARRAY
#undef ML_STRUCT_END

#ifdef __cplusplus
#define ML_STRUCT(name, bytes, text) static_assert(sizeof(ml_##name) == (bytes), #name " has " #bytes " bytes");
#else
#define ML_STRUCT(name, bytes, text) _Static_assert(sizeof(struct ml_##name) == (bytes), #name " has " #bytes " bytes");
#endif
#define ML_MEMBER(name, type, member, text)
#define ML_ARRAY(name, type, member, count, text)
#define ML_STRUCT_END(name)
#include ML_STRUCTS
#undef ML_STRUCT
#undef ML_MEMBER
#undef ML_ARRAY
#undef ML_STRUCT_END
#undef ML_STRUCTS
