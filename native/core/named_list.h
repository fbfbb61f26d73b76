// For lists that are written once: X(value, "name") of each entry becomes an enumeration and an array of names.
#pragma once

#define MEMLENS_LIST_VALUE(value, name) value,
#define MEMLENS_LIST_NAME(value, name) name,
