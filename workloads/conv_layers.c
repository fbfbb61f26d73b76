// Layers of convolutional networks as image-to-columns and matrix product, in the loop order of small frameworks: A (M × K, weights) times
// B (K × N, columns of the image) is added to C (M × N).
//
//   --model alexnet   few layers of very different shapes: large kernels and steps, then fully connected ones (N = 1 … as products)
//   --model resnet    many layers of 1 × 1 and 3 × 3, alike: N falls and K grows from stage to stage
//
// Shapes are those of the networks with sides and channels divided by --scale.
//
// Options: --model NAME, --scale N, --time, --hold-ms N.
//
// Known answer. A product makes M K N additions, `im2col` writes K N numbers. Weights and inputs are small integers, so that sums are exact, and
// each layer is checked: the sum of C over a column is the sum of A's columns times the column of B.
#include "workload.h"

#include "../native/include/memlens.h"

struct layer {
    int filters, channels, side, kernel, step, repeats;  // side 1: fully connected
};
static const struct layer alexnet[] = {
    {96, 3, 227, 11, 4, 1}, {256, 96, 27, 5, 1, 1}, {384, 256, 13, 3, 1, 1}, {384, 384, 13, 3, 1, 1}, {256, 384, 13, 3, 1, 1},
    {4096, 9216, 1, 1, 1, 1}, {4096, 4096, 1, 1, 1, 1}, {1000, 4096, 1, 1, 1, 1},
};
static const struct layer resnet[] = {
    {64, 3, 224, 7, 2, 1},  {64, 64, 56, 1, 1, 3},  {64, 64, 56, 3, 1, 3},  {256, 64, 56, 1, 1, 3},
    {128, 256, 28, 1, 1, 4}, {128, 128, 28, 3, 1, 4}, {512, 128, 28, 1, 1, 4}, {256, 512, 14, 1, 1, 6},
    {256, 256, 14, 3, 1, 6}, {1024, 256, 14, 1, 1, 6}, {512, 1024, 7, 1, 1, 3}, {512, 512, 7, 3, 1, 3}, {2048, 512, 7, 1, 1, 3},
};

OWN_FRAME static void im2col(const float *image, long channels, long side, long kernel, long step, long out_side,
                             float *columns) {
    const long pad = kernel / 2;
    for (long c = 0; c < channels * kernel * kernel; c++) {
        const long dx = c % kernel - pad, dy = c / kernel % kernel - pad, channel = c / kernel / kernel;
        for (long y = 0; y < out_side; y++)
            for (long x = 0; x < out_side; x++) {
                const long row = y * step + dy, column = x * step + dx;
                const bool inside = row >= 0 && column >= 0 && row < side && column < side;
                columns[(c * out_side + y) * out_side + x] = inside ? image[(channel * side + row) * side + column] : 0;
            }
    }
}

OWN_FRAME static void gemm(size_t m, size_t n, size_t k, const float *a, const float *b, float *c) {
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < k; j++) {
            const float part = a[i * k + j];
            for (size_t x = 0; x < n; x++) c[i * n + x] += part * b[j * n + x];
        }
}
// A fully connected layer: one row times the transposed weights, each read once.
OWN_FRAME static void gemm_row(size_t m, size_t k, const float *a, const float *b, float *c) {
    for (size_t i = 0; i < m; i++) {
        float sum = 0;
        for (size_t j = 0; j < k; j++) sum += a[i * k + j] * b[j];
        c[i] += sum;
    }
}

static void fill(float *numbers, size_t n, uint64_t seed) {
    for (size_t i = 0; i < n; i++) numbers[i] = (float)(mix64(seed + i) & 1);
}

static int scaled(int number, long scale, int least) {
    const int made = (int)(number / scale);
    return number <= 3 ? number : made < least ? least : made;
}

static void check_column(size_t m, size_t n, size_t k, const float *a, const float *b, const float *c, size_t column) {
    double expected = 0, found = 0;
    for (size_t j = 0; j < k; j++) {
        double weights = 0;
        for (size_t i = 0; i < m; i++) weights += (double)a[i * k + j];
        expected += weights * (double)b[j * n + column];
    }
    for (size_t i = 0; i < m; i++) found += (double)c[i * n + column];
    if (expected != found) fail("a column adds up to %.0f, not %.0f", found, expected);
}

static uint64_t run_layer(const struct layer *layer, long scale, uint64_t seed) {
    const bool is_connected = layer->side == 1;
    const long by = is_connected ? scale * scale : scale;
    const int side = scaled(layer->side, scale, is_connected ? 1 : 4), step = layer->step < side ? layer->step : 1;
    const int channels = scaled(layer->channels, by, 2), out_side = (side - 1) / step + 1;
    const size_t m = (size_t)scaled(layer->filters, by, 2), n = (size_t)out_side * (size_t)out_side;
    const size_t k = (size_t)channels * (size_t)layer->kernel * (size_t)layer->kernel;
    const size_t image_items = (size_t)channels * (size_t)side * (size_t)side;
    float *image = map_fresh(image_items * sizeof *image), *a = map_fresh(m * k * sizeof *a);
    float *b = map_fresh(k * n * sizeof *b), *c = map_fresh(m * n * sizeof *c);
    fill(image, image_items, seed);
    fill(a, m * k, ~seed);
    memlens_begin("network");
    if (layer->kernel == 1) memcpy(b, image, k * n * sizeof *b);
    else im2col(image, channels, side, layer->kernel, step, out_side, b);
    if (is_connected) gemm_row(m, k, a, b, c);
    else gemm(m, n, k, a, b, c);
    memlens_end("network");
    check_column(m, n, k, a, b, c, n / 2);
    munmap(image, image_items * sizeof *image);
    munmap(a, m * k * sizeof *a);
    munmap(b, k * n * sizeof *b);
    munmap(c, m * n * sizeof *c);
    return (uint64_t)m * n * k;
}

int main(int argc, char **argv) {
    const char *model = "alexnet";
    long scale = 2;
    const struct option_spec options[] = {
        text_option("--model", &model, "alexnet or resnet"),
        number_option("--scale", &scale, "sides and channels are divided by it"),
    };
    struct run run = begin_run(argc, argv, options, COUNT_OF(options));
    require(scale >= 1, "--scale must be at least 1");
    const bool is_alexnet = !strcmp(model, "alexnet");
    if (!is_alexnet && strcmp(model, "resnet")) fail("--model %s: not one of alexnet, resnet", model);
    const struct layer *layers = is_alexnet ? alexnet : resnet;
    const size_t n_layers = is_alexnet ? COUNT_OF(alexnet) : COUNT_OF(resnet);
    uint64_t additions = 0, n_run = 0;
    for (size_t i = 0; i < n_layers; i++)
        for (int repeat = 0; repeat < layers[i].repeats; repeat++) additions += run_layer(&layers[i], scale, ++n_run);
    printf("conv_layers model=%s scale=%ld layers=%llu additions=%llu\n", model, scale, (unsigned long long)n_run,
           (unsigned long long)additions);
    return end_run(&run);
}
