/* Clipped gradients of the CIFAR-10 network of cnn_tasks.py, one example after the other.

   Three blocks: 3 x 3 convolution, relu, the largest of 2 x 2 disjoint neighbours; then a
   dense layer. Weights come and gradients leave in Keras' order, kernels [3][3][channels]
   [filters] and biases, [2048][10] and bias; between, both are transposed ([filters][9
   channels], [10][2048]). Backward only the largest neighbours have a derivative, and where
   relu is flat not even they: so there convolutions are sums over few positions, a fourth
   of the multiplications or less. Vectors of 16 floats (GCC, Clang). Not for several threads. */

#include <stdint.h>
#include <string.h>

#include "network.h"

#define FLAT 2048
#define K1 0
#define B1 (K1 + 27 * 32)
#define K2 (B1 + 32)
#define B2 (K2 + 9 * 32 * 64)
#define K3 (B2 + 64)
#define B3 (K3 + 9 * 64 * 128)
#define K4 (B3 + 128)
#define B4 (K4 + FLAT * CLASSES)
#define SIZE (B4 + CLASSES)

typedef float v16 __attribute__((vector_size(64), aligned(4), may_alias));
typedef int32_t v16i __attribute__((vector_size(64), aligned(4), may_alias));
#define AT(pointer) (*(v16 *)(pointer))
#define READ(pointer) (*(const v16 *)(pointer))
/* Of which vectors do not cross lines of the cache. */
#define ARRAY static __attribute__((aligned(64)))
#define INLINE static inline __attribute__((always_inline))

/* Inputs of the blocks, in a frame of zeros, and their derivatives. The first is read in
   vectors, past its end. */
ARRAY float x1[34 * 34 * 3 + 16], x2[18 * 18 * 32], x3[10 * 10 * 64], x4[FLAT];
ARRAY float d2[18 * 18 * 32], d3[10 * 10 * 64], d4[FLAT];
/* Outputs of a convolution; which of the neighbours is the largest. */
ARRAY float z[32 * 32 * 32];
ARRAY int32_t from1[16 * 16 * 32], from2[8 * 8 * 64], from3[FLAT];
/* Of each filter: where its derivatives are in the frame, and the derivatives. */
ARRAY int32_t counts[128], places[8192];
ARRAY float values[8192];
ARRAY float packed[SIZE], transposed[SIZE], g[SIZE], total[SIZE];

/* x in its frame [side + 2][side + 2][channels]; kernel [filters / 32][9 channels][32]. */
INLINE void convolve(const float *x, const float *kernel, const float *bias, int side,
                     int channels, int filters) {
  for (int f = 0; f < filters; f += 32, kernel += 9 * channels * 32)
    for (int i = 0; i < side; i++)
      for (int j = 0; j < side; j += 8) {
        v16 sum[8][2];
#pragma GCC unroll 8
        for (int k = 0; k < 8; k++) {
          sum[k][0] = READ(bias + f);
          sum[k][1] = READ(bias + f + 16);
        }
        for (int r = 0; r < 3; r++) {
          const float *row = x + ((i + r) * (side + 2) + j) * channels;
          const float *taps = kernel + r * 3 * channels * 32;
          for (int t = 0; t < 3 * channels; t++) {
            v16 low = READ(taps + t * 32), high = READ(taps + t * 32 + 16);
#pragma GCC unroll 8
            for (int k = 0; k < 8; k++) {
              float value = row[k * channels + t];
              sum[k][0] += value * low;
              sum[k][1] += value * high;
            }
          }
        }
        float *out = z + (i * side + j) * filters + f;
#pragma GCC unroll 8
        for (int k = 0; k < 8; k++) {
          AT(out + k * filters) = sum[k][0];
          AT(out + k * filters + 16) = sum[k][1];
        }
      }
}

/* The first of the four largest neighbours in z, as TensorFlow takes it, and its relu, into
   rows of `stride` floats. */
INLINE void pool(float *a, int32_t *from, int side, int filters, int stride) {
  const int offset[4] = {0, filters, side * filters, (side + 1) * filters};
  for (int i = 0; i < side / 2; i++)
    for (int j = 0; j < side / 2; j++) {
      const float *corner = z + (2 * i * side + 2 * j) * filters;
      int32_t *mine = from + (i * (side / 2) + j) * filters;
      float *out = a + i * stride + j * filters;
      for (int f = 0; f < filters; f += 16) {
        v16 largest = READ(corner + f);
        v16i which = {0};
#pragma GCC unroll 3
        for (int32_t k = 1; k < 4; k++) {
          v16 other = READ(corner + offset[k] + f);
          v16i more = other > largest;
          which = (which & ~more) | (k & more);
          largest = (v16)(((v16i)largest & ~more) | ((v16i)other & more));
        }
        *(v16i *)(mine + f) = which;
        AT(out + f) = (v16)((v16i)largest & (largest > 0.0f));
      }
    }
}

/* The derivatives that are not zero; a and da are in rows of `stride`. */
INLINE void find(const float *a, const float *da, const int32_t *from, int side,
                 int channels, int filters, int stride) {
  int windows = side * side / 4;
  memset(counts, 0, sizeof counts);
  for (int i = 0; i < side / 2; i++)
    for (int j = 0; j < side / 2; j++) {
      int at = i * stride + j * filters, corner = 2 * i * (side + 2) + 2 * j;
      const int32_t *mine = from + (i * (side / 2) + j) * filters;
      for (int f = 0; f < filters; f++) {
        int place = corner + (mine[f] >> 1) * (side + 2) + (mine[f] & 1);
        places[f * windows + counts[f]] = place * channels;
        values[f * windows + counts[f]] = da[at + f];
        counts[f] += a[at + f] > 0.0f;
      }
    }
}

/* Gradients of kernel (transposed) and bias from what was found, and dx in its frame. */
INLINE void unconvolve(const float *x, float *dx, const float *kernel, float *g_kernel,
                       float *g_bias, int side, int channels, int filters) {
  enum { MOST = 12 };
  int windows = side * side / 4, row = (side + 2) * channels, width = 3 * channels;
  int vectors = (width + 15) / 16;
  if (dx) memset(dx, 0, sizeof(float) * (side + 2) * row);
  for (int f = 0; f < filters; f++) {
    const int32_t *place = places + f * windows;
    const float *d = values + f * windows;
    int count = counts[f];
    float bias = 0.0f;
    for (int n = 0; n < count; n++) bias += d[n];
    g_bias[f] = bias;
    for (int r = 0; r < 3; r++) {
      v16 sum[MOST], weights[MOST];
#pragma GCC unroll 12
      for (int k = 0; k < vectors; k++) {
        sum[k] = (v16){0};
        if (dx) weights[k] = READ(kernel + (f * 3 + r) * width + 16 * k);
      }
      for (int n = 0; n < count; n++) {
        const float *from = x + place[n] + r * row;
#pragma GCC unroll 12
        for (int k = 0; k < vectors; k++) sum[k] += d[n] * READ(from + 16 * k);
        if (dx) {
          float *to = dx + place[n] + r * row;
#pragma GCC unroll 12
          for (int k = 0; k < vectors; k++) AT(to + 16 * k) += d[n] * weights[k];
        }
      }
      float *out = g_kernel + (f * 3 + r) * width;
#pragma GCC unroll 12
      for (int k = 0; k < vectors; k++) {
        v16 whole = sum[k];
        int size = width - 16 * k < 16 ? width - 16 * k : 16;
        memcpy(out + 16 * k, &whole, sizeof(float) * size);
      }
    }
  }
}

static void forward(const float *image, const float *w, float *logits) {
  for (int i = 0; i < 32; i++)
    memcpy(x1 + ((i + 1) * 34 + 1) * 3, image + i * 96, sizeof(float) * 96);
  convolve(x1, packed + K1, w + B1, 32, 3, 32);
  pool(x2 + 19 * 32, from1, 32, 32, 18 * 32);
  convolve(x2, packed + K2, w + B2, 16, 32, 64);
  pool(x3 + 11 * 64, from2, 16, 64, 10 * 64);
  convolve(x3, packed + K3, w + B3, 8, 64, 128);
  pool(x4, from3, 8, 128, 4 * 128);
  for (int c = 0; c < CLASSES; c++) {
    float sum = 0.0f;
    for (int t = 0; t < FLAT; t++) sum += x4[t] * transposed[K4 + c * FLAT + t];
    logits[c] = w[B4 + c] + sum;
  }
}

static void backward(const float *logits, int label) {
  float *d = g + B4;
  residuals(logits, label, d);
  memset(d4, 0, sizeof d4);
  for (int c = 0; c < CLASSES; c++)
    for (int t = 0; t < FLAT; t++) {
      g[K4 + c * FLAT + t] = d[c] * x4[t];
      d4[t] += d[c] * transposed[K4 + c * FLAT + t];
    }
  find(x4, d4, from3, 8, 64, 128, 4 * 128);
  unconvolve(x3, d3, transposed + K3, g + K3, g + B3, 8, 64, 128);
  find(x3 + 11 * 64, d3 + 11 * 64, from2, 16, 32, 64, 10 * 64);
  unconvolve(x2, d2, transposed + K2, g + K2, g + B2, 16, 32, 64);
  find(x2 + 19 * 32, d2 + 19 * 32, from1, 32, 3, 32, 18 * 32);
  unconvolve(x1, 0, 0, g + K1, g + B1, 32, 3, 32);
}

/* [rows][columns] to [columns][rows]. */
static void transpose(const float *from, float *to, int rows, int columns) {
  for (int i = 0; i < rows; i++)
    for (int j = 0; j < columns; j++) to[j * rows + i] = from[i * columns + j];
}

static void pack(const float *kernel, float *to, int rows, int filters) {
  for (int f = 0; f < filters; f += 32)
    for (int t = 0; t < rows; t++, to += 32)
      memcpy(to, kernel + t * filters + f, sizeof(float) * 32);
}

/* Adds up the clipped gradients of the chosen examples (network.h says how they are
   clipped). x: [.][32][32][3]. */
void clipped_sum(const float *x, const int32_t *y, const int64_t *chosen, int64_t count,
                 const float *w, float clip, float gamma, float *sum) {
  float logits[CLASSES];
  pack(w + K1, packed + K1, 27, 32);
  pack(w + K2, packed + K2, 9 * 32, 64);
  pack(w + K3, packed + K3, 9 * 64, 128);
  transpose(w + K2, transposed + K2, 9 * 32, 64);
  transpose(w + K3, transposed + K3, 9 * 64, 128);
  transpose(w + K4, transposed + K4, FLAT, CLASSES);
  memset(total, 0, sizeof total);
  for (int64_t n = 0; n < count; n++) {
    forward(x + chosen[n] * 32 * 32 * 3, w, logits);
    backward(logits, y[chosen[n]]);
    float factor = clip_factor(g, SIZE, clip, gamma);
    for (int i = 0; i < SIZE; i++) total[i] += factor * g[i];
  }
  memcpy(sum, total, sizeof total);
  transpose(total + K1, sum + K1, 32, 27);
  transpose(total + K2, sum + K2, 64, 9 * 32);
  transpose(total + K3, sum + K3, 128, 9 * 64);
  transpose(total + K4, sum + K4, CLASSES, FLAT);
}
