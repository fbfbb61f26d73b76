// Loops whose counts variables of the program tell, or that follow from other counts: each shape that placement knows, and
// shapes that only look so. Built with a counter for each access and without, the counts must be the same.
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define NOINLINE __attribute__((noinline))
enum { N = 700 };
static uint32_t a[N + 1], b[N + 1], out[N + 1];
static volatile uint32_t sink;
static volatile uint64_t many = 600000;

// `mine` is never set back: it tells the inner loop's rounds over all runs of it.
NOINLINE static uint64_t merge(const uint32_t *mine, const uint32_t *other, const uint32_t *end) {
    uint64_t same = 0;
    for (; other < end; other++) {
        while (*mine < *other) mine++;
        same += *mine == *other;
    }
    return same;
}

// Left from the header, from the middle and from the inner loop.
NOINLINE static uint64_t leave_early(const uint32_t *p, const uint32_t *end, uint32_t stop, uint32_t bad) {
    uint64_t sum = 0;
    for (; p < end; p++) {
        if (*p == stop) break;
        for (const uint32_t *q = p; q < end; q += 3) {
            if (*q == bad) return sum + 1000;
            sum += *q & 1;
        }
        if (*p % 97 == 5) goto out;
    }
    sum++;
out:
    return sum + *p;
}

NOINLINE static uint64_t compact(const uint32_t *from, uint32_t *to, uint64_t count) {
    uint64_t n = 0;
    for (uint64_t i = 0; i < count; i++)
        if (from[i] % 3 == 0) to[n++] = from[i];
    return n;
}

// The count is set back now and then: it tells nothing.
NOINLINE static uint64_t compact_and_undo(const uint32_t *from, uint32_t *to, uint64_t count) {
    uint64_t n = 0;
    for (uint64_t i = 0; i < count; i++) {
        uint64_t before = n;
        if (from[i] % 3 == 0) to[n++] = from[i];
        if (from[i] % 5 == 0) n = before;
    }
    return n;
}

// Down, in steps of 12 bytes.
NOINLINE static uint64_t backwards(const uint32_t *begin, const uint32_t *p, uint32_t stop) {
    uint64_t sum = 0;
    for (; p > begin + 3; p -= 3) {
        if (*p == stop) return sum;
        sum += p[-1];
    }
    return sum;
}

// A counter of 8 bits that reaches 255: 256 iterations.
NOINLINE static uint32_t narrow(const uint32_t *p, uint32_t stop) {
    uint32_t sum = 0;
    for (uint8_t i = 0;; i++) {
        if (p[i] == stop) return sum;
        sum += p[i] & 3;
        if (i == 255) return sum;
    }
}

NOINLINE static int32_t narrow_count(const uint32_t *p, uint32_t *to, int32_t n_in) {
    int32_t n = -5;
    for (int32_t i = 0; i < n_in; i++)
        if (p[i] & 1) to[5 + n++] = p[i];
    return n;
}

// Long enough to be written while it runs, in every way there is.
NOINLINE static uint64_t long_chain(uint64_t limit) {
    uint64_t x = 1, n = 0;
    while (x != 0 && n < limit) {
        sink = (uint32_t)x;
        x = x * 2862933555777941757u + 3037000493u;
        if (x >> 63) a[n % N] ^= 1, a[n % N] ^= 1;
        n++;
        if (x == 42) return n;
    }
    return n;
}
NOINLINE static uint64_t long_list(uint64_t limit) {
    uint64_t x = 88172645463325252u, kept = 0;
    do {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        sink = (uint32_t)x;
        if (x % 4 == 0) out[kept++ % N] = (uint32_t)x;
    } while (kept < limit);
    return kept;
}
NOINLINE static uint64_t long_rows(uint64_t rows) {
    uint64_t sum = 0;
    for (uint64_t r = 0; r < rows; r++)
        for (uint64_t i = r % 5; a[i % N] % 7 != 1 && i < N; i++) sum += b[i];
    return sum;
}

// Three levels, with a way out of the innermost, and a switch.
NOINLINE static uint64_t nest(uint32_t n, uint32_t stop) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t j = i;
        while (a[j % N] != stop && j < 3 * n) {
            for (uint32_t k = j; k < j + 4; k++) {
                switch (b[k % N] % 5) {
                case 0: sum += a[k % N]; continue;
                case 1: sum ^= b[k % N]; break;
                case 2: goto next;
                case 3: out[k % N]++; break;
                default: sum++;
                }
                sink = k;
            }
            j += 2;
        }
    next:
        sum += out[i % N];
    }
    return sum;
}

// Functions that return, one that calls itself, and one that leaves.
NOINLINE static uint32_t find(uint32_t x) {
    uint32_t i = 0;
    while (a[i % N] != x && i < N) i++;
    return i;
}
NOINLINE static uint32_t depth(uint32_t x) {
    if (x < 2) return a[x];
    uint32_t sum = b[x % N];
    if (x % 3) sum += depth(x / 2);
    return sum + depth(x / 3);
}
static jmp_buf back;
NOINLINE static void escape_from(uint32_t x) {
    out[1] += x;
    if (x % 4 == 3) longjmp(back, 1);
}
NOINLINE static uint32_t calls(uint32_t n) {
    uint32_t sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        sum += b[i % N];
        uint32_t at = find(a[(i * 7) % N]);
        out[at % N] += depth(at);
        escape_from(i + at);
        sum += out[at % N];
    }
    return sum;
}

int main(void) {
    for (uint32_t i = 0; i <= N; i++) a[i] = 2 * i, b[i] = 3 * i + i % 2;
    a[N] = b[N] = UINT32_MAX;
    uint64_t sum = 0;
    for (uint32_t k = 0; k < 9; k++) {
        sum = sum * 31 + merge(a, b + k, b + 400);
        sum = sum * 31 + leave_early(a + k, a + N, 60 * k, 1 + k % 2 * 221);
        sum = sum * 31 + compact(b, out, N - k);
        sum = sum * 31 + compact_and_undo(b, out, N - k);
        sum = sum * 31 + backwards(a, a + N - k, 6 * k);
        sum = sum * 31 + narrow(a + k, k == 4 ? 1 : 40 * k);
        sum = sum * 31 + (uint64_t)narrow_count(b, out, N - (int32_t)k);
        sum = sum * 31 + nest(20 + k, 2 * k + 90);
        if (setjmp(back) == 0) sum = sum * 31 + calls(30 + k);
    }
    sum = sum * 31 + long_chain(many);
    sum = sum * 31 + long_list(many);
    sum = sum * 31 + long_rows(many / 100);
    printf("%llu\n", (unsigned long long)sum);
    return 0;
}
