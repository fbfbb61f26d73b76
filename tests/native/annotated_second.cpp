// The second file with the same template and inline function.
#include "annotated_shared.hpp"

int second_cpp(int value) { return in_template(value) + in_inline(value); }
