/* Clipped gradients of the Fashion-MNIST network of cnn_tasks.py, one example after the other.

   Weights and gradients in Keras' order: kernel [8][8][16] and bias of the first convolution,
   kernel [4][4][16][32] and bias of the second, [512][32] and bias, [32][10] and bias. The
   largest of neighbours is taken before tanh, which rises: that is the same. Vectors of
   8 floats (GCC, Clang) where compilers alone leave sums in memory. */

#include <stdint.h>
#include <string.h>

#include "network.h"

#define SIDE 32
#define F1 16
#define F2 32
#define K1 0
#define B1 (K1 + 64 * F1)
#define K2 (B1 + F1)
#define B2 (K2 + 256 * F2)
#define K3 (B2 + F2)
#define B3 (K3 + 512 * 32)
#define K4 (B3 + 32)
#define B4 (K4 + 320)
#define SIZE (B4 + 10)

typedef float v8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef int32_t v8i __attribute__((vector_size(32), aligned(4), may_alias));
#define AT(pointer) (*(v8 *)(pointer))
#define READ(pointer) (*(const v8 *)(pointer))

typedef struct {
  float z1[13][13][F1], a1[12][12][F1], z2[5][5][F2], a2[4][4][F2], a3[32], logits[10];
  int32_t from1[12][12][F1], from2[4][4][F2];
} Pass;

/* To 2e-7. 2^y for y = 2 x / log 2: the integer part goes into the exponent. */
static void hyperbolic_tangents(float *x, int count) {
  for (int i = 0; i < count; i += 8) {
    for (int k = 0; k < 8; k++) {
      x[i + k] = x[i + k] > 9.0f ? 9.0f : x[i + k];
      x[i + k] = x[i + k] < -9.0f ? -9.0f : x[i + k];
    }
    v8 y = READ(x + i) * 2.885390082f;
    v8i whole = __builtin_convertvector(y, v8i);
    v8 f = 0.693147181f * (y - __builtin_convertvector(whole, v8)), power = f / 8.0f + 1.0f;
#pragma GCC unroll 7
    for (int k = 7; k > 0; k--) power = power * f / (float)k + 1.0f;
    v8i bits = (v8i)power + (whole << 23);
    power = (v8)bits;
    AT(x + i) = (power - 1.0f) / (power + 1.0f);
  }
}

/* The first of the four largest neighbours, as TensorFlow takes it, and its tanh. */
static void pool(const float *z, float *a, int32_t *from, int side, int filters) {
  for (int i = 0; i < side - 1; i++)
    for (int j = 0; j < side - 1; j++) {
      const float *corner = z + (i * side + j) * filters;
      int at = (i * (side - 1) + j) * filters;
      const int offset[4] = {0, filters, side * filters, (side + 1) * filters};
      for (int f = 0; f < filters; f++) {
        float largest = corner[f];
        int32_t which = 0;
        for (int32_t k = 1; k < 4; k++) {
          float other = corner[offset[k] + f];
          which = other > largest ? k : which;
          largest = other > largest ? other : largest;
        }
        from[at + f] = which;
        a[at + f] = largest;
      }
    }
  hyperbolic_tangents(a, (side - 1) * (side - 1) * filters);
}

/* Gradients of z from those of a = tanh(max(z)). */
static void unpool(const float *a, const float *da, const int32_t *from, float *dz,
                   int side, int filters) {
  memset(dz, 0, sizeof(float) * side * side * filters);
  for (int i = 0; i < side - 1; i++)
    for (int j = 0; j < side - 1; j++) {
      float *corner = dz + (i * side + j) * filters;
      int at = (i * (side - 1) + j) * filters;
      const int offset[4] = {0, filters, side * filters, (side + 1) * filters};
      for (int32_t k = 0; k < 4; k++)
        for (int f = 0; f < filters; f++) {
          float d = da[at + f] * (1.0f - a[at + f] * a[at + f]);
          corner[offset[k] + f] += from[at + f] == k ? d : 0.0f;
        }
    }
}

/* Five of a row's 13 outputs of the first convolution. */
static void convolved_row(const float *x, const float *w, float *z) {
  v8 sum[5][2];
#pragma GCC unroll 5
  for (int j = 0; j < 5; j++) {
    sum[j][0] = READ(w + B1);
    sum[j][1] = READ(w + B1 + 8);
  }
  for (int t = 0; t < 64; t++) {
    const float *row = x + t / 8 * SIDE + t % 8;
    v8 low = READ(w + K1 + t * F1), high = READ(w + K1 + t * F1 + 8);
#pragma GCC unroll 5
    for (int j = 0; j < 5; j++) {
      sum[j][0] += row[2 * j] * low;
      sum[j][1] += row[2 * j] * high;
    }
  }
#pragma GCC unroll 5
  for (int j = 0; j < 5; j++) {
    AT(z + j * F1) = sum[j][0];
    AT(z + j * F1 + 8) = sum[j][1];
  }
}

static void forward(const float *x, const float *w, Pass *p) {
  for (int i = 0; i < 13; i++) {
    convolved_row(x + 2 * i * SIDE, w, p->z1[i][0]);
    convolved_row(x + 2 * i * SIDE + 10, w, p->z1[i][5]);
    convolved_row(x + 2 * i * SIDE + 16, w, p->z1[i][8]);
  }
  pool(&p->z1[0][0][0], &p->a1[0][0][0], &p->from1[0][0][0], 13, F1);
  /* Two rows at a time; the last one twice. */
  for (int i = 0; i < 5; i += 2)
    for (int j = 0; j < 5; j++) {
      int next = i < 4 ? i + 1 : i;
      v8 sum[2][4];
#pragma GCC unroll 4
      for (int k = 0; k < 4; k++) sum[0][k] = sum[1][k] = READ(w + B2 + 8 * k);
      for (int r = 0; r < 4; r++) {
        const float *a = &p->a1[2 * i + r][2 * j][0], *kernel = w + K2 + r * 64 * F2;
        const float *b = &p->a1[2 * next + r][2 * j][0];
        for (int t = 0; t < 64; t++) {
#pragma GCC unroll 4
          for (int k = 0; k < 4; k++) {
            v8 weights = READ(kernel + t * F2 + 8 * k);
            sum[0][k] += a[t] * weights;
            sum[1][k] += b[t] * weights;
          }
        }
      }
#pragma GCC unroll 4
      for (int k = 0; k < 4; k++) {
        AT(p->z2[i][j] + 8 * k) = sum[0][k];
        AT(p->z2[next][j] + 8 * k) = sum[1][k];
      }
    }
  pool(&p->z2[0][0][0], &p->a2[0][0][0], &p->from2[0][0][0], 5, F2);
  float z[32];
  memcpy(z, w + B3, sizeof z);
  for (int t = 0; t < 512; t++)
    for (int f = 0; f < 32; f++) z[f] += (&p->a2[0][0][0])[t] * w[K3 + t * 32 + f];
  for (int f = 0; f < 32; f++) p->a3[f] = tanhf(z[f]);
  for (int c = 0; c < 10; c++) {
    p->logits[c] = w[B4 + c];
    for (int f = 0; f < 32; f++) p->logits[c] += p->a3[f] * w[K4 + f * 10 + c];
  }
}

/* The gradient g [SIZE] of the cross-entropy; kernel2 is [F2][256], the second one's. */
static void backward(const float *x, int label, const float *w, const float *kernel2,
                     const Pass *p, float *g) {
  float d4[10], d3[32];
  float da2[4][4][F2], dz2[5][5][F2], da1[12][12][F1], dz1[13][13][F1];
  memset(g, 0, sizeof(float) * SIZE);
  residuals(p->logits, label, d4);
  memcpy(g + B4, d4, sizeof d4);
  for (int f = 0; f < 32; f++) {
    float sum = 0.0f;
    for (int c = 0; c < 10; c++) {
      g[K4 + f * 10 + c] = p->a3[f] * d4[c];
      sum += w[K4 + f * 10 + c] * d4[c];
    }
    g[B3 + f] = d3[f] = sum * (1.0f - p->a3[f] * p->a3[f]);
  }
  for (int t = 0; t < 512; t++) {
    float a = (&p->a2[0][0][0])[t], sum = 0.0f;
    for (int f = 0; f < 32; f++) {
      g[K3 + t * 32 + f] = a * d3[f];
      sum += w[K3 + t * 32 + f] * d3[f];
    }
    (&da2[0][0][0])[t] = sum;
  }
  unpool(&p->a2[0][0][0], &da2[0][0][0], &p->from2[0][0][0], &dz2[0][0][0], 5, F2);
  memset(da1, 0, sizeof da1);
  for (int i = 0; i < 5; i++)
    for (int j = 0; j < 5; j++) {
      const float *d = dz2[i][j];
      for (int f = 0; f < F2; f++) g[B2 + f] += d[f];
      for (int r = 0; r < 4; r++) {
        float *da = &da1[2 * i + r][2 * j][0];
        v8 sum[8];
#pragma GCC unroll 8
        for (int k = 0; k < 8; k++) sum[k] = READ(da + 8 * k);
        for (int f = 0; f < F2; f++) {
#pragma GCC unroll 8
          for (int k = 0; k < 8; k++) sum[k] += d[f] * READ(kernel2 + f * 256 + r * 64 + 8 * k);
        }
#pragma GCC unroll 8
        for (int k = 0; k < 8; k++) AT(da + 8 * k) = sum[k];
      }
    }
  /* Two weights of the kernel at a time. */
  for (int r = 0; r < 4; r++)
    for (int t = 0; t < 64; t += 2) {
      v8 sum[2][4] = {0};
      for (int i = 0; i < 5; i++)
        for (int j = 0; j < 5; j++) {
          const float *a = &p->a1[2 * i + r][2 * j][0] + t;
#pragma GCC unroll 4
          for (int k = 0; k < 4; k++) {
            v8 part = READ(dz2[i][j] + 8 * k);
            sum[0][k] += a[0] * part;
            sum[1][k] += a[1] * part;
          }
        }
#pragma GCC unroll 4
      for (int k = 0; k < 4; k++) {
        AT(g + K2 + (r * 64 + t) * F2 + 8 * k) = sum[0][k];
        AT(g + K2 + (r * 64 + t + 1) * F2 + 8 * k) = sum[1][k];
      }
    }
  unpool(&p->a1[0][0][0], &da1[0][0][0], &p->from1[0][0][0], &dz1[0][0][0], 13, F1);
  for (int i = 0; i < 169; i++)
    for (int f = 0; f < F1; f++) g[B1 + f] += (&dz1[0][0][0])[i * F1 + f];
  /* Four taps of the kernel at a time. */
  for (int t = 0; t < 64; t += 4) {
    const float *first = x + t / 8 * SIDE + t % 8;
    v8 sum[4][2] = {0};
    for (int i = 0; i < 13; i++)
      for (int j = 0; j < 13; j++) {
        const float *pixel = first + 2 * i * SIDE + 2 * j;
        v8 low = READ(dz1[i][j]), high = READ(dz1[i][j] + 8);
#pragma GCC unroll 4
        for (int k = 0; k < 4; k++) {
          sum[k][0] += pixel[k] * low;
          sum[k][1] += pixel[k] * high;
        }
      }
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++) {
      AT(g + K1 + (t + k) * F1) = sum[k][0];
      AT(g + K1 + (t + k) * F1 + 8) = sum[k][1];
    }
  }
}

/* Adds up the clipped gradients of the chosen examples (network.h says how they are
   clipped). x: [.][32][32], already padded. */
void clipped_sum(const float *x, const int32_t *y, const int64_t *chosen, int64_t count,
                 const float *w, float clip, float gamma, float *sum) {
  float kernel2[F2 * 256], g[SIZE];
  Pass pass;
  for (int t = 0; t < 256; t++)
    for (int f = 0; f < F2; f++) kernel2[f * 256 + t] = w[K2 + t * F2 + f];
  memset(sum, 0, sizeof(float) * SIZE);
  for (int64_t n = 0; n < count; n++) {
    const float *image = x + chosen[n] * SIDE * SIDE;
    forward(image, w, &pass);
    backward(image, y[chosen[n]], w, kernel2, &pass, g);
    float factor = clip_factor(g, SIZE, clip, gamma);
    for (int i = 0; i < SIZE; i++) sum[i] += factor * g[i];
  }
}
