// Layers of convolutional networks as image-to-columns and matrix product, in the loop order of small frameworks: A (M × K, weights) times
// B (K × N, columns of the image) is added to C (M × N).
//
//   --model alexnet   few layers of very different shapes: large kernels and steps, then fully connected ones (N = 1 … as products)
//   --model resnet    many layers of 1 × 1 and 3 × 3, alike: N falls and K grows from stage to stage. 152 layers, or --depth 50
//
// Shapes are those of the networks with sides and channels divided by --scale. As in small frameworks, the weights and the output of every layer
// stay as long as the network, columns are made in one work space that all layers share, and a layer of 1 × 1 multiplies the image as it is.
//
// Options: --model NAME, --depth N, --scale N, --time, --hold-ms N.
//
// Known answer. A product makes M K N additions, `im2col` writes K N numbers. Weights and inputs are small integers, so that sums are exact, and
// each layer is checked: the sum of C over a column is the sum of A's columns times the column of B. Images are drawn, not those of the layer before.
#include "workload.h"

#include "../native/include/memlens.h"

struct layer {
    int filters, channels, side, kernel, step, repeats;  // side 1: fully connected
};
static const struct layer alexnet[] = {
    {96, 3, 227, 11, 4, 1},  {256, 96, 27, 5, 1, 1},   {384, 256, 13, 3, 1, 1},  {384, 384, 13, 3, 1, 1},
    {256, 384, 13, 3, 1, 1}, {4096, 9216, 1, 1, 1, 1}, {4096, 4096, 1, 1, 1, 1}, {1000, 4096, 1, 1, 1, 1},
};
static const struct layer resnet[] = {
    {64, 3, 224, 7, 2, 1},   {64, 64, 56, 1, 1, 3},    {64, 64, 56, 3, 1, 3},   {256, 64, 56, 1, 1, 3},
    {128, 256, 28, 1, 1, 4}, {128, 128, 28, 3, 1, 4},  {512, 128, 28, 1, 1, 4}, {256, 512, 14, 1, 1, 6},
    {256, 256, 14, 3, 1, 6}, {1024, 256, 14, 1, 1, 6}, {512, 1024, 7, 1, 1, 3}, {512, 512, 7, 3, 1, 3},
    {2048, 512, 7, 1, 1, 3},
};

enum { MOST_LAYERS = 160 };
// The deep one has more blocks in its second and third stage.
static int repeats_of_152(int repeats, int side) { return side == 28 ? 8 : side == 14 ? 36 : repeats; }

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

struct made_layer {
    bool is_connected, has_columns;
    int channels, side, kernel, step, out_side;
    size_t m, n, k, image_items;
    float *image, *a, *c;
};

static struct made_layer make_layer(const struct layer *layer, long scale, uint64_t seed) {
    struct made_layer made = {.is_connected = layer->side == 1, .kernel = layer->kernel};
    const long by = made.is_connected ? scale * scale : scale;
    made.side = scaled(layer->side, scale, made.is_connected ? 1 : 4);
    made.step = layer->step < made.side ? layer->step : 1;
    made.channels = scaled(layer->channels, by, 2);
    made.out_side = (made.side - 1) / made.step + 1;
    made.m = (size_t)scaled(layer->filters, by, 2);
    made.n = (size_t)made.out_side * (size_t)made.out_side;
    made.k = (size_t)made.channels * (size_t)made.kernel * (size_t)made.kernel;
    made.has_columns = made.kernel != 1 || made.step != 1;
    made.image_items = (size_t)made.channels * (size_t)made.side * (size_t)made.side;
    made.image = map_fresh(made.image_items * sizeof *made.image);
    made.a = map_fresh(made.m * made.k * sizeof *made.a);
    made.c = map_fresh(made.m * made.n * sizeof *made.c);
    fill(made.image, made.image_items, seed);
    fill(made.a, made.m * made.k, ~seed);
    return made;
}

static void run_layer(const struct made_layer *layer, float *columns) {
    const float *b = layer->has_columns ? columns : layer->image;
    memlens_begin("network");
    if (layer->has_columns)
        im2col(layer->image, layer->channels, layer->side, layer->kernel, layer->step, layer->out_side, columns);
    if (layer->is_connected) gemm_row(layer->m, layer->k, layer->a, b, layer->c);
    else gemm(layer->m, layer->n, layer->k, layer->a, b, layer->c);
    memlens_end("network");
    check_column(layer->m, layer->n, layer->k, layer->a, b, layer->c, layer->n / 2);
}

int main(int argc, char **argv) {
    const char *model = "alexnet";
    long scale = 2, depth = 152;
    const struct option_spec options[] = {
        text_option("--model", &model, "alexnet or resnet"),
        number_option("--depth", &depth, "50 or 152: which resnet"),
        number_option("--scale", &scale, "sides and channels are divided by it"),
    };
    struct run run = begin_run(argc, argv, options, COUNT_OF(options));
    require(scale >= 1, "--scale must be at least 1");
    const bool is_alexnet = !strcmp(model, "alexnet");
    if (!is_alexnet && strcmp(model, "resnet")) fail("--model %s: not one of alexnet, resnet", model);
    require(depth == 50 || depth == 152, "--depth must be 50 or 152");
    const struct layer *layers = is_alexnet ? alexnet : resnet;
    const size_t n_kinds = is_alexnet ? COUNT_OF(alexnet) : COUNT_OF(resnet);
    struct made_layer made[MOST_LAYERS];
    uint64_t additions = 0, n_layers = 0;
    size_t most_columns = 0;
    for (size_t i = 0; i < n_kinds;) {
        // The layers of a stage alternate: one of each, as often as the stage has blocks.
        size_t end = i + 1;
        while (end < n_kinds && layers[end].repeats > 1 && layers[end].repeats == layers[i].repeats &&
               layers[end].side == layers[i].side)
            end++;
        const int repeats =
            is_alexnet || depth == 50 ? layers[i].repeats : repeats_of_152(layers[i].repeats, layers[i].side);
        for (int repeat = 0; repeat < repeats; repeat++)
            for (size_t kind = i; kind < end; kind++) {
                struct made_layer *layer = &made[n_layers++];
                *layer = make_layer(&layers[kind], scale, n_layers);
                if (layer->has_columns && layer->k * layer->n > most_columns) most_columns = layer->k * layer->n;
            }
        i = end;
    }
    float *columns = map_fresh((most_columns + 1) * sizeof *columns);
    for (size_t i = 0; i < n_layers; i++) {
        run_layer(&made[i], columns);
        additions += (uint64_t)made[i].m * made[i].n * made[i].k;
    }
    printf("conv_layers model=%s scale=%ld layers=%llu additions=%llu\n", model, scale, (unsigned long long)n_layers,
           (unsigned long long)additions);
    return end_run(&run);
}
