/* The enumerations of lists.def: enum ml_NAME. */
#ifndef MEMLENS_LISTS_H
#define MEMLENS_LISTS_H

/* clang-format off */
#define ML_LIST(name, text) enum ml_##name {
#define ML_ITEM(name, VALUE, number, text) VALUE = number,
#define ML_LIST_END(name) };
/* clang-format on */
#include "lists.def"
#undef ML_LIST
#undef ML_ITEM
#undef ML_LIST_END

#endif
